"""Ruan, Joe-Wong (2022), FedSoft: soft clustered federated learning with proximal local updating, Algorithm 1.

A client's rows may be of several of k groups with centres c_s. Every so often it finds which share u_s of its rows
each centre fits best; its own model nearly minimises ``F_i(w) + lambda / 2 sum_s u_s |w - c_s|^2``, and counts ``u_s
n_i`` in the new c_s. (PFLlib does not have it.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation, Site, Sums, work
from coterie.methods.ifca import IFCA
from coterie.methods.local_training.client_work import LocalRound, ModelTransport, Reply, merge
from coterie.methods.local_training.rounds import State, average
from coterie.numerics.arrays import Floats, Ints
from coterie.options import Option


def shares(site: Site, centres: Floats, transport: ModelTransport, least: float) -> Floats:
    """Line 4: u (m, k), what share of its rows each centre (k, d1) fits best, ``least`` at least; the sum is 1."""
    m, k, rows = len(site), len(centres), getattr(site.objective, "row_losses", None)
    if rows is None:
        raise CoterieError(f"FedSoft asks for losses of single rows, which {type(site.objective).__name__} has not.")
    losses = np.array([rows(merge(site, c, transport)) for c in centres])
    owner = np.repeat(np.arange(m), site.objective.counts)
    best = np.argmin(np.nan_to_num(losses, nan=np.inf, posinf=np.inf), axis=0)
    u = np.bincount(owner * k + best, site.objective.row_weights(), m * k).reshape(m, k)
    total = u.sum(axis=1, keepdims=True)
    u = np.maximum(u / np.where(total > 0.0, total, 1.0), least)
    return np.asarray(u / u.sum(axis=1, keepdims=True))


def centre(site: Site, w: Floats, transport: ModelTransport) -> tuple[Floats, Floats]:
    """A client's u (m, k), and the mean (m, d) of the centres w (k, d1) by it."""
    u = site.state.get("u", np.full((len(site), len(w)), 1.0 / len(w)))
    return u, merge(site, (u @ w).astype(w.dtype), transport)


@work
def importance(site: Site, w: Floats, transport: ModelTransport, least: float) -> Reply:
    """The shares of a client's rows, which it keeps until they are asked for again."""
    site.state["u"] = u = shares(site, w, transport, least)
    return {"u": u}


@work
def update(site: Site, w: Floats, tau: int, lam: float, **sent: Any) -> Reply:
    """Lines 6 and 7: steps of a client's own model, which is sent once for every centre, times its share."""
    here = LocalRound(site, w=w, **sent)
    u, anchor = centre(site, w, here.transport)
    own = site.state.get("theta", anchor)
    theta = here.train(own, tau, anchor=anchor, pull=lam)
    reply = here.reply(theta, kept={"theta": (theta, own)})
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
    longer = ("tau", 5)
    without = ("FedSoft's clients send one model for every centre, which no codec does", "up down")
    model = staticmethod(own_model)

    def round(self, fed: Federation, state: State, to: Ints) -> tuple[Sums, State]:
        """Lines 2 to 10; a group is where most of a client's rows are."""
        group = state["group"].copy()
        if state["t"] % self.every == 0:
            found = fed.ask(importance, to=to, **self.told(importance, state))
            if found:
                group[found.to[found.rows]] = np.argmax(found["u"], axis=1)
        sums = self.exchange(fed, update, to, state)
        return sums, {"w": average(sums, state["w"]), "group": group}
