"""Exact k-means on a line: dynamic programming over sorted values, with monotone cuts (Wu 1991)."""

from __future__ import annotations

import numpy as np

from coterie.numerics.kernels import Floats, Ints, kernel


@kernel
def intervals(values: Floats, weights: Floats, k: int) -> Ints:
    """Where each of k clusters of rising ``values`` (n,) ends; clusters may be empty where values are equal.

    Least sum of weighted squares around the clusters' means, in O(k n log n).
    """
    n = values.shape[0]
    sums = np.zeros((3, n + 1))  # of weights, values and squares, from the middle value to keep digits
    middle = values[n // 2]
    for i in range(n):
        x = values[i] - middle
        sums[0, i + 1] = sums[0, i] + weights[i]
        sums[1, i + 1] = sums[1, i] + weights[i] * x
        sums[2, i + 1] = sums[2, i] + weights[i] * x * x
    before, cuts = np.empty(n + 1), np.zeros((k, n + 1), np.int64)
    for j in range(n + 1):
        before[j] = _spread(sums, 0, j)
    for c in range(1, k):
        before = _layer(sums, before, cuts[c])
    ends = np.empty(k, np.int64)
    at = n
    for c in range(k - 1, -1, -1):
        ends[c] = at
        at = cuts[c, at]
    return ends


@kernel
def _spread(sums: Floats, i: int, j: int) -> float:
    """Weighted squares of values i, ..., j - 1 around their mean."""
    weight = sums[0, j] - sums[0, i]
    if weight <= 0.0:
        return 0.0
    total = sums[1, j] - sums[1, i]
    return float(max(sums[2, j] - sums[2, i] - total * total / weight, 0.0))


@kernel
def _layer(sums: Floats, before: Floats, cuts: Ints) -> Floats:
    """Least costs with one cluster more: the best cut does not fall as the end rises, so halves can be done apart."""
    n = before.shape[0] - 1
    out = np.empty(n + 1)
    stack = np.empty((128, 4), np.int64)
    stack[0] = np.array([0, n, 0, n])
    depth = 1
    while depth:
        depth -= 1
        lo, hi, first, last = stack[depth]
        middle = (lo + hi) // 2
        best, where = np.inf, first
        for i in range(first, min(middle, last) + 1):
            cost = before[i] + _spread(sums, i, middle)
            if cost < best:
                best, where = cost, i
        out[middle], cuts[middle] = best, where
        if lo < middle:
            stack[depth] = np.array([lo, middle - 1, first, where])
            depth += 1
        if middle < hi:
            stack[depth] = np.array([middle + 1, hi, where, last])
            depth += 1
    return out
