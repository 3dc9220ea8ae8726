"""Files that survive a fault: written whole or not at all, checksummed, never pickle."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from coterie.engines import wire
from coterie.errors import CoterieError
from coterie.federation import Array


class Resumable(Protocol):
    """An engine whose part of a run can be saved."""

    def snapshot(self, tag: str) -> dict[str, Any]:
        """All that :meth:`resume` needs; sites that are elsewhere keep their state under ``tag``."""

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        """Go on from a snapshot."""


def save(path: str | Path, fed: Resumable, state: Mapping[str, Any]) -> None:
    """Write a checkpoint: the method's state and the engine's part.

    Parameters
    ----------
    path : path
        The file, replaced at once: a fault while writing leaves the last checkpoint usable.
    fed : InProcess or Loopback
        Personal state goes into the file in process; sites that are elsewhere keep it (two marks in turn).
    state : dict
        What the method's generator of states gave.
    """
    path = Path(path)
    # Sites keep two marks in turn, so that the one the present file relies on is never overwritten.
    slot = 1 - _read(path)["slot"] if path.exists() else 0
    write(path, wire.pieces({"slot": slot, "state": state, "engine": fed.snapshot(f"{path.name}.{slot}")}))


def load(path: str | Path, fed: Resumable) -> dict[str, Any]:
    """Bring ``fed`` back to a checkpoint and return the method's state.

    Raises
    ------
    CoterieError
        If there is no such file, it is not a checkpoint, or it belongs to another federation.
    """
    saved = _read(Path(path))
    fed.resume(saved["engine"])
    state: dict[str, Any] = saved["state"]
    return state


def _read(path: Path) -> dict[str, Any]:
    saved = read(path)
    if not isinstance(saved, dict) or saved.keys() != {"slot", "state", "engine"}:
        raise CoterieError(f"{path} is not a checkpoint.")
    return saved


def read(path: Path) -> Any:
    """The value in a file made by :func:`write`; a CoterieError names the file that is missing or damaged."""
    try:
        return wire.decode(path.read_bytes(), writable=True)
    except FileNotFoundError:
        raise CoterieError(f"There is no file {path}.") from None
    except OSError as problem:
        raise CoterieError(f"{path} cannot be read: {problem.strerror or problem}.") from problem
    except CoterieError as problem:
        what = str(problem).removesuffix(".").removesuffix(": send it again")
        raise CoterieError(f"{path} cannot be read ({what}): begin again without it.") from problem


def write(path: Path, parts: Iterable[wire.Buffer]) -> None:
    """Write a file so that after any fault it is the old one or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class Folder:
    """A folder that holds one site's state, its pending reply and its marks.

    Each array is a file of its own, written once; ``head`` names those in use and is replaced atomically, so a save
    costs the arrays that are new, and a mark costs none.

    Parameters
    ----------
    path : path
        The site's own folder, made if absent.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)  # keys of secure sums are in the state
        self._files: dict[int, tuple[str, Array]] = {}  # by identity; holding the array keeps its identity taken
        self._next = 0

    def load(self) -> tuple[dict[str, Any], dict[str, dict[str, Array]]] | None:
        """The last head and its sets of arrays, as they were saved; None if nothing was."""
        if not (self.path / "head").exists():
            return None
        saved = read(self.path / "head")
        arrays = {name: read(self.path / name) for names in saved["sets"].values() for name in names.values()}
        self._files = {id(array): (name, array) for name, array in arrays.items()}
        self._next = saved["next"]
        sets = {key: {n: arrays[file] for n, file in names.items()} for key, names in saved["sets"].items()}
        return saved["head"], sets

    def save(self, head: Mapping[str, Any], sets: Mapping[str, Mapping[str, Array]]) -> None:
        """Make ``head`` and ``sets`` of arrays durable; arrays are never changed after they were saved."""
        files: dict[int, tuple[str, Array]] = {}
        for array in (a for names in sets.values() for a in names.values()):
            files[id(array)] = self._files.get(id(array)) or self._new(array)
        named = {key: {n: files[id(a)][0] for n, a in names.items()} for key, names in sets.items()}
        write(self.path / "head", wire.pieces({"head": head, "sets": named, "next": self._next}))
        for name, _ in [f for i, f in self._files.items() if i not in files]:
            (self.path / name).unlink(missing_ok=True)
        self._files = files

    def _new(self, array: Array) -> tuple[str, Array]:
        name = f"array-{self._next}"
        self._next += 1
        write(self.path / name, wire.pieces(array))
        return name, array
