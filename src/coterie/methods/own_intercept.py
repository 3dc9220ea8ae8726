"""Pooled slopes with every client's own intercept: the within estimator, a baseline that is hard to beat."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from coterie.federation import Federation
from coterie.methods import pooled
from coterie.methods.pooled import residual_variance
from coterie.methods.problem_and_estimates import Estimates, GroupedProblem, collect
from coterie.methods.tree.penalised_tree import prepare, solve
from coterie.numerics.arrays import Floats, full, pack

FREE = 1e5
"""Standard deviation of a Gaussian client's intercept, in standard deviations of the outcome: as good as infinite."""


def fit(fed: Federation, problem: GroupedProblem) -> Estimates:
    """Slopes from all rows; intercepts free (Gaussian), or held weakly so that a client of one class stays finite."""
    z = np.array([problem.intercept], dtype=np.int64)
    setup = prepare(fed, problem.tree, problem.family, z, problem.intercept, problem.basis)
    family = problem.family
    L = [np.full((1, 1, 1), min(family.prior_sd, FREE))] + [np.zeros((1, 1, 1))] * len(problem.tree.parents)
    free: dict[str, Any] = {"free": True} if family.is_quadratic else {}
    s = solve(fed, setup, L, **free)
    sigma2, left, info = 1.0, setup.rows - setup.p - len(fed.clients) + 1, dict[str, str]()
    if family.has_dispersion:
        everyone = pooled.fit(fed, problem).sigma2 if left < 0.5 else 0.0
        sigma2, info = residual_variance(setup.residual(s.value), left, everyone)
    fitted = collect(fed, setup, s, L, sigma2, needed=True, **free)
    centre, cov = _mean_client(fitted, int(z[0]))  # a free intercept leaves the root's own undefined
    nodes = tuple(np.tile(centre, (len(n), 1)) for n in fitted.nodes)
    node_cov = tuple(np.tile(pack(cov), (len(n), 1)) for n in fitted.nodes)
    nobody = np.zeros_like(fitted.D_client)
    return replace(fitted, root=centre, root_cov=cov, nodes=nodes, node_cov=node_cov, D_client=nobody, info=info)


def _mean_client(fitted: Estimates, intercept: int) -> tuple[Floats, Floats]:
    """The mean intercept with the shared slopes, and their covariance.

    Clients' intercepts are independent but for the slopes: ``Var(a_i) = e_i + c_i' V^-1 c_i``, c_i their covariance
    with the slopes, V that of the slopes, e_i the noise of the client's own mean.
    """
    each = full(fitted.client_cov)
    slopes = np.delete(np.arange(each.shape[1]), intercept)
    V, c = each[0][np.ix_(slopes, slopes)], each[:, intercept, slopes]
    sure = np.abs(V).max(initial=0.0) < 1e-200  # nothing is uncertain where every row is fitted exactly
    inverse = 0.0 * V if sure else np.linalg.pinv(V, hermitian=True)
    own = each[:, intercept, intercept] - np.einsum("mi,ij,mj->m", c, inverse, c)
    mean = c.mean(axis=0)
    cov = np.array(each[0])
    cov[intercept, slopes] = cov[slopes, intercept] = mean
    cov[intercept, intercept] = own.sum() / len(own) ** 2 + mean @ inverse @ mean
    return fitted.client.mean(axis=0), cov
