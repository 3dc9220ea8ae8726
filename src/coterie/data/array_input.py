"""What a user gives as arrays: numbers for a net, of lists, tensors or a table's columns; labels beside X or in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.data.columns import at_rows
from coterie.data.labels import Coded, encode
from coterie.data.table import Table, to_pandas
from coterie.errors import CoterieError, listed, nearest, plural
from coterie.lazy_modules import pd

_FILES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".feather")


def is_table(rows: Any) -> bool:
    """Whether rows are a data frame, or named by the file of one."""
    if isinstance(rows, (str, Path)):
        return str(rows).lower().endswith(_FILES)
    return hasattr(rows, "columns") and not isinstance(rows, Mapping)


def arrays(
    rows: Any, target: str | None, inputs: Sequence[str] | None, beside: Sequence[str], named: Mapping[str, str]
) -> tuple[dict[str, npt.NDArray[Any]], tuple[str, ...]]:
    """X (n, p), y (n,) and those columns ``beside`` that are there; and the columns of X, by default all other numbers.

    Of those beside, the ``named`` ones must be there, by what they are for (client, group, weights, ...).

    A CoterieError for a column that is not there, is no number, or has a missing or infinite value.
    """
    if target is None:
        raise CoterieError("A table for a net needs target: name the column of outcomes, as in Torch(net, target='y').")
    from coterie.data.table_files import read_table

    table = Table.of(read_table(rows, list(beside)) if isinstance(rows, (str, Path)) else rows)
    table.need([target], "target")
    table.need(inputs or (), "input")
    for role, name in named.items():
        table.need([name], role)
    rest = [name for name in table.names if name not in (target, *beside) and table[name].stored == "number"]
    names = tuple(rest if inputs is None else inputs)
    if not names or target in names:
        why = "names the target" if names else "is no column of numbers beside the target"
        raise CoterieError(f"What the net is given (inputs) {why}: name columns, such as inputs={rest[:2]}.")
    y = as_labels(table[target].series, f"Column '{target}'") if table[target].stored != "number" else None
    y = _numbers(table, target) if y is None else y
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
        first = (
            "give texts as the numbers of their words" if " " in str(odd).strip() else "code categories as 0, 1, ..."
        )
        raise CoterieError(
            f"{what} must be real numbers, not of type {array.dtype}{like}: {first}, alike at all clients."
        )
    return array


def finite_rows(values: npt.ArrayLike, what: str) -> npt.NDArray[Any]:
    """Rows of finite numbers, or a CoterieError."""
    rows = as_numbers(values, what)
    if not rows.ndim:
        raise CoterieError(f"{what} must be numbers in an array, not one number.")
    if rows.dtype.kind == "f" and (bad := ~np.isfinite(rows).all(axis=tuple(range(1, rows.ndim)))).any():
        raise CoterieError(f"{what} have values that are not finite in {at_rows(bad)}: fill or drop them.")
    return rows


def as_labels(values: Any, what: str) -> npt.NDArray[Any] | None:
    """Classes that are named by text (n,), none of which is missing; None for what is no text."""
    array = np.asarray(values) if hasattr(values, "dtype") else as_array(values, what)
    text = array.dtype.kind in "US" or (array.dtype.kind == "O" and any(isinstance(v, str) for v in array.flat))
    if array.ndim != 1 or not text:
        return None
    if (coded := encode(array)).missing.any():
        raise CoterieError(f"{what} has no value in {at_rows(coded.missing)}: drop these rows, or give them a class.")
    return coded.labels[coded.codes].astype(str)


Column = int | str


def cluster_columns(clusters: Any) -> list[tuple[str, Any]]:
    """Cluster labels in any accepted form as (name, column) pairs, fine to coarse."""
    if clusters is None:
        return []
    if hasattr(clusters, "columns"):
        return [(str(c), clusters[c]) for c in clusters.columns]
    if hasattr(clusters, "name"):
        return [(str(clusters.name or "cluster"), clusters)]
    if not hasattr(clusters, "ndim"):
        clusters = np.array(clusters, dtype=object)
    if clusters.ndim == 1:
        return [("cluster", clusters)]
    if clusters.ndim != 2:
        raise CoterieError(f"clusters must have one or two dimensions, not {clusters.ndim}.")
    return [(f"cluster_{j + 1}", clusters[:, j]) for j in range(clusters.shape[1])]


def at_levels(clusters: Any, levels: list[str]) -> dict[str, Any]:
    """Cluster labels by the model's levels: by name where they have the names, else in their order."""
    columns = dict(cluster_columns(clusters)) if levels else {}
    if set(columns) <= set(levels):
        return columns
    if len(columns) != len(levels):
        raise CoterieError(
            f"clusters has {plural(len(columns), 'column')}; the model has the levels {', '.join(levels)}."
        )
    return dict(zip(levels, columns.values(), strict=True))


