"""The noisy quadratic of section 6 (d >= 1): many runs of Alone, WGA and BC in compiled code.

With ``xi_t``, ``xi'_t`` independent standard normal vectors (d,), step t = 0, 1, ... is Algorithm 3 as printed:

    g_0 = A_0 (x_t - x_0*) + sigma xi_t               the main client
    g_1 = A_1 (x_t - x_1*) + sigma / sqrt(N) xi'_t    the mean of N collaborators
    b_t = g_1 - g_0
    x_{t+1} = x_t - eta ((1 - alpha) g_0 + alpha (g_1 - c_t))
    c_{t+1} = (1 - beta) c_t + beta b_t

BC has beta in (0, 1]; WGA has beta = 0 and c_0 = 0; Alone has alpha = 0 as well. The test loss at t is that of x_t,
``1/2 (x_t - x_0*)' A_0 (x_t - x_0*)``, so at t = 0 it is the start's.

``c_0`` is 0, or the mean of S observed biases at x_0 of which the first is b_0, that of step 0. S = 1 is Algorithm 3's
``c_0 = b_0``: step 0 is then one of Alone, and c_1 = b_0. The S - 1 others are used for nothing else (appendix C.4).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.numerics.arrays import Floats, Ints, kernel
from coterie.numerics.keyed_random import GOLDEN, U64, key, scramble, starts

BLOCK = 64
"""Runs side by side: few enough to stay in cache, many enough to fill vector registers."""


@dataclass(frozen=True)
class Curve:
    """A noisy quadratic and how it is descended.

    Attributes
    ----------
    A0, A1 : (d, d)
        Hessians of the main client and of the collaborators' mean; symmetric, A0 positive definite.
    x0, x1 : (d,)
        Their minimisers.
    sigma : float
        Standard deviation of the main client's gradient, each coordinate.
    N : int
        Collaborators; their mean gradient has ``sigma / sqrt(N)``.
    eta, alpha, beta : float
        Step size, weight of the collaborators, weight of the newest bias; ``beta = 0`` never corrects.
    start : (d,)
        Where x begins.
    c0 : int, default 0
        c_0 = 0, or the mean of so many observed biases, the first step's among them.
    name : str
        For legends and tables.
    """

    A0: Floats
    A1: Floats
    x0: Floats
    x1: Floats
    sigma: float
    N: int
    eta: float
    alpha: float
    beta: float
    start: Floats
    c0: int = 0
    name: str = ""

    def __post_init__(self) -> None:
        """Take numbers for d = 1; raise CoterieError for what has no meaning."""
        for field in ("x0", "x1", "start"):
            object.__setattr__(self, field, np.atleast_1d(np.asarray(getattr(self, field), dtype=float)))
        d = len(self.x0)
        for field, shape in (("A0", (d, d)), ("A1", (d, d)), ("x1", (d,)), ("start", (d,))):
            value = np.asarray(getattr(self, field), dtype=float)
            value = value.reshape(shape) if value.size == 1 else value
            if value.shape != shape or not np.all(np.isfinite(value)):
                raise CoterieError(f"{field} must be finite and of shape {shape}, as x0 has {d} coordinates.")
            object.__setattr__(self, field, value)
        if not np.array_equal(self.A0, self.A0.T) or np.linalg.eigvalsh(self.A0)[0] <= 0.0:
            raise CoterieError("A0 must be symmetric with positive eigenvalues, or f_0 has no minimiser.")
        if not 0.0 <= self.alpha <= 1.0:
            raise CoterieError(f"alpha must be between 0 and 1, not {self.alpha:g}.")
        if not 0.0 <= self.beta <= 1.0:
            raise CoterieError(f"beta must be between 0 (no correction) and 1, not {self.beta:g}.")
        if not (self.eta > 0.0 and self.sigma >= 0.0 and self.N >= 1 and self.c0 >= 0):
            raise CoterieError("eta must be positive, sigma and c0 not negative, and N at least 1.")
        if self.beta == 0.0 and self.c0:
            raise CoterieError("beta = 0 never corrects, so c0 must be 0: give a beta in (0, 1] for BC.")

    @property
    def zeta(self) -> float:
        """``|A_1 (x_1* - x_0*)|``, the gradient bias at x_0*."""
        return float(np.linalg.norm(self.A1 @ (self.x1 - self.x0)))

    @property
    def delta(self) -> float:
        """Spectral norm of ``A_1 - A_0``."""
        return float(np.linalg.norm(self.A1 - self.A0, 2))

    def settings(self) -> dict[str, Any]:
        """Everything that the curve depends on; numbers where d = 1."""
        one = len(self.x0) == 1
        arrays = {"a0": self.A0, "a1": self.A1, "x0": self.x0, "x1": self.x1, "start": self.start}
        c0 = {0: 0, 1: "sample"}.get(self.c0, f"batch of {self.c0}")
        return {
            "name": self.name,
            **{name: float(value.item()) if one else value for name, value in arrays.items()},
            **{name: getattr(self, name) for name in ("sigma", "N", "eta", "alpha", "beta")},
            "c0": c0,
            "delta": self.delta,
            "zeta": self.zeta,
        }


@kernel
def logarithm(w: float) -> float:
    """Natural logarithm of a positive normal number; unlike the library's call, a loop of it is vectorised."""
    bits = np.float64(w).view(np.int64)
    m = np.int64((bits & 0xFFFFFFFFFFFFF) | 0x3FF0000000000000).view(np.float64)
    high = m > 1.4142135623730951
    m = 0.5 * m if high else m
    f = (m - 1.0) / (m + 1.0)
    g = f * f
    series = 0.0
    for k in range(10, -1, -1):
        series = series * g + 2.0 / (2 * k + 1)
    return f * series + 0.6931471805599453 * float((bits >> 52) - 1023 + (1 if high else 0))


