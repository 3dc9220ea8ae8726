"""Sums as words: numbers in fixed point modulo 2^128, two uint64 limbs each, and where each of them lies.

An array of n numbers is an (n, 2) uint64 array, low limb first; negative numbers are two's complement. The step is
2^-fraction. Adding is exact, in any order, and nothing wraps: numbers that could carry a sum over the modulus are
refused before they are added. A layout says which names, types and shapes the words of a reply stand for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.federation import Array

Words = npt.NDArray[np.uint64]


def limit(fraction: int, sites: int, dtype: np.dtype[np.generic]) -> float:
    """What every number must stay below in size, so that no sum over ``sites`` can overflow."""
    bits = min(127 - fraction, 63) if dtype.kind in "iu" else 127 - fraction
    return float(2.0**bits / sites * (1 - 2.0**-40))  # a hair less: what is compared was rounded


def encode(values: Array, fraction: int, sites: int, name: str) -> Words:
    """Numbers as words (n, 2): floats rounded to the nearest multiple of 2^-fraction, complex numbers as two each.

    A CoterieError calls by its ``name`` what holds NaN, infinity, or a number not below :func:`limit`.
    """
    if values.dtype.kind == "c":
        values = np.ascontiguousarray(values, np.complex128).reshape(-1).view(np.float64)
    flat = values.reshape(-1)
    if flat.dtype.kind not in "fiu":
        raise CoterieError(f"{name!r} is {flat.dtype}: secure sums add numbers only.")
    bound = limit(fraction, sites, flat.dtype)
    size = np.abs(flat.astype(np.float64))
    if not bool(np.all(size < bound)):  # NaN is not below anything either
        # Without the number, which is what is to be hidden.
        raise CoterieError(
            f"{name!r} holds a number that is too large or none, and a secure sum of {sites} sites carries numbers "
            f"below {bound:.3g} in size: scale it, or use fewer bits after the point (`fraction`)."
        )
    words = np.empty((len(flat), 2), np.uint64)
    if flat.dtype.kind == "f":
        high = np.floor(np.ldexp(size, fraction - 64))
        # Both steps are exact: the part below 2^64 keeps the bits that are left, and only rint rounds.
        words[:, 0] = np.rint(np.ldexp(np.ldexp(size, fraction - 64) - high, 64))
        words[:, 1] = high
    else:
        wide = flat.astype(np.int64 if flat.dtype.kind == "i" else np.uint64)  # the least int8 has no opposite
        whole = np.where(flat < 0, -wide, wide).astype(np.uint64)
        words[:, 0] = whole << np.uint64(fraction) if fraction < 64 else 0
        words[:, 1] = whole >> np.uint64(64 - fraction) if fraction <= 64 else whole << np.uint64(fraction - 64)
    below = flat < 0
    words[below] = negative(words[below])
    return words


def decode(words: Words, fraction: int, dtype: np.dtype[np.generic]) -> Array:
    """The numbers of (n, 2) words: float64 (complex128 for pairs), or int64; floats are right to a rounding or two.

    A CoterieError refuses whole numbers with a part after the point: a mask has not come off.
    """
    below = words[:, 1] >> np.uint64(63) == 1
    size = words.copy()
    size[below] = negative(words[below])
    low, high = size[:, 0], size[:, 1]
    if dtype.kind not in "iu":
        values = np.ldexp(high.astype(np.float64), 64 - fraction) + np.ldexp(low.astype(np.float64), -fraction)
        values[below] *= -1
        return values.view(np.complex128) if dtype.kind == "c" else values
    if fraction < 64:
        whole = (high << np.uint64(64 - fraction)) | (low >> np.uint64(fraction))
        rest = low & np.uint64(2**fraction - 1)
    else:
        whole = high >> np.uint64(fraction - 64)
        rest = low | (high & np.uint64(2 ** (fraction - 64) - 1))
    if np.any(rest):
        raise CoterieError("A secure sum of whole numbers is not whole: a site or the coordinator is broken.")
    integers: Array = whole.view(np.int64)
    return np.where(below, -integers, integers)


def add(a: Words, b: Words) -> Words:
    """``a + b`` modulo 2^128."""
    total = a + b
    total[:, 1] += total[:, 0] < a[:, 0]
    return total


def subtract(a: Words, b: Words) -> Words:
    """``a - b`` modulo 2^128."""
    rest = a - b
    rest[:, 1] -= a[:, 0] < b[:, 0]
    return rest


def negative(a: Words) -> Words:
    """``-a`` modulo 2^128."""
    return subtract(np.zeros_like(a), a)


Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """Names, types and shapes of sums of some groups (``rows``): name after name, within a name group after group.

    ``shapes`` of a name are one for all groups, or one for each.
    """

    rows: int
    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[Shape, ...], ...]

    def row(self, r: int) -> tuple[Shape, ...]:
        """Shapes of the names in group ``r``."""
        return tuple(shapes[r if len(shapes) > 1 else 0] for shapes in self.shapes)

    def sizes(self) -> list[list[int]]:
        """Words of each name in a group: one number for all groups, or one for each."""
        return [
            [prod(s) * (2 if d[1] == "c" else 1) for s in each]
            for each, d in zip(self.shapes, self.dtypes, strict=True)
        ]

    def size(self) -> int:
        """Words in all."""
        return sum(sum(each) if len(each) > 1 else each[0] * self.rows for each in self.sizes())

    def words_of(self, rows: Any) -> Any:
        """Index of the words of some groups (a mask over them); all of them as a slice, which copies nothing."""
        if np.all(rows):
            return slice(None)
        return np.concatenate([np.empty(0, np.bool_), *(np.repeat(rows, each) for each in self.sizes())])

    def as_dict(self) -> dict[str, Any]:
        """For the wire."""
        return {"rows": self.rows, "names": list(self.names), "dtypes": list(self.dtypes), "shapes": self.shapes}

    @classmethod
    def read(cls, saved: Any) -> Layout:
        """From the wire; a CoterieError if it is no layout."""
        try:
            shapes = tuple(tuple(tuple(int(n) for n in s) for s in name) for name in saved["shapes"])
            names, dtypes = tuple(map(str, saved["names"])), tuple(map(str, saved["dtypes"]))
            layout = cls(int(saved["rows"]), names, dtypes, shapes)
        except (KeyError, TypeError, ValueError) as problem:
            raise CoterieError("A secure sum arrived without names and shapes.") from problem
        sound = len(names) == len(dtypes) == len(shapes) and all(len(s) in (1, layout.rows) for s in shapes)
        known = all((len(d) == 3 and d[1:] in ("f2", "f4", "f8", "i8", "u8", "c8")) or d == "<c16" for d in dtypes)
        if not sound or not known or layout.rows < 0 or min((n for s in shapes for r in s for n in r), default=0) < 0:
            raise CoterieError("A secure sum arrived with names, types and shapes that do not fit together.")
        return layout


def pack(sums: Mapping[str, Any], grouped: bool, fraction: int, sites: int) -> tuple[Words, Layout]:
    """A site's sums, arrays or lists of arrays with a leading axis of groups where ``grouped``, as words."""
    values = {name: value if grouped else np.asarray(value)[None] for name, value in sums.items()}
    lists = {name: [np.asarray(v) for v in value] for name, value in values.items() if isinstance(value, list)}
    flat = values | {name: np.concatenate([v.reshape(-1) for v in value]) for name, value in lists.items()}
    shapes = tuple(tuple(r.shape for r in lists[n]) if n in lists else (v.shape[1:],) for n, v in values.items())
    dtypes = tuple(v.dtype.newbyteorder("<").str for v in flat.values())
    layout = Layout(len(next(iter(values.values()), ())), tuple(values), dtypes, shapes)
    words = [encode(v, fraction, sites, name) for name, v in flat.items()]
    return np.concatenate([np.empty((0, 2), np.uint64), *words]), layout


def unpack(words: Words, layout: Layout, fraction: int) -> dict[str, tuple[Any, np.dtype[Any]]]:
    """Sums by name, with a leading axis (or a list) of groups, each with the type of what was summed."""
    found: dict[str, tuple[Any, np.dtype[Any]]] = {}
    edges = np.cumsum([np.sum(np.resize(each, layout.rows)) for each in layout.sizes()])[:-1]
    for name, dtype, shapes, part in zip(
        layout.names, layout.dtypes, layout.shapes, np.split(words, edges), strict=True
    ):
        numbers = decode(part, fraction, np.dtype(dtype))
        if len(shapes) == 1:
            value: Any = numbers.reshape(layout.rows, *shapes[0])
        else:
            cuts = np.split(numbers, np.cumsum([prod(s) for s in shapes])[:-1])
            value = [cut.reshape(shape) for cut, shape in zip(cuts, shapes, strict=True)]
        found[name] = value, np.dtype(dtype)
    return found
