"""A codebook of k values for each row: exact k-means on a line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coterie.codecs.base import Codec
from coterie.codecs.codebook import pack_codebook, unpack_codebook
from coterie.codecs.intervals import intervals
from coterie.errors import CoterieError
from coterie.federation import Ragged
from coterie.numerics.kernels import Floats, Ints, kernel
from coterie.numerics.keyed import U64


@dataclass(frozen=True)
class KMeans(Codec):
    """Each coordinate becomes the nearest of ``k`` centres that have the least sum of squares. Biased.

    Parameters
    ----------
    k : int, default 4
        2 to 256: with one value the mean would be sent, which may be 0 and then nothing is.
    """

    k: int = 4
    identity: ClassVar[int] = 6

    def __post_init__(self) -> None:
        if not 2 <= self.k <= 256:
            raise CoterieError(f"k-means takes 2 to 256 values, not {self.k}.")

    @classmethod
    def of(cls, k: str = "4") -> KMeans:
        """From text."""
        return cls(int(k))

    @property
    def name(self) -> str:  # type: ignore[override]
        """``kmeans:k``."""
        return f"kmeans:{self.k}"

    def pack(self, rows: Floats, draws: U64) -> Ragged:
        """See :class:`Codec`."""
        return pack_codebook(*_cluster(rows, self.k))

    def unpack(self, bodies: Ragged, d: int) -> Floats:
        """See :class:`Codec`."""
        return unpack_codebook(bodies, d, self.k, self.name)


@kernel
def _cluster(rows: Floats, k: int) -> tuple[Floats, Ints]:
    """Centres (m, k), rising, and the centre of each coordinate (m, d)."""
    m, d = rows.shape
    centres, labels, ones = np.zeros((m, k)), np.empty((m, d), np.int64), np.ones(d)
    for i in range(m):
        order = np.argsort(rows[i])
        values = rows[i][order]
        ends = intervals(values, ones, k)
        start = 0
        for c in range(k):
            if ends[c] > start:
                centres[i, c] = values[start : ends[c]].mean()
            elif c:
                centres[i, c] = centres[i, c - 1]
            labels[i][order[start : ends[c]]] = c
            start = ends[c]
    return centres, labels
