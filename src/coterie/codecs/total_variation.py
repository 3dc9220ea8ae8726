"""The paper's own codec: a gradient as runs of few values (paper 003, section V)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from coterie.codecs.codec import SHORT, Bytes, Codec, refuse, refuse_foreign, split_head, with_head
from coterie.codecs.quantisation import cluster_ends, from_bfloat16, to_bfloat16
from coterie.codecs.range_coder import decode_labels, encode_labels
from coterie.errors import CoterieError
from coterie.federation import Ragged
from coterie.numerics.arrays import Floats, Ints, kernel
from coterie.numerics.keyed_random import U64
from coterie.numerics.total_variation import taut_string
from coterie.options import Option

TRIES, FINEST = 12, 24
"""How often the search for a budget's weight halves what is left between 1 and 2^-24 of the largest that matters."""

LARGEST = 2.0**127  # numbers from here on do not fit a message


@dataclass(frozen=True)
class TotalVariation(Codec):
    """Runs of the pinned total-variation prox of a row, eq. (7), with k-means to ``k`` values (Figure 6). Biased.

    A body is k values, a byte each and one for their common scale, and an arithmetic code of which of them each
    coordinate is. Without k-means it is the number of runs, the value of each in two bytes, and an arithmetic code of
    where they begin.

    The prox's weight is ``relative`` times the row's root mean square, at most half of what would leave nothing, or
    ``gamma``. A fixed one stops every method whose gradients become small: nothing moves any more once no cumulative
    sum of a gradient is larger than gamma. With ``bytes_per_update`` it is the least weight, for each row, with which
    its message has at most so many bytes, header and checksum included. ``debias`` sends means of the row over runs,
    the values that are nearest to it, and not the prox, which is shrunk.
    """

    k: Annotated[int | None, Option("How many values; None keeps every run's own.", low=2, high=256)] = 4
    gamma: Annotated[float | None, Option("The weight itself.", low=0.0)] = None
    relative: Annotated[float, Option("The weight, in root mean squares of a row.", low=0.0)] = 0.3
    bytes_per_update: Annotated[int | None, Option("At most so many, whatever the weight.")] = None
    debias: Annotated[bool, Option("Whether means of the row are sent.")] = True
    identity: ClassVar[int] = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        least = 9 if self.k is None else 4 + self.k  # labels that are all 0 are no bytes
        if self.bytes_per_update is not None and self.bytes_per_update < least:
            raise CoterieError(f"Its runs need {least} bytes an update at least, not {self.bytes_per_update}.")

    @classmethod
    def of(cls, *words: str) -> TotalVariation:
        """From text: the number of values or "all", then any of ``relative=``, ``gamma=``, ``bytes=`` and "prox"."""
        given: dict[str, Any] = {}
        for word in words:
            name, _, value = word.rpartition("=")
            if word == "prox":
                given["debias"] = False
            elif name in ("relative", "gamma"):
                given[name] = float(value)
            elif name == "bytes":
                given["bytes_per_update"] = int(value)
            else:
                given["k"] = None if word == "all" else int(word)
        return cls(**given)

    @property
    def name(self) -> str:  # type: ignore[override]
        """``tv:k``, all that both ends must agree on: weights are the sender's own business."""
        return f"tv:{self.k or 'all'}"

    def _pack(self, rows: Floats, draws: U64) -> Ragged:
        far = np.abs(rows).max(axis=1, initial=0.0) >= LARGEST
        refuse(far, f"has numbers too large for codec {self.name!r}: scale it down")
        return self._bodies(rows, self._weights(rows))

    def _unpack(self, bodies: Ragged, d: int) -> Floats:
        if self.k is None:
            return _unpack_exact_runs(bodies, d, self.name)
        book, codes = split_head(bodies, 1 + self.k, self.name)
        return np.take_along_axis(_unpack_codebook(book), decode_labels(codes, d, self.k).astype(np.int64), axis=1)

    def _bodies(self, rows: Floats, weights: Floats) -> Ragged:
        if self.k is None:
            return _pack_exact_runs(*exact_runs(rows, weights, self.debias))
        centres, labels = quantised_runs(rows, weights, self.k, self.debias)
        return with_head(_pack_codebook(centres), encode_labels(labels, self.k))

    def _weights(self, rows: Floats) -> Floats:
        if self.bytes_per_update is not None:
            return self._within(rows, self.bytes_per_update)
        if self.gamma is None:
            size = np.abs(rows).max(axis=1, initial=1e-300)
            size *= np.sqrt(np.mean((rows / size[:, None]) ** 2, axis=1))
            return np.asarray(np.minimum(self.relative * size, 0.5 * clearing_weights(rows)))
        return np.full(len(rows), self.gamma)

    def _within(self, rows: Floats, budget: int) -> Floats:
        """The least weights that keep a budget, by bisection on their logarithms."""
        most = 2.0 * clearing_weights(rows)  # leaves one run, whatever rounding does
        fits, over = np.zeros(len(rows)), np.full(len(rows), float(FINEST))
        for _ in range(TRIES):
            middle = 0.5 * (fits + over)
            length = np.diff(self._bodies(rows, most * 2.0**-middle).offsets)
            small = length + np.where(length + 3 <= SHORT, 3, 5) <= budget
            fits, over = np.where(small, middle, fits), np.where(small, over, middle)
        return np.asarray(most * 2.0**-fits)


