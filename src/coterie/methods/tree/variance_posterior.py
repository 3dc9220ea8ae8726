"""How sure variances are known: what is added to intervals and to covariances of nodes, and Student's t for both.

Of what is not known of variances, intervals have values and covariances of nodes at other variances, and their weights.
Along an axis, one variance d of one level, all others at their estimates, every node's value and covariance are taken
to lie in the span of ``1, v, 1 / v``, with ``v = d + s^2`` and s^2 the sampling variance of what d is seen by. In a
balanced one-way layout that is exact, and so is a posterior ``v^(-nu/2 - 1) exp(-S / 2v)``, v > s^2, under Jeffreys's
prior: of the root's coefficient, Student's t with nu degrees of freedom. Two further points thus tell nodes' moments.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from coterie.lazy_modules import special
from coterie.numerics.arrays import Floats, pack

POINTS = 256  # of the grid on which an axis is integrated
FEW, TRIM = 4.5, 0.01  # degrees of freedom up to which the upper tail is cut off: its moments are infinite


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """How far variances of intervals are themselves known: ``var(x'Vx) = sum_n (x' G_n x)^2``, or relative variances.

    There are n directions in which variances may lie elsewhere; levels are the clients, then the clusters fine to
    coarse. Covariances of nodes have what variances add to them already.
    """

    root: Floats  # (n, p, p): G of the root's covariance
    levels: tuple[Floats, ...]  # (n, p, p): G of each level's D
    more: tuple[Floats, ...]  # (g, p, p): by how much each level's D exceeds its estimate in the mean
    nodes: tuple[Floats, ...]  # (k_l,): relative variances of the clusters' covariances
    client: Floats  # (m,): those of the clients'
    residual: float  # that of the residual variance

    def turned(self, B: Floats) -> Uncertainty:
        """The same of coefficients ``B @ theta``."""
        levels, more = (tuple(B @ G @ B.T for G in each) for each in (self.levels, self.more))
        return replace(self, root=B @ self.root @ B.T, levels=levels, more=more)


def degrees_of_freedom(relative: npt.ArrayLike) -> Floats:
    """Of the t distribution with the kurtosis of normal values whose variance has this relative variance."""
    with np.errstate(divide="ignore"):
        return np.asarray(4.0 + 2.0 / np.maximum(relative, 0.0), dtype=np.float64)


def mean_over_scale(relative: npt.ArrayLike) -> Floats:
    """The variance of that t distribution over the square of its scale, which is what a standard error is."""
    return np.asarray(1.0 + 1.0 / (1.0 + 1.0 / np.maximum(relative, 1e-300)))


def half_widths(probability: float, variance: Floats, doubt: Floats) -> Floats:
    """Half of an interval (n,) of normal values whose variances have these means and standard deviations."""
    z = NormalDist().inv_cdf(0.5 + probability / 2.0)
    if not doubt.any():
        return np.asarray(z * np.sqrt(variance))
    inverse = np.linspace(0.0, 0.25, POINTS + 1)[1:]
    width = np.append(z, special.stdtrit(1.0 / inverse, 0.5 + probability / 2.0) * np.sqrt(1.0 - 2.0 * inverse))
    relative = np.square(doubt / np.where(variance > 0.0, variance, 1.0))
    return np.asarray(np.interp(1.0 / degrees_of_freedom(relative), np.append(0.0, inverse), width) * np.sqrt(variance))


def axis_weights(nu: float, S: float, s2: float, v: Floats) -> Floats:
    """Weights (8,) of what nodes are at the second and third of the points v (3,), as differences to the first.

    Two for means, three for products of two such differences in mean, three for their covariances.
    """
    low, high = S / special.chdtri(nu, 1e-6), S / special.chdtri(nu, 1.0 - (TRIM if nu < FEW else 1e-12))
    low, high = np.log(max(low, s2)), np.log(max(high, 1.5 * s2, v.max()))
    grid = np.exp(np.linspace(min(low, high - 1e-3), high, POINTS))
    density = -0.5 * (nu * np.log(grid) + S / grid)
    density = np.exp(density - density.max())
    density[[0, -1]] *= 0.5
    density /= density.sum()

    def basis(at: Floats) -> Floats:
        return np.stack([np.ones_like(at), at / v[0], v[0] / at])

    at_points = np.linalg.solve(basis(v).T, np.eye(3))  # columns: what is 1 at one point and 0 at the others
    values = (basis(grid).T @ at_points)[:, 1:]
    return _moments(density @ values, values.T @ (density[:, None] * values))


def correlation_weights(h: float, variance: float) -> Floats:
    """The same for the points 0, -h and h of what is 0 in the mean, has this variance and is about normal."""
    square, fourth = variance / h**2, 3.0 * variance**2 / h**4
    same, other = 0.25 * (fourth + square), 0.25 * (fourth - square)
    return _moments(np.full(2, 0.5 * square), np.array([[same, other], [other, same]]))


def _moments(mean: Floats, square: Floats) -> Floats:
    spread = square - np.outer(mean, mean)
    i, j = [0, 0, 1], [0, 1, 1]
    return np.concatenate([mean, square[i, j], spread[i, j]])


def widened(
    here: tuple[Floats, Floats],
    one: tuple[Floats, Floats],
    two: tuple[Floats, Floats],
    weights: Floats,
    metric: Floats,
) -> tuple[Floats, Floats]:
    """What an axis adds to covariances (m, P) of nodes, and the variance (m,) of their sizes ``S @ metric``.

    Values (m, p) and covariances at the estimate and at the axis's two points; weights (1 or m, 8).
    """
    d1, d2 = one[0] - here[0], two[0] - here[0]
    S1, S2 = one[1] - here[1], two[1] - here[1]
    a1, a2, r11, r12, r22, q11, q12, q22 = weights.T[..., None]
    half = r11 * d1 + r12 * d2, r12 * d1 + r22 * d2
    i, j = np.tril_indices(d1.shape[1])
    added = a1 * S1 + a2 * S2 + half[0][:, i] * d1[:, j] + half[1][:, i] * d2[:, j]
    t1, t2 = S1 @ metric, S2 @ metric
    return added, q11[:, 0] * t1**2 + 2.0 * q12[:, 0] * t1 * t2 + q22[:, 0] * t2**2


def with_added(S: Floats, added: Floats) -> Floats:
    """Covariances (m, P) and what axes add to them, or as much of that as leaves each variance a quarter of itself.

    Only far from any normal posterior, as with separated outcomes, is it less than all.
    """
    p = int((2 * S.shape[1]) ** 0.5)
    at = np.cumsum(np.arange(1, p + 1)) - 1
    less = np.maximum(-added[:, at], 0.0)
    share = np.min(0.75 * S[:, at] / np.where(less > 0.0, less, 1.0) + (less == 0.0), axis=1, initial=1.0)
    return np.asarray(S + np.minimum(share, 1.0)[:, None] * added)


def directions(one: Floats, two: Floats, weights: Floats) -> Floats:
    """The same variance of matrices (p, p), of any quadratic form: two directions (2, p, p); weights (8,)."""
    q11, q12, q22 = weights[5:]
    values, vectors = np.linalg.eigh(np.array([[q11, q12], [q12, q22]]))
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    return np.asarray(np.einsum("jn,jab->nab", root, np.stack([one, two])))


def size_metric(to: Floats) -> Floats:
    """The metric (P,) for which ``S @ metric`` is the trace of ``to S to'``, of packed S."""
    M = to.T @ to
    return pack(2.0 * M - np.diag(np.diag(M)))
