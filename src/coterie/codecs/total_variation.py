"""The paper's own codec: a gradient as runs of few values (seed 003, section V)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from coterie.codecs.base import Codec, Encoded, unreadable
from coterie.codecs.framing import SHORT
from coterie.codecs.labels import decode_labels, encode_labels
from coterie.codecs.pieces import brief, joined, parted, read_brief
from coterie.codecs.runs import all_runs, clearing, few_values
from coterie.errors import CoterieError
from coterie.federation import Ragged
from coterie.numerics.kernels import Floats, Ints
from coterie.numerics.keyed import U64

Bytes = npt.NDArray[np.uint8]
Schedule = Callable[[npt.ArrayLike], npt.ArrayLike]

TRIES, FINEST = 12, 24
"""How often the search for a budget's weight halves what is left between 1 and 2^-24 of the largest that matters."""

LARGEST = 2.0**127
"""Numbers from here on do not fit a message."""


@dataclass(frozen=True)
class TotalVariation(Codec):
    """Runs of the pinned total-variation prox of a row, eq. (7), with k-means to ``k`` values (Figure 6). Biased.

    A body is k values, a byte each and one for their common scale, and an arithmetic code of which of them each
    coordinate is. Without k-means it is the number of runs, the value of each in two bytes, and an arithmetic code of
    where they begin.

    Parameters
    ----------
    k : int or None, default 4
        2 to 256; None keeps every run's own value.
    gamma : "relative", float or callable, default "relative"
        The prox's weight. "relative" is ``relative`` times the row's root mean square, at most half of what would leave
        nothing. A fixed one stops every method whose gradients become small: nothing moves any more once no cumulative
        sum of a gradient is larger than gamma. A callable gets the step, int or (m,), and returns a weight or (m,).
    relative : float, default 0.3
    bytes_per_update : int, optional
        The least weight, for each row, with which its message has at most so many bytes, header and checksum included;
        ``gamma`` and ``relative`` do not matter then.
    debias : bool, default True
        Send means of the row over runs, the values that are nearest to it, and not the prox, which is shrunk.
    """

    k: int | None = 4
    gamma: str | npt.ArrayLike | Schedule = "relative"
    relative: float = 0.3
    bytes_per_update: int | None = None
    debias: bool = True
    identity: ClassVar[int] = 8

    def __post_init__(self) -> None:
        if self.k is not None and not 2 <= self.k <= 256:
            raise CoterieError(f"Runs take 2 to 256 values, or None for each run's own, not {self.k}.")
        if isinstance(self.gamma, str) and self.gamma != "relative":
            raise CoterieError(f"gamma must be 'relative', a number or a function of the step, not {self.gamma!r}.")
        given = 0.0 if isinstance(self.gamma, str) or callable(self.gamma) else np.asarray(self.gamma, dtype=np.float64)
        if not (self.relative >= 0.0 and np.all(given >= 0.0)):
            raise CoterieError("gamma and relative must be numbers that are not negative.")
        least = 9 if self.k is None else 4 + self.k  # labels that are all 0 are no bytes
        if self.bytes_per_update is not None and self.bytes_per_update < least:
            raise CoterieError(
                f"Codec {self.name!r} needs {least} bytes an update at least, not {self.bytes_per_update}."
            )

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

    def encode(
        self, rows: npt.ArrayLike, keys: npt.ArrayLike, step: npt.ArrayLike, order: Ints | None = None
    ) -> Encoded:
        """See :meth:`Codec.encode`."""
        if callable(self.gamma):
            return replace(self, gamma=self.gamma(step)).encode(rows, keys, step, order)
        return super().encode(rows, keys, step, order)

    def pack(self, rows: Floats, draws: U64) -> Ragged:
        """See :class:`Codec`."""
        far = np.abs(rows).max(axis=1, initial=0.0) >= LARGEST
        if far.any():
            raise CoterieError(
                f"Row {int(np.argmax(far))} has numbers too large for codec {self.name!r}: scale it down."
            )
        return self._bodies(rows, self._weights(rows))

    def unpack(self, bodies: Ragged, d: int) -> Floats:
        """See :class:`Codec`."""
        if self.k is None:
            return _read_own_values(bodies, d, self.name)
        book, codes = parted(bodies, 1 + self.k, self.name)
        return np.take_along_axis(_read_book(book), decode_labels(codes, d, self.k).astype(np.int64), axis=1)

    def _bodies(self, rows: Floats, weights: Floats) -> Ragged:
        if self.k is None:
            return _own_values(*all_runs(rows, weights, self.debias))
        centres, labels = few_values(rows, weights, self.k, self.debias)
        return joined(_book(centres), encode_labels(labels, self.k))

    def _weights(self, rows: Floats) -> Floats:
        """gamma of each row, (m,)."""
        if self.bytes_per_update is not None:
            return self._within(rows, self.bytes_per_update)
        if isinstance(self.gamma, str):
            size = np.abs(rows).max(axis=1, initial=1e-300)
            size *= np.sqrt(np.mean((rows / size[:, None]) ** 2, axis=1))
            return np.asarray(np.minimum(self.relative * size, 0.5 * clearing(rows)))
        given = np.asarray(self.gamma, dtype=np.float64)
        if given.shape not in ((), (len(rows),)):
            raise CoterieError(f"gamma has {given.size} weights for {len(rows)} rows: give one, or one for each row.")
        return np.broadcast_to(given, len(rows)).copy()

    def _within(self, rows: Floats, budget: int) -> Floats:
        """The least weights that keep a budget, by bisection on their logarithms."""
        most = 2.0 * clearing(rows)  # leaves one run, whatever rounding does
        fits, over = np.zeros(len(rows)), np.full(len(rows), float(FINEST))
        for _ in range(TRIES):
            middle = 0.5 * (fits + over)
            length = np.diff(self._bodies(rows, most * 2.0**-middle).offsets)
            small = length + np.where(length + 3 <= SHORT, 3, 5) <= budget
            fits, over = np.where(small, middle, fits), np.where(small, over, middle)
        return np.asarray(most * 2.0**-fits)


