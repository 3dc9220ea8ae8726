"""Damage for the fuzz tests: to bytes whose checksum is made right again, and to the trees they are read as."""

from __future__ import annotations

import copy
from zlib import crc32

import numpy as np

from coterie.engines import wire
from coterie.federation import PerCluster, PerRow, Ragged


def seal(body: bytes) -> bytes:
    """A message of ``body``, with the version and the checksum that belong to it."""
    whole = wire.encode(None)[:1] + body
    return whole + crc32(whole).to_bytes(4, "little")


def body(message: bytes) -> bytes:
    """The form of a message, its length before it, and its data."""
    return message[1:-4]


def damaged(rng: np.random.Generator, data: bytes, others: list[bytes]) -> bytes:
    """``data`` after one kind of damage, most often, or a few."""
    for _ in range(rng.choice([1, 1, 1, 1, 2, 4])):
        at = int(rng.integers(len(data) + 1))
        far = min(len(data), at + int(rng.integers(1, 9)))
        match rng.integers(-4, 7):
            case -4 | -3 | -2 | -1 | 0:  # a bit
                if at < len(data):
                    data = data[:at] + bytes([data[at] ^ 1 << int(rng.integers(8))]) + data[at + 1 :]
            case 1:
                data = data[:at]
            case 2:
                data = data[:at] + data[far:]
            case 3:  # a length blown up
                data = data[:at] + wire._number(int(2 ** rng.uniform(7, 70))) + data[far:]
            case 4:
                data = data[:at] + data[at:far] * int(rng.integers(2, 60)) + data[far:]
            case 5:
                data = data[:at] + rng.bytes(int(rng.integers(1, 9))) + data[far:]
            case 6:
                other = others[rng.integers(len(others))]
                data = data[:at] + other[int(rng.integers(len(other) + 1)) :]
    return data


def junk(rng: np.random.Generator):
    """A value that nobody asked for."""
    shape = tuple(rng.integers(0, 4, size=rng.integers(0, 4)).tolist())
    array = rng.normal(size=shape)
    choices = [
        *(None, True, 0, -1, 2**63, -(2**80), float("nan"), float("inf"), "", "x", "coterie:os", b"", b"\xff" * 9),
        *([], {}, [[]], {"x": {}}, [1, "a", None], {"": 0}, [[[[[[1]]]]]]),
        *(array, np.full(shape, np.nan), array.astype(np.float32), array.astype(np.complex128), array > 0),
        *((100 * array).astype(np.int64), np.full(shape, 2**63, np.uint64), array.astype("U9"), array.astype("S2")),
        *(np.arange(5, dtype=np.uint8), np.array([-1, 0]), np.array([2**62]), np.zeros((0, 2**40)), np.float32(1)),
        *(Ragged.of([b"", b"abc"]), Ragged.of([[1.0], [2.0, np.nan]]), PerRow(array), PerCluster(array)),
        *(PerCluster([np.zeros(1), np.zeros((2, 2))]), PerRow({"a": array})),
    ]
    return choices[rng.integers(len(choices))]


def places(tree, path=()):
    """The path of everything in a tree of dicts and lists."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def disturbed(rng: np.random.Generator, tree: dict) -> dict:
    """A copy of ``tree`` in which one to three things are others, gone, or there under another name."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.integers(1, 4)):
        found = list(places(tree))
        if not found:
            break
        *path, key = found[rng.integers(len(found))]
        holder = tree
        for step in path:
            holder = holder[step]
        kind = rng.integers(5)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[f"{key}2"] = holder.pop(key)
        elif kind == 2 and isinstance(holder[key], np.ndarray) and holder[key].size:
            holder[key] = other_array(rng, holder[key])
        else:
            holder[key] = junk(rng)
    return tree


def other_array(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    """An array much like ``array``, and yet not one that fits."""
    bad = np.array([np.nan, np.inf, -1e4] if array.dtype.kind == "f" else [0]).astype(array.dtype)
    spoilt = array.copy()
    spoilt.reshape(-1)[rng.integers(array.size)] = bad[rng.integers(len(bad))]
    narrow = array.astype(np.float32) if array.dtype.kind in "biuf" else array
    kinds = [spoilt, array[:-1] if array.ndim else array, array[None], array.reshape(-1), narrow]
    return [*kinds, array.astype(str), np.concatenate([array, array]) if array.ndim else array][rng.integers(7)]
