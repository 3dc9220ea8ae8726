"""Strengths gamma and lambda of Lyu, Hanzely, Kolar (2022), (2.3), by marginal likelihood instead of a grid.

Theorem 5.1's strengths are inverse variances: ``gamma = sigma^2 / sigma_j^2``, ``lambda = sigma^2 / sigma-bar^2``, one
for all columns in the table's own units, as the paper ties them.
"""

from __future__ import annotations

import numpy as np

from coterie.federation import Federation
from coterie.methods.estimates import GroupedProblem
from coterie.methods.tree.setup import prepare
from coterie.methods.tree.variances import Variances
from coterie.relations.covariance import Structure

STRONGEST = 1e4
"""Largest strength: where no variance is found, clients (or clusters) are as good as one, and rounds stay possible."""


def learn(fed: Federation, problem: GroupedProblem) -> tuple[float, float | None]:
    """Gamma, and lambda where there are clusters, for a tree with one level of them at most."""
    setup = prepare(fed, problem.tree, problem.family, problem.personal, problem.intercept)
    size = np.exp(np.mean(np.log(setup.unit[setup.z])))  # so that the search starts near 1
    basis = np.diag(size / setup.unit[setup.z])[None]
    levels = [Structure("isotropic", basis)]
    levels += [Structure("isotropic", basis[: int(nodes > 1)]) for nodes in problem.tree.sizes[:-1]]
    *_, state = Variances(setup, tuple(levels), reml=problem.family.has_dispersion).run(fed)
    with np.errstate(divide="ignore"):
        strengths = np.minimum((state.x[: sum(map(len, levels))] * size) ** -2.0, STRONGEST)
    return float(strengths[0]), float(strengths[1]) if len(strengths) > 1 else None
