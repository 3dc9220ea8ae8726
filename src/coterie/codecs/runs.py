"""Rows as runs of equal values: the pinned total-variation prox, its runs' means, and few values for all of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.codecs.intervals import intervals
from coterie.numerics.kernels import Floats, Ints, kernel
from coterie.numerics.total_variation import taut_string

Bytes = npt.NDArray[np.uint8]


@kernel
def clearing(rows: Floats) -> Floats:
    """The least weights (m,) at which the prox of each row (m, d) is 0: the largest of its cumulative sums."""
    out = np.zeros(rows.shape[0])
    for i in range(rows.shape[0]):
        total = 0.0
        for x in rows[i]:
            total += x
            out[i] = max(out[i], abs(total))
    return out


@kernel
def few_values(rows: Floats, gamma: Floats, k: int, means: bool) -> tuple[Floats, Bytes]:
    """At most k values (m, k), rising, for the runs of each row's prox, and which of them each element is (m, d).

    The values have the least sum of squares around them; with ``means`` around the runs' means in the row, which is
    around the row's own elements, else around the prox. Where fewer do, the last is repeated.
    """
    m, d = rows.shape
    centres, labels = np.zeros((m, k)), np.empty((m, d), np.uint8)
    ends, levels, lengths, hulls = np.empty(d, np.int64), np.empty(d), np.empty(d), np.empty((4, d))
    for i in range(m):
        n = _runs(rows[i], gamma[i], means, ends, levels, lengths, hulls)
        order = np.argsort(levels[:n])
        stops = intervals(levels[order], lengths[order], k)
        first, used = 0, 0
        for stop in stops:
            total, height = 0.0, 0.0
            for j in order[first:stop]:
                total += lengths[j]
                height += lengths[j] * levels[j]
                labels[i, ends[j] - int(lengths[j]) : ends[j]] = used
            if stop > first:
                centres[i, used:] = height / total
                used += 1
            first = stop
    return centres, labels


@kernel
def all_runs(rows: Floats, gamma: Floats, means: bool) -> tuple[Floats, Ints, Bytes]:
    """Values of all runs, one row's after another's, how many each row has (m,), and where runs begin (m, d), as 1."""
    m, d = rows.shape
    values, counts, begins = np.empty(m * d), np.empty(m, np.int64), np.zeros((m, d), np.uint8)
    ends, levels, lengths, hulls = np.empty(d, np.int64), np.empty(d), np.empty(d), np.empty((4, d))
    at = 0
    for i in range(m):
        n = _runs(rows[i], gamma[i], means, ends, levels, lengths, hulls)
        values[at : at + n] = levels[:n]
        for j in range(n):
            begins[i, ends[j] - int(lengths[j])] = 1
        counts[i] = n
        at += n
    return values[:at].copy(), counts, begins


@kernel
def _runs(g: Floats, gamma: float, means: bool, ends: Ints, levels: Floats, lengths: Floats, hulls: Floats) -> int:
    """Runs of the prox, and how many: where they end, how long they are, and their means in the row or the prox."""
    q = lengths  # is written over from the left, not beyond what was read
    taut_string(g, gamma, q, hulls)
    n, start = 0, 0
    for i in range(g.shape[0]):
        level = q[i]
        if i + 1 < g.shape[0] and q[i + 1] == level:
            continue
        levels[n] = g[start : i + 1].mean() if means else level
        ends[n], lengths[n] = i + 1, i + 1 - start
        n, start = n + 1, i + 1
    return n
