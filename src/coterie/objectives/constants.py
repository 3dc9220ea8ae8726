"""What theory needs to know of every client's loss: smoothness, strong convexity, and how its rows' gradients scatter.

``f_i`` is the sum over a client's rows, times their weights. Its curvature is ``X' diag(w v) X``, where v is
at most the family's ``curvature_bound``: 1 for a Gaussian outcome and 1/4 for a binomial one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.likelihoods import most_curved
from coterie.numerics.arrays import Bools, Floats, Ints, frozen, full, kernel, pack, part, reading
from coterie.objectives.glm import GLM
from coterie.objectives.quadratic import Quadratic
from coterie.objectives.row_kernels import Data, row_derivatives

SAFETY = 2.0  # how far the curvature of a row may rise above the largest between the ends of a run
_most_curved = part(most_curved)
BLOCK = 1024  # clients whose matrices are unpacked at a time


@dataclass(frozen=True)
class Constants:
    """Constants of every client's loss, (m,) each."""

    L: Floats  # smoothness of f_i: its largest curvature
    # n_i times the largest smoothness of a row: what Assumption 4.1 calls L~, for n_i times the gradient of one row. A
    # quadratic is one row
    L_row: Floats
    # strong convexity: the smallest curvature anywhere. 0 with fewer rows than columns, and for binomial and Poisson
    # outcomes, whose losses flatten far out; methods.curvature.mu_F is the one to use there
    mu: Floats
    rows: Ints  # n_i
    # L holds in a region only. The curvature of a Poisson loss is its mean and has no bound, so it is taken where no
    # row's curvature exceeds SAFETY times its largest from theta = 0 to the theta given (without one, to where the mean
    # is the outcome itself). The line from 0 to theta lies in that region
    local: bool = False
    shared: Floats | float = 0.0  # smoothness in what all clients share; L and L_row are then those in the others


