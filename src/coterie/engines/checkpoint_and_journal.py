"""Files that survive a fault, checksummed and without pickle: checkpoints, the state of a site, the journal of a run.

A method is deterministic given the replies. Started again with the same journal, it goes through the exchanges that
were counted without asking anybody, arrives where it stood, and goes on live; what the sites hold was never lost.
"""

from __future__ import annotations

import os
import re
import struct
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

import numpy as np

from coterie import files
from coterie.engines import wire
from coterie.errors import CoterieError, fitting
from coterie.federation import Array
from coterie.remote import Url

_SLOT = re.compile(rb".{2,6}d\x03\x04slot([TF])", re.DOTALL)
"""How a checkpoint begins: the head of a message, and of its dict of three the first, a bool."""
_ARRAY = re.compile(r"array-[0-9]+")


class Resumable(Protocol):
    """An engine whose part of a run can be saved."""

    def snapshot(self, tag: str) -> dict[str, Any]:
        """All that :meth:`resume` needs; sites that are elsewhere keep their state under ``tag``."""

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        """Go on from a snapshot."""


def save_checkpoint(path: str | Path, fed: Resumable, state: Mapping[str, Any]) -> None:
    """Write a checkpoint: the method's state, as its generator of states gave it, and the engine's part.

    The file is replaced at once: a fault while writing leaves the last checkpoint usable. One that is there and damaged
    is replaced too. Personal state goes into the file in process; sites that are elsewhere keep it (two marks in turn).
    """
    path = files.place(path)
    # Sites keep two marks in turn, so that the one the present file relies on is never overwritten.
    slot = not _slot(path)
    files.sweep(path.parent, path.name)  # a run that was killed while it saved
    write_durable(path, wire.pieces({"slot": slot, "state": state, "engine": fed.snapshot(f"{path.name}.{slot:d}")}))


def load_checkpoint(path: str | Path, fed: Resumable) -> dict[str, Any]:
    """Bring ``fed`` back to a checkpoint of the same federation and return the method's state."""
    path = files.place(path)
    saved = read_durable(path)
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


def read_durable(path: Path, remedy: str = "begin again without it") -> Any:
    """The value in a file made by :func:`write_durable`; a CoterieError names the file that is missing or damaged."""
    try:
        return wire.decode(files.content(path), writable=True)
    except FileNotFoundError:
        raise CoterieError(f"There is no file {path}.") from None
    except OSError as problem:
        raise CoterieError(f"{path} cannot be read: {problem.strerror or problem}.") from problem
    except CoterieError as problem:
        what = str(problem).removesuffix(".").removesuffix(": send it again")
        raise CoterieError(f"{path} cannot be read ({what}): {remedy}.") from problem


def write_durable(path: Path, parts: Iterable[wire.Buffer]) -> None:
    """Write a file whole or not at all, durable, for those alone who may look into its folder, which is made."""
    folder = files.place(path).parent
    folder.mkdir(parents=True, exist_ok=True)
    files.write(path, parts, mode=0o666 if isinstance(folder, Url) else folder.stat().st_mode & 0o666)


ANEW = "begin the run again under another name, or with empty folders"  # what to do where the state of a site is lost


