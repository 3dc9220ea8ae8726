"""Messages as bytes: versioned, checksummed, and without pickle, so nothing that arrives can run.

A message is ``magic, version, length of the body, body, BLAKE2b checksum``. The body is a tree of tagged values: None,
bool, int, float, str, bytes, numpy scalars and arrays, :class:`Ragged`, :class:`PerRow`, :class:`PerCluster`, lists and
dicts with text keys. Tuples arrive as lists, arrays as read-only arrays in C order.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import PerCluster, PerRow, Ragged

MAGIC = b"cotr"
VERSION = 2
_HEAD = struct.Struct("<4sBQ")
_CHECK = 16
_DEPTH = 64
_AXES = 32
_LAST_CHARACTER = 0x10FFFF
Buffer = bytes | memoryview
_DTYPE = re.compile(r"[<|](b1|[iu][1248]|f[248]|c8|c16|[US][0-9]{1,9})")


class OtherVersion(CoterieError):
    """A message of another version of the format."""


def encode(value: Any) -> bytes:
    """``value`` as a message; a CoterieError for a type that cannot travel, or one nested more than 64 deep."""
    return b"".join(pieces(value))


def pieces(value: Any) -> list[Buffer]:
    """The message of ``value`` in pieces, for files too big to be copied once more; arrays are not copied."""
    body: list[Buffer] = []
    _write(value, body, 0)
    head = _HEAD.pack(MAGIC, VERSION, sum(map(len, body)))
    return [head, *body, _checksum(head, *body)]


def decode(data: bytes, writable: bool = False) -> Any:
    """The value of a message that arrived whole, of this version and unchanged; its arrays are ``writable`` or not."""
    if len(data) < _HEAD.size + _CHECK:
        raise CoterieError(f"A message of {len(data)} bytes is cut short: send it again.")
    magic, version, size = _HEAD.unpack_from(data)
    # The checksum first: what the head says is believed of a message that arrived as it was sent, and of no other.
    if _checksum(memoryview(data)[:-_CHECK]) != data[-_CHECK:]:
        if magic != MAGIC:
            raise CoterieError("These bytes are not a coterie message, or were changed on the way: send it again.")
        raise CoterieError("A message was changed on the way (its checksum differs): send it again.")
    if magic != MAGIC:
        raise CoterieError("These bytes are not a coterie message.")
    if version != VERSION:
        raise OtherVersion(f"The message has format {version}, not {VERSION}: use one version of coterie at all sites.")
    if len(data) != _HEAD.size + size + _CHECK:
        raise CoterieError(f"A message of {size} bytes arrived with {len(data)} bytes: send it again.")
    body = memoryview(data)[_HEAD.size : -_CHECK]
    try:
        reader = _Reader(body, writable)
        value = reader.value(0)
        if reader.at != len(body):
            raise CoterieError("A message holds more than its value.")
    except CoterieError:
        raise
    except (ValueError, TypeError, OverflowError, struct.error, MemoryError) as problem:
        raise CoterieError(f"A message cannot be read: {problem}.") from problem
    return value


def begins(data: bytes, size: int) -> bool:
    """Whether bytes may be the beginning of a message of ``size`` bytes in all, as far as its head tells."""
    body = size - _HEAD.size - _CHECK
    return body > 0 and _HEAD.pack(MAGIC, VERSION, body).startswith(data[: _HEAD.size])


def lengths(value: Ragged) -> np.ndarray[Any, Any]:
    """Lengths (rows,) of a Ragged's rows, in as few bytes each as they take: what travels of its offsets."""
    found = np.diff(value.offsets)
    return found.astype(np.min_scalar_type(int(found.max(initial=0))))


def ragged(values: np.ndarray[Any, Any], found: np.ndarray[Any, Any]) -> Ragged:
    """The Ragged of some values and the lengths of its rows; a CoterieError where they are not lengths."""
    if found.ndim != 1 or found.dtype.kind != "u":
        raise CoterieError("A message holds rows without lengths.")
    offsets = np.zeros(len(found) + 1, np.int64)
    np.cumsum(found, dtype=np.int64, out=offsets[1:])
    return Ragged(values, offsets)


