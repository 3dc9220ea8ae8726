"""Numbers as they are: float64 (nothing lost), float32, and float16 with one scale for each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coterie.codecs.base import Codec
from coterie.codecs.pieces import even, uneven
from coterie.federation import Ragged
from coterie.numerics.kernels import Floats
from coterie.numerics.keyed import U64

LARGEST = 15
"""float16 rows are scaled to a largest number of 2^14 to 2^15: as far from its smallest numbers as it goes."""


@dataclass(frozen=True)
class Float64(Codec):
    """Eight bytes a coordinate, nothing lost: what travels without a codec."""

    name: str = "none"
    identity: ClassVar[int] = 0
    unbiased: ClassVar[bool] = True
    squeezed: ClassVar[bool] = True

    def pack(self, rows: Floats, draws: U64) -> Ragged:
        """See :class:`Codec`."""
        return even(rows.astype("<f8").view(np.uint8))

    def unpack(self, bodies: Ragged, d: int) -> Floats:
        """See :class:`Codec`."""
        return uneven(bodies, 8 * d, self.name).view("<f8").astype(np.float64)


@dataclass(frozen=True)
class Float32(Codec):
    """Four bytes a coordinate, rounded to nearest."""

    name: str = "float32"
    identity: ClassVar[int] = 1
    squeezed: ClassVar[bool] = True

    def pack(self, rows: Floats, draws: U64) -> Ragged:
        """See :class:`Codec`."""
        with np.errstate(over="ignore"):
            return even(rows.astype("<f4").view(np.uint8))

    def unpack(self, bodies: Ragged, d: int) -> Floats:
        """See :class:`Codec`."""
        return uneven(bodies, 4 * d, self.name).view("<f4").astype(np.float64)


@dataclass(frozen=True)
class Float16(Codec):
    """Two bytes a coordinate after division by a power of two for each row, so that nothing overflows."""

    name: str = "float16"
    identity: ClassVar[int] = 2
    squeezed: ClassVar[bool] = True

    def pack(self, rows: Floats, draws: U64) -> Ragged:
        """See :class:`Codec`. The body begins with the power of two, as an int16."""
        power = np.frexp(np.abs(rows).max(axis=1, initial=0.0))[1].astype("<i2")
        halves = np.ldexp(rows, LARGEST - power[:, None].astype(np.int64)).astype("<f2")
        return even(np.hstack([power[:, None].view(np.uint8), halves.view(np.uint8)]))

    def unpack(self, bodies: Ragged, d: int) -> Floats:
        """See :class:`Codec`."""
        table = uneven(bodies, 2 + 2 * d, self.name)
        power = np.ascontiguousarray(table[:, :2]).view("<i2").astype(np.int64)
        return np.ldexp(np.ascontiguousarray(table[:, 2:]).view("<f2").astype(np.float64), power - LARGEST)