class Folder:
    """A folder that holds one site's state, its pending reply and its marks; it is made if absent.

    Each array is a file of its own, written once; ``head`` names those in use and is replaced atomically, so a save
    costs the arrays that are new, and a mark costs none.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = files.place(path)
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
        arrays = {name: read_durable(self.path / name, ANEW) for name in _named(saved)}
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
            write_durable(self.path / "head", wire.pieces({"head": head, "sets": named, "next": self._next}))
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
        write_durable(self.path / name, wire.pieces(array))
        return name, array

    def _saved(self) -> dict[str, Any] | None:
        path = self.path / "head"
        saved: dict[str, Any] | None = read_durable(path, ANEW) if path.exists() else None
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


_LENGTH = struct.Struct("<QI")  # of an entry, and its checksum
WAIT = 60.0  # seconds in which another process that writes the same journal must end


class Journal:
    """Entries in a file, in the order of what happened, each durable before the method sees it.

    The folder holds ``base`` (a state of the method, if it kept one, and where the engine stood) and ``entries`` since
    then. A CoterieError for files that are damaged other than by an entry that was being written when the process died,
    and where another process goes on with the same run.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = files.place(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        # A coordinator whose engine was killed may live on and count another exchange, while the run that was started
        # again goes on from what it has read.
        busy = f"Another process goes on with the run of {self.folder}: end it first."
        try:
            self._held = files.hold(self.folder / "lock", WAIT, busy)
        except OSError as problem:
            why = problem.strerror or problem
            raise CoterieError(f"{self.folder} cannot be locked: {why}. Use a folder of a local disk.") from problem
        files.sweep(self.folder, "base")
        self.base: dict[str, Any] | None = None
        if (self.folder / "base").exists():
            self.base = read_durable(self.folder / "base", ANEW)
        with fitting(f"The journal {self.folder}", "Begin again with an empty folder."):
            self._era = 0 if self.base is None else int(self.base["era"])
            if self.base is not None and not isinstance(self.base["state"], dict):
                raise TypeError
        self._entries = _entries(self.folder, self._era)
        self._sure = True  # whether the era is known to be that of ``base``
        self._cut: int | None = None  # what is left of the entries once the last could be taken back
        self._ahead = deque(self._read())

    def __len__(self) -> int:
        """Entries that have yet to be gone through."""
        return len(self._ahead)

    def next(self, kind: str, key: bytes) -> dict[str, Any] | None:
        """The next entry; None when the run is live. A CoterieError if the run does something else than before."""
        if not self._ahead:
            return None
        entry: dict[str, Any] = self._ahead.popleft()
        if not isinstance(entry, dict) or entry.get("kind") != kind or entry.get("key") != key:
            raise CoterieError(
                f"{self.folder} is the journal of another run (of other options, or of another version): "
                "begin again with an empty folder."
            )
        return entry

    def add(self, kind: str, key: bytes, entry: Mapping[str, Any]) -> None:
        """Append an entry; it is on disk when this returns, and nothing of it is where a CoterieError is raised."""
        data = wire.encode({"kind": kind, "key": key, **entry})
        self._find_era()
        try:
            self._entries.add(header(len(data)) + data, self._cut)
            self._cut = None
        except OSError as problem:
            raise _full(self._entries.path, problem) from problem

    def length(self) -> int:
        """How much of the entries there is, for :meth:`cut`."""
        self._find_era()
        return self._entries.length() if self._cut is None else self._cut

    def cut(self, length: int) -> None:
        """Take back what was added since :meth:`length`: at once or, if that cannot be, before the next entry."""
        self._cut = length
        with suppress(OSError):
            self._entries.cut(length)
            self._cut = None

    def keep(self, state: Mapping[str, Any], engine: Mapping[str, Any]) -> None:
        """Make a state of the method the point that a resumed run begins from, and forget the entries before it."""
        if self._ahead:  # a resumed run that has yet to arrive where it stood
            return
        self._find_era()
        old = self._entries
        base = {"era": self._era + 1, "state": state, "engine": engine}
        self._sure = False  # a fault, or an interrupt, may come before or after the new base is there
        try:
            write_durable(self.folder / "base", wire.pieces(base))
        except OSError as problem:
            raise _full(self.folder / "base", problem) from problem
        self._begin(self._era + 1)
        old.remove()

    def _find_era(self) -> None:
        """See which era ``base`` begins, where a state may or may not have been kept."""
        if self._sure:
            return
        path = self.folder / "base"
        era = int(read_durable(path)["era"]) if path.exists() else 0
        if era != self._era:
            self._begin(era)
        self._sure = True

    def _begin(self, era: int) -> None:
        self._era, self._cut, self._sure = era, None, True
        self._entries = _entries(self.folder, era)

    @property
    def _damaged(self) -> CoterieError:
        return CoterieError(f"{self._entries.path} is damaged in the middle: {ANEW}.")

    def _read(self) -> list[dict[str, Any]]:
        """All whole entries; what a fault left of the last one is cut off."""
        own = self._entries.path.name
        for stray in self.folder.glob("entries-*"):
            if not f"{stray.name}-".startswith(f"{own}-"):  # a fault between writing a base and forgetting those before
                stray.unlink()
        data = self._entries.content()
        at, entries = 0, []
        while at + _LENGTH.size <= len(data):
            size, _ = _LENGTH.unpack_from(data, at)
            stop = at + _LENGTH.size + size
            if header(size) != data[at : at + _LENGTH.size]:
                raise self._damaged
            if stop > len(data):  # it was being written
                break
            try:
                entries.append(wire.decode(data[at + _LENGTH.size : stop], writable=True))  # as sums are that come live
            except CoterieError as problem:
                if stop == len(data):
                    break
                raise self._damaged from problem
            at = stop
        if at < len(data):
            self._entries.cut(at if isinstance(self._entries, _Appended) else len(entries))
        return entries


class _Appended:
    """Entries of a journal, one after the other in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._synced = False  # whether the name of the file is known to be on disk

    def content(self) -> bytes:
        return files.content(self.path) if self.path.exists() else b""

    def length(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def add(self, data: bytes, cut: int | None) -> None:
        """Append, durable, to what is not to be ``cut`` off."""
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            if not self._synced:
                files.sync(self.path.parent)
                self._synced = True
            if cut is not None and os.fstat(file).st_size > cut:
                os.ftruncate(file, cut)
            files.append(file, data, durable=True)
        finally:
            os.close(file)

    def cut(self, length: int) -> None:
        if self.path.stat().st_size > length:
            os.truncate(self.path, length)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


class _OneByOne:
    """Entries at a URL, where nothing can be added to a file: each is one, which is there whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._n = len(self._there())

    def _there(self) -> list[Path]:
        return sorted(self.path.parent.glob(f"{self.path.name}-*"), key=lambda one: one.name)

    def _at(self, n: int) -> Path:
        return self.path.with_name(f"{self.path.name}-{n:09d}")

    def content(self) -> bytes:
        return b"".join(map(files.content, self._there()))

    def length(self) -> int:
        return self._n

    def add(self, data: bytes, cut: int | None) -> None:
        if cut is not None:
            self.cut(cut)
        files.write(self._at(self._n), [data])
        self._n += 1

    def cut(self, length: int) -> None:
        """Keep so many, and none of one that may have been written when its writer was told that it was not."""
        for n in range(length, self._n + 1):
            self._at(n).unlink(missing_ok=True)
        self._n = length

    def remove(self) -> None:
        for one in self._there():
            one.unlink(missing_ok=True)


def _entries(folder: Path, era: int) -> _Appended | _OneByOne:
    path = folder / f"entries-{era}"
    return _OneByOne(path) if isinstance(path, Url) else _Appended(path)


def header(size: int) -> bytes:
    """What comes before an entry of so many bytes: a length that was changed is not that of an unfinished entry."""
    return _LENGTH.pack(size, crc32(size.to_bytes(8, "little")))


def _full(path: Path, problem: OSError) -> CoterieError:
    return CoterieError(f"{path} cannot be written: {problem.strerror or problem}. Put that right and run again.")
