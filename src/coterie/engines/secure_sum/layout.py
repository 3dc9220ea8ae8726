"""Sums of several names and groups as one run of words: what every site replies in the same form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from coterie.engines.secure_sum import fixed_point
from coterie.engines.secure_sum.fixed_point import Words
from coterie.errors import CoterieError
from coterie.federation import Ints

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """Names, types and shapes of sums: group after group, within a group name after name.

    Attributes
    ----------
    rows : int
        Number of groups.
    names, dtypes : tuple of str
    shapes : tuple of tuples of shapes
        For each name one shape, or one for each group where ``unequal``.
    unequal : bool
    """

    rows: int
    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[Shape, ...], ...]
    unequal: bool

    def row(self, r: int) -> tuple[Shape, ...]:
        """Shapes of the names in group ``r``."""
        return tuple(shapes[r if self.unequal else 0] for shapes in self.shapes)

    def sizes(self, r: int) -> list[int]:
        """Words of each name in group ``r``."""
        return [prod(s) * (2 if d[1] == "c" else 1) for s, d in zip(self.row(r), self.dtypes, strict=True)]

    def widths(self) -> list[int]:
        """Words of each group."""
        if self.unequal:
            return [sum(self.sizes(r)) for r in range(self.rows)]
        return [sum(self.sizes(0))] * self.rows

    def by_group(self) -> Layout:
        """The same layout with shapes for each group."""
        shapes = self.shapes if self.unequal else tuple(s * self.rows for s in self.shapes)
        return Layout(self.rows, self.names, self.dtypes, shapes, True)

    def as_dict(self) -> dict[str, Any]:
        """For the wire."""
        return {
            "rows": self.rows,
            "names": list(self.names),
            "dtypes": list(self.dtypes),
            "shapes": self.shapes,
            "unequal": self.unequal,
        }

    @classmethod
    def read(cls, saved: Any) -> Layout:
        """From the wire; a CoterieError if it is no layout."""
        try:
            shapes = tuple(tuple(tuple(int(n) for n in s) for s in name) for name in saved["shapes"])
            names, dtypes = tuple(map(str, saved["names"])), tuple(map(str, saved["dtypes"]))
            layout = cls(int(saved["rows"]), names, dtypes, shapes, bool(saved["unequal"]))
        except (KeyError, TypeError, ValueError) as problem:
            raise CoterieError("A secure sum arrived without names and shapes.") from problem
        each = layout.rows if layout.unequal else 1
        sound = len(names) == len(dtypes) == len(shapes) and all(len(s) == each for s in shapes)
        known = all((len(d) == 3 and d[1:] in ("f2", "f4", "f8", "i8", "u8", "c8")) or d == "<c16" for d in dtypes)
        if not sound or not known or layout.rows < 0 or min((n for s in shapes for r in s for n in r), default=0) < 0:
            raise CoterieError("A secure sum arrived with names, types and shapes that do not fit together.")
        return layout


def pack(sums: Mapping[str, Any], grouped: bool, fraction: int, sites: int) -> tuple[Words, Layout]:
    """A site's sums as words.

    Parameters
    ----------
    sums : dict of arrays, or of lists of arrays
        With a leading axis (or a list) of groups where ``grouped``; all lists if one is.
    grouped : bool
    fraction, sites : int
        As for :func:`~coterie.engines.secure_sum.fixed_point.encode`, whose errors it raises.
    """
    values = {name: value if grouped else np.asarray(value)[None] for name, value in sums.items()}
    unequal = any(isinstance(v, list) for v in values.values())
    rows = len(next(iter(values.values()))) if values else 0
    first = {n: np.asarray(v[0]) if unequal else v for n, v in values.items()}
    dtypes = tuple(v.dtype.newbyteorder("<").str for v in first.values())
    shapes = tuple(tuple(np.shape(r) for r in v) if unequal else (v.shape[1:],) for v in values.values())
    layout = Layout(rows, tuple(values), dtypes, shapes, unequal)
    if unequal:
        parts = [
            fixed_point.encode(np.asarray(v[r]), fraction, sites, n) for r in range(rows) for n, v in values.items()
        ]
    else:
        sizes = layout.sizes(0)
        found = [fixed_point.encode(v, fraction, sites, n) for n, v in values.items()]
        parts = [f.reshape(rows, size, 2) for f, size in zip(found, sizes, strict=True)]
        parts = [np.concatenate(parts, axis=1).reshape(-1, 2)] if parts else []
    return np.concatenate([np.empty((0, 2), np.uint64), *parts]), layout


def unpack(words: Words, layout: Layout, fraction: int) -> dict[str, tuple[Any, np.dtype[Any]]]:
    """Sums by name, with a leading axis (or a list) of groups, each with the type of what was summed."""
    dtypes = [np.dtype(d) for d in layout.dtypes]
    if not layout.unequal:
        table = words.reshape(layout.rows, sum(layout.sizes(0)), 2)
        cuts = np.split(table, np.cumsum(layout.sizes(0))[:-1], axis=1) if layout.names else []
        return {
            name: (_numbers(cut, (layout.rows, *shape), fraction, dtype), dtype)
            for name, cut, shape, dtype in zip(layout.names, cuts, layout.row(0), dtypes, strict=True)
        }
    lists: dict[str, list[Any]] = {name: [] for name in layout.names}
    at = 0
    for r in range(layout.rows):
        for name, shape, size, dtype in zip(layout.names, layout.row(r), layout.sizes(r), dtypes, strict=True):
            lists[name].append(_numbers(words[at : at + size], shape, fraction, dtype))
            at += size
    return {name: (lists[name], dtype) for name, dtype in zip(layout.names, dtypes, strict=True)}


def _numbers(words: Words, shape: Shape, fraction: int, dtype: np.dtype[Any]) -> Any:
    return fixed_point.decode(words.reshape(-1, 2), fraction, dtype).reshape(shape)


def where(rows: Any, widths: Ints) -> Any:
    """Index of the words of some groups (a mask over them); all of them as a slice, which copies nothing."""
    return slice(None) if np.all(rows) else np.repeat(rows, widths)
