"""What every codec shares: rows of numbers in, self-contained bytes out.

The checksum of a message (see ``framing``) starts from the codec's name, the length of the row and the order of its
coordinates, so two ends that disagree on one of them get an error, not a vector.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from coterie.codecs.framing import Words, compress, decompress, frame, permutation_hashes, unframe
from coterie.errors import CoterieError
from coterie.federation import Ragged
from coterie.numerics.arrays import Floats, Ints, float_array
from coterie.numerics.keyed_random import U64, at_step
from coterie.options import Checked

LONGEST = 8  # bytes of a body for each coordinate, and one more, at most


@dataclass(frozen=True)
class Encoded:
    """What travels, one message of bytes for each row, and what the other end reads from it, bit for bit (m, d)."""

    payload: Ragged
    claimed: Floats


class Codec(Checked, ABC):
    """Rows of numbers as bytes. A codec has no memory: the same rows, keys and step give the same bytes.

    A subclass writes ``_pack`` and ``_unpack``, which see finite rows in the order they travel in, and no frame.
    """

    name: str
    """As :func:`coterie.codecs.by_name` reads it, parameters included."""
    identity: ClassVar[int]  # 0 to 31, in the first byte of each message
    version: ClassVar[int] = 0  # 0 to 3, to be raised when the meaning of the body changes
    unbiased: ClassVar[bool] = False  # whether the mean of what is decoded is the row; all others want a feedback
    zstandard: ClassVar[bool] = False  # whether bodies go through zstandard where that makes them shorter

    @abstractmethod
    def _pack(self, rows: Floats, draws: U64) -> Ragged:
        """The bodies of finite rows (m, d); ``draws`` (m,) are keys of the rows' random numbers."""

    @abstractmethod
    def _unpack(self, bodies: Ragged, d: int) -> Floats:
        """The rows (m, d) of bodies whose checksum held; a CoterieError where a body cannot be one of this codec's."""

    def encode(
        self, rows: npt.ArrayLike, keys: npt.ArrayLike, step: npt.ArrayLike, order: Ints | None = None
    ) -> Encoded:
        """Encode each row of finite numbers (m, d).

        ``keys`` (m,) are what the rows' random numbers are made from, ``keyed_random.starts(seed, stream, site.ids)``;
        ``step``, int or (m,), is the method's own step number: rows of the same key need another step for other draws.
        ``order`` (d,) or (m, d) is the order in which coordinates travel, known at both ends; by default their own. A
        CoterieError names the row of NaN or infinite numbers, or of such as this codec cannot hold, and refuses an
        order that is no permutation.
        """
        rows = finite_rows(rows)
        m, d = rows.shape
        order, salts = self._order_and_salts(m, d, order)
        draws = np.array(np.broadcast_to(at_step(np.asarray(keys, dtype=np.uint64), step), (m,)))
        bodies = self._pack(np.ascontiguousarray(_permuted(rows, order)), draws)
        with np.errstate(over="ignore", invalid="ignore"):
            claimed = _unpermuted(self._unpack(bodies, d), order)
        _refuse(~np.isfinite(claimed).all(axis=1), f"has numbers too large for codec {self.name!r}: scale it down")
        short, flags = compress(bodies) if self.zstandard else (bodies, np.zeros(m, dtype=np.uint8))
        heads = np.uint8(self.identity << 3 | self.version << 1) | flags
        return Encoded(frame(short, heads, salts), claimed)

    def decode(self, payload: Ragged, d: int, order: Ints | None = None) -> Floats:
        """The rows (m, d) that :meth:`encode` claimed.

        A CoterieError names the row whose bytes were corrupted or cut off, or were written by another codec or version,
        or for rows of another length or order. It also says where there are no rows of bytes.
        """
        if not isinstance(payload, Ragged) or payload.values.dtype != np.uint8 or payload.values.ndim != 1:
            raise CoterieError(f"Messages of codec {self.name!r} are rows of bytes, and what came is something else.")
        order, salts = self._order_and_salts(len(payload), d, order)
        bodies, heads, sound = unframe(payload, salts)
        ours = sound & (heads >> 1 == (self.identity << 2 | self.version))
        _refuse(~ours, f"cannot be read as codec {self.name!r}: its bytes were damaged, or written by another codec")
        full = decompress(bodies, (heads & 1).astype(np.bool_), LONGEST * (d + 1))
        with np.errstate(over="ignore", invalid="ignore"):
            rows = self._unpack(full, d)
        _refuse(~np.isfinite(rows).all(axis=1), f"holds NaN or infinite numbers, which codec {self.name!r} never sends")
        return _unpermuted(rows, order)

    def _order_and_salts(self, m: int, d: int, order: npt.ArrayLike | None) -> tuple[Ints | None, Words]:
        """The order as (1 or m, d), checked, and what checksums (m,) start from: all that both ends must know."""
        digest = hashlib.blake2b(f"{self.name}/{d}".encode(), digest_size=4).digest()
        salts = np.full(m, int.from_bytes(digest, "little"), dtype=np.uint32)
        if order is None:
            return None, salts
        given: Ints = np.ascontiguousarray(np.atleast_2d(np.asarray(order, dtype=np.int64)))
        hashes, fine = permutation_hashes(given)
        if given.shape not in ((1, d), (m, d)) or not fine:
            raise CoterieError(f"An order of coordinates is a permutation of 0 to {d - 1}, one or one for each row.")
        return given, salts ^ hashes


def finite_rows(rows: npt.ArrayLike) -> Floats:
    """Rows (m, d) of finite float64 numbers, or a CoterieError that names the first bad row."""
    out = float_array("Rows that a codec encodes", rows)
    if out.ndim != 2 or out.shape[1] == 0:
        raise CoterieError(f"A codec encodes rows of at least one number, shape (m, d), not {out.shape}.")
    _refuse(~np.isfinite(out).all(axis=1), "has NaN or infinite numbers, which no codec sends: leave the client out")
    return out


def _permuted(rows: Floats, order: Ints | None) -> Floats:
    """Rows (m, d) with their coordinates in the order they travel in."""
    return rows if order is None else np.take_along_axis(rows, np.broadcast_to(order, rows.shape), axis=1)


def _unpermuted(rows: Floats, order: Ints | None) -> Floats:
    if order is None:
        return rows
    out = np.empty_like(rows)
    np.put_along_axis(out, np.broadcast_to(order, rows.shape), rows, axis=1)
    return out


def _refuse(bad: npt.ArrayLike, what: str) -> None:
    if np.any(bad):
        raise CoterieError(f"Row {int(np.argmax(bad))} {what}.")
