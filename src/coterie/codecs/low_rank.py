"""Matrices of low rank by one power iteration (PowerSGD; Vogels, Karimireddy, Jaggi 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from coterie.codecs.codec import Codec, read_table, write_table
from coterie.codecs.quantisation import from_float16, to_float16
from coterie.errors import CoterieError
from coterie.federation import Ragged
from coterie.numerics.arrays import Floats, kernel
from coterie.numerics.keyed_random import U64, fraction
from coterie.options import Option


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