def _book(centres: Floats) -> Bytes:
    """Values (m, k) in a byte each, as multiples of 1/127 of a power of two, whose exponent comes first."""
    power = np.maximum(np.frexp(np.abs(centres).max(axis=1, keepdims=True))[1], -128)
    steps = np.rint(np.ldexp(centres, -power) * 127.0)
    return np.hstack([power, steps]).astype(np.int8).view(np.uint8)


def _read_book(book: Bytes) -> Floats:
    table = book.view(np.int8).astype(np.float64)
    return np.asarray(table[:, 1:] * (2.0 ** table[:, :1] / 127.0))


def _count(d: int) -> str:
    """How the number of runs of ``d`` coordinates is written."""
    return "<u2" if d < 1 << 16 else "<u4"


def _own_values(values: Floats, counts: Ints, begins: Bytes) -> Ragged:
    """Bodies of all runs: how many, the value of each, where they begin (the first needs no saying)."""
    words = Ragged(brief(values[:, None]).reshape(-1), 2 * np.concatenate([[0], np.cumsum(counts)]))
    places = encode_labels(begins[:, 1:], 2)
    parts = Ragged(
        np.concatenate([words.values, places.values]),
        np.concatenate([words.offsets, len(words.values) + places.offsets[1:]]),
    )
    one_by_one = parts.take(np.arange(2 * len(counts)).reshape(2, -1).T.ravel())
    head = counts.astype(_count(begins.shape[1]))[:, None].view(np.uint8)
    return joined(head, Ragged(one_by_one.values, one_by_one.offsets[::2]))


def _read_own_values(bodies: Ragged, d: int, name: str) -> Floats:
    head, rest = parted(bodies, np.dtype(_count(d)).itemsize, name)
    counts = head.view(_count(d))[:, 0].astype(np.int64)
    short = np.diff(rest.offsets) < 2 * counts
    if short.any():
        raise unreadable(name, int(np.argmax(short)))
    cuts = np.column_stack([rest.offsets[:-1], rest.offsets[:-1] + 2 * counts]).ravel()
    parts = Ragged(rest.values, np.append(cuts, rest.offsets[-1]))
    begins = np.ones((len(bodies), d), dtype=np.int64)
    begins[:, 1:] = decode_labels(parts.take(np.arange(1, 2 * len(bodies), 2)), d - 1, 2)
    wrong = begins.sum(axis=1) != counts
    if wrong.any():
        raise unreadable(name, int(np.argmax(wrong)))
    values = read_brief(parts.take(np.arange(0, 2 * len(bodies), 2)).values)
    return np.asarray(values[np.cumsum(begins).reshape(begins.shape) - 1])
