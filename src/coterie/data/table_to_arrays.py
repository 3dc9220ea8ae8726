"""Arrays of what a user gives for a net: lists, tensors, or columns of a table (inputs, target, whose row it is)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.data.columns import at_rows
from coterie.data.table import Table
from coterie.data.table_files import read_table
from coterie.errors import CoterieError, listed

_FILES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".feather")


def is_table(rows: Any) -> bool:
    """Whether rows are a data frame, or named by the file of one."""
    if isinstance(rows, (str, Path)):
        return str(rows).lower().endswith(_FILES)
    return hasattr(rows, "columns") and not isinstance(rows, Mapping)


def arrays(
    rows: Any, target: str | None, inputs: Sequence[str] | None, beside: Sequence[str]
) -> tuple[dict[str, npt.NDArray[Any]], tuple[str, ...]]:
    """X (n, p), y (n,) and those columns ``beside`` that are there; and the columns of X, by default all other numbers.

    A CoterieError for a column that is not there, is no number, or has a missing or infinite value.
    """
    if target is None:
        raise CoterieError("A table for a net needs target: name the column of outcomes, as in Torch(net, target='y').")
    table = Table.of(read_table(rows, list(beside)) if isinstance(rows, (str, Path)) else rows)
    table.need([target], "target")
    table.need(inputs or (), "input")
    rest = [name for name in table.names if name not in (target, *beside) and table[name].stored == "number"]
    names = tuple(rest if inputs is None else inputs)
    if not names or target in names:
        why = "names the target" if names else "is no column of numbers beside the target"
        raise CoterieError(f"What the net is given (inputs) {why}: name columns, such as inputs={rest[:2]}.")
    y = _numbers(table, target)
    if y.dtype.kind == "f" and np.array_equal(y, np.rint(y)) and np.abs(y).max(initial=0) < 2**53:
        y = y.astype(np.int64)
    found = {"X": np.column_stack([_numbers(table, name) for name in names]).astype(np.float64), "y": y}
    return found | {name: table.frame[name].to_numpy() for name in beside if name in table}, names


def matrix(rows: Any, inputs: Sequence[str]) -> npt.NDArray[Any]:
    """Rows to predict, as the net is given them."""
    table = Table.of(rows)
    table.need(inputs, "input")
    return np.column_stack([_numbers(table, name) for name in inputs]).astype(np.float64)


def _numbers(table: Table, name: str) -> npt.NDArray[Any]:
    """A column as finite numbers."""
    column = table[name]
    if column.stored != "number":
        raise CoterieError(
            f"Column '{name}' is no number, as a net needs: make a column of 0 and 1 of each value, or codes 0, 1, ... "
            f"of a target's. There are the numbers {listed(n for n in table.names if table[n].stored == 'number')}."
        )
    values = np.asarray(column.numbers)
    if values.dtype.kind == "f" and (bad := ~np.isfinite(values)).any():
        raise CoterieError(
            f"Column '{name}' has missing or infinite values in {at_rows(bad)}: fill or drop these rows."
        )
    return values


def as_array(values: Any, what: str) -> npt.NDArray[Any]:
    """An array; a CoterieError for what is sparse, masked, or of rows of several shapes."""
    if values is None:
        raise CoterieError(f"{what} must be numbers in an array, not None.")
    if hasattr(values, "toarray"):
        raise CoterieError(f"{what} must be a plain array, not a sparse matrix: give X.toarray().")
    if np.ma.is_masked(values):
        raise CoterieError(f"{what} must not be masked: fill masked values first (X.filled(...)).")
    try:
        return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    except Exception as problem:
        why = str(problem).partition("\n")[0] or type(problem).__name__
        raise CoterieError(
            f"{what} must be one array of numbers, with rows of one shape: {why}. Pad the rows, cut them, or give a "
            "Dataset for each client whose loader has a collate_fn that does."
        ) from problem


def as_numbers(values: Any, what: str) -> npt.NDArray[Any]:
    """An array of real numbers, None in it as NaN; a CoterieError for other types."""
    array = as_array(values, what)
    if array.dtype.kind == "O" and all(v is None or isinstance(v, Real | np.bool_) for v in array.flat):
        array = np.array(array.tolist())
        array = array.astype(np.float64) if array.dtype.kind == "O" else array
    if array.dtype.kind not in "biuf":
        odd = next((v for v in array.flat if not isinstance(v, Real)), "")
        like = f" (such as '{odd!s:.40}')" if array.size else ""
        raise CoterieError(
            f"{what} must be real numbers, not of type {array.dtype}{like}: code classes and categories as 0, 1, ... "
            "alike at all clients first."
        )
    return array
