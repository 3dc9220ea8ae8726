"""A residual variance for every client (seed 001's sigma_i^2), learned by EM beside the variances of the tree.

A client's own variance is a weight on its rows, ``1 / v_i``, so the sweeps stay as they are. Given the tree, EM sets
``v_i`` to the expected mean square of the client's residuals, at home; the tree's variances are then searched again.
A client with few rows could fit itself perfectly, so every client counts ``PRIOR`` rows more, of the common variance:
what is minimised is the deviance plus ``PRIOR sum_i (log(v_i / v) + v / v_i)``, over v too: their harmonic mean.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from coterie.federation import Federation, PerCluster, Site, work
from coterie.methods.replies import require_all_replies
from coterie.methods.tree.at_home import strays
from coterie.methods.tree.penalised_tree import per_cluster
from coterie.methods.tree.setup import Reply
from coterie.methods.tree.variances import State, Variances
from coterie.numerics import tree_fold
from coterie.numerics.kernels import Floats, Ints, full

PRIOR = 1.0
"""Rows of the common variance that are added to each client's."""


@work
def reweigh(site: Site, z: Ints, L: Floats, w: Floats, C: Floats, sigma2: float, mean: float) -> Reply:
    """One EM step of every client's residual variance, relative to the common one, and its sums weighed anew."""
    L, which = strays(site, L)
    A, b, c = site.state["A"], site.state["b"], site.state["c"]
    n = site.objective.counts.astype(np.float64)
    old = site.state.get("v", np.ones(len(site)))
    theta, _, S = tree_fold.unfold(A, b, L, which, z, w, C, site.clusters)
    misfit = c - 2.0 * np.einsum("mi,mi->m", b, theta) + np.einsum("mi,mij,mj->m", theta, full(A), theta)
    misfit += sigma2 * np.einsum("mij,mij->m", full(A), full(S))
    new = (old * misfit / sigma2 + PRIOR * mean) / (n + PRIOR)
    weigh = old / new
    site.state["A"], site.state["b"], site.state["c"] = A * weigh[:, None], b * weigh[:, None], c * weigh
    site.state["v"] = new
    return {"log": n * np.log(new), "logs": np.log(new), "inverse": 1.0 / new}


@work
def own_variance(site: Site) -> Reply:
    """Every client's residual variance, relative to the common one."""
    return {"v": site.state["v"]}


def alternate(fed: Federation, search: Variances, state: State, rounds: int = 200) -> tuple[State, float]:
    """Learn both kinds of variances from a converged search with equal residuals, until the deviance moves by 1e-4.

    Returns
    -------
    State
        With the deviance of the tree for rows as they are weighed.
    float
        The sum of ``n_i log v_i``, which completes it.
    """
    best, mean, setup = np.inf, 1.0, search.setup
    for _ in range(rounds):
        _, s, sigma2 = search.evaluate(fed, state.x, state.u)
        L, _ = search.factors(state.x)
        C = s.inverse if search.reml else 0.0 * s.inverse
        at = setup.tree.descend(s.swept, L[1:], setup.z, s.positions.at[-1][0], C)
        here: dict[str, Any] = {"w": PerCluster(at.at[0]), "C": PerCluster(at.cov[0])}
        sums = require_all_replies(fed.total(reweigh, z=setup.z, L=per_cluster(L[0]), sigma2=sigma2, mean=mean, **here))
        mean = len(fed.clients) / float(sums["inverse"])
        *_, state = islice(search.run(fed, search.start(fed, state.x, state.u)), 3)
        penalised = state.deviance + float(sums["log"] + PRIOR * (sums["logs"] - len(fed.clients) * np.log(mean)))
        if abs(best - penalised) < 1e-4:
            return replace(state, status="converged"), float(sums["log"])
        best = penalised
    return replace(state, status="stopped"), float(sums["log"])
