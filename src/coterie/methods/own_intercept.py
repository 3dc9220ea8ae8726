"""Pooled slopes with every client's own intercept: the within estimator, a baseline that is hard to beat."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coterie.federation import Federation
from coterie.methods.at_home import WEAK
from coterie.methods.fitted import Fitted, Problem, collect
from coterie.methods.penalised_tree import solve
from coterie.methods.setup import prepare

FREE = 1e5
"""Standard deviation of a Gaussian client's intercept, in standard deviations of the outcome: as good as infinite."""


def fit(fed: Federation, problem: Problem) -> Fitted:
    """Slopes from all rows; intercepts free (Gaussian), or held weakly so that a client of one class stays finite."""
    z = np.array([problem.intercept], dtype=np.int64)
    setup = prepare(fed, problem.tree, problem.family, z, problem.intercept)
    gaussian = problem.family == "gaussian"
    L = [np.full((1, 1, 1), FREE if gaussian else WEAK)] + [np.zeros((1, 1, 1))] * len(problem.tree.parents)
    s = solve(fed, setup, L)
    sigma2 = s.value / max(setup.rows - setup.p - len(fed.clients) + 1, 1.0) if gaussian else 1.0
    fitted = collect(fed, setup, s, L, sigma2)
    centre = fitted.client.mean(axis=0) if gaussian else fitted.root  # a free intercept leaves the root's undefined
    return replace(fitted, root=centre, nodes=tuple(np.tile(centre, (len(n), 1)) for n in fitted.nodes))
