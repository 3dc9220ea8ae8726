"""One model for each cluster, fitted without the others; clients of a cluster share it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coterie.federation import Federation, Site, require_all_replies, work
from coterie.methods import pooled
from coterie.methods.local import minimum_norm, prior_mean, weak
from coterie.methods.pooled import residual_variance
from coterie.methods.problem_and_estimates import Estimates, GroupedProblem, collect
from coterie.methods.tree.client_work import Reply
from coterie.methods.tree.penalised_tree import Setup, prepare, solve
from coterie.numerics.arrays import full, pack
from coterie.relations.clusters import ClusterTree


@work
def squares(site: Site) -> Reply:
    """Each client's sums of squares."""
    return {"A": site.state["A"], "b": site.state["b"], "c": site.state["c"]}


def fit(fed: Federation, problem: GroupedProblem) -> Estimates:
    """Least squares of minimum norm, or weakly held likelihood, in every finest cluster; all above is pooled."""
    everyone = pooled.fit(fed, problem)
    p, k = len(everyone.root), problem.tree.sizes[0]
    flat = ClusterTree((np.zeros(k, dtype=np.int64),))
    setup = prepare(fed, flat, problem.family, np.arange(p), problem.intercept, problem.basis)
    if problem.family.is_quadratic:
        fitted = _least_squares(fed, setup, everyone)
    else:
        L = [np.zeros((1, p, p)), weak(setup)]
        s = solve(fed, setup, L, root=prior_mean(setup, everyone))
        fitted = collect(fed, setup, s, L, 1.0, C=np.zeros((p, p)))
    coarser = tuple(np.tile(everyone.root, (n, 1)) for n in problem.tree.sizes[1:-1])
    return replace(
        fitted,
        root=everyone.root,
        root_cov=everyone.root_cov,
        nodes=(*fitted.nodes, *coarser),
        node_cov=(*fitted.node_cov, *everyone.node_cov[1:]),
        D_levels=(*fitted.D_levels, *everyone.D_levels[1:]),
    )


def _least_squares(fed: Federation, setup: Setup, everyone: Estimates) -> Estimates:
    """Least squares from every cluster's sums (one exchange), of minimum norm in the units of the table."""
    sums = require_all_replies(fed.total(squares, by="cluster", groups=setup.tree.sizes[0]))
    theta, inverse, rank = minimum_norm(sums["A"], sums["b"], setup.table, setup.origin)
    explained = 2.0 * np.einsum("ki,ki->k", sums["b"], theta) - np.einsum("ki,kij,kj->k", theta, full(sums["A"]), theta)
    sse = float(np.maximum(sums["c"] - explained, 0.0).sum())
    sigma2, info = residual_variance(sse, setup.rows - float(rank.sum()), everyone.sigma2)
    nodes, cov = setup.raw(theta), pack(inverse * np.outer(setup.unit, setup.unit)) * sigma2
    of = fed.clients.clusters
    nothing = np.zeros((setup.p, setup.p))
    return replace(
        everyone,
        nodes=(nodes,),
        node_cov=(cov,),
        client=nodes[of],
        client_cov=cov[of],
        D_client=nothing[None],
        D_levels=(nothing,),
        sigma2=sigma2,
        log_likelihood=None,
        info=info,
    )