def _pack_codebook(centres: Floats) -> Bytes:
    """Values (m, k) in a byte each, as multiples of 1/127 of a power of two, whose exponent comes first."""
    power = np.maximum(np.frexp(np.abs(centres).max(axis=1, keepdims=True))[1], -128)
    steps = np.rint(np.ldexp(centres, -power) * 127.0)
    return np.hstack([power, steps]).astype(np.int8).view(np.uint8)


def _unpack_codebook(book: Bytes) -> Floats:
    table = book.view(np.int8).astype(np.float64)
    return np.asarray(table[:, 1:] * (2.0 ** table[:, :1] / 127.0))


def _count(d: int) -> str:
    return "<u2" if d < 1 << 16 else "<u4"


def _pack_exact_runs(values: Floats, counts: Ints, begins: Bytes) -> Ragged:
    """Bodies of all runs: how many, the value of each, where they begin (the first needs no saying)."""
    words = Ragged(to_bfloat16(values[:, None]).reshape(-1), 2 * np.concatenate([[0], np.cumsum(counts)]))
    places = encode_labels(begins[:, 1:], 2)
    parts = Ragged(
        np.concatenate([words.values, places.values]),
        np.concatenate([words.offsets, len(words.values) + places.offsets[1:]]),
    )
    one_by_one = parts.take(np.arange(2 * len(counts)).reshape(2, -1).T.ravel())
    head = counts.astype(_count(begins.shape[1]))[:, None].view(np.uint8)
    return with_head(head, Ragged(one_by_one.values, one_by_one.offsets[::2]))


def _unpack_exact_runs(bodies: Ragged, d: int, name: str) -> Floats:
    head, rest = split_head(bodies, np.dtype(_count(d)).itemsize, name)
    counts = head.view(_count(d))[:, 0].astype(np.int64)
    refuse_foreign(np.diff(rest.offsets) < 2 * counts, name)
    cuts = np.column_stack([rest.offsets[:-1], rest.offsets[:-1] + 2 * counts]).ravel()
    parts = Ragged(rest.values, np.append(cuts, rest.offsets[-1]))
    begins = np.ones((len(bodies), d), dtype=np.int64)
    begins[:, 1:] = decode_labels(parts.take(np.arange(1, 2 * len(bodies), 2)), d - 1, 2)
    refuse_foreign(begins.sum(axis=1) != counts, name)
    values = from_bfloat16(parts.take(np.arange(0, 2 * len(bodies), 2)).values)
    return np.asarray(values[np.cumsum(begins).reshape(begins.shape) - 1])


@kernel
def clearing_weights(rows: Floats) -> Floats:
    """The least weights (m,) at which the prox of each row (m, d) is 0: the largest of its cumulative sums."""
    out = np.zeros(rows.shape[0])
    for i in range(rows.shape[0]):
        total = 0.0
        for x in rows[i]:
            total += x
            out[i] = max(out[i], abs(total))
    return out


@kernel
def quantised_runs(rows: Floats, gamma: Floats, k: int, means: bool) -> tuple[Floats, Bytes]:
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
        stops = cluster_ends(levels[order], lengths[order], k)
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
def exact_runs(rows: Floats, gamma: Floats, means: bool) -> tuple[Floats, Ints, Bytes]:
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
