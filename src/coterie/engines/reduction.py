"""Rows and sums from several blocks or sites, put together in a fixed order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.engines.routing import compact
from coterie.errors import CoterieError
from coterie.federation import Array, Ints, Ragged, Rows, readonly
from coterie.numerics import mapped_arrays


@dataclass(frozen=True)
class Segments:
    """Runs of equal labels: which rows to bring together, where runs start, and whose they are."""

    order: Ints | None
    starts: Ints
    present: Rows

    @classmethod
    def of(cls, labels: Ints) -> Segments:
        """Segments of a non-empty label array in any order."""
        order = None
        if np.any(labels[1:] < labels[:-1]):
            order = np.argsort(labels, kind="stable")
            labels = labels[order]
        starts = np.flatnonzero(np.concatenate([[True], labels[1:] != labels[:-1]]))
        return cls(order, starts, compact(labels[starts]))

    def add(self, values: Array) -> Array:
        """Sums of ``values`` within segments, narrow floats in double precision."""
        dtype = np.float64 if values.dtype.kind == "f" else None
        if len(self.starts) == 1:
            if values.ndim == 2 and values.shape[1] > 1 and values.dtype == np.float64:  # the same, and sooner
                return np.asarray(np.einsum("ij->j", values))[None]
            return np.asarray(values.sum(axis=0, dtype=dtype))[None]
        if self.order is not None:
            values = values[self.order]
        return np.asarray(np.add.reduceat(values, self.starts, axis=0, dtype=dtype))


class Gather:
    """Rows of replies, n in all, where their requests stand; a name whose shapes are ``unequal`` is a list of rows."""

    def __init__(self, n: int, unequal: bool = False) -> None:
        self._n, self._unequal = n, unequal
        self._values: dict[str, Any] = {}
        self._parts: dict[str, list[tuple[Rows, Any]]] = {}
        self._names: set[str] | None = None

    def add(self, rows: Rows, reply: Mapping[str, Any]) -> None:
        """Put ``reply`` at positions ``rows``; every reply of an exchange must have the same names and types."""
        if self._names is None:
            self._names = set(reply)
        if self._names != reply.keys():
            raise CoterieError(f"Work returned {sorted(reply)} for some clients and {sorted(self._names)} for others.")
        for name, value in reply.items():
            if self._unequal or isinstance(value, Ragged):
                self._parts.setdefault(name, []).append((rows, value))
            elif isinstance(rows, slice) and len(value) == self._n:
                self._values[name] = value
            else:
                self._place(name, rows, value)

    def _place(self, name: str, rows: Rows, value: Array) -> None:
        whole = self._values.get(name)
        if whole is None:
            whole = self._values[name] = mapped_arrays.zeros((self._n, *value.shape[1:]), value.dtype, whole=True)
        if whole.shape[1:] != value.shape[1:] or whole.dtype != value.dtype:
            raise CoterieError(
                f"Work returned {name!r} as {value.dtype} {value.shape[1:]} for some clients "
                f"and {whole.dtype} {whole.shape[1:]} for others."
            )
        mapped_arrays.write(whole, rows, value)

    def result(self) -> dict[str, Any]:
        """All values by name, read-only."""
        values = {name: readonly(value) for name, value in self._values.items()}
        for name, parts in self._parts.items():
            values[name] = self._joined(parts)
        return values

    def _joined(self, parts: list[tuple[Rows, Any]]) -> Any:
        order = np.concatenate([np.arange(self._n)[rows] for rows, _ in parts])
        where = np.empty(self._n, np.int64)
        where[order] = np.arange(self._n)
        if isinstance(parts[0][1], Ragged):
            values = np.concatenate([p.values for _, p in parts])
            lengths = np.concatenate([np.diff(p.offsets) for _, p in parts])
            whole = Ragged(values, np.concatenate([[0], np.cumsum(lengths)]))
            return whole if np.array_equal(order, np.arange(self._n)) else whole.take(where)
        rows = [row for _, part in parts for row in part]
        rows = [np.asarray(rows[w]) for w in where]
        return readonly(np.stack(rows)) if len({r.shape for r in rows}) == 1 else [readonly(r) for r in rows]


class Adder:
    """Sums of blocks or sites, added in the order of the calls; ``lists`` where groups have unequal shapes."""

    def __init__(self, groups: int | None, lists: bool = False) -> None:
        self._groups, self._lists = groups, lists  # length of the leading axis; None: sums have no group axis
        self._sums: dict[str, Any] = {}
        self._dtypes: dict[str, np.dtype[Any]] = {}

    def add(self, present: Rows, sums: Mapping[str, tuple[Any, np.dtype[Any]]]) -> None:
        """Add sums (leading axis: the groups ``present``) given with the type of what was summed."""
        if self._sums and self._sums.keys() != sums.keys():
            raise CoterieError(f"Work returned {sorted(sums)} for some clients and {sorted(self._sums)} for others.")
        for name, (value, dtype) in sums.items():
            self._dtypes.setdefault(name, dtype)
            if self._groups is None:
                self._sums[name] = self._plus(name, self._sums.get(name), _wide(value[0]))
            elif self._lists:
                rows = self._sums.setdefault(name, [None] * self._groups)
                for g, row in zip(np.arange(self._groups)[present], value, strict=True):
                    rows[g] = self._plus(name, rows[g], _wide(row))
            else:
                whole = self._sums.get(name)
                if whole is None:
                    whole = self._sums[name] = np.zeros((self._groups, *value.shape[1:]), _wide(value).dtype)
                self._same(name, whole, value, 1)
                whole[present] += value

    def _plus(self, name: str, whole: Array | None, value: Array) -> Array:
        if whole is None:
            return np.array(value)
        self._same(name, whole, value)
        whole += value
        return whole

    @staticmethod
    def _same(name: str, whole: Array, value: Array, axis: int = 0) -> None:
        a, b = whole.shape[axis:], value.shape[axis:]
        if a != b:
            raise CoterieError(f"{name!r} has shapes {a} and {b}: clusters that differ are added by='cluster' only.")
        if not np.can_cast(value.dtype, whole.dtype, "same_kind"):
            raise CoterieError(f"Work returned {name!r} as {whole.dtype} for some clients, {value.dtype} for others.")

    def result(self) -> dict[str, Any]:
        """All sums by name, in the precision of what was summed (integers as 64-bit)."""
        return {name: self._narrow(value, self._dtypes[name]) for name, value in self._sums.items()}

    @staticmethod
    def _narrow(value: Any, dtype: np.dtype[Any]) -> Any:
        if isinstance(value, list):
            return [np.zeros((), dtype) if v is None else Adder._narrow(v, dtype) for v in value]
        return value.astype(dtype, copy=False) if dtype.kind == "f" else value


def _wide(value: Any) -> Array:
    array = np.asarray(value)
    return array.astype(np.float64, copy=False) if array.dtype.kind == "f" else array
