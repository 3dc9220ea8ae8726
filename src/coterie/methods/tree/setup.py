"""What every exact method agrees on first: the units of the columns, and Gaussian clients' sums of squares."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.families import Family, family_named
from coterie.federation import Federation, Site, work
from coterie.methods.replies import require_all_replies
from coterie.numerics.arrays import Floats, Ints
from coterie.relations.clusters import ClusterTree

Reply = dict[str, Any]


@work
def describe(site: Site) -> Reply:
    """Sums that give columns their units and y its origin."""
    o = site.objective
    return {**o.moments(), "constant": o.constants()}


@work
def summarise(site: Site, unit: Floats, shift: float, personal: int) -> Reply:
    """Gaussian clients reduce their rows to (X'WX, X'Wy, y'Wy) once, others start at zero; all this stays at home."""
    if site.objective.family.is_quadratic:
        site.state["A"], site.state["b"], site.state["c"] = site.objective.gram(unit, shift)
        return {"square": site.state["c"]}
    site.state["u"] = np.zeros((len(site), personal))
    return {"square": np.zeros(len(site))}


@dataclass(frozen=True, eq=False)
class Basis:
    """Orthogonal columns ``X @ matrix`` that stand for the table's.

    Sums of products lose half of the digits of columns that nearly depend on each other, or lie far from zero.

    ``matrix`` (p, p): personal columns are combinations of personal ones, of which the intercept stays as it is.
    ``unit``, ``mean`` (p,): of the table's columns: inverse standard deviations (1 of the intercept), and means.
    """

    matrix: Floats
    unit: Floats
    mean: Floats

    @classmethod
    def of(cls, X: Floats, matrix: Floats, intercept: int | None) -> Basis:
        """Of the columns of X (n, p)."""
        mean, sd = X.mean(axis=0), X.std(axis=0)
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

    def residual(self, value: float) -> float:
        """A Gaussian sum of squared residuals, not below the rounding of the squares that it is left of."""
        return max(value, 1e-14 * self.square, np.finfo(np.float64).tiny)

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
    """Agree on units (two exchanges): columns by their standard deviation, y less its mean given an intercept.

    ``basis`` says what the federation's columns are of the table's, where they are not these.
    """
    family = family_named(family)
    if basis is not None and intercept is not None and np.count_nonzero(basis.matrix[:, intercept]) > 1:
        intercept = None  # no column is constant
    s = require_all_replies(fed.total(describe))
    weight = float(s["w"])
    mean, square = s["x"] / weight, s["xx"] / weight
    sd = np.sqrt(np.maximum(square - mean**2, 1e-12 * square))
    unit = 1.0 / np.where(sd > 1e-5 * np.abs(mean), sd, np.where(square > 0, np.sqrt(square), 1.0))
    if intercept is not None:
        unit[intercept] = 1.0
    shift = float(s["y"]) / weight if family.is_quadratic and intercept is not None else 0.0
    square = float(require_all_replies(fed.total(summarise, unit=unit, shift=shift, personal=len(z)))["square"])
    rows, constant = float(s["rows"]), float(s["constant"])
    centre = mean * unit if basis is None else basis.mean * basis.unit
    return Setup(tree, family, z, unit, shift, rows, constant, intercept, square, centre, basis)
