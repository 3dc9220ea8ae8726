"""Prepared arrays of a site's last few tasks, on disk, for processes that live for one message."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from coterie.engines import checkpoint, wire
from coterie.errors import CoterieError

KEPT = 8
"""Tasks whose arrays are kept: those that were used last. Any other's are made again when it is asked for."""


def read(path: Path) -> Any:
    """What a file holds; None where there is none, or it is damaged."""
    try:
        found = checkpoint.read(path)
    except CoterieError:
        return None
    with suppress(OSError):
        os.utime(path)  # in use: not the next to go
    return found


def write(path: Path, arrays: Any) -> None:
    """Write a file, and remove those beside it that were not used for longest."""
    files = [other for other in path.parent.glob("*") if other != path]
    for old in sorted(files, key=lambda file: file.stat().st_mtime_ns)[: max(len(files) + 1 - KEPT, 0)]:
        old.unlink(missing_ok=True)
    checkpoint.write(path, wire.pieces(arrays))
