"""TOML files of a federation: read as declared options, written whole or not at all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from coterie import files, options
from coterie.engines.checkpoint_and_journal import write_durable
from coterie.errors import CoterieError, or_say

T = TypeVar("T")


def into(cls: type[T], path: Path, what: str) -> T:
    """What a file says as a ``cls``, a dataclass of declared options; a CoterieError says what is wrong."""
    tables = files.read_toml(path, what)
    try:
        return options.of(cls, tables, f"'{path}'", noun="key")
    except CoterieError as problem:
        raise problem if str(path) in str(problem) else CoterieError(f"'{path}': {problem}") from problem


def write(path: Path, tables: Mapping[str, Any], head: str = "", remarks: Mapping[str, str] | None = None) -> None:
    """Write a file so that after any fault it is the old one or the new one, whole.

    ``head`` is a comment above, ``remarks`` are comments behind the lines of keys.
    """
    comment = "".join(f"# {line}\n" for line in head.splitlines())
    lines = text(tables)
    for key, remark in (remarks or {}).items():
        said = remark.replace("\\", r"\\")
        lines = re.sub(rf"^({re.escape(key)} = .*)$", rf"\1  # {said}", lines, flags=re.MULTILINE)
    with or_say(f"'{path}' cannot be written"):
        write_durable(path, [(comment + lines).encode()])


def text(tables: Mapping[str, Any]) -> str:
    """TOML of text, truth values, numbers, lists of them, and tables within tables; None is left out."""
    try:
        from tomli_w import dumps
    except ImportError:
        raise CoterieError(
            "A federation's files are written by tomli-w: pip install 'coterie[flower]' or 'coterie[nvflare]'."
        ) from None
    try:
        return dumps(files.plain(tables))
    except TypeError as problem:
        raise CoterieError(f"A configuration holds text, numbers, lists and tables: {problem}.") from problem
