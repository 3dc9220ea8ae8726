"""Runs of local gradient steps: a client's rows stay in cache for its whole run.

An objective is anything with ``gradient(theta)`` over a leading client axis (and ``take``); GLMs run compiled, and so
does what brings its own kernels (:class:`Sampled`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.numerics.arrays import Floats, Ints, kernel, reading
from coterie.numerics.keyed_random import key, whole
from coterie.objectives.glm import GLM, Data, row_derivatives


@dataclass(frozen=True)
class Draws:
    """Which rows the steps of a run look at: ``size`` of a client's rows, with replacement, in every step.

    Attributes
    ----------
    keys : (m,) uint64
        ``keyed_random.starts``: what the draws of a client are keyed by, beside the step.
    first : (m,) int64
        Number of a client's first step.
    size : int
        Rows a step; 0 takes all rows once.
    """

    keys: npt.NDArray[np.uint64]
    first: Ints
    size: int = 0

    @classmethod
    def of_all(cls, m: int) -> Draws:
        """Nothing is drawn: every step of m clients takes all rows."""
        return cls(np.zeros(m, dtype=np.uint64), np.zeros(m, dtype=np.int64))


@runtime_checkable
class Sampled(Protocol):
    """An objective over rows that brings its own kernels, as ``softmax.Softmax`` does."""

    def sizes(self) -> Floats:
        """The weight of every client's rows (m,)."""

    def mean_gradient(self, theta: Floats, draws: Draws) -> Floats:
        """Gradients (m, d) of the mean losses over the rows drawn."""

    def walk(
        self,
        theta: Floats,
        anchor: Floats,
        eta: Floats,
        pull: float,
        steps: Ints,
        draws: Draws,
        fresh: bool,
        shift: Floats | None = None,
        on: npt.NDArray[Any] | None = None,
    ) -> Floats:
        """Where local steps on the mean losses lead (m, d): see ``mean_loss.walk``."""


@kernel
def add_row(
    family: int, X: Floats, y: Floats, offset: Floats, weights: Floats, r: int, theta: Floats, scale: float, g: Floats
) -> None:
    """g += scale times the gradient of row r at theta."""
    eta = offset[r]
    for j in range(theta.shape[0]):
        eta += X[r, j] * theta[j]
    s = -scale * weights[r] * row_derivatives(family, eta, y[r])[1]
    for j in range(theta.shape[0]):
        g[j] += s * X[r, j]


@kernel
def advance(at: Floats, g: Floats, i: int, anchor: Floats, eta: Floats, pull: float, shift: Floats, on: Floats) -> None:
    """A step of client i, ``at -= eta_i on (g + shift_i + pull (at - anchor_i))``; empty: no shift, and all move."""
    if shift.shape[0] > 0:
        for j in range(at.shape[0]):
            g[j] += shift[i, j]
    if on.shape[0] > 0:
        for j in range(at.shape[0]):
            at[j] -= eta[i] * on[j] * (g[j] + pull * (at[j] - anchor[i, j]))
    else:
        for j in range(at.shape[0]):
            at[j] -= eta[i] * (g[j] + pull * (at[j] - anchor[i, j]))


def changes(shift: npt.ArrayLike | None, on: npt.ArrayLike | None) -> tuple[Floats, Floats]:
    """What :func:`advance` takes for a shift (m, d) and parameters that move (d,), each of which may be None."""
    moved, moving = (
        np.empty((0,) * axes) if value is None else np.ascontiguousarray(value, dtype=np.float64)
        for value, axes in ((shift, 2), (on, 1))
    )
    return moved, moving


@kernel
def descend_one(
    family: int,
    X: Floats,
    y: Floats,
    offset: Floats,
    weights: Floats,
    lo: int,
    n: int,
    theta: Floats,
    step: float,
    steps: int,
    start: np.uint64,
    first: int,
    size: int,
    g: Floats,
) -> None:
    """``steps`` times ``theta -= step * gradient`` of the client with rows lo, ..., lo + n - 1; g is scratch."""
    for s in range(steps if n > 0 else 0):
        g[:] = 0.0
        if size == 0:
            for r in range(lo, lo + n):
                add_row(family, X, y, offset, weights, r, theta, 1.0, g)
        else:
            at = key(start, first + s)
            for b in range(size):
                add_row(family, X, y, offset, weights, lo + whole(at, b, n), theta, n / size, g)
        for j in range(g.shape[0]):
            theta[j] -= step * g[j]


@reading
def _descend(
    data: Data,
    theta: Floats,
    step: Floats,
    steps: Ints,
    keys: npt.NDArray[np.uint64],
    first: Ints,
    size: int,
) -> Floats:
    family, X, y, offset, weights, starts, stops = data
    out = theta.copy()
    g = np.empty(theta.shape[1])
    for i in range(theta.shape[0]):
        lo, n = starts[i], stops[i] - starts[i]
        descend_one(family, X, y, offset, weights, lo, n, out[i], step[i], steps[i], keys[i], first[i], size, g)
    return out


@reading
def _gradients(
    data: Data,
    theta: Floats,
) -> Floats:
    family, X, y, offset, weights, starts, stops = data
    out = np.zeros(theta.shape)
    for i in range(theta.shape[0]):
        for r in range(starts[i], stops[i]):
            add_row(family, X, y, offset, weights, r, theta[i], 1.0, out[i])
    return out


