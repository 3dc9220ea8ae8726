"""How gradients change between points, A1 to A3: L, mu and delta, from sampled gradients.

From samples, delta and L are lower bounds of what holds everywhere, and mu is an upper one: they come nearer with more
directions. :func:`dissimilarity_at_most` bounds delta from above. The largest of many noisy numbers is too large.
Measured with one half of the samples in the direction that the other half found, it is too small instead, with twice
the noise twice as much to second order: a third of this and two thirds of that cancel. Copies, whose delta is 0, are
left with what was found crosswise: 0, give or take its standard error.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.numerics.arrays import Floats
from papers.paper_004.sampled_gradients import Estimate, Sampled, need_same_points

Ends = Callable[[Floats], tuple[Floats, Floats]]
"""From a fitted map (..., d, d): directions left and right (..., d, 1)."""


DOUBT = 0.05
"""How often an upper confidence bound may be too low."""


CLEAR = 4.0
"""Standard errors from 0 at which a delta is surely there."""


def dissimilarity(x: npt.ArrayLike, own: Sampled, others: Sampled) -> Estimate:
    """A3: delta_k (N,), how fast ``grad f_k - grad f_0`` changes at most, in directions between points (P, d).

    It is the spectral norm of the map that fits these changes: the norm of ``H_k - H_0`` where the points span all
    directions and losses are quadratic, and less where they do not.
    """
    need_same_points(own, others)

    def ends(A: Floats) -> tuple[Floats, Floats]:
        left, _, right = np.linalg.svd(A)
        return left[..., :1], np.swapaxes(right, -1, -2)[..., :1]

    inverse = _inverse(x, others.g.shape)
    return _end(inverse, others.halves - own.halves, others.g - own.g, (own, others), ends, CLEAR)


def dissimilarity_at_most(
    x: npt.ArrayLike, own: Sampled, others: Sampled, drawn: int | None = None, doubt: float = DOUBT
) -> Floats:
    """An upper confidence bound (N,) of delta_k, for quadratic losses.

    Let ``A + E`` be the map that is fitted, E its noise, and u, v the directions in which A is longest. Then
    ``|A + E| >= u' (A + E) v = |A| + u' E v``. So |A| is at most ``|A + E|`` and as many standard errors of
    ``u' E v``, taken in the directions where these are largest, as ``doubt`` wants. Where points span k of d
    directions Q, drawn at random, ``|A Q| >= |A| |Q' v|``, and ``|Q' v|^2`` has a Beta(k / 2, (d - k) / 2)
    distribution: half of ``doubt`` is for that.

    Parameters
    ----------
    x : (..., P, d)
        Points.
    own, others : Sampled
        Of the main client, and of N others.
    drawn : int, optional
        How many directions between the points were drawn at random, where these do not span all; by default they do.
    doubt : float, default 0.05
        How often the bound may be too low.
    """
    from scipy.special import betaincinv, ndtri

    need_same_points(own, others)
    inverse, d = _inverse(x, others.g.shape), others.g.shape[-1]
    k = d if drawn is None else drawn
    partly = k < d and int(np.min(np.linalg.matrix_rank(inverse))) < d
    doubt = 0.5 * doubt if partly else doubt
    variance = np.zeros(others.g.shape[:-1])
    for of in (own, others):
        if not of.together:
            variance = variance + of.v * np.linalg.eigvalsh(of.shape)[..., -1:]
    spread = np.linalg.eigvalsh((inverse * variance[..., None, :]) @ np.swapaxes(inverse, -1, -2))[..., -1]
    length = np.linalg.norm(inverse @ (others.g - own.g), ord=2, axis=(-2, -1))
    bound = length - ndtri(doubt) * np.sqrt(np.maximum(spread, 0.0))
    return np.asarray(bound / np.sqrt(betaincinv(0.5 * k, 0.5 * (d - k), doubt)) if partly else bound)


def smoothness(x: npt.ArrayLike, of: Sampled) -> tuple[Estimate, Estimate]:
    """A1 and A2: L and mu (...,), the largest and the smallest curvature in directions between points (P, d).

    mu is that of strong convexity, from which mu-PL follows.
    """
    inverse = _inverse(x, of.g.shape)
    rank = int(np.min(np.linalg.matrix_rank(inverse)))
    basis = np.linalg.svd(inverse, full_matrices=False)[0][..., :rank]

    def end(at: int) -> Ends:
        def ends(A: Floats) -> tuple[Floats, Floats]:
            A = np.swapaxes(basis, -1, -2) @ A @ basis
            v = basis @ np.linalg.eigh(0.5 * (A + np.swapaxes(A, -1, -2)))[1][..., at, None]
            return v, v

        return ends

    L, mu = (_end(inverse, of.halves, of.g, (of,), end(at)) for at in (-1, 0))
    return L, mu


def _inverse(x: npt.ArrayLike, shape: tuple[int, ...]) -> Floats:
    """What takes changes of gradients to the map they fit, (..., d, P)."""
    x = np.asarray(x, dtype=np.float64)
    if x.ndim < 2 or x.shape[-2:] != shape[-2:] or not np.isfinite(x).all():
        raise CoterieError(f"Points must be finite numbers, (points, columns) as gradients {shape} are, not {x.shape}.")
    if x.shape[-2] < 2 or not np.ptp(x, axis=-2).any(axis=-1).all():
        raise CoterieError("Curvature needs gradients at two different points at least.")
    return np.asarray(np.linalg.pinv(x - x.mean(axis=-2, keepdims=True), rcond=1e-10))


def _end(
    inverse: Floats, halves: Floats, g: Floats, noisy: tuple[Sampled, ...], ends: Ends, least: float | None = None
) -> Estimate:
    """How long the map is between its ends; crosswise where that is not above ``least`` standard errors, if given."""
    whole, first, second = inverse @ g, inverse @ halves[..., 0, :, :], inverse @ halves[..., 1, :, :]
    crossed = 0.5 * (_between(second, *ends(first)) + _between(first, *ends(second)))
    left, right = ends(whole)
    ways = (np.swapaxes(left, -1, -2) @ inverse)[..., 0, :]
    across = np.broadcast_to(np.swapaxes(right, -1, -2), g.shape)
    error = sum((np.sum(ways**2 * of.along(across, across), axis=-1) for of in noisy if not of.together), np.zeros(()))
    se = np.sqrt(np.broadcast_to(error, crossed.shape))
    sure = np.full(crossed.shape, True) if least is None else crossed > least * se
    se = np.where(sure, se, np.sqrt(2.0) * se)  # without a clear direction the two ways across err alike
    value = np.where(sure, (2.0 * _between(whole, left, right) + crossed) / 3.0, crossed)
    return Estimate(np.maximum(value, 0.0), se)


def _between(A: Floats, left: Floats, right: Floats) -> Floats:
    """``l' A r`` (...,)."""
    return np.asarray((np.swapaxes(left, -1, -2) @ A @ right)[..., 0, 0])
