"""Which rows the local steps of clients look at, and how much each counts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.numerics.kernels import Floats, Ints, kernel
from coterie.numerics.keyed_random import key, whole


@kernel
def drawn(keys: npt.NDArray[np.uint64], step: Ints, size: int, starts: Ints, stops: Ints) -> Ints:
    """Rows (m, size) that every client's step number ``step`` (m,) looks at: of its own ones, with replacement."""
    out = np.zeros((keys.shape[0], size), dtype=np.int64)
    for i in range(keys.shape[0]):
        n = stops[i] - starts[i]
        if n > 0:
            at = key(keys[i], step[i])
            for b in range(size):
                out[i, b] = starts[i] + whole(at, b, n)
    return out


@kernel
def padded(starts: Ints, stops: Ints) -> Ints:
    """All rows of clients (m, most): shorter ones repeat their last row, and row 0 stands where there is none."""
    most = 0
    for i in range(starts.shape[0]):
        most = max(most, stops[i] - starts[i])
    out = np.zeros((starts.shape[0], most), dtype=np.int64)
    for i in range(starts.shape[0]):
        for b in range(most if stops[i] > starts[i] else 0):
            out[i, b] = min(starts[i] + b, stops[i] - 1)
    return out


def batch(
    keys: npt.NDArray[np.uint64], step: Ints, size: int, starts: Ints, stops: Ints, weights: Floats, total: Floats
) -> tuple[Ints, Floats]:
    """Rows (m, b) of a step, and what each counts in the mean loss; size 0 takes all, and padding counts nothing.

    b is 0 where no client has a row.
    """
    n = (stops - starts)[:, None]
    if not n.any():
        return np.zeros((len(n), 0), dtype=np.int64), np.zeros((len(n), 0))
    share = np.where(total > 0.0, 1.0 / np.where(total > 0.0, total, 1.0), 0.0)[:, None]
    if size:
        index = drawn(keys, step, size, starts, stops)
        return index, weights[index] * (share * n / size)
    index = padded(starts, stops)
    return index, np.where(np.arange(index.shape[1]) < n, weights[index] * share, 0.0)
