"""A codebook of k values for each row, by exact k-means on a line.

The clusters of numbers on a line are intervals: dynamic programming over sorted values finds them, with monotone cuts
(Wu 1991).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from coterie.codecs.base import Codec
from coterie.codecs.framing import split_head, with_head
from coterie.codecs.quantisation import from_bfloat16, to_bfloat16
from coterie.codecs.range_coder import decode_labels, encode_labels
from coterie.federation import Ragged
from coterie.numerics.arrays import Floats, Ints, kernel
from coterie.numerics.keyed_random import U64
from coterie.options import Option


@dataclass(frozen=True)
class KMeans(Codec):
    """Each coordinate becomes the nearest of ``k`` centres that have the least sum of squares. Biased."""

    # With one value the mean would be sent, which may be 0 and then nothing is.
    k: Annotated[int, Option("How many values.", low=2, high=256)] = 4
    identity: ClassVar[int] = 6

    @classmethod
    def of(cls, k: str = "4") -> KMeans:
        """From text."""
        return cls(int(k))

    @property
    def name(self) -> str:  # type: ignore[override]
        """``kmeans:k``."""
        return f"kmeans:{self.k}"

    def _pack(self, rows: Floats, draws: U64) -> Ragged:
        centres, labels = _cluster(rows, self.k)
        return with_head(to_bfloat16(centres), encode_labels(labels.astype(np.uint8), self.k))

    def _unpack(self, bodies: Ragged, d: int) -> Floats:
        centres, codes = split_head(bodies, 2 * self.k, self.name)
        return np.take_along_axis(from_bfloat16(centres), decode_labels(codes, d, self.k).astype(np.int64), axis=1)


@kernel
def _cluster(rows: Floats, k: int) -> tuple[Floats, Ints]:
    """Centres (m, k), rising, and the centre of each coordinate (m, d)."""
    m, d = rows.shape
    centres, labels, ones = np.zeros((m, k)), np.empty((m, d), np.int64), np.ones(d)
    for i in range(m):
        order = np.argsort(rows[i])
        values = rows[i][order]
        ends = cluster_ends(values, ones, k)
        start = 0
        for c in range(k):
            if ends[c] > start:
                centres[i, c] = values[start : ends[c]].mean()
            elif c:
                centres[i, c] = centres[i, c - 1]
            labels[i][order[start : ends[c]]] = c
            start = ends[c]
    return centres, labels


@kernel
def cluster_ends(values: Floats, weights: Floats, k: int) -> Ints:
    """Where k clusters, some empty, of rising values (n,) end: least weighted squares around means, in O(k n log n)."""
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
