"""Along what the variances of a tree are moved, to see how sure they are: see ``relations.uncertainty``.

An axis is one variance of one level or, where covariances are learned too, one along a principal axis of D, or the
correlation of two of these: as in a Wishart distribution they are about independent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from coterie.methods.tree.marginal_likelihood import Scores
from coterie.numerics.arrays import Bools, Floats, Ints, full
from coterie.relations.covariance import Structure
from coterie.relations.uncertainty import axis_weights, correlation_weights

SHARE = 0.01  # of v, at least, is taken to be sampling variance
STEP = 1.5  # standard deviations of log v between an axis's points
NOTHING = 1e-9  # of v, below which a variance is zero but for rounding
FAR = 0.8  # the largest correlation of a point


@dataclass(frozen=True)
class Axis:
    """A variance d of one level, at the estimate, of each of the level's g factors; or a correlation, 0 there."""

    level: int
    rows: Bools  # (q,) the directions that it is of
    d: Floats  # (g,)
    s2: Floats  # (g,) the sampling variance of what d is seen by; of a correlation
    nu: Floats  # (g,) about how many members tell d
    pair: tuple[int, int] | None = None  # the directions of the correlation

    @property
    def points(self) -> Floats:
        """Three values of ``v = d + s2``, (g, 3): the estimate's, one below and one above, or two above.

        Of a correlation: 0, one below and one above.
        """
        if self.pair is not None:
            h = np.minimum(STEP * np.sqrt(self.s2), FAR)
            return np.stack([0.0 * h, -h, h], axis=1)
        v, h = self.d + self.s2, STEP * np.sqrt(2.0 / np.maximum(self.nu, 2.0))
        low = np.where(v * np.exp(-h) > self.s2, v * np.exp(-h), self.s2)
        low = np.where(v > self.s2 * np.exp(0.5 * h), low, v * np.exp(2.0 * h))
        return np.stack([v, low, v * np.exp(h)], axis=1)

    def nearer(self) -> Axis:
        """The same with nearer points, where the deviance rises far more than members let expect."""
        closer = np.where(self.d > 0.0, 1.0, 0.1) if self.pair is None else 0.1
        return replace(self, s2=self.s2 * closer, nu=np.where(self.d > 0.0, 8.0, 1.0) * self.nu)

    def moved(self, structure: Structure, L: Floats, k: int) -> Floats:
        """The level's factors at one of the points."""
        at = self.points[:, k]
        if self.pair is not None:
            return structure.turned(L, self.pair, float(at[0]))
        d = np.maximum(at - self.s2, 0.0)
        some = self.d > 0.0
        return structure.stretched(
            L, self.rows, np.where(some, d / np.where(some, self.d, 1.0), 0.0), np.where(some, 0.0, d)
        )

    def weights(self, rise: Floats) -> Floats:
        """What the points count, (g, 8), by the rise of the deviance (2,) to them; else by the members alone."""
        points = self.points
        if self.pair is not None:
            h = float(points[0, 2])
            curvature = float(rise.sum()) / (2.0 * h**2)
            curvature = max(curvature - 4.0, 0.25 * curvature)  # as a Wishart matrix's inverse, whose tails are heavier
            variance = 1.0 / curvature if curvature > 1.0 else float(self.s2[0])
            return correlation_weights(h, min(variance, FAR**2))[None]
        found = []
        for nu, s2, v in zip(self.nu, self.s2, points, strict=True):
            S = nu * v[0]
            if len(points) == 1:
                M = np.stack([np.log(v[1:] / v[0]), 1.0 / v[1:] - 1.0 / v[0]], axis=1)
                a, b = np.linalg.solve(M, rise)
                if 0.5 <= a <= 4.0 * nu + 10.0 and b > 0.0:
                    nu, S = a, b
            found.append(axis_weights(max(float(nu), 1.0), float(S), float(s2), v))
        return np.stack(found)


def axes(
    z: Ints,
    structures: tuple[Structure, ...],
    L: list[Floats],
    arrived: Sequence[Floats],
    scores: Scores,
    chosen: bool,
) -> Iterator[Axis]:
    """The variances that are learned, level by level, with what sums over members tell of how surely.

    Of structures that rows have ``chosen``, those that are taken to be equal may differ all the same.

    ``arrived`` are the quadratics that members sent to their parents, summed: the inverse of D and of the sampling
    covariance together, which scores have less what goes into the parents' own estimates.
    """
    for level, (structure, Ll, (e, _, square, _)) in enumerate(zip(structures, L, scores, strict=True)):
        if not len(structure):
            continue
        whole = len(Ll) == 1
        E, squares, sent = (full(x.sum(axis=0)[None] if whole else x) for x in (e, square, arrived[level]))
        one, two = np.einsum("gii->gi", E), np.einsum("gii->gi", squares)
        members = np.where(two > 0.0, one / np.sqrt(np.where(two > 0.0, two, 1.0)), 1.0)
        V = sent[:, z[:, None], z] / (members[:, :, None] * members[:, None, :])
        directions, variances = structure.axes(Ll)
        to = structure.framed(directions)
        seen, told = (np.einsum("gji,gjk,gki->gi", to, A, to) for A in (V, E))
        known: dict[int, Axis] = {}
        for rows in structure.sets(apart=chosen):
            if (seen[:, rows] > 0.0).all():
                # those that are seen best tell most of a variance that several have
                v = seen[:, rows].sum(axis=1) / np.square(seen[:, rows]).sum(axis=1)
                d = np.minimum(variances[:, rows].mean(axis=1), (1.0 - SHARE) * v)
                d, nu = np.where(d > NOTHING * v, d, 0.0), told[:, rows].sum(axis=1) * v
                axis = Axis(level, rows, d, v - d, np.maximum(nu, 1.0))
                known |= {int(np.flatnonzero(rows)[0]): axis} if (d > 0.0).all() and rows.sum() == 1 else {}
                yield axis
        for i, j in combinations(known, 2) if whole and structure.name == "full" else ():
            a, b = known[i], known[j]
            sure = (a.d / (a.d + a.s2)) * (b.d / (b.d + b.s2)) * np.sqrt(a.nu * b.nu)
            yield Axis(level, a.rows | b.rows, a.d, 1.0 / sure, a.nu, (i, j))
