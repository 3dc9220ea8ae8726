"""Zhang, Sapra, Fidler, Yeung, Alvarez (2021), Personalized federated learning with first order model optimization.

FedFomo: a client downloads M others' models theta_n and keeps some rows back to judge them by. It goes towards each by
``max((L_i(theta_i) - L_i(theta_n)) / |theta_n - theta_i|, 0)``, made to add up to 1, and trains from there. The server
adds these up in its affinities P, by which it chooses whose models a client is offered. (PFLlib offers those with the
largest P always, of which one is a client's own, and keeps the last fifth of the rows back.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from coterie.federation import Federation, PerRow, Site, Sums, work
from coterie.methods.local_training.client_work import LocalRound, Reply, finite, merge
from coterie.methods.local_training.personalized_aggregation import OwnModels
from coterie.methods.local_training.rounds import Passes, State
from coterie.numerics import keyed_random
from coterie.numerics.arrays import Floats, Ints
from coterie.objectives.holdout import halves, weighted_rows
from coterie.objectives.mean_loss import value
from coterie.objectives.parameters import parameter_mask, statistics_mask
from coterie.options import Option

PAIR = np.uint64(0x9E3779B97F4A7C15)  # what makes one key of two clients' ids


@work
def update(site: Site, others: Floats, w: Floats | None, held: float, **sent: Any) -> Reply:
    """Weights (m, M) of the ``others`` (m, M, d1) by rows that are held back, then local steps on the rest.

    Where some take part for the first time, w is the model (d1,) that they begin at.
    """
    here = LocalRound(site, w=w, **sent)
    parts = halves(site.objective, site.ids, site.seed, held)
    back, rest = (weighted_rows(parts[0]), parts[1]) if parts else (site.objective, site.objective)
    own = x = site.state.get("theta", None if w is None else here.start)
    there = [merge(site, others[:, n], here.transport) for n in range(others.shape[1])]
    trains = ~(parameter_mask(site.objective) | statistics_mask(site.objective))
    gap = np.stack([np.linalg.norm((theta - own)[:, trains], axis=1) for theta in there], axis=1)
    gain = value(back, own)[:, None] - np.stack([value(back, theta) for theta in there], axis=1)
    worth = np.where(gap > 0.0, np.maximum(gain, 0.0) / np.where(gap > 0.0, gap, 1.0), 0.0)
    worth = np.where(np.isfinite(worth), worth, 0.0)
    share = (worth / np.maximum(worth.sum(axis=1, keepdims=True), 1e-300)).astype(x.dtype)
    for n, theta in enumerate(there):
        x = x + share[:, n, None] * (theta - own)
    theta = here.train(x, objective=rest)
    worth = np.where(finite(theta)[:, None], worth, 0.0)
    return here.reply(theta, kept={"theta": (theta, own)}) | {"gain": worth}


@dataclass(frozen=True, kw_only=True)
class FedFomo(OwnModels):
    """The paper's algorithm; a round sends each client M models. Where losses are no sums over rows, all rows judge."""

    E: Passes = 1
    M: Annotated[int, Option("Models that a client is offered in a round.", low=1)] = 5
    held: Annotated[float, Option("Share of the rows kept back to judge models by.", above=0.0, below=1.0)] = 0.2
    epsilon: Annotated[float, Option("How often a client is offered models at random.", low=0.0, high=1.0)] = 0.3
    update = staticmethod(update)
    without = ("FedFomo sends several models to a client, which no codec does", "up down")

    def offered(self, fed: Federation, state: State, to: Ints) -> Ints:
        """Whose models (k, M) the clients ``to`` are offered: of the largest affinity, or drawn."""
        n, ids, t = len(state["w"]), fed.clients.ids, state["t"]
        pairs = (PAIR * ids[to, None] + ids).ravel()
        u = keyed_random.uniform(self.seed, "offered", pairs, t, 1).reshape(len(to), n)
        drawn = keyed_random.uniform(self.seed, "explores", ids[to], t, 1) < self.epsilon
        order = np.where(drawn, 0.0, -state["weights"][to])
        order[np.arange(len(to)), to] = np.inf
        return np.asarray(np.lexsort((u, order), axis=1)[:, : max(min(self.M, n - 1), 1)])

    def round(self, fed: Federation, state: State, to: Ints) -> tuple[Sums, State]:
        """Models are offered, and what they were worth goes to the affinities."""
        picked = self.offered(fed, state, to)
        begun = state["begun"] if (state["counts"][to] == 0.0).any() else None
        sums, new = self.received(fed, state, to, state["weights"], others=PerRow(state["w"][picked]), w=begun)
        if sums:
            new["weights"] = state["weights"].copy()
            np.add.at(new["weights"], (to[:, None], picked), sums["gain"][to])
        return sums, new