@kernel
def turn(v: float) -> tuple[float, float]:
    """Cosine and sine of v whole turns, v in [0, 1); vectorised as :func:`logarithm` is."""
    quarter = np.int64(4.0 * v + 0.5)
    f = 0.5 * np.pi * (4.0 * v - float(quarter))
    g = f * f
    c, s = 1.0, 1.0
    for k in range(9, 0, -1):
        c = 1.0 - c * g / (2 * k * (2 * k - 1))
        s = 1.0 - s * g / (2 * k * (2 * k + 1))
    s *= f
    odd = (quarter & 1) == 1
    cosine, sine = (s if odd else c), (c if odd else s)
    return (-cosine if ((quarter + 1) & 2) == 2 else cosine), (-sine if (quarter & 2) == 2 else sine)


@kernel
def normals(keys: U64, step: int, pair: int, a: Floats, b: Floats) -> None:
    """Two standard normal numbers for each run, by Box and Muller from draws ``2 pair``, ``2 pair + 1`` of a step."""
    ahead = (np.uint64(2) * np.uint64(pair) + np.uint64(1)) * GOLDEN
    for r in range(keys.shape[0]):
        at = key(keys[r], step) + ahead
        u, v = float(scramble(at) >> np.uint64(11)), float(scramble(at + GOLDEN) >> np.uint64(11))
        radius = np.sqrt(-2.0 * logarithm(1.0 - u * 2.0**-53))
        cosine, sine = turn(v * 2.0**-53)
        a[r], b[r] = radius * cosine, radius * sine


@kernel
def gradient(A: Floats, centre: Floats, x: Floats, g: Floats) -> None:
    """``g = A (x - centre)`` for runs side by side: x and g are (d, runs)."""
    for i in range(x.shape[0]):
        g[i] = 0.0
        for j in range(x.shape[0]):
            for r in range(x.shape[1]):
                g[i, r] += A[i, j] * (x[j, r] - centre[j])


@kernel
def first_bias(
    s0: float, s1: float, S: float, g0: Floats, g1: Floats, noise: Floats, others: Floats, c: Floats
) -> None:
    """The mean of S observed biases, whose noise is the first step's and the sum of S - 1 others."""
    rest = np.sqrt(S - 1.0)
    for r in range(c.shape[0]):
        random = s1 * (noise[1, r] + rest * others[1, r]) - s0 * (noise[0, r] + rest * others[0, r])
        c[r] = g1[r] - g0[r] + random / S


@kernel
def step(by: Floats, g0: Floats, g1: Floats, noise: Floats, x: Floats, c: Floats) -> None:
    """One coordinate of Algorithm 3 for runs side by side; ``by`` is a row of ``numbers`` below."""
    s0, s1, eta, alpha, beta = by
    for r in range(x.shape[0]):
        a, b = g0[r] + s0 * noise[0, r], g1[r] + s1 * noise[1, r]
        x[r] -= eta * ((1.0 - alpha) * a + alpha * (b - c[r]))
        c[r] += beta * (b - a - c[r])


