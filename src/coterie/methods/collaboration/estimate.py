"""Constants of "Linear speedup in personalized collaborative learning" (2022), section 3.2 and appendix B, estimated.

From means of sampled gradients at a few points: of the main client, and of N collaborators; for many main clients, with
arrays that have one row for each pair. Squared lengths of noisy
gradients are too large by their noise, which is taken off. Coefficients that cannot be negative are not: where one
would be, it is 0, and the others are what they are without it. A3 to A5 bound things everywhere; what is found holds at
the points that were asked, so choose them where a run goes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.methods.collaboration.sampled import Estimate, Sampled, square
from coterie.numerics.kernels import Floats


def noise(of: Sampled) -> tuple[Estimate, Estimate]:
    """A5 relaxed (appendix B): sigma_k^2 and M_k (...,) with ``E|n_k|^2 <= M_k |grad f_k|^2 + sigma_k^2``."""
    return _line(Estimate(of.s, of.s_se), of.square.value, of.together)


def similarity(own: Sampled, others: Sampled) -> tuple[Estimate, Estimate]:
    """A4: zeta_k^2 and m_k (N,) with ``|grad f_k - grad f_0|^2 <= m |grad f_0|^2 + zeta_k^2``.

    By least squares over points: typical values, not bounds. From a single point, m is 0 and zeta_k^2 what is seen.
    """
    apart = square(others.g - own.g, others.v + own.v)
    return _line(apart, np.broadcast_to(own.square.value, apart.value.shape), own.together)


def dissimilarity(x: npt.ArrayLike, own: Sampled, others: Sampled) -> Estimate:
    """A3: delta_k (N,), how fast ``grad f_k - grad f_0`` changes at most, in directions between points (P, d).

    It is the spectral norm of the map that fits these changes: the norm of ``H_k - H_0`` where the points span all
    directions and losses are quadratic, and less where they do not.
    """
    return _norm(x, others.g - own.g, others.v + own.v, own.together)


def smoothness(x: npt.ArrayLike, of: Sampled) -> tuple[Estimate, Estimate]:
    """A1 and A2: L and mu (...,), the largest and the smallest curvature in directions between points (P, d).

    mu is that of strong convexity, from which mu-PL follows.
    """
    inverse, Y, error = _changes(x, of.g, of.v, of.together)
    A = inverse @ Y
    rank = int(np.min(np.linalg.matrix_rank(inverse)))
    basis = np.linalg.svd(inverse, full_matrices=False)[0][..., :rank]
    values, vectors = np.linalg.eigh(np.swapaxes(basis, -1, -2) @ (0.5 * (A + np.swapaxes(A, -1, -2))) @ basis)
    ends = [Estimate(values[..., j], np.sqrt(_along(inverse, basis @ vectors[..., j, None], error))) for j in (-1, 0)]
    return ends[0], ends[1]._replace(value=np.maximum(ends[1].value, 0.0))


def delta_of(own: npt.ArrayLike, others: npt.ArrayLike) -> Floats:
    """delta_k (N,) from Hessians, own (d, d) and others (N, d, d): exact where they are those of the losses."""
    return np.asarray(np.abs(np.linalg.eigvalsh(np.asarray(others) - np.asarray(own))).max(axis=-1))


def _line(y: Estimate, x: Floats, together: bool) -> tuple[Estimate, Estimate]:
    """Level and slope (...,) of y on x (..., P), neither negative; errors of y add up where they are the same."""
    P = x.shape[-1]
    dx = x - x.mean(axis=-1, keepdims=True)
    spread, size = np.sum(dx**2, axis=-1, keepdims=True), np.sum(x**2, axis=-1, keepdims=True)
    tilt = np.divide(dx, spread, out=np.zeros_like(dx), where=spread > 1e-12 * size)
    through = np.divide(x, size, out=np.zeros_like(dx), where=size > 0.0)
    level = 1.0 / P - tilt * x.mean(axis=-1, keepdims=True)
    slope, flat = np.sum(tilt * y.value, axis=-1), np.mean(y.value, axis=-1)
    at_zero = np.sum(level * y.value, axis=-1)
    low, off = slope <= 0.0, (at_zero < 0.0) & (slope > 0.0)
    value = np.where(low, np.maximum(flat, 0.0), np.where(off, 0.0, at_zero))
    rise = np.where(low, 0.0, np.where(off, np.maximum(np.sum(through * y.value, axis=-1), 0.0), slope))
    level = np.where(low[..., None], 1.0 / P, level)
    tilt = np.where(off[..., None], through, tilt)

    def error(weights: Floats) -> Floats:
        each = np.abs(weights) * y.se
        return np.asarray(each.sum(axis=-1) if together else np.sqrt(np.sum(each**2, axis=-1)))

    return Estimate(value, error(level)), Estimate(rise, error(tilt))


def _changes(x: npt.ArrayLike, g: Floats, v: Floats, together: bool) -> tuple[Floats, Floats, Floats]:
    """What takes changes of gradients to the map they fit (d, P); these changes; and their variance, at each point."""
    x = np.asarray(x, dtype=np.float64)
    if x.shape[-2] < 2 or not np.ptp(x, axis=-2).any(axis=-1).all():
        raise CoterieError("Curvature needs gradients at two different points at least.")
    inverse = np.linalg.pinv(x - x.mean(axis=-2, keepdims=True), rcond=1e-10)
    return inverse, g - g.mean(axis=-2, keepdims=True), np.zeros_like(v) if together else v / g.shape[-1]


def _along(inverse: Floats, direction: Floats, error: Floats) -> Floats:
    """Variance of one entry of the map, along a direction (..., d, 1) of the way."""
    return np.asarray(np.sum((np.swapaxes(direction, -1, -2) @ inverse)[..., 0, :] ** 2 * error, axis=-1))


def _norm(x: npt.ArrayLike, g: Floats, v: Floats, together: bool) -> Estimate:
    inverse, Y, error = _changes(x, g, v, together)
    left, values, _ = np.linalg.svd(inverse @ Y)
    spread = _along(inverse, left[..., :1], error)
    return Estimate(np.sqrt(np.maximum(values[..., 0] ** 2 - g.shape[-1] * spread, 0.0)), np.sqrt(spread))
