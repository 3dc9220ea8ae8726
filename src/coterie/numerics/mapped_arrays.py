"""Large arrays in temporary files, of which memory holds what is being worked on: zeros take no room on disk.

The files have no names, so that they are gone with the process, however it ends.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError

LARGE = 1 << 28  # bytes from which on an array lies in a file


class Mapped(np.memmap):
    """An array in a temporary file, and the number of the file where it is all of it."""

    file: int | None = None


def zeros(shape: tuple[int, ...], dtype: npt.DTypeLike, whole: bool = False) -> npt.NDArray[Any]:
    """An array of zeros, in a file where it is large; ``whole``: all of it is about to be written."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if size < LARGE:
        return np.zeros(shape, dtype)
    with tempfile.TemporaryFile() as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size) if whole else os.ftruncate(file.fileno(), size)
        except OSError as problem:
            raise _full(size, problem) from problem
        found = Mapped(file, dtype, "r+", shape=shape)
        found.file = os.dup(file.fileno())
    weakref.finalize(found, os.close, found.file)
    return found


def write(array: npt.NDArray[Any], rows: slice | npt.NDArray[np.int64], values: npt.NDArray[Any]) -> None:
    """``array[rows] = values``; a CoterieError where the disk is full, of which a mapped page would not tell."""
    if not (isinstance(array, Mapped) and array.file is not None):
        array[rows] = values
        return
    if not len(values):
        return
    values = np.ascontiguousarray(values, dtype=array.dtype)
    each, at = array.nbytes // len(array), np.arange(len(array))[rows]
    first = np.flatnonzero(np.diff(at, prepend=-2) != 1)  # runs of neighbours are written at once
    try:
        for lo, hi in zip(first, [*first[1:], len(at)], strict=True):
            part, place = values[lo:hi].data.cast("B"), int(at[lo]) * each
            while part:
                done = os.pwrite(array.file, part, place)
                part, place = part[done:], place + done
    except OSError as problem:
        raise _full(values.nbytes, problem) from problem


def copy(array: npt.NDArray[Any], written: npt.NDArray[np.bool_] | None) -> npt.NDArray[Any]:
    """Another array with the same numbers, which are zero but in the rows that were ``written`` (None: all)."""
    if not isinstance(array, Mapped):
        return array.copy()
    out, rows = zeros(array.shape, array.dtype), np.arange(len(array)) if written is None else np.flatnonzero(written)
    for at in range(0, len(rows), step := max(LARGE * len(array) // array.nbytes, 1)):
        write(out, rows[at : at + step], array[rows[at : at + step]])
        release(array)
    return out


def release(array: Any) -> None:
    """Let memory go that shows an array's file; it is read again when it is asked for."""
    while isinstance(array, np.ndarray) and not (isinstance(array, Mapped) and array.file is not None):
        array = array.base
    if isinstance(array, Mapped) and hasattr(mmap, "MADV_DONTNEED"):
        array._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


def _full(size: int, problem: OSError) -> CoterieError:
    return CoterieError(
        f"{size:,} bytes of clients' models cannot be written to '{tempfile.gettempdir()}' ({problem.strerror}): free "
        "room there, or name another folder in the environment variable TMPDIR."
    )
