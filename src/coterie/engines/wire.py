"""Messages as bytes: versioned, checksummed, and without pickle, so nothing that arrives can run.

A message is ``version, length of the form, form, data, CRC-32``. The form says what there is: text, names, kinds of
values, types of arrays, and whole numbers beyond 31 bits, which stand for something. The data are all other numbers.
Messages that differ in these alone have one form, which :mod:`coterie.engines.header_compression` leaves out.

Values are None, bool, int, float, str, bytes, numpy scalars and arrays, :class:`Ragged`, :class:`PerRow`,
:class:`PerCluster`, lists and dicts with text keys. Tuples arrive as lists, arrays as read-only arrays in C order.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import PerCluster, PerRow, Ragged

VERSION = 3
_MAGIC = 0xC0  # the upper half of the first byte, whose lower half is the version
_CHECK = 4
_DEPTH = 64
_AXES = 32
_BRIEF = 4096  # bytes: forms up to this length are kept once they are read, smaller arrays are copied
_BIG = 2**31  # whole numbers from here on, such as those drawn to name something, are part of the form
_LAST_CHARACTER = 0x10FFFF
Buffer = bytes | memoryview
Form: TypeAlias = bytearray
Data: TypeAlias = list[Buffer]
_DTYPE = re.compile(r"[<|](b1|[iu][1248]|f[248]|c8|c16|[US][0-9]{1,9})")


class OtherVersion(CoterieError):
    """A message of another version of the format."""


def encode(value: Any) -> bytes:
    """``value`` as a message; a CoterieError for a type that cannot travel, or one nested more than 64 deep."""
    return b"".join(pieces(value))


def pieces(value: Any) -> list[Buffer]:
    """The message of ``value`` in pieces, for files too big to be copied once more; big arrays are not copied."""
    form, data = bytearray(), list[Buffer]()
    _write(value, form, data, 0)
    head = b"".join([bytes([_MAGIC | VERSION]), _number(len(form)), form])
    check = crc32(head)
    for part in data:
        check = crc32(part, check)
    return [head, *data, check.to_bytes(_CHECK, "little")]


def form_end(message: Buffer) -> int:
    """Where the data of a message begin: all before is the same in messages of one form."""
    head = _Cursor(memoryview(message), 1)
    return head.count() + head.at


def digest(message: Buffer) -> bytes:
    """What tells a message from any other, also from one that somebody made to be taken for it."""
    return blake2b(message, digest_size=16).digest()


def decode(message: Buffer, writable: bool = False) -> Any:
    """The value of a message that arrived whole, of this version and unchanged; its arrays are ``writable`` or not."""
    body, check = memoryview(message)[:-_CHECK], bytes(message[-_CHECK:])
    if len(body) < 3:
        raise CoterieError(f"A message of {len(message)} bytes is cut short: send it again.")
    # The checksum first: what the head says is believed of a message that arrived as it was sent, and of no other.
    if crc32(body) != int.from_bytes(check, "little"):
        what = "A message was" if body[0] == _MAGIC | VERSION else "These bytes are not a coterie message, or were"
        raise CoterieError(f"{what} changed on the way (the checksum differs): send it again.")
    if body[0] & 0xF0 != _MAGIC:
        raise CoterieError("These bytes are not a coterie message.")
    if body[0] != _MAGIC | VERSION:
        other = body[0] & 0x0F
        raise OtherVersion(f"The message has format {other}, not {VERSION}: use one version of coterie at all sites.")
    try:
        head = _Cursor(body, 1)
        form = bytes(head.take(head.count()))
        read, how = (_kept if len(form) <= _BRIEF else _planned)(form)
        data = _Cursor(body, head.at, writable)
        value = read(data, how)
    except CoterieError:
        raise
    except (ValueError, TypeError, OverflowError, struct.error, MemoryError) as problem:
        raise CoterieError(f"A message cannot be read: {problem}.") from problem
    if data.at != len(body):
        raise CoterieError("A message holds more than its value.")
    return value


def lengths(value: Ragged) -> np.ndarray[Any, Any]:
    """Lengths (rows,) of a Ragged's rows, in as few bytes each as they take: what travels of its offsets."""
    found = np.diff(value.offsets)
    return found.astype(np.min_scalar_type(int(found.max(initial=0))))


_SMALL = [bytes([n]) for n in range(128)]


def _number(n: int) -> bytes:
    """A count in 7-bit groups, lowest first."""
    if n < 128:
        return _SMALL[n]
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def _text(value: str | bytes) -> bytes:
    data = value if isinstance(value, bytes) else value.encode(errors="surrogatepass")
    return _number(len(data)) + data


