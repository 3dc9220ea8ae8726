"""Files that commands write: whether they may, before any work; and how the next command knows its own."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from coterie import files
from coterie.cli.terminal import say
from coterie.errors import CoterieError, listed
from coterie.remote import Url

if TYPE_CHECKING:
    import pandas as pd

    from coterie.results.fit_result import FitResult


def check_table(out: Path, inputs: Iterable[Path], force: bool, kind: str) -> None:
    """Refuse a file that a table of a command (``kind``) cannot, or must not, be written to before any work."""
    from coterie.data.table_files import check_writable

    check_writable(out)
    need_room(out, inputs, force, ours(kind))


def write_table(frame: pd.DataFrame, out: Path, kind: str, sentence: str = "") -> None:
    """Write a table of a command, and say so."""
    from coterie.data import table_files

    table_files.write_table(frame, out)
    wrote(kind, out, sentence)


def write_fit(result: FitResult, out: Path, force: bool) -> None:
    """Write model and report into a folder: both or, on any error, neither."""
    if isinstance(out, Url):  # where a file is put once it is whole, and a folder is none
        result.save(out, force=force)
        result.report(out / "report.html")
        return
    folder = out if out.is_dir() else out.with_name(f".{out.name}.{os.getpid()}.part")
    draft = folder / f".report.{os.getpid()}.html"
    try:
        with writing(out):
            folder.mkdir(parents=True, exist_ok=True)
            result.report(draft)
            result.save(folder, force=force)
            draft.replace(folder / "report.html")
            if folder != out:
                folder.rename(out)
    except OSError as e:
        raise CoterieError(f"'{out}' cannot be written: {e.strerror or e}.") from e
    except CoterieError as e:  # names the draft
        text = str(e).replace(str(draft), str(out / "report.html")).replace(str(folder), str(out))
        raise CoterieError(text) from e
    finally:
        draft.unlink(missing_ok=True)
        if folder != out:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Write what :func:`need_room` found room for into a folder; a CoterieError where another command has or does."""
    busy = (
        f"Another command wrote to '{out}' meanwhile: name another folder, or run this again to replace what it wrote."
    )
    try:
        with files.alone(out) if out.is_dir() else nullcontext():
            if any(path.parent == out and _state(path) != before for path, before in OUTPUTS):
                raise CoterieError(busy)
            yield
    except OSError as e:
        if isinstance(e, BlockingIOError) or e.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise CoterieError(busy) from e
        raise


def check_page(out: Path, inputs: Iterable[Path], force: bool) -> None:
    """Refuse a file that a report cannot, or must not, be written to before any work."""
    if out.is_dir() and not out.suffix:
        raise CoterieError(f"'{out}' is a folder; name a file that ends in .html.")
    if out.suffix.lower() not in (".html", ".htm"):
        raise CoterieError(f"'{out.name}' does not end in .html; the report is a page for a browser.")
    if not (isinstance(above := out.absolute().parent, Url) or above.is_dir()):
        raise CoterieError(f"'{out}' cannot be written: there is no folder '{above}'.")
    files.need_writable(out, above)
    need_room(out, inputs, force, our_page)


def check_folder(out: Path, option: str = "--out") -> None:
    """Refuse a place that cannot be written to before any work, not after it."""
    if out.exists() and not out.is_dir():
        raise CoterieError(f"'{out}' is a file; {option} names a folder.")
    above = out.absolute()
    while not (isinstance(above, Url) or above.exists()):
        above = above.parent
    if not (isinstance(above, Url) or above.is_dir()):
        raise CoterieError(f"'{out}' cannot be made, because '{above}' is a file.")
    files.need_writable(out, above)


def need_room(
    out: Path, inputs: Iterable[Path], force: bool, ours: Callable[[Path], bool], other: str = "another file"
) -> None:
    """Refuse to write over an input of the same command or, unless forced to, over what coterie did not write."""
    OUTPUTS.append((out, _state(out)))
    if not out.exists() or out.is_dir():  # of a folder its writer complains
        return
    if any(path.exists() and out.samefile(path) for path in inputs):  # by any path, symbolic and hard links too
        raise CoterieError(f"'{out}' is the table itself or another input; name {other}.")
    if not force and not ours(out):
        raise CoterieError(
            f"'{out}' is there already, and coterie did not write it, or it was changed since: name {other}, or "
            "replace it with --force."
        )


OUTPUTS: list[tuple[Path, tuple[int, ...] | None]] = []
"""What the command may write, and the state in which it found it."""


def _state(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def interrupted() -> None:
    """Say what an interrupted command wrote: whole files, or nothing."""
    written = [repr(str(path)) for path, before in OUTPUTS if _state(path) != before]
    say(f"Interrupted: {listed(written) if written else 'nothing'} was written.", error=True)


def ours(kind: str) -> Callable[[Path], bool]:
    """Whether a file is what a command (``kind``) wrote before, byte by byte: a table bears no mark of who wrote it."""

    def same(path: Path) -> bool:
        return path.stat().st_size == 0 or _mark(kind, path) in _marks()

    return same


def wrote(kind: str, path: Path, sentence: str = "") -> None:
    """Say that a file was written, and remember its digest, by which the same command may replace it without force.

    Digests are kept in the user's folder for the state of programs. Where that cannot be written to, ``--force`` is
    asked for next time, and nothing else happens.
    """
    with suppress(OSError, RuntimeError):
        new = _mark(kind, path)
        marks = [mark for mark in _marks() if mark != new][-_MARKS:]
        _book().parent.mkdir(parents=True, exist_ok=True)
        files.write(_book(), ["\n".join([*marks, new, ""]).encode()], mode=0o600, durable=False)
    say(sentence or f"Written to {path}.")


_MARKS = 10_000
"""Files that are remembered at most."""


def _book() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(state) if state else Path.home() / ".local" / "state") / "coterie" / "written"


def _marks() -> list[str]:
    try:
        return files.content(_book()).decode(errors="replace").splitlines()
    except (OSError, RuntimeError):  # there is none, or no home
        return []


def _mark(kind: str, path: Path) -> str:
    import hashlib  # OpenSSL, which no command needs that writes nothing

    with path.open("rb") as file:
        return f"{kind} {hashlib.file_digest(file, 'sha256').hexdigest()}"


def our_page(path: Path) -> bool:
    """Whether a file is a report of coterie's."""
    with path.open("rb") as file:
        return b'<meta name="generator" content="coterie">' in file.read(4096)


def our_document(form: str) -> Callable[[Path], bool]:
    """Whether a JSON file is of one of coterie's formats."""

    def ours(path: Path) -> bool:
        try:
            return bool(json.loads(path.read_bytes()).get("format") == form)
        except (ValueError, AttributeError, RecursionError):
            return False

    return ours