def coded_labels(values: Any, n: int, what: str) -> Coded:
    """The labels of n rows, none missing."""
    same_length({what: values}, n)
    column = encode(values)
    if column.missing.any():
        raise CoterieError(f"{what} has no label in {at_rows(column.missing)}: give each row one.")
    return column


def same_length(columns: dict[str, Any], n: int) -> None:
    """Raise CoterieError unless each of these has a label for each of n rows."""
    for what, values in columns.items():
        if not hasattr(values, "__len__") or len(getattr(values, "shape", (n,))) != 1:
            raise CoterieError(f"{what} must be one column with a label for each row, not {type(values).__name__}.")
        if len(values) != n:
            raise CoterieError(f"{what} has {plural(len(values), 'label')}; X has {plural(n, 'row')}.")


def as_list(columns: Column | Sequence[Column] | None) -> list[Column]:
    """None, one or several columns as a list."""
    if columns is None:
        return []
    return [columns] if isinstance(columns, (int, str, np.integer)) else list(columns)


def take_columns(X: Any, client: list[Column], clusters: list[Column]) -> tuple[Any, list[Any]]:
    """X without its label columns, and these."""
    columns = [*client, *clusters]
    left: Any
    taken: list[Any]
    if len(client) > 1:
        raise CoterieError(f"client_column names {plural(len(client), 'column')}; a client has one label.")
    if hasattr(X, "columns"):
        frame = to_pandas(X)
        names = [str(frame.columns[c]) if isinstance(c, (int, np.integer)) else c for c in columns]
        for name in names:
            if name not in frame.columns:
                raise CoterieError(f"X has no column '{name}'.{nearest(name, frame.columns)}")
        left, taken = frame.drop(columns=names), [frame[name] for name in names]
    else:
        array = np.asarray(X)
        for c in columns:
            if isinstance(c, str) or array.ndim != 2 or not -array.shape[1] <= c < array.shape[1]:
                raise CoterieError(f"X, of shape {array.shape}, has no column {c!r} to take labels from.")
        places = [int(c) for c in columns]
        left, taken = np.delete(array, places, axis=1), [array[:, c] for c in places]
    if left.shape[1] == 0:
        raise CoterieError("X has no column beside its label columns: add those to fit.")
    return left, taken


def columns_named(every: Sequence[str], columns: Sequence[Column], what: str) -> tuple[str, ...]:
    """Columns, given by name or position, by name."""
    for column in columns:
        if not isinstance(column, str) and not -len(every) <= column < len(every):
            raise CoterieError(f"{what} names column {column}; X has {plural(len(every), 'column')}.")
    return tuple(c if isinstance(c, str) else every[c] for c in columns)


def together(columns: list[Any]) -> Any:
    """Several label columns as a frame."""
    return pd.DataFrame({str(getattr(c, "name", None) or f"cluster_{j + 1}"): c for j, c in enumerate(columns)})


def column_names(estimator: Any) -> list[str]:
    """Names of the columns of an estimator's X; ``x0, x1, ...`` where it has none."""
    names = getattr(estimator, "feature_names_in_", None)
    return [f"x{j}" for j in range(estimator.n_features_in_)] if names is None else [str(n) for n in names]