@reading
def _largest_curvatures(data: Data, theta: Floats, counts: bool, bound: float, on: Floats) -> tuple[Floats, Floats]:
    """Packed ``X' diag(w v) X`` (m, P) and ``n max w v |x|^2`` (m,), of the columns where ``on`` (p,) is 1.

    v is what the curvature does not exceed: ``bound``, or where that is infinite, what holds in the region of
    ``Constants``, where ``counts`` stand in for means at theta.
    """
    family, X, y, offset, weights, starts, stops = data
    m, p = starts.shape[0], X.shape[1]
    A, largest = np.zeros((m, p * (p + 1) // 2)), np.zeros(m)
    for i in range(m):
        for r in range(starts[i], stops[i]):
            eta, square, v = offset[r], 0.0, bound
            for j in range(p):
                eta += X[r, j] * theta[i, j]
                square += on[j] * X[r, j] * X[r, j]
            if not bound < np.inf:
                far = np.log(y[r]) if counts else eta
                v = SAFETY * row_derivatives(family, _most_curved(family, far, offset[r]), y[r])[2]
            v *= weights[r]
            largest[i] = max(largest[i], v * square)
            at = 0
            for j in range(p):
                t = v * on[j] * X[r, j]
                for k in range(j + 1):
                    A[i, at] += t * on[k] * X[r, k]
                    at += 1
        largest[i] *= stops[i] - starts[i]
    return A, largest


@kernel
def packed_product(A: Floats, x: Floats) -> Floats:
    """Products (m, p) of packed symmetric matrices (m, P) and vectors (m, p)."""
    out = np.zeros(x.shape)
    for i in range(x.shape[0]):
        at = 0
        for j in range(x.shape[1]):
            for k in range(j):
                out[i, j] += A[i, at] * x[i, k]
                out[i, k] += A[i, at] * x[i, j]
                at += 1
            out[i, j] += A[i, at] * x[i, j]
            at += 1
    return out


def constants(objective: Any, theta: Floats | None = None, on: Bools | None = None) -> Constants:
    """Smoothness and strong convexity of every client's loss; theta (m, d) is where a Poisson outcome's run ends.

    With ``on`` (d,) those of the loss as a function of these parameters alone. A CoterieError for an objective whose
    smoothness is not known, and where curvatures overflow.
    """
    if isinstance(objective, Quadratic):
        H = objective.hessian()
        low, high = extreme_eigenvalues(pack(H if on is None else H * on * on[:, None]))
        return Constants(high, high, low, np.ones(len(objective), dtype=np.int64))
    if not isinstance(objective, GLM):
        raise CoterieError(f"The smoothness of {type(objective).__name__} is not known: give p0, p and eta.")
    at = np.zeros((len(objective), objective.p)) if theta is None else np.ascontiguousarray(theta)
    bound = objective.family.curvature_bound
    which = np.ones(objective.p) if on is None else on.astype(np.float64)
    A, largest = _largest_curvatures(objective.compiled, at, theta is None, bound, which)
    if not (np.isfinite(A).all() and np.isfinite(largest).all()):
        raise CoterieError("The curvature of some client's loss overflows: rescale its largest columns or offsets.")
    low, high = extreme_eigenvalues(A)
    exact = objective.family.is_quadratic & (objective.counts >= objective.p)
    return Constants(high, largest, np.where(exact, low, 0.0), objective.counts, not np.isfinite(bound))


def hessians(objective: Any, theta: Floats, most: bool = False) -> Floats:
    """Packed Hessians (m, P) of every client's loss at its theta (m, d), or what they are at most (see ``Constants``).

    A CoterieError where the objective has none.
    """
    if isinstance(objective, Quadratic):
        return pack(objective.hessian())
    if not isinstance(objective, GLM):
        raise CoterieError(f"{type(objective).__name__} has no Hessians: give mu.")
    if not most:
        return objective.derivatives(np.ones(objective.p), theta)[2]
    bound = objective.family.curvature_bound
    return _largest_curvatures(objective.compiled, np.ascontiguousarray(theta), False, bound, np.ones(objective.p))[0]


def squared_gradients(objective: Any, theta: Floats, on: Bools | None = None) -> tuple[Floats, Floats]:
    """``|grad f_i|^2`` and ``n_i sum_l |grad f_il|^2`` (m,) at every client's theta; a loss that has no rows is one.

    With ``on`` (d,) of these parameters alone, where what is of rows is a bound.
    """
    which = 1.0 if on is None else 1.0 * on
    if isinstance(objective, GLM):
        _, g, _, rows = objective.derivatives(np.ones(objective.p), theta)
        return np.sum((which * g) ** 2, axis=1), rows
    whole = np.sum((which * np.asarray(objective.gradient(theta))) ** 2, axis=1)
    return whole, whole


def rounding(values: Floats) -> Floats:
    """What eigenvalues (..., d) in rising order, none below zero, may be off by rounding: (..., 1)."""
    return np.asarray(16.0 * values.shape[-1] * np.finfo(np.float64).eps * values[..., -1:], dtype=np.float64)


def extreme_eigenvalues(A: Floats) -> tuple[Floats, Floats]:
    """Smallest and largest eigenvalues (m,) of packed positive semi-definite matrices (m, P); rounding counts as 0."""
    low, high = np.empty(len(A)), np.empty(len(A))
    for at in range(0, len(A), BLOCK):
        values = np.asarray(np.linalg.eigvalsh(full(A[at : at + BLOCK])), dtype=np.float64)
        low[at : at + BLOCK] = np.where(values[:, 0] > rounding(values)[:, 0], values[:, 0], 0.0)
        high[at : at + BLOCK] = np.maximum(values[:, -1], 0.0)
    return low, high


def expand_glm(glm: GLM, unit: Floats, theta: Floats) -> tuple[Floats, Floats]:
    """The losses to second order around theta (m, p): ``theta' A theta / 2 - b' theta``, at least.

    Columns and parameters are in units of ``unit`` (p,). Returns A (m, P), packed, and b (m, p): ``score + A theta``.
    """
    _, score, A, _ = glm.derivatives(unit, theta, bounded=True)
    return A, score + packed_product(A, theta)


@kernel
def _scatter(data: Data, theta: Floats, g: Floats, A: Floats, rows: Ints, w: Floats, w2: Floats) -> None:
    family, X, y, offset, weights, starts, stops = data
    m, d = theta.shape
    for i in range(m):
        for r in range(starts[i], stops[i]):
            eta = offset[r]
            for j in range(d):
                eta += X[r, j] * theta[i, j]
            s = -weights[r] * row_derivatives(family, eta, y[r])[1]
            rows[i] += weights[r] > 0.0
            w[i] += weights[r]
            w2[i] += weights[r] * weights[r]
            for j in range(d):
                g[i, j] += s * X[r, j]
        if not w[i] > 0.0:
            continue
        for j in range(d):
            g[i, j] /= w[i]
        for r in range(starts[i], stops[i]):
            eta = offset[r]
            for j in range(d):
                eta += X[r, j] * theta[i, j]
            s = -weights[r] * row_derivatives(family, eta, y[r])[1]
            at = 0
            for j in range(d):
                t = s * X[r, j] - weights[r] * g[i, j]
                for k in range(j + 1):
                    A[i, at] += t * (s * X[r, k] - weights[r] * g[i, k])
                    at += 1


def gradient_scatter(objective: GLM, theta: Floats) -> tuple[Floats, Floats, Ints, Floats, Floats]:
    """Gradients of mean losses at theta (m, d), and how their rows' gradients scatter.

    Returns the mean gradients g (m, d), zero where there are no rows; packed ``sum_r w_r^2 (g_r - g) (g_r - g)'``
    (m, P), with g_r the gradient of a row's loss and w_r its weight; the number of rows that weigh (m,); and the sums
    (m,) of weights and of their squares.
    """
    m, d = theta.shape
    g, A = np.zeros((m, d)), np.zeros((m, d * (d + 1) // 2))
    rows, w, w2 = np.zeros(m, dtype=np.int64), np.zeros(m), np.zeros(m)
    data, at = frozen(objective.compiled, np.ascontiguousarray(theta))
    _scatter(data, at, g, A, rows, w, w2)
    return g, A, rows, w, w2
