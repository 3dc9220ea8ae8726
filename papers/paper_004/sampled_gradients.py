"""Gradients sampled at a few points, and what follows of noise (A5, appendix B) and gradient similarity (A4).

From means of sampled gradients at a few points: of the main client, and of N collaborators; for many main clients, with
arrays that have one row for each pair. Squared lengths of noisy gradients are too large by their noise, which is taken
off, and so is what noise in ``|grad f_0|^2`` does to a line on it. Coefficients that cannot be negative are not: where
one would be, it is 0, and the others are what they are without it.

Assumptions hold everywhere; what is found holds at the points that were asked, so choose them where a run goes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.numerics.arrays import Floats


class Estimate(NamedTuple):
    """Values and their standard errors, of the same shape."""

    value: Floats
    se: Floats


@dataclass(frozen=True)
class Sampled:
    """Gradients at P points; leading axes are clients.

    Attributes
    ----------
    g : (..., P, d)
        Mean gradients.
    v : (..., P)
        Variances of these means, all coordinates together; 0 where they are exact.
    s, s_se : (..., P)
        Variances of single sampled gradients, and their standard errors.
    shape : (..., d, d)
        Covariance of the noise, of trace 1, over all points.
    halves : (..., 2, P, d)
        Means of either half of the samples; both are g where that is exact.
    together : bool
        Whether all points were asked with the same samples, such as a client's rows: errors then do not average out.
    """

    g: Floats
    v: Floats
    s: Floats
    s_se: Floats
    shape: Floats
    halves: Floats
    together: bool = False

    @classmethod
    def exact(cls, g: npt.ArrayLike) -> Sampled:
        """Gradients (..., P, d) without noise."""
        g = np.asarray(g, dtype=np.float64)
        none, d = np.zeros(g.shape[:-1]), g.shape[-1]
        shape = np.broadcast_to(np.eye(d) / d, (*g.shape[:-2], d, d))
        return cls(g, none, none, none, shape, np.stack([g, g], axis=-3))

    def __getitem__(self, at: Any) -> Sampled:
        """Some clients: an index of the first axis."""
        parts = ("g", "v", "s", "s_se", "shape", "halves")
        return replace(self, **{name: getattr(self, name)[at] for name in parts})

    def along(self, a: Floats, b: Floats) -> Floats:
        """``a' V b`` (..., P), V the covariance of the mean at each point; a, b (..., P, d)."""
        return np.asarray(self.v * np.sum((a @ self.shape) * b, axis=-1))

    def overlap(self, other: Sampled) -> Floats:
        """``trace(V W)`` (..., P), W that of another client's mean."""
        return np.asarray(self.v * other.v * np.einsum("...ij,...ij->...", self.shape, other.shape)[..., None])

    @property
    def square(self) -> Estimate:
        """``|grad f|^2`` (..., P), without the noise."""
        return _square(self.g, self.v, self.along(self.g, self.g), self.overlap(self))

    def apart(self, other: Sampled) -> Estimate:
        """``|grad f_k - grad f_0|^2`` (..., P), without the noise of either."""
        b = self.g - other.g
        lengths = self.along(b, b) + other.along(b, b)
        return _square(
            b, self.v + other.v, lengths, self.overlap(self) + 2 * self.overlap(other) + other.overlap(other)
        )

    def shared(self, others: Sampled) -> Floats:
        """Covariance (..., P) of the errors of ``self.square`` and ``others.apart(self)``, which share this noise."""
        return np.asarray(-4.0 * self.along(self.g, others.g - self.g) - 2.0 * self.overlap(self))


def _square(g: Floats, v: Floats, along: Floats, twice: Floats) -> Estimate:
    """``|g|^2 - v``; its variance is ``4 m' V m + 2 trace V^2``, and ``g' V g`` is too large by ``trace V^2``."""
    return Estimate(np.sum(g**2, axis=-1) - v, np.sqrt(np.maximum(4.0 * along - 2.0 * twice, 2.0 * twice)))


