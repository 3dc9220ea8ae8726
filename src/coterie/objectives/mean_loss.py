"""Mean losses: ``f_k`` is a client's loss divided by the weight of its rows, so that clients of any size compare."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.numerics.arrays import Bools, Floats, Ints, kernel, reading
from coterie.numerics.keyed_random import key, whole
from coterie.objectives.constants import hessians
from coterie.objectives.glm import GLM, Data
from coterie.objectives.gradient_steps import Draws, Sampled, add_row, advance, changes, full_gradient
from coterie.objectives.quadratic import NoisyQuadratic


def row_ranges(starts: npt.ArrayLike, stops: npt.ArrayLike, n: int) -> tuple[Ints, Ints]:
    """Clients' row ranges (m,) among n rows as whole numbers; a CoterieError for what is none."""
    try:
        lo, hi = (np.ascontiguousarray(a, dtype=np.int64) for a in (starts, stops))
        whole = np.array_equal(np.asarray(starts), lo) and np.array_equal(np.asarray(stops), hi)
    except (TypeError, ValueError):
        whole = False
    if not whole or lo.shape != hi.shape or lo.ndim != 1 or np.any((lo < 0) | (lo > hi) | (hi > n)):
        raise CoterieError(f"starts and stops must be row ranges, one for each client, within {n} rows.")
    return lo, hi


@kernel
def totals(weights: Floats, starts: Ints, stops: Ints) -> Floats:
    """Sums (m,) of the weights of every client's rows."""
    out = np.zeros(starts.shape[0])
    for i in range(starts.shape[0]):
        for r in range(starts[i], stops[i]):
            out[i] += weights[r]
    return out


def sizes(objective: Any) -> Floats:
    """The weight of every client's rows (m,), by which its loss is divided; 1 where there are no rows."""
    if isinstance(objective, GLM):
        return totals(objective.weights, objective.starts, objective.stops)
    if isinstance(objective, Sampled):
        return objective.sizes()
    return np.ones(len(objective))


@reading
def _paths(
    data: Data,
    theta: Floats,
    shift: Floats,
    P: Floats,
    eta: Floats,
    steps: int,
    keys: npt.NDArray[np.uint64],
    first: Ints,
    size: int,
) -> Floats:
    """Sums (m, d) of the gradients met on ``steps`` local steps."""
    family, X, y, offset, weights, starts, stops = data
    m, d = theta.shape
    out, at, g = np.zeros((m, d)), np.empty(d), np.empty(d)
    for i in range(m):
        lo, n, weight = starts[i], stops[i] - starts[i], 0.0
        for r in range(lo, lo + n):
            weight += weights[r]
        if weight <= 0.0:
            continue
        at[:] = theta[i]
        for s in range(steps):
            g[:] = 0.0
            if size == 0:
                for r in range(lo, lo + n):
                    add_row(family, X, y, offset, weights, r, at, 1.0 / weight, g)
            else:
                drawn = key(keys[i], first[i] + s)
                for b in range(size):
                    add_row(family, X, y, offset, weights, lo + whole(drawn, b, n), at, n / (size * weight), g)
            for j in range(d):
                out[i, j] += g[j]
            if s + 1 < steps:
                for j in range(d):
                    for k in range(d):
                        at[j] -= eta[i] * P[j, k] * (g[k] - shift[i, k])
    return out


def path(objective: Any, theta: Floats, shift: Floats, P: Floats, eta: Floats, steps: int, draws: Draws) -> Floats:
    """The mean gradient that every client meets on some local steps.

    Parameters
    ----------
    objective : Objective
        Of m clients.
    theta : (m, d)
        Where they start; with one step, where the gradient is taken.
    shift : (m, d)
        Taken off every gradient before a local step is made of it, not off what is returned.
    P : (d, d)
        Takes a gradient to a direction.
    eta : (m,)
        Size of the local steps.
    steps : int
    draws : Draws
        Rows of every step; size 0 takes all.

    Returns
    -------
    (m, d)
    """
    if isinstance(objective, GLM):
        theta, shift = np.ascontiguousarray(theta), np.ascontiguousarray(shift)
        rows = (draws.keys, draws.first, draws.size)
        return _paths(objective.compiled, theta, shift, np.ascontiguousarray(P), eta, steps, *rows) / steps
    if steps == 1:
        return gradient(objective, theta, draws)
    at, out = np.array(theta), np.zeros(theta.shape)
    for s in range(steps):
        g = gradient(objective, at, Draws(draws.keys, draws.first + s, draws.size))
        out += g
        at -= eta[:, None] * ((g - shift) @ P.T)
    return out / steps


