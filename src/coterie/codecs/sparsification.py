"""The largest coordinates only (Aji, Heafield 2017; Stich, Cordonnier, Jaggi 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from coterie.codecs.codec import Codec, split_head, unreadable, with_head
from coterie.codecs.quantisation import from_float16, to_float16
from coterie.codecs.range_coder import decode_labels, encode_labels
from coterie.errors import CoterieError
from coterie.federation import Ragged
from coterie.numerics.arrays import Floats
from coterie.numerics.keyed_random import U64
from coterie.options import Option


@dataclass(frozen=True)
class TopK(Codec):
    """The ``share`` of coordinates with the largest absolute values, as floats; which they are, in an arithmetic code.

    The code of the places takes about ``log2 (d over k)`` bits, which no list of indices or gaps undercuts.
    """

    share: Annotated[float, Option("A share of d, one coordinate at least; from 1 on how many.", above=0.0)] = 0.01
    bits: Annotated[int, Option("Of each value: 16 or 32.")] = 16
    identity: ClassVar[int] = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits not in (16, 32) or (self.share > 1.0 and self.share % 1.0):
            raise CoterieError(f"Top-k takes a share below 1 or a whole number, and 16 or 32 bits, not {self.share:g}.")

    @classmethod
    def of(cls, share: str = "0.01", bits: str = "16") -> TopK:
        """From text."""
        return cls(float(share), int(bits))

    @property
    def name(self) -> str:  # type: ignore[override]
        """``topk:share``, with bits that are not a default."""
        return f"topk:{self.share:g}{':32' * (self.bits == 32)}"

    def size(self, d: int) -> int:
        """How many of ``d`` coordinates are sent."""
        return min(d, int(self.share) if self.share >= 1.0 else max(1, round(self.share * d)))

    def _pack(self, rows: Floats, draws: U64) -> Ragged:
        (m, d), k = rows.shape, self.size(rows.shape[1])
        where = np.sort(np.argpartition(-np.abs(rows), k - 1, axis=1)[:, :k], axis=1)
        chosen = np.zeros((m, d), dtype=np.uint8)
        np.put_along_axis(chosen, where, 1, axis=1)
        values = np.take_along_axis(rows, where, axis=1)
        with np.errstate(over="ignore"):
            table = to_float16(values) if self.bits == 16 else values.astype("<f4").view(np.uint8)
        return with_head(table, encode_labels(chosen, 2))

    def _unpack(self, bodies: Ragged, d: int) -> Floats:
        k = self.size(d)
        head, codes = split_head(bodies, 2 + 2 * k if self.bits == 16 else 4 * k, self.name)
        chosen = decode_labels(codes, d, 2).astype(bool)
        wrong = chosen.sum(axis=1) != k
        if wrong.any():
            raise unreadable(self.name, int(np.argmax(wrong)))
        out = np.zeros(chosen.shape)
        values = from_float16(head) if self.bits == 16 else np.ascontiguousarray(head).view("<f4")
        out[chosen] = values.reshape(-1)
        return out
