"""A body of k values and, for each coordinate, which of them it is."""

from __future__ import annotations

import numpy as np

from coterie.codecs.labels import decode_labels, encode_labels
from coterie.codecs.pieces import brief, joined, parted, read_brief
from coterie.federation import Ragged
from coterie.numerics.kernels import Floats, Ints


def pack_codebook(centres: Floats, labels: Ints) -> Ragged:
    """Bodies of ``centres`` (m, k), in two bytes each, and ``labels`` (m, d) below k, in an arithmetic code."""
    return joined(brief(centres), encode_labels(labels.astype(np.uint8), centres.shape[1]))


def unpack_codebook(bodies: Ragged, d: int, k: int, name: str) -> Floats:
    """The rows (m, d) of :func:`pack_codebook`."""
    book, codes = parted(bodies, 2 * k, name)
    return np.take_along_axis(read_brief(book), decode_labels(codes, d, k).astype(np.int64), axis=1)
