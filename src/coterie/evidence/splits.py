"""Held-out rows of every client (random, the latest, or whole groups): the same for any order and partition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.data.clients import Clients
from coterie.data.columns import at_rows
from coterie.data.labels import encode, label_ids
from coterie.data.sort_keys import sort_keys
from coterie.data.table import Table
from coterie.errors import CoterieError
from coterie.numerics.arrays import Bools, Floats, Ints
from coterie.numerics.keyed_random import uniform, uniform_rows


@dataclass(frozen=True)
class Splits:
    """How rows are held out.

    By sorted row (``column[clients.order]``), ``order`` (n,) tests on the latest rows of each client, which is one
    split, and ``groups`` (n,) keeps rows of the same group (one person's) together.
    """

    count: int = 5
    fraction: float = 0.25  # of each client's rows
    seed: int = 0
    order: npt.NDArray[Any] | None = None
    groups: npt.NDArray[Any] | None = None

    def inside(self, clients: Clients, part: Clients) -> Splits:
        """The same for some of the rows of ``clients``, whose order and groups these are."""
        if part is clients or (self.order is None and self.groups is None):
            return self
        place = np.empty(clients.order.max() + 1, dtype=np.int64)
        place[clients.order] = np.arange(len(clients.order))
        order, groups = (
            None if keys is None else getattr(keys, "iloc", keys)[place[part.order]]
            for keys in (self.order, self.groups)
        )
        return replace(self, order=order, groups=groups)

    def inner(self, most: int) -> Splits:
        """Others of the same kind, ``most`` at most, of rows that these train on: what is chosen there is tested here.

        They keep the order and the groups, which choices would leak through as tests do.
        """
        return replace(self, count=min(self.count, most), seed=self.seed + 1)

    def masks(self, clients: Clients) -> Iterator[Bools]:
        """Test rows (n,) of every split."""
        for repeat in range(1 if self.order is not None else self.count):
            yield split_rows(clients, self.fraction, self.seed, repeat, self.order, self.groups)

    def parts(self, clients: Clients) -> Iterator[tuple[Clients, Clients]]:
        """Clients with their training rows, and with their test rows, of every split."""
        return map(clients.split, self.masks(clients))


def split_rows(
    clients: Clients, fraction: float, seed: int, repeat: int = 0, order: Any = None, groups: Any = None
) -> Bools:
    """Rows to test on (n,), as :class:`Splits` says, of the ``repeat``-th split; each client keeps one to train on.

    A client with n rows gives ``floor(n * fraction + u)`` of them, u its own uniform number, so that the expected share
    is exact however few rows it has; but at least one where n >= 3, and never all. ``order`` (n,) are keys such as
    :func:`coterie.data.sort_keys.sort_keys` gives; of equal ones, those further down the table count as later. Whole
    groups are drawn, in all clients, and the share counts groups. A CoterieError for a fraction outside (0, 1), and for
    both columns.
    """
    if not 0 < fraction < 1:
        raise CoterieError(f"The test fraction must be between 0 and 1, not {fraction:g}.")
    if order is not None and groups is not None:
        raise CoterieError("Split by order or by groups, not both (--order-by, --split-by).")
    if groups is not None:
        return _by_groups(clients, fraction, seed, repeat, groups)
    if order is not None:
        take = share(clients.counts, clients.ids, fraction, seed, 0)
        test = np.zeros(len(clients.y), dtype=bool)
        by_time = np.lexsort((order, clients.codes))
        test[by_time] = np.arange(len(test)) >= np.repeat(clients.stops - take, clients.counts)
        return test
    take = share(clients.counts, clients.ids, fraction, seed, repeat)
    u = uniform_rows(seed, "split", clients.ids, repeat, clients.counts)
    return _smallest(u, clients.counts, take)


def split_keys(
    table: Table, clients: Clients, order_by: str | None, split_by: str | None
) -> tuple[Any, Any, list[str]]:
    """``order`` and ``groups`` of :class:`Splits` from columns of the clients' table, and what to say of them."""
    order, groups = _column(table, order_by, "order_by", clients), _column(table, split_by, "split_by", clients)
    if split_by is not None:
        need_groups(clients, groups, split_by)
    if order is None:
        return None, groups, []
    order, note = sort_keys(order, str(order_by))
    notes = [] if note is None else [note]
    least, most = (f.reduceat(order, clients.starts) for f in (np.minimum, np.maximum))
    if still := int(((least == most) & (clients.counts > 1)).sum()):
        notes.append(
            f"All rows of {still:,} of {len(clients):,} clients ({clients.name}) have the same '{order_by}': those "
            "held out are the last in the table."
        )
    return order, groups, notes


def _column(table: Table, name: str | None, role: str, clients: Clients) -> Any:
    """A column to split rows by, sorted like the clients' rows."""
    if name is None:
        return None
    table.need([name], role)
    column = table[name]
    missing = np.zeros(len(table), dtype=bool)
    missing[clients.order] = column.missing[clients.order]
    if missing.any():
        texts = f", where {column.read_as_missing}" if column.read_as_missing else ""
        raise CoterieError(
            f"Column '{name}' has missing values in {at_rows(missing)}{texts}: these cannot be split by it."
        )
    return column.series.iloc[clients.order]


def need_groups(clients: Clients, groups: Any, name: str) -> None:
    """Raise where each client has one of the ``groups`` (n,) in column ``name``: no split leaves it both sides."""
    group = encode(groups).codes
    if not clients.single_rows and np.array_equal(group, group[clients.starts][clients.codes]):
        raise CoterieError(
            f"Rows cannot be split by '{name}': each client ({clients.name}) has one group, which is needed to fit it. "
            "Name a column with several values in a client, or leave it out."
        )


def share(counts: Ints, ids: npt.NDArray[np.uint64], fraction: float, seed: int, repeat: int) -> Ints:
    """How many of each client's rows (or groups) are tested on, (m,) int64."""
    coin = uniform(seed, "split-share", ids, repeat, 1)[:, 0]
    take = np.floor(counts * fraction + coin).astype(np.int64)
    return np.minimum(np.maximum(take, counts >= 3), np.maximum(counts - 1, 0))


def _smallest(u: Floats, counts: Ints, take: Ints) -> Bools:
    """The rows with the ``take[i]`` smallest numbers of each client.

    One sort of integers (client, leading bits of u) and a threshold for each client, instead of a sort by two keys.
    """
    m = max(len(counts), 1)
    bits = min(53, 63 - (m - 1).bit_length())
    lead = (u * 2.0**bits).astype(np.int64)
    key = (np.repeat(np.arange(len(counts), dtype=np.int64), counts) << bits) | lead
    ranked = np.append(np.sort(key), np.iinfo(np.int64).max)
    threshold = ranked[np.cumsum(counts) - counts + take]
    return key < np.repeat(threshold, counts)


def _by_groups(clients: Clients, fraction: float, seed: int, repeat: int, groups: Any) -> Bools:
    """Draw whole groups, stratified by the client in which each group first occurs."""
    column = encode(groups)
    group, g = column.codes, len(column.labels)
    u = uniform(seed, "split", label_ids(column.labels), repeat, 1)[:, 0]
    codes = clients.codes
    _, first = np.unique(group, return_index=True)
    home = codes[first]
    by_home = np.argsort(home, kind="stable")
    counts = np.bincount(home, minlength=len(clients)).astype(np.int64)
    chosen = np.zeros(g, dtype=bool)
    chosen[by_home] = _smallest(u[by_home], counts, share(counts, clients.ids, fraction, seed, repeat))
    test = chosen[group]
    trained = np.bincount(codes, weights=~test, minlength=len(clients)) > 0
    bare = ~trained[codes]  # clients whose groups were all drawn elsewhere: their last-drawn group stays in training
    if bare.any():
        rows = np.flatnonzero(bare)
        last = rows[np.lexsort((u[group[rows]], codes[rows]))]
        ends = np.flatnonzero(np.append(codes[last][1:] != codes[last][:-1], True))
        chosen[group[last[ends]]] = False
        test = chosen[group]
    return test