def _checksum(*parts: Buffer) -> bytes:
    digest = blake2b(digest_size=_CHECK)
    for part in parts:
        digest.update(part)
    return digest.digest()


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


def _write(value: Any, parts: list[Buffer], depth: int) -> None:
    if depth > _DEPTH:
        raise CoterieError(f"A message is nested more than {_DEPTH} deep: flatten it.")
    if (write := _WRITERS.get(type(value))) is not None:
        write(value, parts)
    elif isinstance(value, np.generic):
        parts.append(b"g")
        _write_array(np.asarray(value), parts)
    elif isinstance(value, Ragged):
        parts.append(b"R")
        _write_array(value.values, parts)
        _write_array(lengths(value), parts)
    elif isinstance(value, PerRow | PerCluster):
        parts.append(b"P" if isinstance(value, PerRow) else b"C")
        _write(value.value, parts, depth + 1)
    elif isinstance(value, list | tuple | Mapping):
        _write_tree(value, parts, depth)
    else:  # a class made of one that travels, such as an enumeration of numbers
        kind = next((kind for kind in _WRITERS if isinstance(value, kind)), None)
        if kind is None:
            raise CoterieError(f"A message cannot hold a {type(value).__name__}: send numbers, text, arrays or Ragged.")
        _WRITERS[kind](value, parts)


def _write_tree(value: Any, parts: list[Buffer], depth: int) -> None:
    if isinstance(value, list | tuple):
        parts.append(b"l" + _number(len(value)))
        for item in value:
            _write(item, parts, depth + 1)
        return
    parts.append(b"d" + _number(len(value)))
    for key, item in value.items():
        if not isinstance(key, str):
            raise CoterieError(f"A dict in a message needs text keys, not {key!r}.")
        _write_text(b"", key.encode(errors="surrogatepass"), parts)
        _write(item, parts, depth + 1)


def _write_text(tag: bytes, data: bytes, parts: list[Buffer]) -> None:
    parts.append(tag + _number(len(data)))
    parts.append(data)


@lru_cache(maxsize=256)
def _little(dtype: np.dtype[Any]) -> tuple[np.dtype[Any], bytes]:
    """The type of an array on the way, and its name as text."""
    little = dtype.newbyteorder("<")
    if not _DTYPE.fullmatch(little.str):
        raise CoterieError(f"An array of {dtype} cannot travel: send numbers or text.")
    name = little.str.encode()
    return little, _number(len(name)) + name


def _write_array(array: np.ndarray[Any, Any], parts: list[Buffer]) -> None:
    little, name = _little(array.dtype)
    parts.append(b"".join([name, _number(array.ndim), *map(_number, array.shape)]))
    if array.nbytes:
        flat = np.ascontiguousarray(array, dtype=little).reshape(-1)
        parts.append(flat.view(np.uint8).data)


def _write_tagged_array(array: np.ndarray[Any, Any], parts: list[Buffer]) -> None:
    parts.append(b"a")
    _write_array(array, parts)


_WRITERS: dict[type, Callable[[Any, list[Buffer]], None]] = {
    type(None): lambda value, parts: parts.append(b"N"),
    bool: lambda value, parts: parts.append(b"T" if value else b"F"),
    int: lambda value, parts: _write_text(b"i", f"{value:x}".encode(), parts),
    float: lambda value, parts: parts.append(b"f" + struct.pack("<d", value)),
    str: lambda value, parts: _write_text(b"s", value.encode(errors="surrogatepass"), parts),
    bytes: lambda value, parts: _write_text(b"b", value, parts),
    np.ndarray: _write_tagged_array,
}


