"""What every codec shares: rows of numbers in, self-contained bytes out, and how the bytes of a message are laid out.

A message is one byte (codec and version; its lowest bit says that the body went through zstandard), the body, and a
checksum: CRC-16 in messages of up to 256 bytes, CRC-32 in longer ones. It starts from the codec's name, the length of
the row and the order of its coordinates, so two ends that disagree on one of them get an error, not a vector.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.federation import Ragged
from coterie.numerics.arrays import Floats, Ints, float_array, kernel, reading
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
        refuse(~np.isfinite(claimed).all(axis=1), f"has numbers too large for codec {self.name!r}: scale it down")
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
        refuse(~ours, f"cannot be read as codec {self.name!r}: its bytes were damaged, or written by another codec")
        full = decompress(bodies, (heads & 1).astype(np.bool_), LONGEST * (d + 1))
        with np.errstate(over="ignore", invalid="ignore"):
            rows = self._unpack(full, d)
        refuse(~np.isfinite(rows).all(axis=1), f"holds NaN or infinite numbers, which codec {self.name!r} never sends")
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
    refuse(~np.isfinite(out).all(axis=1), "has NaN or infinite numbers, which no codec sends: leave the client out")
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


def refuse(bad: npt.ArrayLike, what: str) -> None:
    """A CoterieError for the first of rows (m,) that are bad."""
    if np.any(bad):
        raise CoterieError(f"Row {int(np.argmax(bad))} {what}.")


def refuse_foreign(bad: npt.ArrayLike, name: str) -> None:
    """The same for bodies that are none of codec ``name``'s, although their checksums held."""
    refuse(bad, f"is not a message of codec {name!r}: both ends need the same codec and parameters")


Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]

SHORT = 256  # messages up to this length, in bytes, end with CRC-16, longer ones with CRC-32


def _table(polynomial: int, bits: int) -> Words:
    """Remainders of all bytes, highest bit first, at the top of a 32-bit word."""
    top, full = 1 << (bits - 1), (1 << bits) - 1
    out = np.empty(256, dtype=np.uint32)
    for byte in range(256):
        r = byte << (bits - 8)
        for _ in range(8):
            r = ((r << 1) ^ polynomial if r & top else r << 1) & full
        out[byte] = r << (32 - bits)
    return out


# Both find every single flipped bit and every burst up to their width. 0x1021 (CCITT) also finds every odd number of
# flipped bits and, below 4 kB, every two; 0x04C11DB7 is Ethernet's.
_CRC16, _CRC32 = _table(0x1021, 16), _table(0x04C11DB7, 32)


def frame(bodies: Ragged, heads: Bytes, salts: Words) -> Ragged:
    """Messages of bodies: header ``heads`` (m,), body, checksum started from ``salts`` (m,)."""
    lengths = np.diff(bodies.offsets)
    total = lengths + np.where(lengths + 3 <= SHORT, 3, 5)
    offsets = np.concatenate([[0], np.cumsum(total)])
    values = np.ascontiguousarray(bodies.values, dtype=np.uint8)
    return Ragged(_frame(values, bodies.offsets, heads, salts, offsets, _CRC16, _CRC32), offsets)


def unframe(payload: Ragged, salts: Words) -> tuple[Ragged, Bytes, npt.NDArray[np.bool_]]:
    """Bodies, headers (m,), and whether each checksum held (m,)."""
    values = np.ascontiguousarray(payload.values, dtype=np.uint8)
    total = np.diff(payload.offsets)
    lengths = np.maximum(total - np.where(total <= SHORT, 3, 5), 0)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    bodies, heads, sound = _unframe(values, payload.offsets, salts, offsets, _CRC16, _CRC32)
    return Ragged(bodies, offsets), heads, sound


@reading
def permutation_hashes(orders: Ints) -> tuple[Words, bool]:
    """A 32-bit hash of each order of coordinates (m, d) (FNV-1a over the indices), and whether all are permutations."""
    out, fine = np.empty(orders.shape[0], np.uint32), True
    seen = np.full(orders.shape[1], -1)
    for i in range(orders.shape[0]):
        h = np.uint64(0xCBF29CE484222325)
        for j in range(orders.shape[1]):
            k = orders[i, j]
            if not 0 <= k < orders.shape[1] or seen[k] == i:
                fine = False
                break
            seen[k] = i
            h = (h ^ np.uint64(k)) * np.uint64(0x100000001B3)
        out[i] = np.uint32((h ^ (h >> np.uint64(32))) & np.uint64(0xFFFFFFFF))
    return out, fine


@kernel
def _crc(data: Bytes, table: Words, salt: np.uint32) -> np.uint32:
    """The length goes in first and all bits are turned at last: bytes added or cut off must not cancel out."""
    r = salt ^ np.uint32((data.shape[0] * 0x9E3779B1) & 0xFFFFFFFF)
    for byte in data:
        r = np.uint32(r << np.uint32(8)) ^ table[(r >> np.uint32(24)) ^ np.uint32(byte)]
    return r ^ np.uint32(0xFFFFFFFF)


