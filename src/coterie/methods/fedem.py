"""Marfoq, Neglia, Bellet, Kameni, Vidal (2021), Federated multi-task learning under a mixture of distributions, Alg. 1.

FedEM: every row comes of one of k distributions, in shares pi_t that are each client's own. In a round a client finds
which component its rows are of (E step), ``q(r, j) ~ pi_tj exp(-l(theta_j; r))``, then its shares, the means of q, and
takes steps of every component on its rows, weighed by q (M step); the server averages each. A row's answer is the
components' by pi_t. (PFLlib does not have it.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation, Site, Sums, work
from coterie.methods.ifca import IFCA
from coterie.methods.local_training.client_work import LocalRound, Reply, finite
from coterie.methods.local_training.rounds import State, average
from coterie.numerics.arrays import Floats, Ints
from coterie.objectives.row_kernels import owned_rows
from coterie.objectives.wide_models import Mixture, loss_of
from coterie.options import Option


def responsibilities(site: Site, w: Floats, pi: Floats, noise: float | None) -> Floats:
    """The E step: q (rows, k) of all rows, client after client, under components w (k, d) and shares pi (m, k)."""
    o = site.objective
    if getattr(o, "row_losses", None) is None:
        raise CoterieError(f"FedEM asks for losses of single rows, which {type(o).__name__} has not.")
    if (loss := loss_of(o, "FedEM")) != "mse" and noise is not None:
        raise CoterieError(f"FedEM's noise is the variance of outcomes under mse, not {loss}: leave it out.")
    scale = 1.0 if noise is None else 2.0 * noise
    losses = np.stack([o.row_losses(np.broadcast_to(c, (len(site), len(c)))) for c in w], axis=1)
    with np.errstate(divide="ignore"):
        z = np.log(np.repeat(pi, o.counts, axis=0)) - losses / scale
    z = np.where(np.isnan(z), -np.inf, z)
    top = z.max(axis=1, keepdims=True, initial=-np.inf)
    q = np.where(np.isfinite(top), np.exp(z - np.where(np.isfinite(top), top, 0.0)), 1.0)
    return np.asarray(q / q.sum(axis=1, keepdims=True))


@work
def update(site: Site, w: Floats, tau: int, noise: float | None, **sent: Any) -> Reply:
    """Algorithm 2: both steps; a component is sent as it came where a client's steps of any diverge."""
    m, k = len(site), len(w)
    whole = getattr(site.objective, "train", site.objective)
    pi = site.state.get("pi", np.full((m, k), 1.0 / k))
    q = responsibilities(site, w, pi, noise)
    owner, rows = owned_rows(whole.starts, whole.stops)
    size = np.bincount(owner, whole.weights[rows], m)
    part = np.stack([np.bincount(owner, whole.weights[rows] * q[:, j], m) for j in range(k)], axis=1)
    share = part / np.where(size > 0.0, size, 1.0)[:, None]
    found = []
    for j in range(k):
        weights = np.zeros_like(whole.weights)
        weights[rows] = whole.weights[rows] * q[:, j]
        # the mean loss of rows by q, times the share of q, is the sum of ``q l`` over the weight of all rows
        here = LocalRound(site, w=w[j], **sent | {"eta": sent["eta"] * share[:, j]})
        found.append(here.train(steps=tau, objective=replace(whole, weights=weights), plain=True))
    good = finite(*found)
    site.state["pi"] = np.where((good & (size > 0.0))[:, None], share, pi)
    reply = here.reply(found[0], good)
    x = np.where(good[:, None, None], np.stack(found, axis=1), 0.0) * reply["w"].astype(w.dtype)[:, None, None]
    return reply | {"x": x, "w": np.tile(reply["w"][:, None], k)}


@work
def shares(site: Site, k: int) -> Reply:
    """A client's pi (m, k)."""
    return {"pi": site.state.get("pi", np.full((len(site), k), 1.0 / k))}


@dataclass(frozen=True, kw_only=True)
class FedEM(IFCA):
    """Algorithm 1 with fixed step sizes; clients count by the weight of their rows, in every component.

    A squared error is minus the logarithm of a normal density, times twice the variance of its ``noise``, which the
    paper does not have: 0.5 takes losses as they are. Answers are means of the mixture. A client that comes later has
    the components as they are, and learns its shares alone.
    """

    joins: ClassVar[str] = "rounds"
    without = ("FedEM's clients send all of every component, as it is", "up down personal")
    noise: Annotated[
        float | None, Option("Under the loss mse: the variance of outcomes around a component, usually .5.", above=0.0)
    ] = None

    def init(self, fed: Federation, w: Floats | None = None) -> State:
        """The state before the first round, at components w (k, d)."""
        state = super().init(fed, w)
        if "whole" in state:
            raise CoterieError(
                "FedEM has several nets and one set of statistics that stay with a client: say buffers='averaged', or "
                "take a net with GroupNorm."
            )
        return {name: value for name, value in state.items() if name != "group"}

    def round(self, fed: Federation, state: State, to: Ints) -> tuple[Sums, State]:
        """Both steps of the clients ``to``, and a mean for each component."""
        sums = self.exchange(fed, update, to, state)
        return sums, {"w": average(sums, state["w"])}

    def models(self, fed: Federation, state: State) -> Floats:
        """Every client's components and shares (m, k d + k); 1 / k each where it never took part."""
        w, m = state["w"], len(fed.clients)
        pi, replies = np.full((m, self.k), 1.0 / self.k), fed.ask(shares, k=self.k)
        if replies:
            pi[replies.to[replies.rows]] = replies["pi"]
        return np.concatenate([np.tile(w.ravel(), (m, 1)), pi.astype(w.dtype)], axis=1)

    def reads(self, objective: Any, width: int) -> Any:
        """Rows as these models answer for them."""
        return Mixture(objective, width, loss_of(objective, "FedEM"))
