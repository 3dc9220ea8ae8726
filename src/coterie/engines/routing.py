"""Who is asked what: the address of a request and its message, cut to the sites that hold the clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from coterie.engines.message_layout import addressed, compact, grouped
from coterie.engines.reduction import counts
from coterie.federation import By, Clusters, Ints, Roster, Rows, To, readonly


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
        mask = np.asarray(to.mask, dtype=bool)
        chosen, parts = mask[self._clients.clusters], []
        for s, (present, sizes) in enumerate(self._present):
            own = mask[present]
            if own.any():
                n, at = int(sizes[own].sum()), partial(_places, chosen, self._sites[s])
                parts.append(Part(s, n, None if own.all() else own, present[own], sizes[own], at))
        return Address(mask, rows, parts)

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


def _places(chosen: Any, clients: Ints) -> Rows:
    """Where some clients stand among those that are ``chosen`` of all, a mask."""
    return compact((np.cumsum(chosen) - 1)[clients[chosen[clients]]])


def small(numbers: Ints) -> Any:
    """Whole numbers from 0 in the smallest type that holds them, for the wire."""
    return numbers.astype(np.min_scalar_type(int(numbers.max()) if len(numbers) else 0))
