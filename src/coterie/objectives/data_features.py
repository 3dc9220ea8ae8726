"""What a client's rows are like, in few numbers: moments of columns, and means of random features of a kernel."""

from __future__ import annotations

import numpy as np

from coterie.numerics import keyed_random
from coterie.numerics.arrays import Floats, Ints, kernel, reading
from coterie.objectives.glm import GLM

Raw = tuple[Floats, Floats, Floats, Ints, Ints]


def _raw(objective: GLM) -> Raw:
    return objective.X, objective.y, objective.weights, objective.starts, objective.stops


@kernel
def _entry(X: Floats, y: Floats, r: int, j: int) -> float:
    """Column j of row r; the column after the last is the response."""
    value: float = X[r, j] if j < X.shape[1] else y[r]
    return value


@reading
def _moments(data: Raw, columns: Ints, centre: Floats, unit: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    X, y, weights, starts, stops = data
    m, q = starts.shape[0], columns.shape[0]
    rows, w, mean, A = np.zeros(m), np.zeros(m), np.zeros((m, q)), np.zeros((m, q * (q + 1) // 2))
    v = np.empty(q)
    for i in range(m):
        for r in range(starts[i], stops[i]):
            rows[i] += weights[r] > 0.0
            w[i] += weights[r]
            for j in range(q):
                mean[i, j] += weights[r] * (_entry(X, y, r, columns[j]) - centre[j]) * unit[j]
        if not w[i] > 0.0:
            continue
        for j in range(q):
            mean[i, j] /= w[i]
        for r in range(starts[i], stops[i]):
            at = 0
            for j in range(q):
                v[j] = (_entry(X, y, r, columns[j]) - centre[j]) * unit[j] - mean[i, j]
                t = weights[r] * v[j]
                for k in range(j + 1):
                    A[i, at] += t * v[k]
                    at += 1
    return rows, w, mean, A


def moments(objective: GLM, columns: Ints, centre: Floats, unit: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Means of columns (q,) of X and their scatter around them; X's number of columns stands for the response.

    Values are taken as ``(x - centre) * unit``. Returns the number of rows that weigh and the sum of their weights
    (m,), means (m, q), zero where there are no rows, and packed ``sum_r w_r (x_r - mean) (x_r - mean)'`` (m, P).
    """
    return _moments(_raw(objective), columns, centre, unit)


@reading
def _radii(data: Raw, columns: Ints, centre: Floats, unit: Floats) -> Floats:
    X, y, weights, starts, stops = data
    out = np.zeros(starts.shape[0])
    for i in range(starts.shape[0]):
        squares, n = np.empty(stops[i] - starts[i]), 0
        for r in range(starts[i], stops[i]):
            if weights[r] > 0.0:
                squares[n] = 0.0
                for j in range(columns.shape[0]):
                    v = (_entry(X, y, r, columns[j]) - centre[j]) * unit[j]
                    squares[n] += v * v
                n += 1
        if n > 0:
            out[i] = np.median(squares[:n])
    return out


def radii(objective: GLM, columns: Ints, centre: Floats, unit: Floats) -> Floats:
    """The median squared distance of each client's rows to the centre (m,), 0 without rows; as in :func:`moments`."""
    return _radii(_raw(objective), columns, centre, unit)


@reading
def _features(data: Raw, columns: Ints, centre: Floats, unit: Floats, omega: Floats) -> Floats:
    X, y, weights, starts, stops = data
    m, q, pairs = starts.shape[0], columns.shape[0], omega.shape[0]
    out, v = np.zeros((m, 2 * pairs)), np.empty(q)
    for i in range(m):
        total = 0.0
        for r in range(starts[i], stops[i]):
            total += weights[r]
            for j in range(q):
                v[j] = (_entry(X, y, r, columns[j]) - centre[j]) * unit[j]
            for f in range(pairs):
                angle = 0.0
                for j in range(q):
                    angle += omega[f, j] * v[j]
                out[i, 2 * f] += weights[r] * np.cos(angle)
                out[i, 2 * f + 1] += weights[r] * np.sin(angle)
        if total > 0.0:
            for f in range(2 * pairs):
                out[i, f] /= total * np.sqrt(pairs)
    return out


def features(objective: GLM, columns: Ints, centre: Floats, unit: Floats, omega: Floats) -> Floats:
    """Mean random Fourier features (m, 2 F) of each client's rows, of frequencies omega (F, q); zero without rows."""
    return _features(_raw(objective), columns, centre, unit, omega)


def frequencies(seed: int, pairs: int, q: int, width: float) -> Floats:
    """Frequencies (pairs, q) of a Gaussian kernel ``exp(-|x - x'|^2 / (2 width^2))``: the same wherever drawn."""
    start = keyed_random.starts(seed, "random features", np.arange(pairs, dtype=np.uint64))
    return keyed_random.normal(start, np.zeros(pairs, dtype=np.int64), q) / width
