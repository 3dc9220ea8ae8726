"""One model for each cluster, fitted without the others; clients of a cluster share it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coterie.federation import Federation
from coterie.methods import pooled
from coterie.methods.at_home import WEAK
from coterie.methods.fitted import Fitted, Problem, collect
from coterie.methods.penalised_tree import solve
from coterie.methods.setup import prepare
from coterie.relations.clusters import Tree


def fit(fed: Federation, problem: Problem) -> Fitted:
    """Least squares of minimum norm (Gaussian) or a weakly held maximum likelihood in every finest cluster.

    Coarser clusters and the root, which answer for clusters never seen, get the pooled model.
    """
    everyone = pooled.fit(fed, problem)
    p, k = len(everyone.root), problem.tree.sizes[0]
    flat = Tree((np.zeros(k, dtype=np.int64),))
    setup = prepare(fed, flat, problem.family, np.arange(p), problem.intercept)
    gaussian = problem.family == "gaussian"
    L = [np.zeros((1, p, p)), np.full((1, p, p), np.inf) if gaussian else WEAK * np.eye(p)[None]]
    s = solve(fed, setup, L, root=np.zeros(p))
    sigma2 = s.value / max(setup.rows - p * k, 1.0) if gaussian else 1.0
    fitted = collect(fed, setup, s, L, sigma2, C=np.zeros((p, p)))
    coarser = tuple(np.tile(everyone.root, (n, 1)) for n in problem.tree.sizes[1:-1])
    return replace(
        fitted,
        root=everyone.root,
        root_cov=everyone.root_cov,
        nodes=(*fitted.nodes, *coarser),
        node_cov=(*fitted.node_cov, *everyone.node_cov[1:]),
        D_levels=(*fitted.D_levels, *everyone.D_levels[1:]),
    )
