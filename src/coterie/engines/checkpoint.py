"""Files that survive a fault: written whole or not at all, checksummed, never pickle."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from coterie import files
from coterie.engines import wire
from coterie.errors import CoterieError, fitting
from coterie.federation import Array

_SLOT = re.compile(rb".{2,6}d\x03\x04slot([TF])", re.DOTALL)
"""How a checkpoint begins: the head of a message, and of its dict of three the first, a bool."""
_ARRAY = re.compile(r"array-[0-9]+")


class Resumable(Protocol):
    """An engine whose part of a run can be saved."""

    def snapshot(self, tag: str) -> dict[str, Any]:
        """All that :meth:`resume` needs; sites that are elsewhere keep their state under ``tag``."""

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        """Go on from a snapshot."""


def save(path: str | Path, fed: Resumable, state: Mapping[str, Any]) -> None:
    """Write a checkpoint: the method's state, as its generator of states gave it, and the engine's part.

    The file is replaced at once: a fault while writing leaves the last checkpoint usable. One that is there and damaged
    is replaced too. Personal state goes into the file in process; sites that are elsewhere keep it (two marks in turn).
    """
    path = files.local(path)
    # Sites keep two marks in turn, so that the one the present file relies on is never overwritten.
    slot = not _slot(path)
    files.sweep(path.parent, path.name)  # a run that was killed while it saved
    write(path, wire.pieces({"slot": slot, "state": state, "engine": fed.snapshot(f"{path.name}.{slot:d}")}))


def load(path: str | Path, fed: Resumable) -> dict[str, Any]:
    """Bring ``fed`` back to a checkpoint of the same federation and return the method's state."""
    path = files.local(path)
    saved = read(path)
    if not isinstance(saved, dict) or saved.keys() != {"slot", "state", "engine"}:
        raise CoterieError(f"{path} is not a checkpoint: begin anew without it.")
    with fitting(f"The checkpoint {path}", "Begin again without it."):
        fed.resume(saved["engine"])
        state: dict[str, Any] = saved["state"]
        if not isinstance(state, dict):
            raise TypeError
    return state


def _slot(path: Path) -> bool:
    """The mark that the checkpoint in a file relies on; true where it does not say. Only its beginning is read."""
    try:
        with path.open("rb") as file:
            found = _SLOT.match(file.read(32))
    except OSError:
        found = None
    return found is None or found[1] == b"T"


def read(path: Path, remedy: str = "begin again without it") -> Any:
    """The value in a file made by :func:`write`; a CoterieError names the file that is missing or damaged."""
    try:
        return wire.decode(files.content(path), writable=True)
    except FileNotFoundError:
        raise CoterieError(f"There is no file {path}.") from None
    except OSError as problem:
        raise CoterieError(f"{path} cannot be read: {problem.strerror or problem}.") from problem
    except CoterieError as problem:
        what = str(problem).removesuffix(".").removesuffix(": send it again")
        raise CoterieError(f"{path} cannot be read ({what}): {remedy}.") from problem


def write(path: Path, parts: Iterable[wire.Buffer]) -> None:
    """Write a file whole or not at all, durable, for those alone who may look into its folder, which is made."""
    folder = files.local(path).parent
    folder.mkdir(parents=True, exist_ok=True)
    files.write(path, parts, mode=folder.stat().st_mode & 0o666)


ANEW = "begin the run again under another name, or with empty folders"  # what to do where the state of a site is lost


class Folder:
    """A folder that holds one site's state, its pending reply and its marks; it is made if absent.

    Each array is a file of its own, written once; ``head`` names those in use and is replaced atomically, so a save
    costs the arrays that are new, and a mark costs none.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = files.local(path)
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)  # keys of secure sums are in the state
        self._files: dict[int, tuple[str, Array]] = {}  # by identity; holding the array keeps its identity taken
        self._next = 0

    def load(self) -> tuple[dict[str, Any], dict[str, dict[str, Array]]] | None:
        """The last head and its sets of arrays, None if nothing was saved; what a killed save left is removed."""
        saved = self._saved()
        files.sweep(self.path)
        self._remove({stray.name for stray in self.path.glob("array-*")} - _named(saved))
        if saved is None:
            return None
        arrays = {name: read(self.path / name, ANEW) for name in _named(saved)}
        with self._whole():
            if not all(isinstance(array, np.ndarray) for array in arrays.values()):
                raise TypeError
            self._files = {id(array): (name, array) for name, array in arrays.items()}
            self._next = int(saved["next"])
            sets = {key: {n: arrays[file] for n, file in names.items()} for key, names in saved["sets"].items()}
            return dict(saved["head"]), sets

    def save(self, head: Mapping[str, Any], sets: Mapping[str, Mapping[str, Array]]) -> None:
        """Make ``head`` and ``sets`` of arrays, which nobody changes later, durable; or nothing, where that fails."""
        held: dict[int, tuple[str, Array]] = {}
        first = self._next
        try:
            for array in (a for names in sets.values() for a in names.values()):
                held[id(array)] = held.get(id(array)) or self._files.get(id(array)) or self._new(array)
            named = {key: {n: held[id(a)][0] for n, a in names.items()} for key, names in sets.items()}
            write(self.path / "head", wire.pieces({"head": head, "sets": named, "next": self._next}))
        except BaseException:
            with suppress(CoterieError, OSError):
                new = {f"array-{n}" for n in range(first, self._next)}
                self._remove(new - _named(self._saved()))  # the new head may be in place, and only not durable yet
            raise
        self._remove({name for i, (name, _) in self._files.items() if i not in held})
        self._files = held

    def _new(self, array: Array) -> tuple[str, Array]:
        name = f"array-{self._next}"
        self._next += 1
        write(self.path / name, wire.pieces(array))
        return name, array

    def _saved(self) -> dict[str, Any] | None:
        path = self.path / "head"
        saved: dict[str, Any] | None = read(path, ANEW) if path.exists() else None
        with self._whole():
            if not all(map(_ARRAY.fullmatch, _named(saved))):  # no other file is read, or removed
                raise ValueError
        return saved

    def _whole(self) -> AbstractContextManager[None]:
        return fitting(f"The state in '{self.path}'", f"{ANEW.capitalize()}.")

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            (self.path / name).unlink(missing_ok=True)


def _named(saved: Mapping[str, Any] | None) -> set[str]:
    return set() if saved is None else {name for names in saved["sets"].values() for name in names.values()}
