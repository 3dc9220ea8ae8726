"""Labels of clients and clusters that come with arrays: beside them, or as some of their columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.data.columns import at_rows
from coterie.data.labels import Coded, encode
from coterie.data.table import to_pandas
from coterie.errors import CoterieError, nearest

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
        raise CoterieError(f"clusters has {len(columns)} columns; the model has the levels {', '.join(levels)}.")
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
            raise CoterieError(f"{what} has {len(values):,} labels; X has {n:,} rows.")


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
        raise CoterieError(f"client_column names {len(client)} columns; a client has one label.")
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
            raise CoterieError(f"{what} names column {column}; X has {len(every)} columns.")
    return tuple(c if isinstance(c, str) else every[c] for c in columns)


def together(columns: list[Any]) -> Any:
    """Several label columns as a frame."""
    import pandas as pd

    return pd.DataFrame({str(getattr(c, "name", None) or f"cluster_{j + 1}"): c for j, c in enumerate(columns)})


def column_names(estimator: Any) -> list[str]:
    """Names of the columns of an estimator's X; ``x0, x1, ...`` where it has none."""
    names = getattr(estimator, "feature_names_in_", None)
    return [f"x{j}" for j in range(estimator.n_features_in_)] if names is None else [str(n) for n in names]