@reading
def _walk(
    data: Data,
    theta: Floats,
    anchor: Floats,
    eta: Floats,
    pull: float,
    steps: Ints,
    keys: npt.NDArray[np.uint64],
    first: Ints,
    size: int,
    fresh: bool,
    shift: Floats,
    on: Floats,
) -> Floats:
    family, X, y, offset, weights, starts, stops = data
    m, d = theta.shape
    out, g = theta.copy(), np.empty(d)
    plain = shift.shape[0] == 0 and on.shape[0] == 0
    for i in range(m):
        at, lo, n, weight = out[i], starts[i], stops[i] - starts[i], 0.0
        for r in range(lo, lo + n):
            weight += weights[r]
        for s in range(steps[i]):
            g[:] = 0.0
            if weight > 0.0 and size == 0:
                for r in range(lo, lo + n):
                    add_row(family, X, y, offset, weights, r, at, 1.0 / weight, g)
            elif weight > 0.0:
                drawn = key(keys[i], first[i] + (s if fresh else 0))
                for b in range(size):
                    add_row(family, X, y, offset, weights, lo + whole(drawn, b, n), at, n / (size * weight), g)
            if plain:
                for j in range(d):
                    at[j] -= eta[i] * (g[j] + pull * (at[j] - anchor[i, j]))
            else:
                advance(at, g, i, anchor, eta, pull, shift, on)
    return out


def walk(
    objective: Any,
    theta: Floats,
    anchor: Floats,
    eta: Floats,
    pull: float,
    steps: Ints,
    draws: Draws,
    fresh: bool = True,
    shift: Floats | None = None,
    on: npt.NDArray[Any] | None = None,
) -> Floats:
    """Let every client take gradient steps on ``f_k(theta) + shift' theta + pull |theta - anchor|^2 / 2``.

    Parameters
    ----------
    objective : Objective
        Of m clients.
    theta, anchor : (m, d)
        Where they start, and what they are pulled to.
    eta : (m,)
        Step size.
    pull : float
        0 for none.
    steps : (m,) int64
    draws : Draws
    fresh : bool, default True
        Whether every step draws rows anew; otherwise all look at those of the first.
    shift : (m, d), optional
        Added to every gradient.
    on : (d,), optional
        1 for parameters that move, 0 for those that stay; by default all move.

    Returns
    -------
    (m, d)
    """
    if isinstance(objective, GLM):
        theta, anchor = np.ascontiguousarray(theta), np.ascontiguousarray(anchor)
        rows = (draws.keys, draws.first, draws.size)
        return _walk(objective.compiled, theta, anchor, eta, float(pull), steps, *rows, fresh, *changes(shift, on))
    if isinstance(objective, Sampled):
        return objective.walk(theta, anchor, eta, pull, steps, draws, fresh, shift, on)
    at = np.array(theta)
    for s in range(int(steps.max(initial=0))):
        go = np.flatnonzero(steps > s)
        now = Draws(draws.keys[go], draws.first[go] + (s if fresh else 0), draws.size)
        g = gradient(objective.take(go), at[go], now)
        g = g if shift is None else g + shift[go]
        move = eta[go, None] * (g + pull * (at[go] - anchor[go]))
        at[go] -= move if on is None else on * move
    return at


def gradient(objective: Any, theta: Floats, draws: Draws) -> Floats:
    """Gradients (m, d) of the mean losses, over the rows drawn."""
    if isinstance(objective, GLM):
        d = theta.shape[1]
        return path(objective, theta, np.zeros(theta.shape), np.zeros((d, d)), np.zeros(len(theta)), 1, draws)
    if isinstance(objective, NoisyQuadratic):
        return objective.sample(theta, draws.keys, draws.first)
    if isinstance(objective, Sampled):
        return objective.mean_gradient(theta, draws)
    return full_gradient(objective, theta, draws)


def value(objective: Any, theta: Floats) -> Floats:
    """Mean losses (m,) at every client's theta (m, d), without constants that do not depend on it."""
    weight = sizes(objective)
    loss = objective.losses(np.ones(theta.shape[1]), theta) if isinstance(objective, GLM) else objective.value(theta)
    return np.asarray(loss / np.where(weight > 0.0, weight, 1.0))


def expand(objective: Any, theta: Floats) -> tuple[Floats, Floats, Floats]:
    """Value (m,), gradient (m, d) and packed Hessian (m, P) of the mean losses at every client's theta (m, d).

    Constants that do not depend on theta are left out of the value. A CoterieError where the objective has no Hessian.
    """
    weight = sizes(objective)
    weight = np.where(weight > 0.0, weight, 1.0)
    A = hessians(objective, theta)
    return value(objective, theta), full_gradient(objective, theta) / weight[:, None], A / weight[:, None]


OVERFLOW, LIMIT = 1e200, 1e100
"""What stands for a loss that overflowed, and from where on losses count as such.

Losses at points that are only tried may overflow at honest clients. What travels is finite all the same, so that a site
that sends infinite numbers is a broken one, wherever others do not.
"""


def overflowed(*parts: Floats) -> Bools:
    """Rows (m,) with numbers, in any of the parts (m, ...), that are not finite or too large."""
    found: Bools = np.any([~(np.abs(part.reshape(len(part), -1)) < LIMIT).all(axis=1) for part in parts], axis=0)
    return found


def encode_loss(loss: npt.ArrayLike) -> Floats:
    """Losses as they travel: ``OVERFLOW`` where they are not finite or too large."""
    loss = np.asarray(loss, dtype=np.float64)
    return np.where(loss < LIMIT, loss, OVERFLOW)


def decode_loss(loss: npt.ArrayLike) -> Floats:
    """Losses, or means and sums of them, of :func:`encode_loss`: infinite where one overflowed."""
    loss = np.asarray(loss, dtype=np.float64)
    return np.where(loss < LIMIT, loss, np.inf)
