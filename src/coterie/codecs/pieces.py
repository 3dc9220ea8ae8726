"""Parts of a body: tables of equal rows, short scales, and a code of free length at the end."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.codecs.base import unreadable
from coterie.federation import Ragged
from coterie.numerics.kernels import Floats

Bytes = npt.NDArray[np.uint8]


def even(table: Bytes) -> Ragged:
    """Bytes of equal length, the rows of ``table`` (m, n)."""
    return Ragged(table.reshape(-1), np.arange(len(table) + 1) * table.shape[1])


def uneven(bodies: Ragged, length: int, name: str) -> Bytes:
    """The inverse of :func:`even`; a CoterieError where a body of codec ``name`` has not ``length`` bytes."""
    wrong = np.diff(bodies.offsets) != length
    if wrong.any():
        raise unreadable(name, int(np.argmax(wrong)))
    return np.ascontiguousarray(bodies.values).reshape(len(bodies), length)


def joined(head: Bytes, rest: Ragged) -> Ragged:
    """Bodies that begin with the rows of ``head`` (m, n)."""
    n = head.shape[1]
    lengths = np.diff(rest.offsets)
    offsets = np.concatenate([[0], np.cumsum(lengths + n)])
    values, mine = np.empty(offsets[-1], dtype=np.uint8), offsets[:-1, None] + np.arange(n)
    values[mine] = head
    free = np.ones(len(values), dtype=bool)
    free[mine] = False
    values[free] = rest.values
    return Ragged(values, offsets)


def parted(bodies: Ragged, n: int, name: str) -> tuple[Bytes, Ragged]:
    """The inverse of :func:`joined`; a CoterieError where a body of codec ``name`` has less than ``n`` bytes."""
    lengths = np.diff(bodies.offsets) - n
    if (lengths < 0).any():
        raise unreadable(name, int(np.argmax(lengths < 0)))
    mine = bodies.offsets[:-1, None] + np.arange(n)
    free = np.ones(len(bodies.values), dtype=bool)
    free[mine] = False
    return bodies.values[mine], Ragged(bodies.values[free], np.concatenate([[0], np.cumsum(lengths)]))


def brief(x: Floats, up: bool = False) -> Bytes:
    """Numbers (m, n) in two bytes each (the upper half of float32), rounded to nearest, or away from zero."""
    with np.errstate(over="ignore"):
        single = x.astype("<f4")
    bits = single.view(np.uint32).astype(np.uint64)
    if up:
        bits += np.where(np.abs(single.astype(np.float64)) < np.abs(x), np.uint64(1), np.uint64(0))
    bits = (bits + np.uint64(0xFFFF if up else 0x8000)) >> np.uint64(16)
    return bits.astype("<u2").view(np.uint8).reshape(len(x), 2 * x.shape[1])


def read_brief(table: Bytes) -> Floats:
    """The numbers (m, n) of :func:`brief`."""
    words = np.ascontiguousarray(table).view("<u2").astype(np.uint32) << np.uint32(16)
    return words.view(np.float32).astype(np.float64)