@kernel
def block(
    matrices: tuple[Floats, Floats],
    vectors: tuple[Floats, Floats],
    numbers: Floats,
    batch: Ints,
    keys: tuple[U64, U64],
    times: Ints,
    x: Floats,
) -> Floats:
    """Test losses (curves, runs, times) of some runs from x (curves, d, runs), which is overwritten."""
    (A0, A1), (x0, x1) = matrices, vectors
    curves, d, runs = x.shape
    out, c = np.zeros((curves, runs, times.shape[0])), np.zeros(x.shape)
    g0, g1 = np.empty((d, runs)), np.empty((d, runs))
    noise, others = np.empty((d, 2, runs)), np.empty((2, runs))
    at = 0
    for t in range(times[-1] + 1):
        for i in range(d):
            normals(keys[0], t, i, noise[i, 0], noise[i, 1])
        for k in range(curves):
            gradient(A0[k], x0[k], x[k], g0)
            gradient(A1[k], x1[k], x[k], g1)
            for i in range(d):
                if t == times[at]:
                    out[k, :, at] += 0.5 * (x[k, i] - x0[k, i]) * g0[i]
                if t == 0 and batch[k] > 0:
                    normals(keys[1], 0, i, others[0], others[1])
                    by = numbers[k]
                    first_bias(by[0], by[1], float(batch[k]), g0[i], g1[i], noise[i], others, c[k, i])
                step(numbers[k], g0[i], g1[i], noise[i], x[k, i], c[k, i])
        if t == times[at]:
            at += 1
    return out


def simulate(
    curves: Sequence[Curve], times: npt.ArrayLike, runs: int, seed: int = 0, threads: int | None = None
) -> Floats:
    """Test losses of many runs at given steps.

    Parameters
    ----------
    curves : sequence of Curve
        Of one dimension d. All have the same normal numbers in the same run, so that they can be compared in pairs.
    times : (s,) int
        Steps at which the loss is taken, rising.
    runs : int
        Independent runs.
    seed : int, default 0
        The normal numbers are a function of seed, run and step.
    threads : int, optional
        By default one for each core; results do not depend on it.

    Returns
    -------
    (curves, runs, s)

    Raises
    ------
    CoterieError
        If the times do not rise, there are no runs or curves, or dimensions differ.
    """
    t = np.asarray(times, dtype=np.int64)
    if t.ndim != 1 or not len(t) or t[0] < 0 or np.any(np.diff(t) <= 0):
        raise CoterieError("times must be whole numbers from 0 that rise.")
    if runs < 1 or not curves or len({len(c.x0) for c in curves}) != 1:
        raise CoterieError("Give at least one run and one curve, and curves of the same dimension.")
    matrices = np.stack([c.A0 for c in curves]), np.stack([c.A1 for c in curves])
    vectors = np.stack([c.x0 for c in curves]), np.stack([c.x1 for c in curves])
    begin = np.stack([c.start for c in curves])[:, :, None]
    numbers = np.array([(c.sigma, c.sigma / c.N**0.5, c.eta, c.alpha, c.beta) for c in curves])
    batch, run = np.array([c.c0 for c in curves]), np.arange(runs, dtype=np.uint64)
    noise, first = starts(seed, "noisy quadratic", run), starts(seed, "noisy quadratic, first bias", run)

    def share(part: slice) -> Floats:
        x = np.repeat(begin, len(run[part]), axis=2)
        return block(matrices, vectors, numbers, batch, (noise[part], first[part]), t, x)

    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        parts = [slice(r, r + BLOCK) for r in range(0, runs, BLOCK)]
        return np.concatenate(list(pool.map(share, parts)), axis=1)


def average(losses: Floats) -> tuple[Floats, Floats]:
    """Mean over runs and its standard error, (curves, s) each, of losses (curves, runs, s)."""
    runs = losses.shape[1]
    error = losses.std(axis=1, ddof=1) / runs**0.5 if runs > 1 else np.full_like(losses[:, 0], np.nan)
    return losses.mean(axis=1), error
