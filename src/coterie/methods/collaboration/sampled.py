"""Gradients that were sampled at a few points, and how exact their means are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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
    together : bool
        Whether all points were asked with the same samples, such as a client's rows: errors then do not average out.
    """

    g: Floats
    v: Floats
    s: Floats
    s_se: Floats
    together: bool = False

    @property
    def square(self) -> Estimate:
        """``|grad f|^2`` (..., P), without the noise."""
        return square(self.g, self.v)


def sampled(samples: npt.ArrayLike) -> Sampled:
    """From S independent gradients (..., P, S, d) of each client at each point; a CoterieError for fewer than two."""
    samples = np.asarray(samples, dtype=np.float64)
    S = samples.shape[-2]
    if S < 2:
        raise CoterieError("Noise needs two sampled gradients at a point at least.")
    g = samples.mean(axis=-2)
    each = np.sum((samples - g[..., None, :]) ** 2, axis=-1) * S / (S - 1)
    s = each.mean(axis=-1)
    return Sampled(g, s / S, s, each.std(axis=-1, ddof=1) / np.sqrt(S))


def square(g: Floats, v: Floats) -> Estimate:
    """Squared lengths without noise of variance v, as if it were the same in all directions."""
    value, d = np.sum(g**2, axis=-1) - v, g.shape[-1]
    return Estimate(value, np.sqrt((4.0 * np.maximum(value, 0.0) + 2.0 * v) * v / d))