def _write(value: Any, form: Form, data: Data, depth: int) -> None:
    if depth > _DEPTH:
        raise CoterieError(f"A message is nested more than {_DEPTH} deep: flatten it.")
    write = _WRITERS.get(type(value)) or next((w for kind, w in _WRITERS.items() if isinstance(value, kind)), None)
    if write is None:
        raise CoterieError(f"A message cannot hold a {type(value).__name__}: send numbers, text, arrays or Ragged.")
    write(value, form, data, depth)


def _write_leaf(value: Any, form: Form, data: Data, depth: int) -> None:
    if isinstance(value, str):
        form += b"s" + _text(value)
    elif value is None or isinstance(value, bool):
        form += b"N" if value is None else b"T" if value else b"F"
    elif isinstance(value, int) and not -_BIG <= value < _BIG:
        form += b"I" + _text(f"{value:x}")
    elif isinstance(value, int):
        form += b"i"
        data.append(_number(2 * value if value >= 0 else -2 * value - 1))
    elif isinstance(value, float):
        form += b"f"
        data.append(struct.pack("<d", value))
    else:
        form += b"b"
        data.append(_text(value))


def _write_dict(value: Mapping[str, Any], form: Form, data: Data, depth: int) -> None:
    form += b"d" + _number(len(value))
    for key, item in value.items():
        if not isinstance(key, str):
            raise CoterieError(f"A dict in a message needs text keys, not {key!r}.")
        form += _text(key)
        _write(item, form, data, depth + 1)


def _write_list(value: Any, form: Form, data: Data, depth: int) -> None:
    form += b"l" + _number(len(value))
    for item in value:
        _write(item, form, data, depth + 1)


def _write_rows(value: PerRow | PerCluster, form: Form, data: Data, depth: int) -> None:
    form += b"P" if isinstance(value, PerRow) else b"C"
    _write(value.value, form, data, depth + 1)


def _write_ragged(value: Ragged, form: Form, data: Data, depth: int) -> None:
    _write_array(value.values, form, data, depth, b"R")
    found = lengths(value)
    data += [_SMALL[found.itemsize], _number(len(found)), found.astype(found.dtype.newbyteorder("<")).tobytes()]


def _write_array(array: Any, form: Form, data: Data, depth: int, tag: bytes = b"a") -> None:
    tag = b"g" if isinstance(array, np.generic) else tag
    little, name = _little(array.dtype)
    form += b"".join([tag, name, _number(array.ndim)])
    data += map(_number, array.shape)
    if array.nbytes <= _BRIEF:
        data.append(array.astype(little, copy=False).tobytes())
    else:
        data.append(np.ascontiguousarray(array, dtype=little).reshape(-1).view(np.uint8).data)


@lru_cache(maxsize=256)
def _little(dtype: np.dtype[Any]) -> tuple[np.dtype[Any], bytes]:
    """The type of an array on the way, and its name as text."""
    little = dtype.newbyteorder("<")
    if not _DTYPE.fullmatch(little.str):
        raise CoterieError(f"An array of {dtype} cannot travel: send numbers or text.")
    return little, _text(little.str)


_WRITERS: dict[Any, Callable[[Any, Form, Data, int], None]] = {
    np.generic: _write_array,  # before float, str and bytes, of which some are kinds
    **dict.fromkeys((type(None), bool, int, float, str, bytes), _write_leaf),
    **dict.fromkeys((dict, Mapping), _write_dict),
    **dict.fromkeys((list, tuple), _write_list),
    **dict.fromkeys((PerRow, PerCluster), _write_rows),
    np.ndarray: _write_array,
    Ragged: _write_ragged,
}


class _Cursor:
    """A place in bytes, which is never past their end."""

    def __init__(self, buffer: memoryview, at: int = 0, writable: bool = False) -> None:
        self.buffer, self.at, self.writable = buffer, at, writable

    def take(self, n: int) -> memoryview:
        """The next n bytes."""
        part = self.buffer[self.at : self.at + n]
        if len(part) != n:
            raise CoterieError("A message ends inside a value.")
        self.at += n
        return part

    def count(self) -> int:
        """A number that :func:`_number` wrote."""
        n = shift = 0
        while True:
            if self.at >= len(self.buffer):
                raise CoterieError("A message ends inside a value.")
            byte = self.buffer[self.at]
            self.at += 1
            n |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return n
            if shift > 63:
                raise CoterieError("A message holds an impossible length.")

    def text(self) -> str:
        """Text that :func:`_text` wrote."""
        return bytes(self.take(self.count())).decode(errors="surrogatepass")


Plan = tuple[Callable[[_Cursor, Any], Any], Any]  # how a value is read: ``read(data, how)``


def _planned(form: bytes) -> Plan:
    """What a form says of how its data are read."""
    cursor = _Cursor(memoryview(form))
    found = _plan(cursor, 0)
    if cursor.at != len(form):
        raise CoterieError("A message holds more than its value.")
    return found


