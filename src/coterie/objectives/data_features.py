"""What a client's rows are like, in few numbers: moments of columns, and means of random features of a kernel.

Columns (q,) are those of X; its number of columns stands for the response. Values are taken as ``(x - centre) * unit``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.numerics import keyed_random
from coterie.numerics.arrays import Floats, Ints
from coterie.objectives.glm import GLM
from coterie.objectives.row_kernels import owned_rows

WIDE = 64  # columns of wider inputs, such as images, that are looked at: so many random mixtures of theirs


def comparable(objective: Any, w: Any = None, personal: Sequence[str] = ()) -> GLM | None:
    """Clients' rows as a table: a GLM's own; flat inputs and outcomes of softmax, or of a net, that lie in memory.

    With a net's model ``w`` (d,) they are what enters its ``personal`` layers, instead of inputs; else, where outcomes
    are masks of images, every pixel is a row of its channels and of what it is. Rows that are not finite weigh nothing;
    other outcomes that are no number each count as 0. None for other objectives.
    """
    if isinstance(objective, GLM):
        return objective
    held = getattr(objective, "rows", objective)
    if not (hasattr(held, "X") and hasattr(held, "y") and hasattr(objective, "starts")):
        return None
    _, rows = owned_rows(objective.starts, objective.stops)
    X, y = (np.asarray(v[rows], dtype=np.float64) for v in (held.X, held.y))
    pixels = 1
    if w is not None and hasattr(objective, "architecture"):
        X = objective.features(w, personal)
    elif len(X) and X.ndim > 3 and y[0].squeeze().shape == X.shape[2:]:
        X, pixels = np.moveaxis(X, 1, -1), X[0, 0].size
    X, y = (v.reshape(len(rows) * pixels, -1) for v in (X, y))
    if X.shape[1] > WIDE:
        X = X @ frequencies(0, WIDE, X.shape[1], np.sqrt(X.shape[1])).T
    y = y[:, 0] if y.shape[1] == 1 else np.zeros(len(y))
    sound = np.isfinite(X).all(axis=1) & np.isfinite(y)
    weight = np.repeat(objective.weights[rows] / pixels, pixels) * sound
    X, y, ends = np.where(sound[:, None], X, 0.0), np.where(sound, y, 0.0), pixels * np.cumsum(objective.counts)
    return GLM(np.ascontiguousarray(X), y, np.zeros(len(y)), weight, ends - pixels * objective.counts, ends)


def _values(objective: GLM, columns: Ints, centre: Floats, unit: Floats) -> tuple[Ints, Floats, Floats]:
    """Of all rows, client after client: whose each is (n,), its weight (n,), and its values (n, q)."""
    owner, rows = owned_rows(objective.starts, objective.stops)
    found = np.column_stack([objective.X[rows], objective.y[rows]])[:, columns]
    return owner, objective.weights[rows], (found - centre) * unit


def moments(objective: GLM, columns: Ints, centre: Floats, unit: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Means of columns and their scatter around them.

    Returns the number of rows that weigh and the sum of their weights (m,), means (m, q), zero where there are no rows,
    and packed ``sum_r w_r (x_r - mean) (x_r - mean)'`` (m, P).
    """
    owner, weight, x = _values(objective, columns, centre, unit)
    m = len(objective)
    rows, w = (np.bincount(owner, part, m).astype(np.float64) for part in (weight > 0.0, weight))
    mean = np.zeros((m, len(columns)))
    for j, column in enumerate(x.T):
        mean[:, j] = np.bincount(owner, weight * column, m) / np.where(w > 0.0, w, 1.0)
    x -= mean[owner]
    pairs = np.column_stack(np.tril_indices(len(columns)))
    A = np.zeros((m, len(pairs)))
    for at, (j, k) in enumerate(pairs):
        A[:, at] = np.bincount(owner, weight * x[:, j] * x[:, k], m)
    return rows, w, mean, A


def radii(objective: GLM, columns: Ints, centre: Floats, unit: Floats) -> Floats:
    """The median squared distance of each client's rows that weigh to the centre (m,), 0 without rows."""
    owner, weight, x = _values(objective, columns, centre, unit)
    owner, squares = owner[weight > 0.0], np.sum(x**2, axis=1)[weight > 0.0]
    squares = np.append(squares[np.lexsort((squares, owner))], 0.0)
    n = np.bincount(owner, minlength=len(objective))
    first = np.cumsum(n) - n
    low, high = first + np.maximum(n - 1, 0) // 2, first + n // 2
    return np.asarray(np.where(n > 0, 0.5 * (squares[low] + squares[high]), 0.0), dtype=np.float64)


def features(objective: GLM, columns: Ints, centre: Floats, unit: Floats, omega: Floats) -> Floats:
    """Mean random Fourier features (m, 2 F) of each client's rows, of frequencies omega (F, q); zero without rows."""
    owner, weight, x = _values(objective, columns, centre, unit)
    m, size = len(objective), objective.sizes()
    out = np.empty((m, 2 * len(omega)))
    for f, frequency in enumerate(omega):
        angle = np.sum(x * frequency, axis=1)
        out[:, 2 * f] = np.bincount(owner, weight * np.cos(angle), m)
        out[:, 2 * f + 1] = np.bincount(owner, weight * np.sin(angle), m)
    out /= (np.where(size > 0.0, size, 1.0) * np.sqrt(len(omega)))[:, None]
    return out


def frequencies(seed: int, pairs: int, q: int, width: float) -> Floats:
    """Frequencies (pairs, q) of a Gaussian kernel ``exp(-|x - x'|^2 / (2 width^2))``: the same wherever drawn."""
    start = keyed_random.starts(seed, "random features", np.arange(pairs, dtype=np.uint64))
    return keyed_random.normal(start, np.zeros(pairs, dtype=np.int64), q) / width
