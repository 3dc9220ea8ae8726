"""Luo, Wu (2022), Adapt to adaptation: learning personalization for cross-silo federated learning, Algorithm 1: APPLE.

Every client has a core model w_i and directed relations p_i to all: its model is ``sum_j p_ij w_j``. Steps of ``F_i +
lambda(t) mu / 2 |p_i - p_0|^2`` move its own core model and p_i; the others' stay as they were sent. p_0 are shares of
rows, and lambda falls from 1 to 0, so that clients first collaborate with all, then with whom it helps. (PFLlib makes
the mixture the new core model, takes means of products for the gradient of p_i, and eta times the number of clients.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation, PerRow, Site, Sums, work
from coterie.methods.feddyn import count
from coterie.methods.local_training.client_work import LocalRound, ModelTransport, Reply, finite, merge, train
from coterie.methods.local_training.personalized_aggregation import OwnModels
from coterie.methods.local_training.rounds import Passes, State, client_models
from coterie.numerics.arrays import Floats, Ints
from coterie.objectives.parameters import parameter_mask
from coterie.options import Option


@work
def mixture(site: Site, cores: Floats, p: Floats, transport: ModelTransport) -> Reply:
    """A client's model (m, d) of all core models (N, d1)."""
    return {"theta": merge(site, (p @ cores).astype(cores.dtype), transport)}


@work
def update(site: Site, w: Floats, who: Ints, p: Floats, p0: Floats, eta_p: float, pull: float, **sent: Any) -> Reply:
    """Lines 7 to 13: the gradient at the mixture moves the own core model c_i, its products with all move p_i."""
    here, cores, before = LocalRound(site, **sent), w, w[who]
    steps, shared, eta = here.steps, ~here.own, here.eta
    moves, part = ~parameter_mask(site.objective), slice(None) if shared.all() else shared
    core, p, theta = np.array(before), np.array(p), np.array(merge(site, before, here.transport))
    for s in range(int(steps.max(initial=0))):
        on = slice(None) if s < steps.min() else np.flatnonzero(steps > s)  # of all, nothing is copied
        rows, own, at = np.arange(len(who[on])), p[on].astype(core.dtype), theta[on]
        mine = own[rows, who[on], None]
        at[:, part] = own @ cores + mine * (core[on] - before[on])
        end = train(site.take(on), at, 1.0, 1, here.t * steps[on] + s, here.B, plain=True)
        g = (at - end)[:, part]
        inner = g @ cores.T
        inner[rows, who[on]] = np.sum(g * core[on], axis=1)
        if not shared.all():  # the mixture is made anew, and own layers move by themselves
            theta[on] = np.where(moves, at - eta * (at - end), end)
        core[on] -= eta * mine * g
        p[on] -= eta_p * (inner + pull * (p[on] - p0))
    good = finite(core, theta, p)
    theta[:, shared] = np.where(good[:, None], core, before)
    return here.reply(theta, good) | {"p": np.where(good[:, None], p, 0.0)}


@dataclass(frozen=True, kw_only=True)
class APPLE(OwnModels):
    """Algorithm 1; every client downloads all core models, so that a round's bytes grow with the square of clients."""

    E: Passes = 1
    eta_p: Annotated[float, Option("Step size of the directed relations.", above=0.0)] = 0.01
    mu: Annotated[float, Option("Strength with which they are held at the shares of rows.", low=0.0)] = 0.1
    L: Annotated[int, Option("Rounds until that has fallen to 0, along a cosine.", low=1)] = 50
    update = staticmethod(update)
    mixes = True
    without = ("APPLE sends all models to all clients, which no codec does", "up down")

    def init(self, fed: Federation, w: Floats | None = None) -> State:
        """The state before the first round; relations begin at the shares of rows."""
        replies, n = fed.ask(count), np.zeros(len(fed.clients))
        if replies:
            n[replies.to[replies.rows]] = replies["N"]
        p0 = n / n.sum() if n.sum() > 0.0 else np.full(len(n), 1.0 / len(n))
        state = super().init(fed, w)
        if "statistics" in state:
            raise CoterieError(
                "APPLE's weights move by gradients and do not add up to 1, and BatchNorm's statistics have none: let "
                "them stay at home (buffers='personal'), or name their layers in personal."
            )
        return state | {"p0": p0, "weights": np.tile(p0, (len(n), 1))}

    def among(self, fed: Federation, others: Floats, counts: Floats) -> State:
        """As of all such methods; relations begin at the shares of all rows."""
        n = np.append(counts, fed.ask(count, to=[len(counts)])["N"])
        return super().among(fed, others, counts) | {"p0": n / n.sum(), "weights": np.tile(n / n.sum(), (len(n), 1))}

    def round(self, fed: Federation, state: State, to: Ints) -> tuple[Sums, State]:
        """Core models go to all, and come back with relations."""
        t, p = state["t"], state["weights"]
        fade = (np.cos(np.pi * t / self.L) + 1.0) / 2.0 if t < self.L else 0.0
        sums, new = self.received(fed, state, to, p, who=PerRow(to), p=PerRow(p[to]), pull=fade * self.mu)
        if sums:
            good = sums["w"] > 0.0
            new["weights"] = np.where(good[:, None], sums["p"], p)
        return sums, new

    def models(self, fed: Federation, state: State) -> Floats:
        """Every client's mixture (m, d)."""
        over = {"cores": state["w"], "p": PerRow(state["weights"]), "transport": self.transport}
        return client_models(fed, state, mixture, **over)
