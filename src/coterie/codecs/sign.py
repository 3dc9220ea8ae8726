"""Signs and one scale: a bit a coordinate (Seide et al. 2014; Karimireddy, Rebjock, Stich, Jaggi 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coterie.codecs.base import Codec
from coterie.codecs.labels import decode_labels, encode_labels
from coterie.codecs.pieces import brief, joined, parted, read_brief
from coterie.federation import Ragged
from coterie.numerics.kernels import Floats
from coterie.numerics.keyed import U64


@dataclass(frozen=True)
class SignScale(Codec):
    """``mean |x| * sign(x)``, where 0 counts as positive. Biased: it wants a feedback."""

    name: str = "sign"
    identity: ClassVar[int] = 4

    def pack(self, rows: Floats, draws: U64) -> Ragged:
        """See :class:`Codec`."""
        scale = brief(np.abs(rows).mean(axis=1, keepdims=True))
        return joined(scale, encode_labels((rows >= 0.0).view(np.uint8), 2))

    def unpack(self, bodies: Ragged, d: int) -> Floats:
        """See :class:`Codec`."""
        scale, codes = parted(bodies, 2, self.name)
        return read_brief(scale) * (2.0 * decode_labels(codes, d, 2) - 1.0)