class _Reader:
    """Reads tagged values, never past the end."""

    def __init__(self, data: memoryview, writable: bool) -> None:
        self._data, self._writable = data, writable
        self.at = 0

    def value(self, depth: int) -> Any:
        if depth > _DEPTH:
            raise CoterieError("A message is nested too deep to be read.")
        tag = bytes(self._take(1))
        if tag in _LEAVES:
            return _LEAVES[tag](self)
        if tag in (b"P", b"C"):
            return self._shared_out(PerRow if tag == b"P" else PerCluster, self.value(depth + 1))
        if tag == b"l":
            return [self.value(depth + 1) for _ in range(self._count())]
        if tag == b"d":
            return self._dict(depth)
        raise CoterieError(f"A message holds an unknown kind of value ({tag!r}).")

    def _dict(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(self._count()):
            key = self._text()
            if key in found:
                raise CoterieError(f"A message names {key!r} twice.")
            found[key] = self.value(depth + 1)
        return found

    @staticmethod
    def _shared_out(kind: type[PerRow | PerCluster], value: Any) -> PerRow | PerCluster:
        """What is sent row by row is made of arrays: of other things numpy might make one of any size."""
        parts = value if kind is PerCluster and isinstance(value, list) else [value]
        allowed = np.ndarray if parts is value else np.ndarray | Ragged | dict
        if not all(isinstance(part, allowed) for part in parts):
            raise CoterieError("A message holds rows that are no arrays.")
        return kind(value)

    def _take(self, n: int) -> memoryview:
        part = self._data[self.at : self.at + n]
        if len(part) != n:
            raise CoterieError("A message ends inside a value.")
        self.at += n
        return part

    def _count(self) -> int:
        n = shift = 0
        while True:
            if self.at >= len(self._data):
                raise CoterieError("A message ends inside a value.")
            byte = self._data[self.at]
            self.at += 1
            n |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return n
            if shift > 63:
                raise CoterieError("A message holds an impossible length.")

    def _bytes(self) -> bytes:
        return bytes(self._take(self._count()))

    def _text(self) -> str:
        return self._bytes().decode(errors="surrogatepass")

    def _float(self) -> float:
        return float(struct.unpack("<d", self._take(8))[0])

    def array(self) -> np.ndarray[Any, Any]:
        dtype = _dtype(self._text())
        axes = self._count()
        if axes > _AXES:
            raise CoterieError(f"A message holds an array of {axes} axes.")
        shape = tuple(self._count() for _ in range(axes))
        size = math.prod(shape)
        if not dtype.itemsize and size > len(self._data):  # numpy gives text of no length one character
            raise CoterieError("A message holds an array larger than itself.")
        raw = self._take(size * dtype.itemsize)
        # A copy: bytes are not aligned, and compiled kernels would have to be built again for unaligned arrays.
        array = np.empty(shape, dtype.newbyteorder("="))
        if array.size and dtype.itemsize:
            _check_values(raw, dtype)
            array[...] = np.frombuffer(raw, dtype).reshape(shape)
        array.flags.writeable = self._writable
        return array


@lru_cache(maxsize=256)
def _dtype(name: str) -> np.dtype[Any]:
    if not _DTYPE.fullmatch(name):
        raise CoterieError(f"A message holds an array of unknown type {name!r}.")
    return np.dtype(name)


def _check_values(raw: memoryview, dtype: np.dtype[Any]) -> None:
    """Refuse bytes that are no value of their type, which numpy would take in and stumble over later."""
    if dtype.kind == "b" and np.frombuffer(raw, np.uint8).max() > 1:
        raise CoterieError("A message holds a bool that is neither true nor false.")
    if dtype.kind == "U" and np.frombuffer(raw, "<u4").max() > _LAST_CHARACTER:
        raise CoterieError("A message holds a character that does not exist.")


def _scalar(reader: _Reader) -> Any:
    array = reader.array()
    if array.ndim:
        raise CoterieError("A message holds an array where a number should be.")
    return array[()]


_LEAVES: dict[bytes, Callable[[_Reader], Any]] = {
    b"N": lambda r: None,
    b"T": lambda r: True,
    b"F": lambda r: False,
    b"i": lambda r: int(r._text(), 16),
    b"f": _Reader._float,
    b"s": _Reader._text,
    b"b": _Reader._bytes,
    b"g": _scalar,
    b"a": _Reader.array,
    b"R": lambda r: ragged(r.array(), r.array()),
}
