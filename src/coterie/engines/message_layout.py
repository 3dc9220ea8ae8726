"""What all engines share: addresses, messages cut to the receiver, and replies put together again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Array, By, Clusters, Ints, PerCluster, PerRow, Ragged, Roster, Rows, To, readonly


def roster(m: int, clusters: Any = None, ids: Any = None) -> Roster:
    """Checked ids and clusters of ``m`` clients; by default one cluster, and positions as ids."""
    numbers = np.zeros(m, np.int64) if clusters is None else np.asarray(clusters)
    names = np.arange(m, dtype=np.uint64) if ids is None else np.asarray(ids, dtype=np.uint64)
    if numbers.shape != (m,) or names.shape != (m,):
        raise CoterieError(f"clusters {numbers.shape} and ids {names.shape} need one entry for each of {m} clients.")
    if numbers.dtype.kind not in "iu" or (m and (numbers[0] < 0 or np.any(numbers[1:] < numbers[:-1]))):
        raise CoterieError("Clusters must be sorted integers from 0: sort the clients by cluster first.")
    if ids is not None and len(np.unique(names)) < m:
        raise CoterieError("Two clients have the same id: ids must differ, or their random numbers would be the same.")
    return Roster(names, numbers.astype(np.int64, copy=False))


def shares(m: int, weights: Any = None) -> Array:
    """Checked weights of ``m`` clients; by default 1."""
    array = np.ones(m) if weights is None else np.asarray(weights, dtype=np.float64)
    if array.shape != (m,):
        raise CoterieError(f"weights {array.shape} need one entry for each of {m} clients.")
    return array


def addressed(to: To, clients: Roster) -> Ints | None:
    """Client index of each request, read-only; None for all. A CoterieError for a wrong mask or index."""
    if to is None:
        return None
    if isinstance(to, Clusters):
        mask = np.asarray(to.mask, dtype=bool)
        if mask.shape != (clients.k,):
            raise CoterieError(f"Clusters needs a mask over {clients.k} clusters, not {mask.shape}.")
        return readonly(np.flatnonzero(mask[clients.clusters]))
    rows = np.atleast_1d(np.asarray(to))
    if rows.dtype == bool:
        if np.shape(to) != (len(clients),):
            raise CoterieError(f"A mask needs one entry for each of {len(clients)} clients, not {np.shape(to)}.")
        return readonly(np.flatnonzero(rows))
    if rows.size and (rows.ndim != 1 or rows.dtype.kind not in "iu"):
        raise CoterieError("`to` must be None, client indices, a mask, or Clusters(mask).")
    if rows.size and (rows.min() < 0 or rows.max() >= len(clients)):
        raise CoterieError(f"`to` names a client outside 0..{len(clients) - 1}.")
    return readonly(rows.reshape(-1).astype(np.int64))


def grouped(by: By, clusters: Ints, groups: int | None, k: int) -> tuple[Ints, int]:
    """Group of each request, and the number of groups."""
    if isinstance(by, str):
        if by != "cluster":
            raise CoterieError(f"`by` must be None, 'cluster', or a label for each request, not {by!r}.")
        labels, size = clusters, k
    else:
        labels = np.asarray(by)
        if labels.shape != clusters.shape or (labels.size and labels.dtype.kind not in "iu"):
            raise CoterieError(f"`by` needs an integer label for each of {len(clusters)} requests.")
        labels = labels.astype(np.int64)
        size = int(labels.max()) + 1 if labels.size else 0
        if labels.size and labels.min() < 0:
            raise CoterieError("Labels in `by` must not be negative.")
    if groups is not None and groups < (labels.max() + 1 if labels.size else 0):
        raise CoterieError(f"`by` holds label {labels.max()}, outside {groups} groups.")
    return labels, size if groups is None else groups


@dataclass(frozen=True)
class Segments:
    """Runs of equal labels: which rows to bring together, where runs start, and whose they are."""

    order: Ints | None
    starts: Ints
    present: Rows

    @classmethod
    def of(cls, labels: Ints) -> Segments:
        """Segments of a non-empty label array in any order."""
        order = None
        if np.any(labels[1:] < labels[:-1]):
            order = np.argsort(labels, kind="stable")
            labels = labels[order]
        starts = np.flatnonzero(np.concatenate([[True], labels[1:] != labels[:-1]]))
        return cls(order, starts, compact(labels[starts]))

    def add(self, values: Array) -> Array:
        """Sums of ``values`` within segments, narrow floats in double precision."""
        dtype = np.float64 if values.dtype.kind == "f" else None
        if len(self.starts) == 1:
            return np.asarray(values.sum(axis=0, dtype=dtype))[None]
        if self.order is not None:
            values = values[self.order]
        return np.asarray(np.add.reduceat(values, self.starts, axis=0, dtype=dtype))


def compact(rows: Ints) -> Rows:
    """Rising neighbours as a slice, which numpy takes as a view; anything else unchanged."""
    n = len(rows)
    if n and rows[-1] - rows[0] == n - 1 and (n < 3 or bool(np.all(rows[1:] - rows[:-1] == 1))):
        return slice(int(rows[0]), int(rows[0]) + n)
    return rows


def localise(value: Any, rows: Rows, present: Rows, wrapped: bool = False) -> Any:
    """A message value as the clients ``rows`` of clusters ``present`` receive it, read-only; or still ``wrapped``."""
    if isinstance(value, PerRow | PerCluster):
        part = pick(value.value, rows if isinstance(value, PerRow) else present)
        if wrapped:
            return type(value)(part)
        if isinstance(part, list):  # arrays of unequal shapes come one by one
            (one,) = part
            return readonly(one)[None]
        return part
    if isinstance(value, np.ndarray):
        return readonly(value)
    if isinstance(value, Ragged):
        return value.take(slice(None))
    if isinstance(value, Mapping):
        return {name: localise(v, rows, present, wrapped) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [localise(v, rows, present, wrapped) for v in value]
    return value


def pick(value: Any, rows: Rows) -> Any:
    """Rows of an array (read-only), a Ragged, a dict of them, or a list."""
    if isinstance(value, np.ndarray):
        return readonly(value[rows])
    if isinstance(value, Ragged):
        return value.take(rows)
    if isinstance(value, dict):
        return {name: pick(v, rows) for name, v in value.items()}
    return value[rows] if isinstance(rows, slice) else [value[r] for r in rows]


def unequal(value: Any) -> bool:
    """Whether a message carries clusters with unequal shapes, so that work is called once for each cluster."""
    if isinstance(value, PerCluster):
        return value.unequal
    if isinstance(value, Mapping):
        return any(map(unequal, value.values()))
    return isinstance(value, list | tuple) and any(map(unequal, value))
