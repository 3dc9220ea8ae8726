"""Lyu, Hanzely, Kolar (2022), objectives (2.3) and (2.1) with given strengths, solved exactly for every family.

Proposition 2.2 takes (2.1) to (2.3): ``lambda_j = alpha_j Gamma_j / (1 - alpha_j)``, ``Gamma_j`` the sum of the
cluster's gamma_i.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError, plural
from coterie.federation import Federation, PerRow
from coterie.methods.problem_and_estimates import Estimates, GroupedProblem, collect
from coterie.methods.tree.penalised_tree import Setup, prepare, solve
from coterie.numerics.arrays import Floats
from coterie.relations.clusters import ClusterTies, strengths

Strength = float | npt.NDArray[np.float64]


def given(
    fed: Federation,
    problem: GroupedProblem,
    gamma: Strength,
    lam: Strength | Sequence[Strength] | None = None,
    alpha: Strength | None = None,
) -> Estimates:
    """Solve (2.3), or (2.1) where alpha is given, with ``f_i`` the negative log-likelihood (``|y - X theta|^2 / 2``).

    ``gamma``, one or (m,), ties each client to its cluster; 0 leaves it alone (a GLM's by a weak prior around 0).
    ``lam``, one, (k,), or a list of them with an entry for each level, ties each cluster to its parent; by default, and
    where infinite, they are one. ``alpha``, one or (k,), is the same in the form (2.1), 0 (clusters apart) to 1 (no
    clusters), for one level of clusters. A CoterieError for strengths that are negative, or that do not fit the clients
    or levels.
    """
    about = problem.tree, problem.family, problem.personal, problem.intercept, problem.basis
    setup = prepare(fed, *about)
    L, client_scale = factors(fed, setup, gamma, lam, alpha)
    extra = {"client_scale": client_scale, **alone(setup)}
    s = solve(fed, setup, L, **extra)
    sigma2 = setup.residual(s.value) / setup.rows if problem.family.has_dispersion else 1.0
    return collect(fed, setup, s, L, sigma2, **extra)


def factors(
    fed: Federation,
    setup: Setup,
    gamma: Strength,
    lam: Strength | Sequence[Strength] | None = None,
    alpha: Strength | None = None,
) -> tuple[list[Floats], PerRow]:
    """The strengths of :func:`given` as ``penalised_tree.solve`` takes them: a factor L a level, and ``gamma^-1/2``."""
    sizes = setup.tree.sizes[:-1]
    ties = strengths("gamma", gamma, len(fed.clients))
    if alpha is not None:
        lam = ClusterTies.of(fed.clients.clusters, setup.tree.sizes[0], gamma, None, alpha).lam
    levels: list[Strength] = [np.inf] * len(sizes)
    if isinstance(lam, list | tuple):
        levels = list(lam)
    elif lam is not None:
        levels = [np.asarray(lam)] * len(sizes)
    if len(levels) != len(sizes) or (alpha is not None and len(sizes) > 1):
        raise CoterieError(f"Clusters have {plural(len(sizes), 'level')}: give lam one entry for each of them.")
    L = [_factor(setup, np.ones(1))]
    L += [_factor(setup, strengths("lam", s, k)) for s, k in zip(levels, sizes, strict=True)]
    with np.errstate(divide="ignore"):
        return L, PerRow(ties**-0.5)


def alone(setup: Setup) -> dict[str, Any]:
    """What holds clients that stand alone, for messages; nothing where nothing need be."""
    return {"prior": setup.prior()} if setup.family.needs_prior else {}


def _factor(setup: Setup, strength: Floats) -> Floats:
    """L (g, q, q) of the penalty ``strength / 2 |deviation|^2`` in the table's units."""
    with np.errstate(divide="ignore"):
        size = strength**-0.5
    L = np.where(np.isinf(size), 0.0, size)[:, None, None] * setup.deviation
    L[np.isinf(size)] = np.inf
    return L
