"""Whether clients' deviations are integrated out by quadrature, and what Laplace's approximation leaves out if not."""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.federation import Federation, PerCluster, Site, require_all_replies, work
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.methods.tree.client_work import Reply, integrated
from coterie.methods.tree.penalised_tree import Setup, Solution
from coterie.numerics.arrays import Floats, Ints, full, pack

POINTS, FEW_ROWS = 25, 30.0  # of quadrature where it is not asked for, and of clients that have it then
CHECKED = 7  # points by which Laplace's approximation is checked
OFF = 0.5  # standard errors by which an estimate may be off without a word
SEVERAL = (
    "The deviance has several optima, as Laplace's approximation may have with few rows a client: the one taken is the "
    "lowest at which clients do not differ beyond all measure."
)
ROUGH = (
    "Laplace's approximation is not to be trusted here, as clients have few rows: how far they differ, or a "
    "coefficient, is off by about {:.1f} standard errors. Where clients differ in one term only (shared=) and have no "
    "clusters, quadrature takes its place."
)


def quadrature_points(asked: int | None, problem: GroupedProblem, rows: float) -> int:
    """Of the integrals over clients' deviations: 1 unless each has one, in a GLM, and nothing else strays.

    By itself for clients of few ``rows`` in the mean, for which Laplace's approximation is rough.
    """
    if problem.family.is_quadratic or len(problem.straying) != 1 or max(problem.tree.sizes) > 1:
        return 1
    return asked or (POINTS if rows < FEW_ROWS else 1)


def of_integrals(
    fed: Federation, setup: Setup, L: list[Floats], s: Solution, asked: int | None, several: bool, look: bool
) -> dict[str, Any]:
    """How the deviations of a solved tree were integrated out, and sentences on how far that can be trusted.

    ``look``: ask the clients what Laplace's approximation leaves out.
    """
    if setup.family.has_dispersion:
        return {}
    found = [SEVERAL] * several
    if (asked or 1) > setup.points:
        found.append(
            "Quadrature is for clients that differ in one term, in one level: here the variances are learned by "
            "Laplace's approximation."
        )
    off = 0.0
    if look and setup.points == 1 and len(L[0]) == 1 and L[0].any() and not setup.many_rows(len(fed.clients)):
        sent: dict[str, Any] = {"unit": setup.unit, "z": setup.z, "L": L[0], "w": PerCluster(s.positions.at[0])}
        sums = require_all_replies(fed.total(left_out, **sent))
        inverse = np.linalg.pinv(full(sums["square"]), rcond=1e-10, hermitian=True)
        off = float(np.max(np.abs(inverse @ sums["off"]) / np.sqrt(np.maximum(np.diag(inverse), 1e-300))))
    if off > OFF:
        found.append(ROUGH.format(off))
    return {"quadrature": setup.points, "approximation": found}


@work
def left_out(site: Site, unit: Floats, z: Ints, L: Floats, w: Floats) -> Reply:
    """By how much quadrature along one direction of each client's deviations, all else at its mode, changes slopes.

    They are by the logarithm of how far clients stray, and by w; sums of their squares say how much a slope of zero
    may be off by chance.
    """
    rough, fine = (integrated(site, unit, z, L, w[site.clusters], points)[1] for points in (1, CHECKED))
    return {"off": fine - rough, "square": pack(fine[:, :, None] * fine[:, None, :])}
