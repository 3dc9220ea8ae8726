"""Lyu, Hanzely, Kolar (2022), objective (2.3), minimised exactly by sums (Proposition 2.2 takes (2.1) there).

``min sum_i f_i(theta_i) + gamma_i/2 |theta_i - w_c(i)|^2 + sum_j lambda_j/2 |w_j - w|^2``. Every client minimises over
its own deviation and sends its Schur contribution into its cluster's sum; the coordinator solves the small tree above
(one exchange for squares, Newton otherwise); clients finish their own parameters at home. ``L`` holds ``gamma^-1/2 I``
and ``lambda^-1/2 I``, or any other Cholesky factors of prior covariances.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.families import Family, family_named
from coterie.federation import Federation, PerCluster, Site, Sums, nonnegative, require_all_replies, work
from coterie.methods.tree.client_work import Reply, fold_messages
from coterie.methods.tree.sweep_up_and_down import Positions, Swept, place, sweep_down, sweep_up
from coterie.numerics.arrays import Floats, Ints, full, pack
from coterie.objectives.mean_loss import LIMIT
from coterie.relations.clusters import ClusterTree

MANY_ROWS = 10  # of a client for each of its coefficients, from which an approximation is no other


@nonnegative("rows", "w", "xx")
@work
def describe(site: Site) -> Reply:
    """Sums that give columns their units and y its origin."""
    return dict(site.objective.moments())


@nonnegative("square")
@work
def summarise(site: Site, unit: Floats, shift: float, personal: int) -> Reply:
    """Gaussian clients reduce their rows to (X'WX, X'Wy, y'Wy) once, others start at zero; all this stays at home.

    What leaves are squares of outcomes that may be any number, less a ``shift``.
    """
    if site.objective.family.is_quadratic:
        site.state["A"], site.state["b"], site.state["c"] = site.objective.gram(unit, shift)
        return {"square": site.state["c"]}
    site.state["u"] = np.zeros((len(site), personal))
    any_number = site.objective.family.any_number
    return {"square": site.objective.gram(unit, shift)[2] if any_number else np.zeros(len(site))}


@dataclass(frozen=True, eq=False)
class Basis:
    """Orthogonal columns ``X @ matrix`` that stand for the table's.

    Sums of products lose half of the digits of columns that nearly depend on each other, or lie far from zero. Personal
    columns are combinations of personal ones, of which the intercept stays as it is.
    """

    matrix: Floats  # (p, p)
    unit: Floats  # (p,) inverse standard deviations of the table's columns, 1 of the intercept
    mean: Floats  # (p,) of the table's columns

    @classmethod
    def of(cls, X: Floats, weights: Floats, matrix: Floats, intercept: int | None) -> Basis:
        """Of the columns of X (n, p), whose rows count by ``weights`` (n,)."""
        mean = weights @ X / weights.sum()
        sd = np.sqrt(weights @ np.square(X - mean) / weights.sum())
        unit = 1.0 / np.where(sd > 0.0, sd, np.abs(mean))
        if intercept is not None:
            unit[intercept] = 1.0
        return cls(matrix, unit, mean)


@dataclass(frozen=True)
class Setup:
    """What stays the same in a run: the tree, which columns are personal (z), units, means and totals over all rows."""

    tree: ClusterTree
    family: Family
    z: Ints
    unit: Floats
    shift: float
    rows: float
    constant: float

    intercept: int | None = None
    square: float = 0.0
    mean: Floats = field(default_factory=lambda: np.empty(0))
    basis: Basis | None = None
    # (p, p), takes what is solved for to standard units of the table, with the intercept at the columns' means
    standard: Floats = field(default_factory=lambda: np.empty((0, 0)))
    points: int = 1  # of quadrature over clients' deviations; 1 is Laplace's approximation

    def prior(self, client: bool = True) -> Floats | None:
        """P (q, p), where ``|P theta|^2`` holds a client (or a cluster) that stands alone; None where nothing need be.

        It is around 0 where the columns have their means, so that no model depends on where a column has its zero.
        """
        if not self.family.needs_prior:
            return None
        return self.standard[self.z] / self.family.prior_sd if client else self._root_factor[self.z]

    @property
    def root_prior(self) -> Floats:
        """The same of the root, as a precision (p, p)."""
        return np.asarray(self._root_factor.T @ self._root_factor)

    @property
    def _root_factor(self) -> Floats:
        """A factor (p, p) of that precision: it is of orthogonal columns where there is a basis.

        Coefficients of columns that nearly depend on each other are huge and cancel, so that even the root's weak prior
        on each would move what the rows tell. Sums of orthogonal columns have the predictor's mean square for a prior,
        which depends neither on a column's zero nor on which of such columns the table holds.
        """
        standard = self.standard if self.basis is None else np.diag(self.unit)
        return np.asarray(self.family.root_precision**0.5 * standard)

    def many_rows(self, members: int) -> bool:
        """Whether members that stray have so many rows that Laplace's likelihood has its w where the joint mode is."""
        return self.points == 1 and self.rows >= MANY_ROWS * members * len(self.z)

    def residual(self, value: float) -> float:
        """A Gaussian sum of squared residuals, and the rounding of the squares that it is left of.

        A sum that ended at a bound would pull variances, where rows are given exactly, to that bound. Added, it leaves
        them to what members' coefficients say; beside a sum a million times as large it fades.
        """
        value, rounding = max(value, 0.0), max(1e-13 * self.square, np.finfo(np.float64).tiny)
        return value + rounding / (1.0 + value / (1e6 * rounding))

    def dof(self, reml: bool) -> float:
        """Rows less the coefficients that REML integrates out; 1 where there are no more rows than coefficients."""
        return max(self.rows - (self.p if reml else 0), 1.0)

    @property
    def p(self) -> int:
        """Number of columns."""
        return len(self.unit)

    @property
    def units(self) -> Floats:
        """Inverse standard deviations (p,) of the table's columns."""
        return self.unit if self.basis is None else self.basis.unit

    @property
    def table(self) -> Floats:
        """Takes what is solved for to coefficients of the table (but for y's mean), (p, p)."""
        return np.diag(self.unit) if self.basis is None else self.basis.matrix * self.unit

    @property
    def origin(self) -> Floats:
        """Coefficients (p,) of the table where all that is solved for is 0."""
        at = self.raw(np.zeros(self.p))
        return at if self.basis is None else self.basis.matrix @ at

    @property
    def deviation(self) -> Floats:
        """Takes deviations of the table's personal coefficients to those that are solved for, (q, q)."""
        scale = np.diag(1.0 / self.unit[self.z])
        return scale if self.basis is None else scale @ np.linalg.inv(self.basis.matrix[np.ix_(self.z, self.z)])

    def moved(self, L: Floats) -> Floats:
        """Root mean square (a,), over rows and columns, of what deviations ``L u`` of L (a, q, q) add to a predictor.

        It is large for a column far from zero, whose smallest deviation moves all rows. Columns count as uncorrelated.
        """
        if self.basis is not None:
            L = np.asarray(np.linalg.solve(self.deviation * self.units[self.z], L), dtype=np.float64)
        varies = self.z != self.intercept
        square = np.square(L[:, varies]).sum(axis=1) + np.square(self.mean[self.z] @ L)  # (a, q)
        count = np.maximum(np.count_nonzero(square, axis=1), 1)
        size = np.sqrt(square.sum(axis=1) / count)
        return np.asarray(np.where(size > 0.0, size, 1.0))

    def raw(self, theta: Floats) -> Floats:
        """Coefficients (..., p) in the units of the table."""
        out = theta * self.unit
        if self.intercept is not None:
            out[..., self.intercept] += self.shift
        return out


def prepare(
    fed: Federation, tree: ClusterTree, family: Family | str, z: Ints, intercept: int | None, basis: Basis | None = None
) -> Setup:
    """Agree on units (two exchanges): columns by their standard deviation, y less its mean given an intercept."""
    family, ones = family_named(family), intercept
    if basis is not None and intercept is not None and np.count_nonzero(basis.matrix[:, intercept]) > 1:
        intercept = None  # no column is constant
    s = require_all_replies(fed.total(describe))
    weight = float(s["w"])
    mean, square = s["x"] / weight, s["xx"] / weight
    sd = np.sqrt(np.maximum(square - mean**2, 1e-12 * square))
    unit = 1.0 / np.where(sd > 1e-5 * np.abs(mean), sd, np.where(square > 0, np.sqrt(square), 1.0))
    if intercept is not None:
        unit[intercept] = 1.0
    shift = float(s["y"]) / weight if family.any_number and intercept is not None else 0.0
    square = float(require_all_replies(fed.total(summarise, unit=unit, shift=shift, personal=len(z)))["square"])
    rows, constant = float(s["rows"]), float(s["constant"])
    centre = mean * unit if basis is None else basis.mean * basis.unit
    standard = standard_units(mean, unit, ones) * unit
    if basis is not None:
        standard = standard_units(basis.mean, basis.unit, ones) @ basis.matrix * unit
    if not family.is_quadratic:
        unit, shift = unit * family.scale, 0.0  # parameters are then as large as they are of classes and counts
    return Setup(tree, family, z, unit, shift, rows, constant, intercept, square, centre, basis, standard)


def standard_units(mean: Floats, unit: Floats, intercept: int | None) -> Floats:
    """Takes coefficients of columns to standard units, with the intercept where columns have their means, (p, p)."""
    to = np.diag(1.0 / unit)
    if intercept is not None:
        to[intercept] = mean / mean[intercept]
    return to


MOST = 1000  # exchanges of one solve: far more than Newton needs, so that no data can keep it for ever


@dataclass(frozen=True)
class Solution:
    """The tree above the clients, solved."""

    swept: Swept
    positions: Positions  # of all nodes; for a Gaussian outcome of the root only
    inverse: Floats
    # Twice the penalised objective (Gaussian: residual and penalty sums of squares); infinite where it overflows
    value: float
    logdet: float  # ``log |I + L'AL|`` over all clients and clusters


def per_cluster(L: Floats) -> Floats | PerCluster:
    """One factor for all travels as it is; one for each cluster as rows of the clusters."""
    return L if len(L) == 1 else PerCluster(L)


def ask_up(fed: Federation, setup: Setup, L: Floats, at: Floats, **extra: Any) -> Sums:
    """One exchange: the clients' quadratics, added up within the finest clusters."""
    sent: dict[str, Any] = {"z": setup.z, "L": per_cluster(L), "w": PerCluster(at), "unit": setup.unit}
    check = need_curvature if setup.family.convex else None
    return require_all_replies(fed.total(fold_messages, by="cluster", check=check, **sent, **extra))


def need_curvature(_: Ints, sums: Mapping[str, Any]) -> None:
    """A CoterieError where a site's curvature of a convex loss is below zero by more than rounding."""
    A = np.asarray(sums["A"])
    p = int((2 * A.shape[-1]) ** 0.5)
    diagonal = A[..., np.cumsum(np.arange(1, p + 1)) - 1]
    if (diagonal < -1e-6 * max(1.0, float(np.abs(A).max(initial=0.0)))).any():
        raise CoterieError("its losses bend down, and those of the model do not")


def solve(
    fed: Federation,
    setup: Setup,
    L: list[Floats],
    root: Floats | None = None,
    start: Positions | None = None,
    **extra: Any,
) -> Solution:
    """Minimise over everything above the clients, or over all but the root where ``root`` (p,) is given.

    L has factors for the clients (one, or one for each finest cluster), then for each level. Newton's method begins at
    ``start``. What is ``extra`` goes into the message, such as ``client_scale=PerRow(gamma ** -0.5)``.
    """
    if setup.family.is_quadratic:
        return _squares(fed, setup, L, root, extra)
    prior, root_prior = setup.prior(client=False), setup.root_prior
    bounded = dict(extra, bounded=True)
    if root is not None and setup.points > 1:  # clients' deviations are integrated out, not minimised
        extra["points"] = setup.points
    here = start or place(setup.tree, np.zeros(setup.p) if root is None else root, L[1:], setup.z)
    best, base, t, last = np.inf, here, 1.0, np.inf
    solution: Solution | None = None
    for _ in range(MOST):
        sums = ask_up(fed, setup, L[0], here.at[0], **extra)
        swept = sweep_up(setup.tree, sums["A"], sums["b"], L[1:], setup.z, prior)
        value, logdet = float(sums["value"].sum()), float(sums["logdet"].sum()) + swept.logdet
        value += here.penalty + float(here.at[-1][0] @ root_prior @ here.at[-1][0])
        if not abs(value) < LIMIT:  # a client's curvature may overflow before its value does
            value = np.inf
        swept.A[-1][0] += pack(root_prior)
        if solution is not None and not value <= best + 1e-9 * (1.0 + abs(best)) and t > 1e-12:
            t *= 0.5 if np.isfinite(value) else 0.1  # the quadratic promised too much: go back part of the way
            here = base.towards(solution.positions, t)
            continue
        if np.isfinite(value) and not setup.family.convex and not swept.convex(root is None):
            sums = ask_up(fed, setup, L[0], here.at[0], **bounded)  # a step that cannot lead up
            swept = sweep_up(setup.tree, sums["A"], sums["b"], L[1:], setup.z, prior)
        if not np.isfinite(value):
            if start is None:
                raise CoterieError("The means overflow at the offsets given: an offset is the logarithm of a size.")
            if here.penalty == 0.0 or solution is not None:
                return Solution(swept, here, np.zeros((setup.p, setup.p)), np.inf, 0.0)
            here = place(setup.tree, here.at[-1][0], L[1:], setup.z)
            continue
        minimiser, inverse = swept.root()
        w = minimiser if root is None else root
        C = inverse if root is None else 0.0 * inverse
        goal = sweep_down(setup.tree, swept, L[1:], setup.z, w, C, prior)
        solution = Solution(swept, goal, inverse, value, logdet)
        moved = _distance(here, goal, float(np.sum(root_prior * C)))
        if moved <= 1e-6 or (last <= 1e-3 and moved > 0.5 * last):  # what is left is rounding
            return solution
        best, base, here, t, last = value, here, goal, 1.0, moved
    if solution is None:
        raise CoterieError("The clients' parameters have no values at which the outcome is likely at all.")
    return solution


def _squares(fed: Federation, setup: Setup, L: list[Floats], root: Floats | None, extra: dict[str, Any]) -> Solution:
    """A Gaussian tree is one quadratic, solved by one sweep up; nobody asks yet where the nodes below the root are."""
    sums = ask_up(fed, setup, L[0], np.zeros((setup.tree.sizes[0], setup.p)), **extra)
    swept = sweep_up(setup.tree, sums["A"], sums["b"], L[1:], setup.z)
    minimiser, inverse = swept.root()
    w = minimiser if root is None else root
    value = float(sums["value"].sum()) - swept.drop - float(2.0 * swept.b[-1][0] @ w - w @ full(swept.A[-1][0]) @ w)
    logdet = float(sums["logdet"].sum()) + swept.logdet
    return Solution(swept, Positions([w[None]], [pack(inverse)[None]], []), inverse, value, logdet)


def _distance(here: Positions, goal: Positions, held: float) -> float:
    """The longest step of a coefficient, in standard deviations (or 1e-4 of its size, where that is more).

    Where rows leave a combination of columns to the root's prior (``held``, how many), its deviation is that of each of
    them, and hides steps of the others: there, a node's step is measured in its whole covariance as well.
    """
    p = here.at[0].shape[1]
    size = np.sqrt(goal.cov[0][:, np.cumsum(np.arange(1, p + 1)) - 1]) + 1e-4 * np.abs(goal.at[0])
    size = np.where(size > 0.0, size, 1.0)
    step = (goal.at[0] - here.at[0]) / size
    moved = float(np.max(np.abs(step), initial=0.0))
    if held > 0.5 and goal.cov[0].any():
        values, vectors = np.linalg.eigh(full(goal.cov[0]) / (size[:, :, None] * size[:, None, :]))
        along = np.einsum("kij,ki->kj", vectors, step)
        moved = max(moved, float(np.max(np.linalg.norm(along / np.sqrt(np.maximum(values, 1e-12)), axis=1))))
    return moved
