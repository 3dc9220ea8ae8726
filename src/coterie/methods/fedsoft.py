"""Ruan, Joe-Wong (2022), FedSoft: soft clustered federated learning with proximal local updating, Algorithm 1.

A client's rows may be of several of k groups with centres c_s. Every so often it finds which share u_s of its rows
each centre fits best; its own model nearly minimises ``F_i(w) + lambda / 2 sum_s u_s |w - c_s|^2``, and counts ``u_s
n_i`` in the new c_s. (PFLlib does not have it.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation, Site, Sums, work
from coterie.methods.ifca import IFCA
from coterie.methods.local_training import client_work as client
from coterie.methods.local_training.client_work import ModelTransport, Reply
from coterie.methods.local_training.rounds import Smoothness, State, average, client_models
from coterie.numerics.arrays import Floats, Ints
from coterie.options import Option


def shares(site: Site, centres: Floats, transport: ModelTransport, least: float) -> Floats:
    """Line 4: u (m, k), what share of its rows each centre (k, d1) fits best, ``least`` at least; the sum is 1."""
    m, k, rows = len(site), len(centres), getattr(site.objective, "row_losses", None)
    if rows is None:
        raise CoterieError(f"FedSoft asks for losses of single rows, which {type(site.objective).__name__} has not.")
    losses = np.array([rows(client.merge(site, c, transport)) for c in centres])
    owner = np.repeat(np.arange(m), site.objective.counts)
    best = np.argmin(np.nan_to_num(losses, nan=np.inf, posinf=np.inf), axis=0)
    u = np.bincount(owner * k + best, site.objective.row_weights(), m * k).reshape(m, k)
    total = u.sum(axis=1, keepdims=True)
    u = np.maximum(u / np.where(total > 0.0, total, 1.0), least)
    return np.asarray(u / u.sum(axis=1, keepdims=True))


def centre(site: Site, w: Floats, transport: ModelTransport) -> tuple[Floats, Floats]:
    """A client's u (m, k), and the mean (m, d) of the centres w (k, d1) by it."""
    u = site.state.get("u", np.full((len(site), len(w)), 1.0 / len(w)))
    return u, client.merge(site, (u @ w).astype(w.dtype), transport)


@work
def importance(site: Site, w: Floats, transport: ModelTransport, least: float) -> Reply:
    """The shares of a client's rows, which it keeps until they are asked for again."""
    site.state["u"] = u = shares(site, w, transport, least)
    return {"u": u}


@work
def update(site: Site, w: Floats, transport: ModelTransport, eta: float, tau: int, B: int, t: int, lam: float) -> Reply:
    """Lines 6 and 7: steps of a client's own model, which is sent once for every centre, times its share."""
    u, anchor = centre(site, w, transport)
    own = site.state.get("theta", anchor)
    theta = client.train(site, own, eta, tau, t * tau, B, anchor=anchor, pull=lam)
    good = client.finite(theta)
    site.state["theta"] = np.where(good[:, None], theta, own)
    reply = client.make_reply(site, theta, transport, good)
    x = u.astype(w.dtype)[:, :, None] * reply["x"][:, None]
    return reply | {"x": x, "w": u * reply["w"][:, None]}


@work
def own_model(site: Site, w: Floats, transport: ModelTransport) -> Reply:
    """A client's model (m, d); the mean of the centres where it never took part."""
    return {"theta": site.state.get("theta", centre(site, w, transport)[1])}


@dataclass(frozen=True, kw_only=True)
class FedSoft(IFCA):
    """Algorithm 1; all clients that take part work for every centre, where the paper draws some for each by ``u n_i``.

    Shares are made to add up to 1 after the smallest were raised to ``least`` (sigma in the paper). The server sees
    sums of models, by shares; sites add them up first.
    """

    joins: ClassVar[str] = "rounds"
    lam: Annotated[float, Option("Pull to the centres; steps are stable for ``eta (L + lambda) < 2``.", low=0.0)]
    every: Annotated[int, Option("Rounds after which shares are found anew.", low=1)] = 2
    least: Annotated[float, Option("Smallest share of a centre.", low=0.0, below=1.0)] = 1e-4
    bends = "lam"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compression.active:
            raise CoterieError("FedSoft's clients send one model for every centre, which no codec does: leave it out.")

    @classmethod
    def suited(cls, losses: Smoothness, how: Mapping[str, Any]) -> dict[str, Any]:
        """Stable steps, and some of them."""
        return {"tau": 5} | super().suited(losses, how)

    def round(self, fed: Federation, state: State, to: Ints) -> tuple[Sums, State]:
        """Lines 2 to 10; a group is where most of a client's rows are."""
        t, w, group = state["t"], state["w"], state["group"].copy()
        if t % self.every == 0:
            found = fed.ask(importance, to=to, w=w, transport=self.transport, least=self.least)
            if found:
                group[found.to[found.rows]] = np.argmax(found["u"], axis=1)
        over = {"eta": self.rate(t), "tau": self.tau, "B": self.B, "t": t, "lam": self.lam}
        sums = self.exchange(fed, update, to, w, **over)
        return sums, {"w": average(sums, w), "group": group}

    @np.errstate(over="ignore", invalid="ignore")
    def models(self, fed: Federation, state: State) -> Floats:
        """Every client's own model (m, d)."""
        return client_models(fed, state, own_model, w=state["w"], transport=self.transport)
