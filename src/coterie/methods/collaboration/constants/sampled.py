"""Gradients that were sampled at a few points, and how exact their means are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.numerics.kernels import Floats


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
