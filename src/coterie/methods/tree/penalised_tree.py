"""Lyu, Hanzely, Kolar (2022), objective (2.3), minimised exactly by sums (Proposition 2.2 takes (2.1) there).

``min sum_i f_i(theta_i) + gamma_i/2 |theta_i - w_c(i)|^2 + sum_j lambda_j/2 |w_j - w|^2``. Every client minimises over
its own deviation and sends its Schur contribution into its cluster's sum; the coordinator solves the small tree above
(one exchange for squares, Newton otherwise); clients finish their own parameters at home. ``L`` holds ``gamma^-1/2 I``
and ``lambda^-1/2 I``, or any other Cholesky factors of prior covariances.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation, PerCluster, Sums
from coterie.methods.replies import require_all_replies
from coterie.methods.tree.client_work import fold_messages, ridge
from coterie.methods.tree.setup import Setup
from coterie.numerics.arrays import Floats, full, pack
from coterie.objectives.mean_loss import LIMIT
from coterie.relations.clusters import Positions, Swept

MOST = 1000
"""Exchanges of one solve: far more than Newton needs, so that no data can keep it for ever."""


@dataclass(frozen=True)
class Solution:
    """The tree above the clients, solved.

    ``positions``: of all nodes; for a Gaussian outcome of the root only. ``value``: twice the penalised objective
    (Gaussian: residual and penalty sums of squares); infinite where it overflows. ``logdet``: ``log |I + L'AL|`` over
    all clients and clusters.
    """

    swept: Swept
    positions: Positions
    inverse: Floats
    value: float
    logdet: float


def per_cluster(L: Floats) -> Floats | PerCluster:
    """One factor for all travels as it is; one for each cluster as rows of the clusters."""
    return L if len(L) == 1 else PerCluster(L)


def ask_up(fed: Federation, setup: Setup, L: Floats, at: Floats, **extra: Any) -> Sums:
    """One exchange: the clients' quadratics, added up within the finest clusters."""
    sent: dict[str, Any] = {"z": setup.z, "L": per_cluster(L), "w": PerCluster(at)}
    return require_all_replies(fed.total(fold_messages, by="cluster", unit=setup.unit, **sent, **extra))


def solve(
    fed: Federation,
    setup: Setup,
    L: list[Floats],
    root: Floats | None = None,
    start: Positions | None = None,
    **extra: Any,
) -> Solution:
    """Minimise over everything above the clients, or over all but the root where ``root`` (p,) is given.

    ``L``: factors for the clients (one, or one for each finest cluster), then for each level. ``start``: where Newton's
    method starts. ``**extra``: goes into the message, e.g. ``client_scale=PerRow(gamma ** -0.5)``.
    """
    if setup.family.is_quadratic:
        return _squares(fed, setup, L, root, extra)
    prior = ridge(setup.family, client=False)
    here = start or setup.tree.place(
        np.zeros(setup.p) if root is None else root, setup.tree.still(len(setup.z)), L[1:], setup.z
    )
    best, base, t, last = np.inf, here, 1.0, np.inf
    solution: Solution | None = None
    for _ in range(MOST):
        sums = ask_up(fed, setup, L[0], here.at[0], **extra)
        swept = setup.tree.climb(sums["A"], sums["b"], L[1:], setup.z, prior)
        value, logdet = float(sums["value"].sum()), float(sums["logdet"].sum()) + swept.logdet
        value += here.penalty + prior * float(np.sum(here.at[-1] ** 2))
        if not abs(value) < LIMIT:  # a client's curvature may overflow before its value does
            value = np.inf
        swept.A[-1][0] += prior * pack(np.eye(setup.p))
        if solution is not None and not value <= best + 1e-9 * (1.0 + abs(best)) and t > 1e-12:
            t *= 0.5 if np.isfinite(value) else 0.1  # the quadratic promised too much: go back part of the way
            here = base.towards(solution.positions, t)
            continue
        if not np.isfinite(value):
            if start is None:
                raise CoterieError("The means overflow at the offsets given: an offset is the logarithm of a size.")
            if here.penalty == 0.0 or solution is not None:
                return Solution(swept, here, np.zeros((setup.p, setup.p)), np.inf, 0.0)
            here = setup.tree.place(here.at[-1][0], setup.tree.still(len(setup.z)), L[1:], setup.z)
            continue
        minimiser, inverse = swept.root()
        w = minimiser if root is None else root
        C = inverse if root is None else 0.0 * inverse
        goal = setup.tree.descend(swept, L[1:], setup.z, w, C, prior)
        solution = Solution(swept, goal, inverse, value, logdet)
        moved = _distance(here, goal)
        if moved <= 1e-6 or (last <= 1e-3 and moved > 0.5 * last):  # what is left is rounding
            return solution
        best, base, here, t, last = value, here, goal, 1.0, moved
    if solution is None:
        raise CoterieError("The clients' parameters have no values at which the outcome is likely at all.")
    return solution


def _squares(fed: Federation, setup: Setup, L: list[Floats], root: Floats | None, extra: dict[str, Any]) -> Solution:
    """A Gaussian tree is one quadratic, solved by one sweep up; nobody asks yet where the nodes below the root are."""
    sums = ask_up(fed, setup, L[0], np.zeros((setup.tree.sizes[0], setup.p)), **extra)
    swept = setup.tree.climb(sums["A"], sums["b"], L[1:], setup.z, ridge(setup.family, client=False))
    minimiser, inverse = swept.root()
    w = minimiser if root is None else root
    value = float(sums["value"].sum()) - swept.drop - float(2.0 * swept.b[-1][0] @ w - w @ full(swept.A[-1][0]) @ w)
    logdet = float(sums["logdet"].sum()) + swept.logdet
    return Solution(swept, Positions([w[None]], [pack(inverse)[None]], []), inverse, value, logdet)


def _distance(here: Positions, goal: Positions) -> float:
    """The longest step of a coefficient, in standard deviations (or 1e-4 of its size, where that is more)."""
    p = here.at[0].shape[1]
    size = np.sqrt(goal.cov[0][:, np.cumsum(np.arange(1, p + 1)) - 1]) + 1e-4 * np.abs(goal.at[0])
    step = np.abs(goal.at[0] - here.at[0])
    return float(np.max(step / np.where(size > 0.0, size, 1.0), initial=0.0))
