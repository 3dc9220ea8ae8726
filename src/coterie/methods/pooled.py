"""One model for all clients: the baseline that ignores who a row belongs to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coterie.federation import Federation
from coterie.methods.problem_and_estimates import Estimates, GroupedProblem, collect
from coterie.methods.tree.penalised_tree import prepare, solve


def residual_variance(sse: float, free: float, pooled: float) -> tuple[float, dict[str, str]]:
    """Of models that leave ``free`` rows to residuals: the pooled model's where that is none, and a word of it."""
    return (sse / free, {}) if free >= 0.5 else (pooled, {"residual_of": "pooled"})


def fit(fed: Federation, problem: GroupedProblem) -> Estimates:
    """Least squares or maximum likelihood over all rows, with classical standard errors."""
    nobody = np.empty(0, dtype=np.int64)
    setup = prepare(fed, problem.tree, problem.family, nobody, problem.intercept, problem.basis)
    L = [np.zeros((1, 0, 0))] * (1 + len(problem.tree.parents))
    s = solve(fed, setup, L)
    profiled = problem.family.has_dispersion
    value = setup.residual(s.value) if profiled else s.value
    sigma2 = value / max(setup.rows - setup.p, 1.0) if profiled else 1.0
    spread = setup.rows * np.log(2.0 * np.pi * value / setup.rows) + setup.rows if profiled else value
    constant = setup.constant - (0.5 * setup.rows * np.log(2.0 * np.pi) if profiled else 0.0)
    info = {"rows": int(setup.rows), "parameters": setup.p + problem.family.scatters}
    return replace(collect(fed, setup, s, L, sigma2), log_likelihood=float(-0.5 * spread - constant), info=info)