_kept = lru_cache(maxsize=256)(_planned)


def _plan(form: _Cursor, depth: int) -> Plan:
    if depth > _DEPTH:
        raise CoterieError("A message is nested too deep to be read.")
    tag = bytes(form.take(1))
    if tag in _LEAVES:
        return _LEAVES[tag]
    match tag:
        case b"s":
            return _constant, form.text()
        case b"I":
            return _constant, int(form.text(), 16)
        case b"a" | b"g" | b"R":
            dtype, axes = _dtype(form.text()), form.count()
            if axes > (0 if tag == b"g" else _AXES):
                raise CoterieError(f"A message holds an array of {axes} axes.")
            read = _ragged if tag == b"R" else _array if tag == b"a" else lambda data, how: _array(data, how)[()]
            return read, (*dtype, axes)
        case b"P" | b"C":
            return _rows, (PerRow if tag == b"P" else PerCluster, *_plan(form, depth + 1))
        case b"l":
            return _list, tuple([_plan(form, depth + 1) for _ in range(form.count())])
        case b"d":
            found: dict[str, Plan] = {}
            for _ in range(form.count()):
                key = form.text()
                if key in found:
                    raise CoterieError(f"A message names {key!r} twice.")
                found[key] = _plan(form, depth + 1)
            return _dict, found
    raise CoterieError(f"A message holds an unknown kind of value ({tag!r}).")


@lru_cache(maxsize=256)
def _dtype(name: str) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """A type on the way, and here."""
    if not _DTYPE.fullmatch(name):
        raise CoterieError(f"A message holds an array of unknown type {name!r}.")
    return np.dtype(name), np.dtype(name).newbyteorder("=")


def _constant(data: _Cursor, value: Any) -> Any:
    return value


_LEAVES: dict[bytes, Plan] = {
    **{tag: (_constant, value) for tag, value in ((b"N", None), (b"T", True), (b"F", False))},
    b"i": (lambda data, _: (n := data.count()) >> 1 ^ -(n & 1), None),
    b"f": (lambda data, _: float(struct.unpack("<d", data.take(8))[0]), None),
    b"b": (lambda data, _: bytes(data.take(data.count())), None),
}


def _list(data: _Cursor, items: tuple[Plan, ...]) -> list[Any]:
    return [read(data, how) for read, how in items]


def _dict(data: _Cursor, items: dict[str, Plan]) -> dict[str, Any]:
    return {key: read(data, how) for key, (read, how) in items.items()}


def _rows(data: _Cursor, how: tuple[Any, Callable[[_Cursor, Any], Any], Any]) -> PerRow | PerCluster:
    """What is sent row by row is made of arrays: of other things numpy might make one of any size."""
    kind, read, inner = how
    value = read(data, inner)
    parts = value if kind is PerCluster and isinstance(value, list) else [value]
    allowed = np.ndarray if parts is value else np.ndarray | Ragged | dict
    if not all(isinstance(part, allowed) for part in parts):
        raise CoterieError("A message holds rows that are no arrays.")
    found: PerRow | PerCluster = kind(value)
    return found


def _array(data: _Cursor, how: tuple[np.dtype[Any], np.dtype[Any], int]) -> np.ndarray[Any, Any]:
    dtype, native, axes = how
    shape = tuple([data.count() for _ in range(axes)])
    size = math.prod(shape)
    if not dtype.itemsize and size > len(data.buffer):  # numpy gives text of no length one character
        raise CoterieError("A message holds an array larger than itself.")
    raw = data.take(size * dtype.itemsize)
    # Bytes that are no value of their type numpy would take in, and stumble over later.
    if dtype.kind == "b" and len(raw) and np.frombuffer(raw, np.uint8).max() > 1:
        raise CoterieError("A message holds a bool that is neither true nor false.")
    if dtype.kind == "U" and len(raw) and np.frombuffer(raw, "<u4").max() > _LAST_CHARACTER:
        raise CoterieError("A message holds a character that does not exist.")
    # A copy: bytes are not aligned, and compiled kernels would have to be built again for unaligned arrays.
    array = np.frombuffer(raw, dtype).reshape(shape).astype(native) if len(raw) else np.empty(shape, native)
    if not data.writable:
        array.flags.writeable = False
    return array


def _ragged(data: _Cursor, how: tuple[np.dtype[Any], np.dtype[Any], int]) -> Ragged:
    values, width, n = _array(data, how), data.count(), data.count()
    if width not in (1, 2, 4, 8):
        raise CoterieError("A message holds rows without lengths.")
    raw = data.take(n * width)
    offsets = np.zeros(n + 1, np.int64)
    np.cumsum(np.frombuffer(raw, f"<u{width}") if n else [], dtype=np.int64, out=offsets[1:])
    return Ragged(values, offsets)