def sampled(samples: npt.ArrayLike) -> Sampled:
    """Summarise samples.

    Parameters
    ----------
    samples : (..., P, S, d)
        S independent gradients of each client at each of P points.

    Raises
    ------
    CoterieError
        For another shape, fewer than two samples, and numbers that are not finite.
    """
    samples = np.asarray(samples, dtype=np.float64)
    if samples.ndim < 3 or 0 in samples.shape:
        raise CoterieError(f"Sampled gradients must be (..., points, samples, columns), not {samples.shape}.")
    S = samples.shape[-2]
    if S < 2:
        raise CoterieError("Noise needs two sampled gradients at a point at least: ask for more samples.")
    if not np.isfinite(samples).all():
        raise CoterieError("Some sampled gradients are not finite: look at that client, or ask nearer to its optimum.")
    g = samples.mean(axis=-2)
    off = samples - g[..., None, :]
    each = np.sum(off**2, axis=-1) * S / (S - 1)
    s = each.mean(axis=-1)
    # Deviations from their own mean vary less; exact for Gaussian noise. Two are equal: then as if in one direction.
    se = np.sqrt(2.0) * s if S == 2 else each.std(axis=-1, ddof=1) * np.sqrt((S - 1) / (S * (S - 2)))
    C = np.einsum("...psi,...psj->...ij", off, off)
    trace = np.einsum("...ii->...", C)[..., None, None]
    shape = np.where(trace > 0.0, C / np.where(trace > 0.0, trace, 1.0), np.eye(C.shape[-1]) / C.shape[-1])
    halves = np.stack([samples[..., : S // 2, :].mean(axis=-2), samples[..., S // 2 :, :].mean(axis=-2)], axis=-3)
    return Sampled(g, s / S, s, se, shape, halves)


SURE = 0.25
"""Of the scatter of ``|grad f|^2`` over points, at least so much is taken to be no noise."""


def noise(of: Sampled, clear: float | None = None) -> tuple[Estimate, Estimate]:
    """A5 relaxed (appendix B): sigma_k^2 and M_k (...,) with ``E|n_k|^2 <= M_k |grad f_k|^2 + sigma_k^2``.

    M_k is 0, and sigma_k^2 the mean over points, unless M_k is ``clear`` standard errors from 0, by default 3, or 2
    where errors are bounds: near an optimum nothing tells M_k from sigma_k^2, and steps may not exceed ``1 / (2 L M)``.
    """
    clear = (2.0 if of.together else 3.0) if clear is None else clear
    return _line(Estimate(of.s, of.s_se), of.square, np.zeros_like(of.s), of.together, clear)


def similarity(own: Sampled, others: Sampled, clear: float = 1.0) -> tuple[Estimate, Estimate]:
    """A4: zeta_k^2 and m_k (N,) with ``|grad f_k - grad f_0|^2 <= m |grad f_0|^2 + zeta_k^2``.

    By least squares over points: typical values, not bounds. m is 0, and zeta_k^2 the mean over points, unless m is
    ``clear`` standard errors from 0; from a single point it always is.
    """
    apart = need_same_points(own, others).apart(own)
    x = Estimate(*(np.broadcast_to(a, apart.value.shape) for a in own.square))
    return _line(apart, x, own.shared(others), own.together, clear)


def dominating(own: Sampled, others: Sampled, sure: float = 0.0) -> tuple[Floats, Floats]:
    """The least zeta_k^2 and m_k (N,) that hold at every point, by the smallest bound at the mean ``|grad f_0|^2``.

    ``sure`` times their standard errors are added to ``|grad f_k - grad f_0|^2`` before. Points decide that are the
    largest by their noise too, so that with few samples this is more than what holds.
    """
    apart = need_same_points(own, others).apart(own)
    y = np.maximum(apart.value + sure * apart.se, 0.0)
    x = np.broadcast_to(np.maximum(own.square.value, 0.0), y.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        steep = np.max(np.where(y > 0.0, y / x, 0.0), axis=-1)
        zeta2, m = y.max(axis=-1), np.zeros(y.shape[:-1])
        tries = [(np.zeros_like(m), steep)]
        for p in range(y.shape[-1]):
            slope = (y[..., p, None] - y) / (x[..., p, None] - x)
            level = y - slope * x
            tries += [(level[..., q], slope[..., q]) for q in range(p)]
    best = zeta2.copy()
    for level, slope in tries:
        with np.errstate(invalid="ignore"):
            fits = np.all(level[..., None] + slope[..., None] * x >= y * (1.0 - 1e-9), axis=-1)
            at = level + slope * x.mean(axis=-1)
            better = fits & (level >= 0.0) & (slope >= 0.0) & (at < best)
        zeta2, m, best = np.where(better, level, zeta2), np.where(better, slope, m), np.where(better, at, best)
    return zeta2, m


def need_same_points(own: Sampled, others: Sampled) -> Sampled:
    """The others; a CoterieError where they were not asked at the same points."""
    if others.g.ndim < 3 or own.g.shape[-2:] != others.g.shape[-2:]:
        raise CoterieError(
            f"Gradients of the main client {own.g.shape} and of others {others.g.shape} must be at the same points, "
            "(points, columns) and (clients, points, columns)."
        )
    return others


def _line(y: Estimate, x: Estimate, shared: Floats, together: bool, clear: float) -> tuple[Estimate, Estimate]:
    """Level and slope (...,) of y on x (..., P), neither negative; ``shared`` is the covariance of their errors.

    Sums of products are too large by those of errors, where these are independent. Where errors are the same at all
    points they add up, and are small against the way between points.
    """
    P = x.value.shape[-1]
    free = 0.0 if together else 1.0
    dx, at = x.value - x.value.mean(axis=-1, keepdims=True), x.value.mean(axis=-1, keepdims=True)

    def least(by: Floats, share: float) -> tuple[Floats, Floats]:
        square, scale = np.sum(by**2, axis=-1), np.sum(x.value**2, axis=-1)
        clean = np.maximum(square - free * share * np.sum(x.se**2, axis=-1), SURE * square)[..., None]
        weights = np.divide(by, clean, out=np.zeros_like(by), where=clean > 1e-12 * scale[..., None])
        lost = free * share * np.sum(shared, axis=-1) / np.where(clean > 0.0, clean, 1.0)[..., 0]
        return weights, np.sum(weights * y.value, axis=-1) - np.where(weights.any(axis=-1), lost, 0.0)

    (tilt, slope), (through, steep) = least(dx, 1.0 - 1.0 / P), least(x.value, 1.0)
    flat = np.mean(y.value, axis=-1)
    level = flat - slope * at[..., 0]

    def error(weights: Floats, rise: Floats) -> Floats:
        each = np.maximum(y.se**2 + rise[..., None] * (rise[..., None] * x.se**2 - 2.0 * shared), 0.0)
        sizes = np.abs(weights) * np.sqrt(each)
        return np.asarray(sizes.sum(axis=-1) if together else np.sqrt(np.sum(sizes**2, axis=-1)))

    low = (slope <= 0.0) | (slope < clear * error(tilt, slope))
    off = (level < 0.0) & ~low
    value = np.where(low, np.maximum(flat, 0.0), np.where(off, 0.0, level))
    rise = np.where(low, 0.0, np.where(off, np.maximum(steep, 0.0), slope))
    across = np.where(low[..., None], 1.0 / P, 1.0 / P - tilt * at)
    return Estimate(value, error(across, rise)), Estimate(rise, error(np.where(off[..., None], through, tilt), rise))
