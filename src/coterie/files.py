"""Files that are written whole or not at all, TOML that people write, and locks that end with their process."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import tempfile
import time
import tomllib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from glob import escape
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from coterie.errors import CoterieError
from coterie.remote import Url

try:
    import fcntl
except ImportError:  # Windows: files are not locked there, and every lock is had at once
    fcntl = None  # type: ignore[assignment]

_URL = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]+:/")  # at least two letters: "C:/" is a drive
_PART = ".part"
_PAUSE = 0.02  # seconds between two tries to have a lock


def local(path: str | os.PathLike[str]) -> Path:
    """A path of this machine, as the user gave it; a CoterieError for a URL, of which ``Path`` would make a folder."""
    if isinstance(found := place(str(path) if isinstance(path, Path) else path), Url):
        raise CoterieError(f"'{found:.100}' is a URL, where only a place of this machine will do: name a local path.")
    return found


def place(path: str | os.PathLike[str], folder: Path = Path()) -> Path:
    """A path of this machine, from ``folder`` on, or a :class:`Url`, which does what the package asks of paths."""
    if isinstance(path, Url):
        return path  # type: ignore[return-value]  # which has what of a Path is used of places
    if not isinstance(path, (str, os.PathLike)):
        raise CoterieError(f"A path must be text, not {path!r:.60}.")
    text = path.strip() if isinstance(path, str) else str(path)
    if not _URL.match(text):
        return folder / path
    if not isinstance(path, str):
        raise CoterieError(
            f"'{text:.100}' is a URL made a Path, as which only a place of this machine will do: give it as text."
        )
    if text.lower().startswith("file:/") and urlsplit(text).netloc in ("", "localhost"):
        return Path(unquote(urlsplit(text).path))
    return Url(text)  # type: ignore[return-value]


@contextmanager
def fetched(path: Path) -> Iterator[Path]:
    """A file of this machine with what is at ``path``: itself, or for a while a copy of what is at a URL."""
    if not isinstance(path, Url):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        with path.saying(), path.open() as source, copy.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 24)
        try:
            yield copy
        except CoterieError as problem:  # names the copy
            raise type(problem)(str(problem).replace(str(copy), f"{path}")) from problem


def write(path: Path, parts: Iterable[bytes | memoryview], *, mode: int = 0o666, durable: bool = True) -> None:
    """Write a file so that after any fault it is the old one or the new one, whole; ``parts`` one after the other.

    Its ``mode`` is what the umask leaves of it. If ``durable`` it is on disk when this returns; else only the end of
    the process cannot harm it. An OSError if it cannot be written; nothing of it stays.
    """
    if isinstance(path, Url):
        path.write(parts)
        return
    with replacing(path, mode=mode, durable=durable) as partial, partial.open("wb") as file:
        file.writelines(parts)


def content(path: Path) -> bytes:
    """All bytes of a file; an OSError where it is none, but a pipe or a device, which may never end."""
    if isinstance(path, Url):
        return path.read_bytes()
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return file.read()


def stamp(path: Path) -> tuple[int, ...]:
    """What changes when a file of this machine is written; empty where there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The tables of a file; a CoterieError says that it is missing, unreadable or no TOML.

    ``what`` it is, is for messages: "a federation's configuration".
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # editors on Windows put a mark first
    except FileNotFoundError:
        where = "folder" if not path.parent.is_dir() else "file"
        missing = path.parent if where == "folder" else path
        raise CoterieError(f"There is no {where} '{missing}', where {what} is looked for.") from None
    except OSError as problem:
        raise CoterieError(f"'{path}' cannot be read: {problem.strerror or problem}.") from problem
    except UnicodeDecodeError as problem:
        raise CoterieError(f"'{path}' is not text in UTF-8: save it as such.") from problem
    except tomllib.TOMLDecodeError as problem:
        raise CoterieError(f"'{path}' is not TOML: {str(problem).rstrip('.')}.") from problem


def plain(value: Any) -> Any:
    """A value as TOML has it, without what is None: paths and keys as text, arrays and tables of edges as lists."""
    if hasattr(value, "to_numpy"):
        value = value.to_numpy()
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items() if one is not None}
    return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def clear(folder: Path) -> None:
    """Remove a folder and all that is in it, as far as that can be."""
    if isinstance(folder, Url):
        folder.clear()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def need_writable(path: Path, folder: Path) -> None:
    """A CoterieError where no file can be made in a folder for ``path``: permissions may say otherwise, as of /proc.

    What writers of it that were killed left there is removed.
    """
    sweep(folder, path.name)
    probe = folder / f".{os.urandom(4).hex()}{_PART}"
    try:
        if isinstance(probe, Url):
            probe.write([])
        else:
            os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        probe.unlink()
    except OSError as e:
        why = "permission denied" if isinstance(e, PermissionError) else "no file can be made"
        why = f"{e.strerror}, so that {why}" if isinstance(path, Url) else why
        raise CoterieError(f"'{path}' cannot be written: {why} in '{folder}'. Name another place.") from e


