"""Mean losses: ``f_k`` is a client's loss divided by the weight of its rows, so that clients of any size compare."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.numerics.arrays import Bools, Floats
from coterie.objectives.constants import hessians
from coterie.objectives.gradient_steps import Draws, Sampled, Second, Walk, WeightedRows, full_gradient
from coterie.objectives.quadratic import NoisyQuadratic


def sizes(objective: Any) -> Floats:
    """The weight of every client's rows (m,), by which its loss is divided; 1 where there are no rows."""
    return objective.sizes() if isinstance(objective, Sampled) else np.ones(len(objective))


def path(objective: Any, theta: Floats, shift: Floats, P: Floats, eta: Floats, steps: int, draws: Draws) -> Floats:
    """The mean gradient (m, d) that every client meets on some local steps from theta (m, d).

    With one step it is the gradient at theta. ``shift`` (m, d) is taken off every gradient before a local step is made
    of it, not off what is returned; P (d, d) takes a gradient to a direction, where it is empty the gradient itself,
    and ``eta`` (m,) is the size of steps.
    """
    if isinstance(objective, WeightedRows) and (P.size or steps == 1):
        return objective.path(theta, shift, P, eta, steps, draws)
    if steps == 1:
        return gradient(objective, theta, draws)
    at, out = np.array(theta), np.zeros(theta.shape)
    for s in range(steps):
        g = gradient(objective, at, draws.of(slice(None), s))
        out += g
        at -= eta[:, None] * ((g - shift) @ P.T if P.size else g - shift)
    return out / steps


def walk(objective: Any, theta: Floats, by: Walk) -> Floats:
    """Where gradient steps lead from theta (m, d)."""
    if isinstance(objective, Sampled):
        return objective.walk(theta, by)
    at = np.array(theta)
    for s in range(int(by.steps.max(initial=0))):
        go = np.flatnonzero(by.steps > s)
        g = gradient(objective.take(go), at[go], by.draws.of(go, s if by.fresh else 0))
        g = g if by.shift is None else g + by.shift[go]
        move = by.eta[go, None] * (g if by.anchor is None else g + by.pull * (at[go] - by.anchor[go]))
        at[go] -= move if by.on is None else by.on * move
    return at


def mix(share: Floats, v: Floats, w: Floats) -> Floats:
    """``share v + (1 - share) w`` (m, d)."""
    a = share.astype(w.dtype)[:, None]
    return a * v + (1.0 - a) * w


def walk_beside(objective: Any, theta: Floats, by: Walk, second: Second) -> tuple[Floats, Floats]:
    """Where plain gradient steps lead from theta (m, d), each from rest, and a model beside it."""
    both: Any = objective.walk_beside(theta, by, second) if hasattr(objective, "walk_beside") else ()
    if len(both):
        return both[0], both[1]
    at, v = np.array(theta), np.array(second.v)
    for s in range(int(by.steps.max(initial=0))):
        on = slice(None) if s < by.steps.min() else np.flatnonzero(by.steps > s)  # of all, nothing is copied
        here, share, draws = objective.take(on), second.share[on], by.draws.of(on, s)
        one = Walk(by.eta[on], np.ones(len(share), dtype=np.int64), draws, plain=True)
        along = mix(share, v[on], at[on])
        along -= walk(here, along, one)  # eta times the mixture's gradient
        along *= second.pace[on].astype(v.dtype)[:, None]
        v[on] -= along
        at[on] = walk(here, at[on], one)
    return at, v


def gradient(objective: Any, theta: Floats, draws: Draws) -> Floats:
    """Gradients (m, d) of the mean losses, over the rows drawn."""
    if isinstance(objective, NoisyQuadratic):
        return objective.sample(theta, draws.keys, draws.first)
    if isinstance(objective, Sampled):
        return objective.mean_gradient(theta, draws)
    return full_gradient(objective, theta, draws)


def value(objective: Any, theta: Floats) -> Floats:
    """Mean losses (m,) at every client's theta (m, d), without constants that do not depend on it."""
    weight = sizes(objective)
    return np.asarray(objective.value(theta) / np.where(weight > 0.0, weight, 1.0))


def value_and_accuracy(objective: Any, theta: Any) -> Floats:
    """Losses, not their means, and shares of what is classified rightly (m, 2); nets pass their rows once for both."""
    if hasattr(objective, "value_and_accuracy"):
        return np.asarray(objective.value_and_accuracy(theta))
    return np.stack([objective.value(theta), objective.accuracy(theta)], axis=1)


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
    if all(np.vdot(part, part) < LIMIT**2 for part in parts):  # nearly always, and rows are slow to reduce
        return np.zeros(len(parts[0]), dtype=bool)
    within = [np.abs(part.reshape(len(part), -1)) < LIMIT for part in parts]
    found: Bools = np.any([~one.all(axis=1) for one in within], axis=0)
    return found


def encode_loss(loss: npt.ArrayLike) -> Floats:
    """Losses as they travel: ``OVERFLOW`` where they are not finite or too large."""
    loss = np.asarray(loss, dtype=np.float64)
    return np.where(loss < LIMIT, loss, OVERFLOW)


def decode_loss(loss: npt.ArrayLike) -> Floats:
    """Losses, or means and sums of them, of :func:`encode_loss`: infinite where one overflowed."""
    loss = np.asarray(loss, dtype=np.float64)
    return np.where(loss < LIMIT, loss, np.inf)
