"""The coordinator's memory: every counted exchange on disk, so that a run goes on after its process was killed.

A method is deterministic given the replies. Started again with the same journal, it goes through the exchanges that
were counted without asking anybody, arrives where it stood, and goes on live; what the sites hold was never lost.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

from coterie import files
from coterie.engines import checkpoint, wire
from coterie.errors import CoterieError, fitting

_LENGTH = struct.Struct("<QI")  # of an entry, and its checksum
WAIT = 60.0  # seconds in which another process that writes the same journal must end


class Journal:
    """Entries in a file, in the order of what happened, each durable before the method sees it.

    The folder holds ``base`` (a state of the method, if it kept one, and where the engine stood) and ``entries`` since
    then. A CoterieError for files that are damaged other than by an entry that was being written when the process died,
    and where another process goes on with the same run.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = files.local(folder)
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
            self.base = checkpoint.read(self.folder / "base", checkpoint.ANEW)
        with fitting(f"The journal {self.folder}", "Begin again with an empty folder."):
            self._era = 0 if self.base is None else int(self.base["era"])
            if self.base is not None and not isinstance(self.base["state"], dict):
                raise TypeError
        self._sure, self._synced = True, False
        """Whether the era is known to be that of ``base``, and the names of the files are known to be on disk."""
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
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                if not self._synced:
                    files.sync(self.folder)
                    self._synced = True
                if self._cut is not None and os.fstat(file).st_size > self._cut:
                    os.ftruncate(file, self._cut)
                self._cut = None
                files.append(file, header(len(data)) + data, durable=True)
            finally:
                os.close(file)
        except OSError as problem:
            raise _full(self._path, problem) from problem

    def length(self) -> int:
        """Bytes of the entries, for :meth:`cut`."""
        self._find_era()
        if self._cut is not None:
            return self._cut
        return self._path.stat().st_size if self._path.exists() else 0

    def cut(self, length: int) -> None:
        """Take back what was added since :meth:`length`: at once or, if that cannot be, before the next entry."""
        self._cut = length
        with suppress(OSError):
            if self._path.stat().st_size > length:
                os.truncate(self._path, length)
            self._cut = None

    def keep(self, state: Mapping[str, Any], engine: Mapping[str, Any]) -> None:
        """Make a state of the method the point that a resumed run begins from, and forget the entries before it."""
        if self._ahead:  # a resumed run that has yet to arrive where it stood
            return
        self._find_era()
        old = self._path
        base = {"era": self._era + 1, "state": state, "engine": engine}
        self._sure = self._synced = False  # a fault, or an interrupt, may come before or after the new base is there
        try:
            checkpoint.write(self.folder / "base", wire.pieces(base))
        except OSError as problem:
            raise _full(self.folder / "base", problem) from problem
        self._era, self._cut, self._sure = self._era + 1, None, True
        old.unlink(missing_ok=True)

    def _find_era(self) -> None:
        """See which era ``base`` begins, where a state may or may not have been kept."""
        if self._sure:
            return
        path = self.folder / "base"
        era = int(checkpoint.read(path)["era"]) if path.exists() else 0
        if era != self._era:
            self._era, self._cut = era, None
        self._sure = True

    @property
    def _path(self) -> Path:
        return self.folder / f"entries-{self._era}"

    @property
    def _damaged(self) -> CoterieError:
        return CoterieError(f"{self._path} is damaged in the middle: {checkpoint.ANEW}.")

    def _read(self) -> list[dict[str, Any]]:
        """All whole entries; what a fault left of the last one is cut off."""
        for stray in self.folder.glob("entries-*"):
            if stray != self._path:  # a fault between writing a base and forgetting what was before it
                stray.unlink()
        if not self._path.exists():
            return []
        data = files.content(self._path)
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
            with self._path.open("r+b") as file:
                file.truncate(at)
        return entries


def header(size: int) -> bytes:
    """What comes before an entry of so many bytes: a length that was changed is not that of an unfinished entry."""
    return _LENGTH.pack(size, crc32(size.to_bytes(8, "little")))


def _full(path: Path, problem: OSError) -> CoterieError:
    return CoterieError(f"{path} cannot be written: {problem.strerror or problem}. Put that right and run again.")
