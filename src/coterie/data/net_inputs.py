"""What nets are given a row: one array, several by name or place, and series of any length.

All stay one NumPy array (n,), so that rows are taken, put together and counted as any others: a structured one of
several arrays (those by place are called "0", "1", ...), and one of arrays where rows have several lengths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.data.array_input import as_numbers
from coterie.errors import CoterieError, listed

Array = npt.NDArray[Any]


def as_inputs(values: Any, what: str) -> Array:
    """Numbers as an array (n, ...); a mapping, or a tuple of arrays, as a structured one; rows of several lengths.

    A list of mappings, or of tuples of arrays, one for each row, is one of several arrays, too. A CoterieError for what
    is no number, and for parts of several lengths.
    """
    if isinstance(values, list) and values and (isinstance(values[0], Mapping) or _by_place(values[0])):
        first = values[0]
        keys: list[Any] = list(first) if isinstance(first, Mapping) else list(range(len(first)))
        try:
            parts: Any = {str(key): [row[key] for row in values] for key in keys}
        except (KeyError, IndexError, TypeError) as e:
            raise CoterieError(f"All rows of {what} must have the same parts, {listed(map(str, keys))}.") from e
        return _structured(parts, what)
    if isinstance(values, Mapping):
        return _structured({str(name): part for name, part in values.items()}, what)
    if _by_place(values):
        return _structured({str(k): part for k, part in enumerate(values)}, what)
    if isinstance(values, np.ndarray) and values.dtype.names:
        return values
    return _ragged(values, what) if _uneven(values) else as_numbers(values, what)


def _by_place(values: Any) -> bool:
    """Whether these are several arrays, one after another in a tuple."""
    return isinstance(values, tuple) and len(values) > 1 and all(getattr(part, "ndim", 0) for part in values)


def _uneven(values: Any) -> bool:
    """Whether these are rows of several lengths: an array of arrays, or a list of rows that differ in it."""
    held = isinstance(values, np.ndarray) and values.dtype.kind == "O" and values.ndim == 1
    if not (held or isinstance(values, list)) or not len(values):
        return False
    if not all(isinstance(row, list | tuple) or getattr(row, "ndim", 0) for row in values):
        return False
    return held or len({len(row) for row in values}) > 1


def several(values: Any) -> bool:
    """Whether what was given is no single array of rows of one shape."""
    if isinstance(values, list) and values and (isinstance(values[0], Mapping) or _by_place(values[0])):
        return True
    return isinstance(values, Mapping) or _by_place(values) or _uneven(values) or not is_plain(values)


def _ragged(values: Any, what: str) -> Array:
    rows = [np.asarray(as_numbers(row, f"A row of {what}")) for row in values]
    kind = np.result_type(*([row for row in rows if row.size] or rows))  # an empty list has no type of its own
    if len({row.shape[1:] for row in rows if len(row)}) > 1:
        raise CoterieError(f"Rows of {what} may differ in length alone, not in what stands at each place.")
    out = np.empty(len(rows), dtype=object)
    inner = next((row.shape[1:] for row in rows if len(row)), ())
    out[:] = [row.astype(kind).reshape(-1, *inner) for row in rows]
    return out


def _structured(parts: Mapping[str, Any], what: str) -> Array:
    if not parts:
        raise CoterieError(f"{what} has no part: give one array at least.")
    made = {name: as_inputs(part, f"{name} of {what[0].lower()}{what[1:]}") for name, part in parts.items()}
    counts = {len(part) if part.ndim else -1 for part in made.values()}
    if len(counts) > 1 or -1 in counts:
        shapes = listed([f"{name} {part.shape}" for name, part in made.items()])
        raise CoterieError(f"The parts of {what} must have one row for each other, and have the shapes {shapes}.")
    if nested := [name for name, part in made.items() if part.dtype.names]:
        raise CoterieError(f"{nested[0]} of {what} has parts itself: give one array for each.")
    out = np.empty(counts.pop(), dtype=[(name, part.dtype, part.shape[1:]) for name, part in made.items()])
    for name, part in made.items():
        out[name] = part
    return out


def together(parts: list[Array], what: str) -> Array:
    """Rows of several arrays, one after another; a CoterieError where they are not alike."""
    names = parts[0].dtype.names
    if any(part.dtype.names != names for part in parts):
        raise CoterieError(f"All of {what} must have the same parts.")
    if names:
        return _structured(
            {name: together([part[name] for part in parts], f"{name} of {what}") for name in names}, what
        )
    if any(part.dtype.kind == "O" for part in parts):
        return _ragged([row for part in parts for row in part], what)
    try:
        return np.concatenate(parts)
    except ValueError as e:
        raise CoterieError(f"{what} must have one shape: {e}.") from e


def is_plain(array: Any) -> bool:
    """Whether these are rows of one array and of one shape."""
    return not (isinstance(array, np.ndarray) and (array.dtype.names or _uneven(array)))


def leaves(array: Array) -> dict[str, Array]:
    """The arrays by name; "" is the name of a single one."""
    return {name: array[name] for name in array.dtype.names} if array.dtype.names else {"": array}


def longest(*arrays: Array) -> dict[str, int]:
    """The length of the longest row of each part whose rows have several lengths."""
    out: dict[str, int] = {}
    for name, part in (pair for array in arrays for pair in leaves(array).items() if pair[1].dtype.kind == "O"):
        out[name] = max(out.get(name, 1), *map(len, part))
    return out


def lengths_of(said: tuple[str, ...]) -> dict[str, int]:
    """The lengths that a :func:`layout` names, as :func:`longest` has them."""
    parts = (one.rsplit(":", 2) for one in said)
    return {name: int(shape.split("x")[0][1:]) for name, _, shape in parts if shape[1:] and shape[0] == "*"}


def layout(array: Array, lengths: Mapping[str, int] | None = None) -> tuple[str, ...]:
    """What a row is: "name:i:12x3" for each array, "f" for real numbers, "*" for any length, "*9" with the longest."""
    out = []
    for name, part in leaves(array).items():
        series = part.dtype.kind == "O"
        first = part[0] if series and len(part) else part
        shape = [f"*{(lengths or {}).get(name, '')}" * series, *map(str, first.shape[1:])]
        out.append(f"{name}:{'f' if first.dtype.kind == 'f' else 'i'}:{'x'.join(filter(None, shape))}")
    return tuple(out)


def as_laid_out(values: Any, said: tuple[str, ...], what: str) -> Array:
    """Rows of a :func:`layout`, also where all that are given have one length, or none is; else a CoterieError."""
    rows = as_inputs(values, what)
    if not len(rows):
        return blank(said)[:0]
    kinds = {name: (kind, shape) for name, kind, shape in (one.rsplit(":", 2) for one in said)}
    made = {}
    for name, part in leaves(rows).items():
        kind, shape = kinds.get(name, ("", ""))
        if "*" in shape and part.dtype.kind != "O" and part.ndim > 1:
            part = _ragged([*part], what)
        made[name] = _of_kind(part, kind)
    order = sorted(made, key=[*kinds, *made].index)
    rows = made[""] if order == [""] else _structured({name: made[name] for name in order}, what)
    if (found := layout(rows, lengths_of(said))) != said:
        raise CoterieError(f"{what} must be {_in_words(said)}, not {_in_words(found)}.")
    return rows


def _of_kind(part: Array, kind: str) -> Array:
    """Whole numbers among real ones, and empty rows, which have no type of their own, as numbers of a kind."""
    rows = [*part] if part.dtype.kind == "O" else [part]
    if any(row.size for row in rows) and (kind != "f" or rows[0].dtype.kind not in "iu"):
        return part
    out = np.empty(len(rows), dtype=object)
    out[:] = rows = [row.astype(np.float32 if kind == "f" else np.int64) for row in rows]
    return out if part.dtype.kind == "O" else rows[0]


def _in_words(said: tuple[str, ...]) -> str:
    """A :func:`layout` as a sentence has it."""
    out = []
    for name, kind, shape in (one.rsplit(":", 2) for one in said):
        sides = shape.split("x") if shape else []
        each = " x ".join("any number" if side[0] == "*" else side for side in sides) or "one"
        numbers = f"{'real' if kind == 'f' else 'whole'} numbers, {each} a row"
        out.append(f"{name} ({numbers})" if name else numbers)
    return listed(out)


def blank(said: tuple[str, ...]) -> Array:
    """A row of zeros of a :func:`layout`."""
    made: dict[str, Any] = {}
    for name, kind, shape in (one.rsplit(":", 2) for one in said):
        sides = [1 if side[0] == "*" else int(side) for side in shape.split("x") if side]
        zero = np.zeros(sides, np.float32 if kind == "f" else np.int64)
        made[name] = np.empty(1, dtype=object) if "*" in shape else zero[None]
        if "*" in shape:
            made[name][0] = zero
    return as_inputs(made[""] if [*made] == [""] else made, "A row")


def finite_rows(array: Array) -> npt.NDArray[np.bool_]:
    """Rows (n,) whose numbers are all finite."""
    good = np.ones(len(array), dtype=bool)
    for part in leaves(array).values():
        if part.dtype.kind == "O":
            good &= np.array([bool(np.isfinite(row).all()) for row in part], dtype=bool)
        elif part.dtype.kind == "f":
            good &= np.isfinite(part).all(axis=tuple(range(1, part.ndim)))
    return good


def hashed(array: Array) -> Iterator[memoryview]:
    """The bytes that tell an array from others."""
    for part in leaves(array).values():
        if part.dtype.kind == "O":
            yield np.array([len(row) for row in part], dtype=np.int64).data
            part = np.concatenate([*part]) if len(part) else np.zeros(0)
        yield np.ascontiguousarray(part).data
