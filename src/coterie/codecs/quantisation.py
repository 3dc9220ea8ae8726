"""Each coordinate rounded by itself: floats of fewer bits, QSGD's levels, signs, and the nearest of a row's k values.

References
----------
.. [1] Alistarh, Grubic, Li, Tomioka, Vojnovic (2017), QSGD: random rounding to a few levels, unbiased.
.. [2] Seide, Fu, Droppo, Li, Yu (2014); Karimireddy, Rebjock, Stich, Jaggi (2019): signs and one scale.
.. [3] Wu (1991), Optimal quantization by matrix searching: clusters of numbers on a line are intervals, which dynamic
   programming over sorted values finds, with monotone cuts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from coterie.codecs.codec import Bytes, Codec, read_table, refuse_foreign, split_head, with_head, write_table
from coterie.codecs.range_coder import ANY, UNIFORM, decode_labels, encode_labels
from coterie.errors import CoterieError
from coterie.federation import Ragged
from coterie.numerics.arrays import Floats, Ints, kernel
from coterie.numerics.keyed_random import U64, fraction
from coterie.options import Option

HIGHEST = 15  # float16 rows are scaled to a largest number of 2^14 to 2^15: as far from its smallest numbers as it goes


def to_float16(rows: Floats) -> Bytes:
    """Numbers (m, n) in two bytes each, after two for the power of two, an int16, that a row was divided by."""
    power = np.frexp(np.abs(rows).max(axis=1, initial=0.0))[1].astype("<i2")
    halves = np.ldexp(rows, HIGHEST - power[:, None].astype(np.int64)).astype("<f2")
    return np.hstack([power[:, None].view(np.uint8), halves.view(np.uint8)])


def from_float16(table: Bytes) -> Floats:
    """The numbers (m, n) of :func:`to_float16`."""
    power = np.ascontiguousarray(table[:, :2]).view("<i2").astype(np.int64)
    return np.ldexp(np.ascontiguousarray(table[:, 2:]).view("<f2").astype(np.float64), power - HIGHEST)


def to_bfloat16(x: Floats, up: bool = False) -> Bytes:
    """Numbers (m, n) in two bytes each (the upper half of float32), rounded to nearest, or away from zero."""
    with np.errstate(over="ignore"):
        single = x.astype("<f4")
    bits = single.view(np.uint32).astype(np.uint64)
    if up:
        bits += np.where(np.abs(single.astype(np.float64)) < np.abs(x), np.uint64(1), np.uint64(0))
    bits = (bits + np.uint64(0xFFFF if up else 0x8000)) >> np.uint64(16)
    return bits.astype("<u2").view(np.uint8).reshape(len(x), 2 * x.shape[1])


def from_bfloat16(table: Bytes) -> Floats:
    """The numbers (m, n) of :func:`to_bfloat16`."""
    words = np.ascontiguousarray(table).view("<u2").astype(np.uint32) << np.uint32(16)
    return words.view(np.float32).astype(np.float64)


class _Floats(Codec):
    """Floats of a narrower type, rounded to nearest."""

    dtype: ClassVar[str]
    zstandard: ClassVar[bool] = True

    def _pack(self, rows: Floats, draws: U64) -> Ragged:
        with np.errstate(over="ignore"):
            return write_table(rows.astype(self.dtype).view(np.uint8))

    def _unpack(self, bodies: Ragged, d: int) -> Floats:
        wide = np.dtype(self.dtype).itemsize
        return read_table(bodies, wide * d, self.name).view(self.dtype).astype(np.float64)


@dataclass(frozen=True)
class Float64(_Floats):
    """Eight bytes a coordinate, nothing lost: what travels without a codec."""

    name: str = "none"
    identity: ClassVar[int] = 0
    unbiased: ClassVar[bool] = True
    dtype: ClassVar[str] = "<f8"


@dataclass(frozen=True)
class Float32(_Floats):
    """Four bytes a coordinate, rounded to nearest."""

    name: str = "float32"
    identity: ClassVar[int] = 1
    dtype: ClassVar[str] = "<f4"


@dataclass(frozen=True)
class Float16(Codec):
    """Two bytes a coordinate after division by a power of two for each row, so that nothing overflows."""

    name: str = "float16"
    identity: ClassVar[int] = 2
    zstandard: ClassVar[bool] = True

    def _pack(self, rows: Floats, draws: U64) -> Ragged:
        return write_table(to_float16(rows))

    def _unpack(self, bodies: Ragged, d: int) -> Floats:
        return from_float16(read_table(bodies, 2 + 2 * d, self.name))


@dataclass(frozen=True)
class QSGD(Codec):
    """Sign and level of each coordinate in ``bits`` bits, between 0 and a norm of the row, which takes two bytes.

    The paper's l2 norm has more variance and more zeros, and it codes levels by Elias' code.
    """

    bits: Annotated[int, Option("A sign and ``2^(bits - 1) - 1`` levels above 0.", low=2, high=8)] = 4
    norm: Annotated[Literal["max", "l2"], Option("The number that the highest level stands for.")] = "max"
    coded: Annotated[bool, Option("Levels in an adaptive arithmetic code where that is shorter.")] = False
    identity: ClassVar[int] = 3
    unbiased: ClassVar[bool] = True

    @classmethod
    def of(cls, bits: str = "4", *options: str) -> QSGD:
        """From text: ``"4"``, then any of ``"l2"``, ``"max"`` and ``"coded"``."""
        norms = [o for o in options if o != "coded"] or ["max"]
        if len(norms) > 1:
            raise CoterieError(f"QSGD takes one norm, not {' and '.join(norms)}.")
        return cls(int(bits), norms[0], "coded" in options)  # type: ignore[arg-type]

    @property
    def name(self) -> str:  # type: ignore[override]
        """``qsgd:bits``, with what is not a default."""
        return f"qsgd:{self.bits}{':l2' * (self.norm == 'l2')}{':coded' * self.coded}"

    @property
    def levels(self) -> int:
        """Levels above 0."""
        return int(2 ** (self.bits - 1)) - 1

    def _alphabet(self) -> tuple[int, int]:
        return (2 * self.levels + 1, ANY) if self.coded else (2**self.bits, UNIFORM)

    def _pack(self, rows: Floats, draws: U64) -> Ragged:
        """The norm is rounded up, so that no level lies above the highest."""
        top = np.abs(rows).max(axis=1) if self.norm == "max" else np.linalg.norm(rows, axis=1)
        scale = to_bfloat16(top[:, None], up=True)
        labels = _round(rows, from_bfloat16(scale)[:, 0], draws, self.levels)
        return with_head(scale, encode_labels(labels, *self._alphabet()))

    def _unpack(self, bodies: Ragged, d: int) -> Floats:
        scale, codes = split_head(bodies, 2, self.name)
        labels = decode_labels(codes, d, self._alphabet()[0])
        refuse_foreign(labels.max(axis=1) > 2 * self.levels, self.name)
        return from_bfloat16(scale) * ((labels.astype(np.float64) - self.levels) / self.levels)


@kernel
def _round(rows: Floats, top: Floats, draws: U64, levels: int) -> npt.NDArray[np.uint8]:
    """Levels -s, ..., s as labels 0, ..., 2 s, up or down with probabilities that make the mean right."""
    m, d = rows.shape
    out = np.empty((m, d), np.uint8)
    for i in range(m):
        unit = levels / top[i] if top[i] > 0.0 else 0.0
        for j in range(d):
            level = np.floor(rows[i, j] * unit + fraction(draws[i], j))
            out[i, j] = np.uint8(max(min(level, float(levels)), -float(levels)) + levels)
    return out


@dataclass(frozen=True)
class SignScale(Codec):
    """``mean |x| * sign(x)``, where 0 counts as positive. Biased: it wants a feedback."""

    name: str = "sign"
    identity: ClassVar[int] = 4

    def _pack(self, rows: Floats, draws: U64) -> Ragged:
        scale = to_bfloat16(np.abs(rows).mean(axis=1, keepdims=True))
        return with_head(scale, encode_labels((rows >= 0.0).view(np.uint8), 2))

    def _unpack(self, bodies: Ragged, d: int) -> Floats:
        scale, codes = split_head(bodies, 2, self.name)
        return from_bfloat16(scale) * (2.0 * decode_labels(codes, d, 2) - 1.0)


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