@contextmanager
def replacing(path: Path, *, mode: int = 0o666, durable: bool = True) -> Iterator[Path]:
    """An empty file beside ``path``, for others to write, which takes its name at the end; as :func:`write`.

    Where ``path`` is a URL, the file is one of this machine until then.
    """
    if isinstance(path, Url):
        with tempfile.TemporaryDirectory() as folder:
            yield (draft := Path(folder) / path.name)
            with draft.open("rb") as source, path.saying(), path.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 24)
        return
    partial = path.with_name(f".{path.name}.{os.urandom(4).hex()}{_PART}")
    with _in_use(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode):
        try:
            yield partial
            if durable:
                _sync(partial, os.O_RDWR)
            os.replace(partial, path)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise
    if durable:
        sync(path.parent)


def sync(folder: Path) -> None:
    """Make the names of files in a folder durable."""
    with suppress(PermissionError):  # Windows opens no folders, and does not need to
        _sync(folder, os.O_RDONLY)


def _sync(path: Path, flags: int) -> None:
    file = os.open(path, flags)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def sweep(folder: Path, name: str | None = None) -> None:
    """Remove what writers of a file (None: of any) that were killed left in a folder; others hold locks on theirs."""
    if isinstance(folder, Url):  # where files are there whole or not at all
        return
    for partial in folder.glob(f".{'*' if name is None else escape(name)}.????????{_PART}"):
        with suppress(OSError), _in_use(partial, os.O_RDWR):  # another is writing it, or has removed it
            partial.unlink()


@contextmanager
def _in_use(partial: Path, flags: int, mode: int = 0o600) -> Iterator[None]:
    """Open a file, and hold a lock on it; an OSError where another holds one."""
    file = os.open(partial, flags, mode)
    if fcntl is None:  # an open file is neither renamed nor removed there
        os.close(file)
        yield
        return
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:  # a disk that cannot lock
            pass
        yield
    finally:
        os.close(file)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Write into a folder while nobody else does so; a BlockingIOError where another does."""
    with nullcontext() if fcntl is None or isinstance(folder, Url) else _in_use(folder, os.O_RDONLY):
        yield


def append(file: int, data: bytes, *, durable: bool = False) -> None:
    """Add to the end of a file, open with O_APPEND: all of it or, where the disk is full, none of it."""
    size = os.fstat(file).st_size
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(file, left) :]
        if durable:
            os.fsync(file)
    except BaseException:
        os.ftruncate(file, size)
        raise


@contextmanager
def locked(path: Path, wait: float, busy: str) -> Iterator[None]:
    """Hold a lock, against other processes and against others in this one; it ends with the process, however that ends.

    The file is made if absent, and stays. Another holder must let go within ``wait`` seconds; if it does not, a
    CoterieError says ``busy``: who may hold it, and what to do. An OSError if the file cannot be opened, or its disk
    cannot lock. At a URL there are no locks, and whoever calls must see to it that nobody else is there.
    """
    if isinstance(path, Url):
        yield
        return
    file, owner = os.open(path, os.O_RDWR | os.O_CREAT, 0o600), os.getpid()
    try:
        if fcntl is not None:
            _take(fcntl.flock, file, path, wait, busy)
        yield
    finally:
        if fcntl is not None and os.getpid() == owner:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)  # a process that was forked off may hold the file open
        os.close(file)


class Held:
    """A lock that lasts until all who share this are gone."""

    def __init__(self, file: int) -> None:
        weakref.finalize(self, os.close, file)


_HELD: weakref.WeakValueDictionary[tuple[int, int, int], Held] = weakref.WeakValueDictionary()


def hold(path: Path, wait: float, busy: str) -> Held | None:
    """Hold a lock against other processes alone: all who ask for it in this one share it. As :func:`locked`.

    A process that closes a file loses all its locks of this kind on it, so each is opened but once.
    """
    if isinstance(path, Url):
        return None
    if not path.exists():
        path.touch(mode=0o600)
    number = path.stat()
    key = os.getpid(), number.st_dev, number.st_ino  # a process that is forked off has no locks
    if (held := _HELD.get(key)) is None:
        file = os.open(path, os.O_RDWR)
        try:
            if fcntl is not None:
                _take(fcntl.lockf, file, path, wait, busy)
        except BaseException:
            os.close(file)
            raise
        held = _HELD[key] = Held(file)
    return held


def _take(lock: Callable[[int, int], object], file: int, path: Path, wait: float, busy: str) -> None:
    """Have a lock within ``wait`` seconds."""
    end = time.monotonic() + wait
    while True:
        try:
            lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except (BlockingIOError, PermissionError):  # another has it
            if time.monotonic() >= end:
                raise CoterieError(busy) from None
            time.sleep(_PAUSE)
        except OSError as problem:
            raise OSError(problem.errno, problem.strerror, str(path)) from problem