@kernel
def _frame(bodies: Bytes, starts: Ints, heads: Bytes, salts: Words, offsets: Ints, short: Words, long: Words) -> Bytes:
    out = np.empty(offsets[-1], np.uint8)
    for i in range(heads.shape[0]):
        row = out[offsets[i] : offsets[i + 1]]
        n = starts[i + 1] - starts[i]
        row[0] = heads[i]
        row[1 : 1 + n] = bodies[starts[i] : starts[i + 1]]
        brief = row.shape[0] <= SHORT
        r = _crc(row[: 1 + n], short if brief else long, salts[i])
        for k in range(row.shape[0] - 1 - n):
            row[1 + n + k] = np.uint8((r >> np.uint32(24 - 8 * k)) & np.uint32(255))
    return out


@reading
def _unframe(
    values: Bytes, starts: Ints, salts: Words, offsets: Ints, short: Words, long: Words
) -> tuple[Bytes, Bytes, npt.NDArray[np.bool_]]:
    m = starts.shape[0] - 1
    bodies, heads, sound = np.empty(offsets[-1], np.uint8), np.zeros(m, np.uint8), np.zeros(m, np.bool_)
    for i in range(m):
        row = values[starts[i] : starts[i + 1]]
        width = 2 if row.shape[0] <= SHORT else 4
        n = row.shape[0] - 1 - width
        if n < 0:
            continue
        heads[i] = row[0]
        bodies[offsets[i] : offsets[i + 1]] = row[1 : 1 + n]
        r = _crc(row[: 1 + n], short if width == 2 else long, salts[i])
        good = True
        for k in range(width):
            good = good and row[1 + n + k] == np.uint8((r >> np.uint32(24 - 8 * k)) & np.uint32(255))
        sound[i] = good
    return bodies, heads, sound


SHORTEST = 48  # bodies tried, in bytes


def compress(bodies: Ragged) -> tuple[Ragged, npt.NDArray[np.uint8]]:
    """Bodies, each compressed where that is shorter, and a flag (m,) that says where."""
    import zstandard

    settings = zstandard.ZstdCompressionParameters.from_level(
        3, format=zstandard.FORMAT_ZSTD1_MAGICLESS, write_checksum=False, write_dict_id=False
    )
    tool = zstandard.ZstdCompressor(compression_params=settings)
    rows, flags = [bodies[i] for i in range(len(bodies))], np.zeros(len(bodies), dtype=np.uint8)
    for i, row in enumerate(rows):
        if len(row) >= SHORTEST:
            short = tool.compress(row.tobytes())
            if len(short) < len(row):
                rows[i], flags[i] = np.frombuffer(short, np.uint8), 1
    return (Ragged.of(rows) if flags.any() else bodies), flags


def decompress(bodies: Ragged, flags: npt.NDArray[np.bool_], longest: int) -> Ragged:
    """The inverse of :func:`compress`; a body that says it unpacks to more than ``longest`` bytes is not unpacked."""
    if not flags.any():
        return bodies
    import zstandard

    style = zstandard.FORMAT_ZSTD1_MAGICLESS
    tool = zstandard.ZstdDecompressor(format=style)
    rows = [bodies[i] for i in range(len(bodies))]
    for i in np.flatnonzero(flags):
        data = rows[i].tobytes()
        try:  # the length first: zstandard would make room for whatever a body says it holds
            if zstandard.get_frame_parameters(data, format=style).content_size > longest:
                raise CoterieError(f"Row {i} would unpack to more than its {longest} bytes: its bytes were damaged.")
            rows[i] = np.frombuffer(tool.decompress(data), np.uint8)
        except zstandard.ZstdError as error:
            raise CoterieError(f"Row {i} cannot be unpacked by zstandard: its bytes were damaged.") from error
    return Ragged.of(rows)


def write_table(table: Bytes) -> Ragged:
    """Bytes of equal length, the rows of ``table`` (m, n)."""
    return Ragged(table.reshape(-1), np.arange(len(table) + 1) * table.shape[1])


def read_table(bodies: Ragged, length: int, name: str) -> Bytes:
    """The inverse of :func:`write_table`; a CoterieError where a body of codec ``name`` has not ``length`` bytes."""
    refuse_foreign(np.diff(bodies.offsets) != length, name)
    return np.ascontiguousarray(bodies.values).reshape(len(bodies), length)


def with_head(head: Bytes, rest: Ragged) -> Ragged:
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


def split_head(bodies: Ragged, n: int, name: str) -> tuple[Bytes, Ragged]:
    """The inverse of :func:`with_head`; a CoterieError where a body of codec ``name`` has less than ``n`` bytes."""
    lengths = np.diff(bodies.offsets) - n
    refuse_foreign(lengths < 0, name)
    mine = bodies.offsets[:-1, None] + np.arange(n)
    free = np.ones(len(bodies.values), dtype=bool)
    free[mine] = False
    return bodies.values[mine], Ragged(bodies.values[free], np.concatenate([[0], np.cumsum(lengths)]))
