"""Ye, Ni, Wu, Wang, Chen, Wang (2023), Personalized federated learning with inferred collaboration graphs, Alg. 1.

pFedGraph: from clients' updates since the first model the server makes a graph, ``w_i = argmin sum_j w_ij d_ij + alpha
|w_i - p|^2`` over the simplex, with distances ``d_ij = -cos`` and shares of rows p. A client is sent its mixture u_i,
and trains from there on ``F_i(w) + lambda (1 - cos(w, u_i))``. (PFLlib does not have it.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from coterie.federation import Site, work
from coterie.methods.local_training.client_work import LocalRound, Reply, train
from coterie.methods.local_training.personalized_aggregation import OwnModels
from coterie.methods.local_training.rounds import Passes, State
from coterie.numerics.arrays import Floats, Ints
from coterie.numerics.simplex_qp import diagonal_simplex_qp
from coterie.options import Option


def cosines(a: Floats, b: Floats) -> Floats:
    """Of the rows of a (k, d) and those of b (m, d): (k, m), 0 where a row is."""
    a, b = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-30) for x in (a, b))
    return np.asarray(a @ b.T)


@work
def update(site: Site, lam: float, **sent: Any) -> Reply:
    """Local steps from u_i; the cosine's gradient is that of where each step begins."""
    here = LocalRound(site, **sent)
    if not lam:
        return here.reply(here.train())
    steps, u, shared = here.steps, here.start, ~here.own
    theta = np.array(u)
    for s in range(int(steps.max(initial=0))):
        on = np.flatnonzero(steps > s)
        x, v = (np.where(shared, a[on], 0.0) for a in (theta, u))
        nx, nv = (np.maximum(np.linalg.norm(a, axis=1, keepdims=True), 1e-30) for a in (x, v))
        cos = np.sum(x / nx * (v / nv), axis=1, keepdims=True)
        shift = (-lam / nx * (v / nv - cos * x / nx)).astype(theta.dtype)
        some, done = site.take(on), here.t * steps[on] + s
        theta[on] = train(some, theta[on], here.eta, 1, done, here.B, shift=shift, plain=True)
    return here.reply(theta)


@dataclass(frozen=True, kw_only=True)
class PFedGraph(OwnModels):
    """Algorithm 1: alpha 0 lets a client hear those alone who are most alike, itself; a large one makes it FedAvg."""

    E: Passes = 1
    alpha: Annotated[float, Option("Strength with which weights are held at shares of rows.", above=0.0)] = 0.8
    lam: Annotated[float, Option("lambda: how strongly models keep the direction of what was sent.", low=0.0)] = 0.01
    update = staticmethod(update)

    def weigh(self, state: State, known: Ints) -> Floats:
        """The collaboration graph, a row at a time, exactly."""
        change = self.trained({**state, "w": state["w"] - state["begun"]}, known).astype(np.float64)
        p, k = state["counts"][known] / state["counts"][known].sum(), len(known)
        q = -cosines(change, change) - 2.0 * self.alpha * p
        return diagonal_simplex_qp(np.full(k * k, self.alpha), q.ravel(), np.arange(k + 1) * k).reshape(k, k)
