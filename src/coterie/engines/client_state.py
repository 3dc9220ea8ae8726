"""The state that clients keep between exchanges: written as blocks end, then committed or forgotten."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import WRITTEN, Array, Rows


class Store:
    """Personal state of a site's m clients, one array for each name.

    A ``tentative`` store keeps what is written aside until :meth:`commit`. In another one blocks write in place, and an
    array whose shape or type changes is swapped in by :meth:`commit`.
    """

    def __init__(self, m: int, tentative: bool = False) -> None:
        self.m, self.tentative = m, tentative
        self.arrays: dict[str, Array] = {}
        self.staged: dict[str, Array] = {}
        self._kept: set[str] = set()
        self._reshaped: dict[str, int] = {}  # clients that have yet to write a name in its new shape
        self._lock = threading.Lock()

    def write(self, name: str, rows: Rows, value: Array, whole: bool) -> None:
        """Write ``value`` for the clients ``rows``; ``whole``: this exchange covers all clients."""
        with self._lock:
            target = self.staged.get(name)
            if target is None:
                target = self._target(name, value, whole)
            written = self._writable(WRITTEN + name)
            if name in self._reshaped:
                self._reshaped[name] -= len(value)
        if target.shape[1:] != value.shape[1:] or not np.can_cast(value.dtype, target.dtype, "same_kind"):
            raise CoterieError(
                f"State {name!r} is {target.dtype} {target.shape[1:]} for some clients "
                f"and {value.dtype} {value.shape[1:]} for others: use one type, and pad to one shape."
            )
        target[rows] = value
        if written is not None:
            written[rows] = True

    def _target(self, name: str, value: Array, whole: bool) -> Array:
        old = self.arrays.get(name)
        if old is None:
            self.staged[WRITTEN + name] = np.zeros(self.m, dtype=bool)
        elif not whole or (old.shape[1:] == value.shape[1:] and old.dtype == value.dtype):
            same: Array = self._writable(name)  # type: ignore[assignment]
            return same
        else:
            self._reshaped[name] = self.m
        new = self.staged[name] = np.zeros((self.m, *value.shape[1:]), value.dtype)
        return new

    def _writable(self, name: str) -> Array | None:
        """The array that writes go to: the state itself, or a copy of it that is kept aside."""
        array = self.staged.get(name, self.arrays.get(name))
        if array is not None and name not in self.staged and (self.tentative or name in self._kept):
            array = self.staged[name] = array.copy()
        return array

    def close(self) -> None:
        """End an exchange: what was written becomes the state, or stays aside if this store is tentative."""
        if any(self._reshaped.values()):
            name = next(n for n, left in self._reshaped.items() if left)
            raise CoterieError(f"State {name!r} changed its shape or type for some clients only: write it for all.")
        self._reshaped.clear()
        for name in [n for n in self.staged if n.startswith(WRITTEN) and n not in self.arrays]:
            if self.staged[name].all():
                del self.staged[name]
        if self.staged and not self.tentative:
            self.commit()

    def commit(self) -> None:
        """Make what was written the state."""
        self.arrays.update(self.staged)
        self._kept.difference_update(self.staged)
        self.staged.clear()

    def forget(self) -> None:
        """Drop what was written aside."""
        self.staged.clear()
        self._reshaped.clear()

    def keep(self) -> dict[str, Array]:
        """The present arrays, which will not be written in place from now on (nothing is copied here)."""
        self._kept.update(self.arrays)
        return dict(self.arrays)

    def replace(self, arrays: Mapping[str, Array]) -> None:
        """Return to arrays that :meth:`keep` gave, or that were read from disk."""
        self.forget()
        self.arrays.clear()
        self.arrays.update(arrays)
        self._kept = set(arrays)
