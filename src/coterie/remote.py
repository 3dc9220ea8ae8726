"""Places at a URL, through the file systems of pyarrow: object stores, HDFS and what else it reads and writes."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from coterie.errors import CoterieError


class Url(str):
    """A URL as pyarrow takes it, with its keys and ``?endpoint_override=...``: what the package asks of paths, there.

    Object stores have no folders, so that none needs to be made, and a file is there whole or not at all. As text it
    does without the keys in it, in a message also without what comes after the question mark. An OSError says what
    cannot be read or written, a CoterieError that the place cannot be opened at all.
    """

    __slots__ = ()

    def __str__(self) -> str:
        return re.sub(r"//[^/?@]*@", "//", self[:])

    def __repr__(self) -> str:
        return repr(str(self))

    def __format__(self, spec: str) -> str:
        return format(str(self).partition("?")[0], spec)

    def __truediv__(self, name: str) -> Url:
        base, mark, query = self.partition("?")
        return Url(f"{base.rstrip('/')}/{name}{mark}{query}")

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.partition("?")[0].rstrip("/").rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """As of a Path."""
        return Path(self.name).suffix

    @property
    def parent(self) -> Url:
        """Where it lies."""
        base, mark, query = self.partition("?")
        return Url(f"{base.rstrip('/').rpartition('/')[0]}{mark}{query}")

    def with_name(self, name: str) -> Url:
        """Another one beside it."""
        return self.parent / name

    def absolute(self) -> Url:
        """Itself."""
        return self

    resolve = absolute

    def opened(self) -> tuple[Any, str]:
        """The file system of pyarrow, and the path there."""
        parts = urlsplit(self[:])
        once = ["allow_delayed_open=true"] if parts.scheme == "s3" else []  # a small file is one request, not three
        query = "&".join([*filter(None, [parts.query]), *once])
        try:
            system, root = _system(f"{parts.scheme}://{parts.netloc}{query and '?'}{query}")
        except (OSError, ValueError, ImportError) as problem:
            raise CoterieError(f"'{self:.100}' cannot be opened: {_reason(problem)}.") from problem
        return system, "/".join([root.rstrip("/"), unquote(parts.path).strip("/")]).rstrip("/")

    def _info(self) -> Any:
        system, at = self.opened()
        try:
            return system.get_file_info(at)
        except OSError as problem:  # of a path it would say no more than that nothing is there
            raise CoterieError(f"'{self:.100}' cannot be read: {_reason(problem)}.") from problem

    @contextmanager
    def saying(self) -> Iterator[None]:
        """Errors of stores are pages: one line of them."""
        try:
            yield
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "it is not there", str(self)) from None
        except OSError as problem:
            if problem.filename == str(self):
                raise
            raise OSError(problem.errno or errno.EIO, _reason(problem), str(self)) from problem

    def exists(self) -> bool:
        """Whether a file or folder is there."""
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        """Whether a file is there."""
        return bool(self._info().is_file)

    def is_dir(self) -> bool:
        """Whether files are in it."""
        return bool(self._info().type.name == "Directory")

    def samefile(self, other: object) -> bool:
        """Whether it is another's place, with whatever keys."""
        return str(self) == str(other)

    def stat(self) -> os.stat_result:
        """Its size, and when it was written; anybody's to read, as far as the store lets them."""
        info = self._info()
        written = (info.mtime_ns or 0) // 10**9
        return os.stat_result((stat.S_IFREG | 0o666, 0, 0, 1, 0, 0, info.size or 0, 0, written, 0))

    def mkdir(self, *_: Any, **__: Any) -> None:
        """Nothing: a folder is made with its first file."""

    def iterdir(self) -> Iterator[Url]:
        """What lies in it."""
        from pyarrow.fs import FileSelector

        system, at = self.opened()
        with self.saying():
            found = system.get_file_info(FileSelector(at, allow_not_found=True))
        return (self / info.base_name for info in found)

    def glob(self, pattern: str) -> Iterator[Url]:
        """What lies in it under such names."""
        first, within, rest = pattern.partition("/")
        for one in self.iterdir():
            if fnmatchcase(one.name, first):
                yield from one.glob(rest) if within else (one,)

    def open(self, mode: str = "rb") -> Any:
        """Its bytes, to read, or to write."""
        system, at = self.opened()
        with self.saying():
            return system.open_output_stream(at, compression=None) if "w" in mode else system.open_input_file(at)

    def read_bytes(self) -> bytes:
        """All of its bytes."""
        with self.saying(), self.open() as file:
            return file.read()  # type: ignore[no-any-return]

    def write(self, parts: Iterable[bytes | memoryview]) -> None:
        """Put bytes there."""
        whole = list(parts)  # an error in the midst of them would leave the first ones there
        with self.saying(), self.open("wb") as file:
            for part in whole:
                file.write(part)

    def clear(self) -> None:
        """Remove all that lies in it."""
        system, at = self.opened()
        with self.saying():
            system.delete_dir_contents(at, missing_dir_ok=True)

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the file."""
        system, at = self.opened()
        with self.saying(), suppress(*([FileNotFoundError] if missing_ok else [])):
            system.delete_file(at)


@lru_cache(maxsize=64)
def _system(root: str) -> tuple[Any, str]:
    from pyarrow.fs import FileSystem

    return FileSystem.from_uri(root)  # type: ignore[no-any-return]


def _reason(problem: BaseException) -> str:
    """What a file system says, in a line."""
    text = str(problem).split("\n")[0].split(" (Request ID")[0]
    text = re.sub(r" in URI: .*", "", re.sub(r"//[^/?@ ]*@", "//", text))
    if aws := re.search(r"AWS Error (\w+) .*? operation: (.*)", text):
        text = f"{aws[2].rstrip('.')} ({aws[1]})"
    if google := re.search(
        r"Status\((\w+): (?:.*message of )?(?:.*CURL error \[\d+\]=)?(.*?)(?: error_info=.*|\)?$)", text
    ):
        text = f"{google[2].rstrip('.')} ({google[1]})"
    if "libjvm" in text or "libhdfs" in text:
        text += ", and hdfs:// needs Java and Hadoop here: set JAVA_HOME, HADOOP_HOME and CLASSPATH"
    if "Unrecognized filesystem" in text:
        text = "pyarrow reads s3://, gs:// and hdfs://, and no other; fetch the file, and name where it lies here"
    return text[:200].rstrip(". ")
