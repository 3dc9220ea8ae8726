"""The largest coordinates only, and matrices of low rank by one power iteration.

References
----------
.. [1] Aji, Heafield (2017), Sparse communication; Stich, Cordonnier, Jaggi (2018), Sparsified SGD with memory.
.. [2] Vogels, Karimireddy, Jaggi (2019), PowerSGD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from coterie.codecs.codec import Codec, read_table, refuse_foreign, split_head, with_head, write_table
from coterie.codecs.quantisation import from_float16, to_float16
from coterie.codecs.range_coder import decode_labels, encode_labels
from coterie.errors import CoterieError
from coterie.federation import Ragged
from coterie.numerics.arrays import Floats, kernel
from coterie.numerics.keyed_random import U64, fraction
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
        refuse_foreign(chosen.sum(axis=1) != k, self.name)
        out = np.zeros(chosen.shape)
        values = from_float16(head) if self.bits == 16 else np.ascontiguousarray(head).view("<f4")
        out[chosen] = values.reshape(-1)
        return out


@dataclass(frozen=True)
class LowRank(Codec):
    """Each row, as a matrix ``height`` x ``width``, becomes ``P Q'`` of rank ``rank``, both in float16. Biased.

    A row has ``height * width`` coordinates; where both are 0 they are chosen as square as d allows. The iteration
    starts at random columns.
    """

    rank: Annotated[int, Option("Of the matrices that are sent.", low=1)] = 1
    height: Annotated[int, Option("Rows of the matrix.", low=0)] = 0
    width: Annotated[int, Option("Columns of the matrix.", low=0)] = 0
    identity: ClassVar[int] = 7

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.height == 0) != (self.width == 0):
            raise CoterieError("Low rank takes a height and a width, or neither.")

    @classmethod
    def of(cls, rank: str = "1", shape: str = "0x0") -> LowRank:
        """From text: ``"2", "64x32"``."""
        height, width = shape.split("x")
        return cls(int(rank), int(height), int(width))

    @property
    def name(self) -> str:  # type: ignore[override]
        """``lowrank:rank:heightxwidth``."""
        return f"lowrank:{self.rank}:{self.height}x{self.width}"

    def _shape(self, d: int) -> tuple[int, int, int]:
        height, width = self.height, self.width
        if height == 0:
            height = max(h for h in range(1, int(np.sqrt(d)) + 1) if d % h == 0)
            width = d // height
        if height * width != d:
            raise CoterieError(f"Rows of {d} coordinates are no matrices of {height} x {width}: give codec the shape.")
        return height, width, min(self.rank, height, width)

    def _pack(self, rows: Floats, draws: U64) -> Ragged:
        height, width, rank = self._shape(rows.shape[1])
        scale = np.abs(rows).max(axis=1, initial=0.0)[:, None, None]
        matrices = rows.reshape(-1, height, width) / np.where(scale > 0.0, scale, 1.0)
        columns = _columns(draws, width * rank).reshape(-1, width, rank)
        left = np.linalg.qr(matrices @ columns)[0]
        right = matrices.transpose(0, 2, 1) @ left * scale
        parts = [(left, height * rank), (right, width * rank)]
        return write_table(np.hstack([to_float16(a.reshape(-1, n)) for a, n in parts]))

    def _unpack(self, bodies: Ragged, d: int) -> Floats:
        height, width, rank = self._shape(d)
        cut = 2 + 2 * height * rank
        table = read_table(bodies, cut + 2 + 2 * width * rank, self.name)
        left = from_float16(table[:, :cut]).reshape(-1, height, rank)
        right = from_float16(table[:, cut:]).reshape(-1, width, rank)
        return np.asarray(np.einsum("mhr,mwr->mhw", left, right)).reshape(-1, d)


@kernel
def _columns(draws: U64, n: int) -> Floats:
    """Uniform numbers between -1 and 1, (m, n)."""
    out = np.empty((draws.shape[0], n))
    for i in range(draws.shape[0]):
        for j in range(n):
            out[i, j] = 2.0 * fraction(draws[i], j) - 1.0
    return out