@reading
def _katyusha(
    data: Data,
    x: Floats,
    y0: Floats,
    z0: Floats,
    h: Floats,
    a1: float,
    a2: float,
    b1: float,
    eta: float,
    pace: float,
    scale: Floats,
    steps: Ints,
    keys: npt.NDArray[np.uint64],
    first: Ints,
    size: int,
) -> tuple[Floats, Floats]:
    """Per client: ``steps`` steps of Algorithm 2 without a communication; the new y and z."""
    family, X, y, offset, weights, starts, stops = data
    yy, zz = y0.copy(), z0.copy()
    d = x.shape[1]
    theta, g = np.empty(d), np.empty(d)
    for i in range(x.shape[0]):
        lo, n = starts[i], stops[i] - starts[i]
        for s in range(steps[i]):
            for j in range(d):
                theta[j] = a1 * zz[i, j] + a2 * x[i, j] + (1.0 - a1 - a2) * yy[i, j]
                g[j] = 0.0
            if n > 0 and size == 0:
                for r in range(lo, lo + n):
                    add_row(family, X, y, offset, weights, r, theta, 1.0, g)
                    add_row(family, X, y, offset, weights, r, x[i], -1.0, g)
            elif n > 0:
                at = key(keys[i], first[i] + s)
                for b in range(size):
                    r = lo + whole(at, b, n)
                    add_row(family, X, y, offset, weights, r, theta, n / size, g)
                    add_row(family, X, y, offset, weights, r, x[i], -n / size, g)
            for j in range(d):
                step = h[i, j] + scale[i] * g[j]
                yy[i, j] = theta[j] - eta * step
                zz[i, j] = b1 * zz[i, j] + (1.0 - b1) * theta[j] - pace * step
    return yy, zz


def descend(objective: Any, theta: Floats, step: Floats, steps: Ints, draws: Draws) -> Floats:
    """Let every client take gradient steps on its own loss.

    Parameters
    ----------
    objective : Objective
        Of m clients.
    theta : (m, d)
        Where they start.
    step : (m,)
        Step size.
    steps : (m,) int64
        How many steps.
    draws : Draws

    Returns
    -------
    (m, d)
    """
    if isinstance(objective, GLM):
        rows = (draws.keys, draws.first, draws.size)
        return _descend(objective.compiled, np.ascontiguousarray(theta), step, steps, *rows)
    if isinstance(objective, Sampled):
        return objective.walk(theta, theta, step * objective.sizes(), 0.0, steps, draws, True)
    theta = np.array(theta)
    for s in range(int(steps.max(initial=0))):
        on = np.flatnonzero(steps > s)
        theta[on] -= step[on, None] * full_gradient(objective.take(on), theta[on], draws)
    return theta


@dataclass(frozen=True)
class Momentum:
    """Coefficients of Algorithm 2 (Theorem 4.3): ``pace`` is b_2, so that z moves by -b_2 g."""

    a1: float
    a2: float
    b1: float
    pace: float
    eta: float


def katyusha(
    objective: Any, x: Floats, y: Floats, z: Floats, h: Floats, by: Momentum, scale: Floats, steps: Ints, draws: Draws
) -> tuple[Floats, Floats]:
    """Let every client take steps of L-Katyusha with the gradient ``h + scale (grad f~(theta) - grad f~(x))``.

    Parameters
    ----------
    x, y, z, h : (m, d)
        Anchor, the two sequences, and the whole gradient at the anchor.
    by : Momentum
    scale : (m,)
    steps : (m,) int64
    draws : Draws

    Returns
    -------
    y, z : (m, d)
    """
    if isinstance(objective, GLM):
        rows = (draws.keys, draws.first, draws.size)
        x, y, z, h = (np.ascontiguousarray(a) for a in (x, y, z, h))
        return _katyusha(objective.compiled, x, y, z, h, by.a1, by.a2, by.b1, by.eta, by.pace, scale, steps, *rows)
    y, z = np.array(y), np.array(z)
    for s in range(int(steps.max(initial=0))):
        on = np.flatnonzero(steps > s)
        here, now = objective.take(on), Draws(draws.keys[on], draws.first[on] + s, draws.size)
        theta = by.a1 * z[on] + by.a2 * x[on] + (1.0 - by.a1 - by.a2) * y[on]
        change = full_gradient(here, theta, now) - full_gradient(here, x[on], now)
        g = h[on] + scale[on, None] * change
        y[on] = theta - by.eta * g
        z[on] = by.b1 * z[on] + (1.0 - by.b1) * theta - by.pace * g
    return y, z


def full_gradient(objective: Any, theta: Floats, draws: Draws | None = None) -> Floats:
    """Gradients (m, d) of all clients at their theta; a CoterieError where rows were to be drawn and there are none."""
    if isinstance(objective, GLM):
        return _gradients(objective.compiled, np.ascontiguousarray(theta))
    if draws is not None and draws.size:
        if isinstance(objective, Sampled):
            return objective.sizes()[:, None] * objective.mean_gradient(theta, draws)
        raise CoterieError(f"{type(objective).__name__} has no rows to draw from: leave batch out.")
    return np.asarray(objective.gradient(theta))
