"""Lyu, Hanzely, Kolar (2022), Proposition 5.4: James-Stein's estimator of the root, and the tree below it solved anew.

Of all that BLUP estimates, only the root w is not shrunk towards anything. It is unbiased, and its covariance C comes
with the same sums: so its personal slopes are shrunk once, ``(1 - (d - 2) / (w' C^-1 w))_+ w``, with the effective
dimension ``d = tr C / max eigenvalue of C`` (Bock 1975) in standard units of the columns. For ``C = s^2 I`` that is
James and Stein's ``(1 - (d - 2) s^2 / |w|^2)_+ w``. Clusters and clients then follow from the root as always.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation
from coterie.methods import hierarchical
from coterie.methods.given_strengths import Strength, alone, factors
from coterie.methods.problem_and_estimates import Estimates, GroupedProblem, collect
from coterie.methods.tree.penalised_tree import Setup, prepare, solve
from coterie.numerics.arrays import Floats, Ints


def fit(
    fed: Federation,
    problem: GroupedProblem,
    gamma: Strength | None = None,
    lam: Strength | Sequence[Strength] | None = None,
    alpha: Strength | None = None,
    residual: str = "common",
    **learning: Any,
) -> Estimates:
    """Shrink the root towards zero, on strengths as in ``given_strengths`` or, without gamma, on learned variances.

    Intercepts and shared columns are not shrunk but fitted again; where the effective dimension d is at most 2, nothing
    is. ``info["shrinkage"]`` is what the root's slopes were multiplied by. ``learning``: options of
    ``hierarchical.fit``. A CoterieError for a residual variance of each client.
    """
    if residual != "common":
        raise CoterieError("Method 'james-stein' has one residual variance: leave residual out.")
    learned = None if gamma is not None else hierarchical.fit(fed, problem, **learning)
    about = problem.tree, problem.family, problem.personal, problem.intercept, problem.basis
    setup = prepare(fed, *about)
    info: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    if learned is not None:
        sigma2, info = learned.sigma2, learned.info
        L = [_factors(setup, D, sigma2) for D in (learned.D_client, *(D[None] for D in learned.D_levels))]
        root = (learned.root - setup.raw(np.zeros(setup.p))) / setup.unit
        C = learned.root_cov / np.outer(setup.unit, setup.unit) / sigma2
    else:
        L, extra["client_scale"] = factors(fed, setup, gamma, lam, alpha)  # type: ignore[arg-type]
        extra |= alone(setup)
        s = solve(fed, setup, L, **extra)
        sigma2 = setup.residual(s.value) / setup.dof(reml=True) if problem.family.has_dispersion else 1.0
        root, C = s.positions.at[-1][0], s.inverse
    slopes = problem.personal[[j != problem.intercept for j in problem.personal]]
    standard = setup.table / setup.units[:, None]
    root, factor = shrink(standard @ root, standard @ C @ standard.T * sigma2, slopes)
    root = np.asarray(np.linalg.solve(standard, root), dtype=np.float64)
    below = solve(fed, setup, L, root=root, **extra)
    return replace(collect(fed, setup, below, L, sigma2, C=C, **extra), info=info | {"shrinkage": factor})


def shrink(w: Floats, C: Floats, columns: Ints) -> tuple[Floats, float]:
    """Shrink ``columns`` (d,) of a normal estimate w (p,) with covariance C (p, p) towards zero, and by what factor.

    The other coordinates move as least squares given them. The factor, 0 to 1, is what the coordinates were multiplied
    by.
    """
    values, vectors = np.linalg.eigh(C[np.ix_(columns, columns)])
    kept = values > 1e-12 * values.max(initial=0.0)
    if not kept.any():
        return w, 1.0
    excess = float(values[kept].sum() / values.max()) - 2.0
    white = vectors.T[kept] @ w[columns]
    size = float(np.sum(white**2 / values[kept]))
    factor = 1.0 - excess / size if size > max(excess, 0.0) else 0.0
    if excess <= 0.0 or size == 0.0:
        return w, 1.0
    moved = (factor - 1.0) * white / values[kept]
    shrunk = w + C[:, columns] @ (vectors[:, kept] @ moved)
    shrunk[columns] = w[columns] + (factor - 1.0) * (vectors[:, kept] @ white)
    return shrunk, factor


def _factors(setup: Setup, D: Floats, sigma2: float) -> Floats:
    """Factors L (g, q, q) of covariances D (g, p, p) in the units of the table, relative to sigma2."""
    unit = setup.unit[setup.z]
    values, vectors = np.linalg.eigh(D[:, setup.z[:, None], setup.z] / (np.outer(unit, unit) * sigma2))
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :])
