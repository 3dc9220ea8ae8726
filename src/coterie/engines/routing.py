"""Who is asked what: which clients a request is for, and it and its message cut to the sites that hold them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Array, By, Clusters, Ints, PerCluster, PerRow, Ragged, Roster, Rows, To, readonly


@dataclass(frozen=True)
class Part:
    """One site's share of a request: n requests, to ``sizes`` (p,) clients of the clusters ``present`` (p,), rising.

    ``rows`` is what the site is told: None for all of its clients, a mask over its clusters, or a client for each
    request.
    """

    site: int
    n: int
    rows: Any
    present: Ints
    sizes: Ints
    _at: Callable[[], Rows]

    @cached_property
    def at(self) -> Rows:
        """Positions of the site's clients in the request."""
        return self._at()

    @cached_property
    def clusters(self) -> Rows:
        """The clusters that are asked, as a slice where they are neighbours."""
        return compact(self.present)


@dataclass(frozen=True)
class Address:
    """Who is asked: the client of each request, and the parts of the sites that hold them, in the sites' order."""

    to: Any  # what tells this address from others: None for everyone, a mask over clusters, or rows
    rows: Ints
    parts: list[Part]


def tally(parts: Iterable[Part], k: int) -> Ints:
    """How many clients of each of ``k`` clusters some parts ask, (k,) int64."""
    found = np.zeros(k, np.int64)
    for part in parts:
        found[part.present] += part.sizes
    return found


class Addresses:
    """Which site holds which client: ``sites`` are the clients of each, rising."""

    def __init__(self, clients: Roster, sites: Sequence[Ints]) -> None:
        self._clients, self._sites = clients, sites
        self._owner = np.empty(len(clients), np.int64)
        self._local = np.empty(len(clients), np.int64)
        for s, rows in enumerate(sites):
            self._owner[rows], self._local[rows] = s, np.arange(len(rows))
        self._present = [np.unique(clients.clusters[rows], return_counts=True) for rows in sites]
        parts = [
            Part(s, len(rows), None, *self._present[s], partial(compact, rows))
            for s, rows in enumerate(sites)
            if len(rows)
        ]
        self._everyone = Address(None, readonly(np.arange(len(clients))), parts)

    def of(self, to: To) -> Address:
        """The address that ``to`` stands for, as in :meth:`coterie.federation.Federation.ask`."""
        rows = addressed(to, self._clients)
        if rows is None:
            return self._everyone
        return self._clusters(to, rows) if isinstance(to, Clusters) else self._some(rows)

    def _clusters(self, to: Clusters, rows: Ints) -> Address:
        """Sites are told clusters, which are fewer than clients."""
        mask, parts = np.asarray(to.mask, dtype=bool), []
        for s, (present, sizes) in enumerate(self._present):
            own = mask[present]
            if own.any():
                n, at = int(sizes[own].sum()), partial(self._places, mask, self._sites[s])
                parts.append(Part(s, n, None if own.all() else own, present[own], sizes[own], at))
        return Address(mask, rows, parts)

    def _places(self, mask: Any, clients: Ints) -> Rows:
        """Where some clients stand among those of the clusters in a mask."""
        chosen = mask[self._clients.clusters]
        return compact((np.cumsum(chosen) - 1)[clients[chosen[clients]]])

    def _some(self, rows: Ints) -> Address:
        owners = self._owner[rows]
        order = np.argsort(owners, kind="stable")
        edges = np.searchsorted(owners[order], np.arange(len(self._sites) + 1))
        parts = []
        for s, at in enumerate(np.split(order, edges[1:-1])):
            if len(at):
                present, sizes = np.unique(self._clients.clusters[rows[at]], return_counts=True)
                told = small(self._local[rows[at]])
                parts.append(Part(s, len(at), told, present, sizes, partial(compact, at)))
        return Address(rows, rows, parts)


class Grouping:
    """Which sums a request asks for: one of everything, one for each cluster, or one for each label."""

    def __init__(self, by: By, groups: int | None, address: Address, clients: Roster) -> None:
        self._address, self._clients = address, clients
        self.by = by if isinstance(by, str) else None
        self.size: int | None = None  # number of groups; None: one sum, without an axis of groups
        self.labels: Ints | None = None  # (n,) group of each request, where they are not clusters
        self._found: dict[int, tuple[Ints, Ints]] = {}
        if self.by is not None:
            _, self.size = grouped(by, np.flatnonzero(tally(address.parts, clients.k)), groups, clients.k)
        elif by is not None:
            self.labels, self.size = grouped(by, address.rows, groups, clients.k)

    def of(self, part: Part) -> Ints:
        """The groups of a site's requests, rising; [0] where there is one sum."""
        if self.labels is not None:
            return self._at(part)[0]
        return part.present if self.by is not None else np.zeros(1, np.int64)

    def site_labels(self, part: Part) -> Any:
        """What a site is told: the groups are its own, from 0."""
        return self.by if self.labels is None else small(self._at(part)[1])

    def rows(self, part: Part) -> int | None:
        """How many sums a site answers; None: one, without an axis of groups."""
        return None if self.size is None else len(self.of(part))

    def count(self, answered: Ints) -> Any:
        """How many of the requests ``answered`` each sum holds."""
        clusters = self._clients.clusters
        if self.by is None:
            return counts(self.labels, self.size, answered)
        if len(answered) == len(self._address.rows):
            return tally(self._address.parts, self.size or 0)
        return counts(clusters[self._address.rows], self.size, answered)

    def _at(self, part: Part) -> tuple[Ints, Ints]:
        if part.site not in self._found and self.labels is not None:
            self._found[part.site] = np.unique(self.labels[part.at], return_inverse=True)
        return self._found[part.site]


def small(numbers: Ints) -> Any:
    """Whole numbers from 0 in the smallest type that holds them, for the wire."""
    return numbers.astype(np.min_scalar_type(int(numbers.max()) if len(numbers) else 0))


def counts(labels: Ints | None, groups: int | None, answered: Rows) -> Any:
    """How many requests were added, in all or by group."""
    if labels is None or groups is None:
        return int(answered.stop) - int(answered.start) if isinstance(answered, slice) else len(answered)
    return np.bincount(labels[answered], minlength=groups)


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


def compact(rows: Ints) -> Rows:
    """Rising neighbours as a slice, which numpy takes as a view; anything else unchanged."""
    n = len(rows)
    if n and rows[-1] - rows[0] == n - 1 and (n < 3 or bool(np.all(rows[1:] - rows[:-1] == 1))):
        return slice(int(rows[0]), int(rows[0]) + n)
    return rows


def localise(value: Any, place: Any, wrapped: bool = False) -> Any:
    """A message value as the clients at a ``place`` receive it, read-only; or still ``wrapped``.

    The place has ``clusters``, and positions ``at``, which are found only where a value has a row for each request.
    """
    if isinstance(value, (PerRow, PerCluster)):
        part = pick(value.value, place.at if isinstance(value, PerRow) else place.clusters)
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
        return {name: localise(v, place, wrapped) for name, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [localise(v, place, wrapped) for v in value]
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
    if isinstance(value, (np.ndarray, float)):  # nearly always, and whether it is a mapping is slow to find out
        return False
    if isinstance(value, PerCluster):
        return value.unequal
    if isinstance(value, Mapping):
        return any(map(unequal, value.values()))
    return isinstance(value, (list, tuple)) and any(map(unequal, value))
