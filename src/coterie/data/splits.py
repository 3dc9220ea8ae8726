"""Held-out rows of every client (random, the latest, whole groups, as given): the same for any order and partition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from coterie.data.clients import Clients
from coterie.data.columns import at_rows
from coterie.data.labels import encode, label_ids
from coterie.data.partition import Partition
from coterie.data.table import Table
from coterie.errors import CoterieError, plural
from coterie.numerics.arrays import Bools, Floats, Ints
from coterie.numerics.keyed_random import uniform, uniform_rows

BY = ("order_by", "split_by", "given_split")
"""Arguments of a call that name a column by which rows are held out."""


class SortedRows(Protocol):
    """What is split: rows that are sorted by client, as :class:`~coterie.data.clients.Clients` has them."""

    @property
    def ids(self) -> npt.NDArray[np.uint64]:
        """Keys of the clients' random numbers (m,)."""

    @property
    def codes(self) -> Ints:
        """Client index of each row (n,)."""

    @property
    def counts(self) -> Ints:
        """Rows of each client (m,)."""


@dataclass(frozen=True)
class Splits:
    """How rows are held out.

    By sorted row (``column[clients.order]``), ``order`` (n,) tests on the latest rows of each client, which is one
    split, as is ``given`` (n,), the rows to test on, and ``groups`` (n,) keeps rows of a group (one person's) together.
    """

    count: int = 5
    fraction: float = 0.25  # of each client's rows
    seed: int = 0
    order: npt.NDArray[Any] | None = None
    groups: npt.NDArray[Any] | None = None
    given: Bools | None = None

    def inside(self, clients: Clients, part: Clients) -> Splits:
        """The same for some of the rows of ``clients``, whose order and groups these are."""
        keyed = (self.order, self.groups, self.given)
        if part is clients or all(keys is None for keys in keyed):
            return self
        place = np.empty(clients.order.max() + 1, dtype=np.int64)
        place[clients.order] = np.arange(len(clients.order))
        order, groups, given = (
            None if keys is None else getattr(keys, "iloc", keys)[place[part.order]] for keys in keyed
        )
        return replace(self, order=order, groups=groups, given=given)

    def inner(self, most: int) -> Splits:
        """Others of the same kind, ``most`` at most, of rows that these train on: what is chosen there is tested here.

        They keep the order and the groups, which choices would leak through as tests do; given rows are tests alone.
        """
        return replace(self, count=min(self.count, most), seed=self.seed + 1, given=None)

    def masks(self, clients: Clients) -> Iterator[Bools]:
        """Test rows (n,) of every split."""
        if self.given is not None:
            yield self.given
            return
        for repeat in range(1 if self.order is not None else self.count):
            yield split_rows(clients, self.fraction, self.seed, repeat, self.order, self.groups)

    def parts(self, clients: Clients) -> Iterator[tuple[Clients, Clients]]:
        """Clients with their training rows, and with their test rows, of every split."""
        return map(clients.split, self.masks(clients))


def split_rows(
    clients: SortedRows, fraction: float, seed: int, repeat: int = 0, order: Any = None, groups: Any = None
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
        test = np.zeros(len(order), dtype=bool)
        by_time = np.lexsort((order, clients.codes))
        test[by_time] = np.arange(len(test)) >= np.repeat(np.cumsum(clients.counts) - take, clients.counts)
        return test
    take = share(clients.counts, clients.ids, fraction, seed, repeat)
    u = uniform_rows(seed, "split", clients.ids, repeat, clients.counts)
    return _smallest(u, clients.counts, take)


TRAIN, VALIDATION, TEST = 0, 1, 2
SIDES = {"train": TRAIN, "training": TRAIN, "test": TEST, "testing": TEST}
SIDES |= dict.fromkeys(("validation", "valid", "val", "dev"), VALIDATION)


@dataclass(frozen=True)
class RowSplits:
    """Which rows of arrays (n,) are held out, where that is not left to chance; what is None says nothing."""

    given: Ints | None = None  # the side of each row: TRAIN, VALIDATION or TEST
    order: npt.NDArray[Any] | None = None  # keys, of which the last ones of every client are held out
    groups: npt.NDArray[Any] | None = None  # labels of what stays on one side, by which it is drawn
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, given: Any = None, order: Any = None, groups: Any = None, names: tuple[str, ...] = ("", "", "")
    ) -> RowSplits:
        """From arrays (n,) as they came, in whose ``names`` a CoterieError says what cannot be split by."""
        said = [name for name, one in zip(names, (given, order, groups), strict=True) if one is not None]
        if len(said) > 1:
            raise CoterieError(f"{said[0]} and {said[1]} both say which rows are held out: name one.")
        for name, values in zip(names, (given, order, groups), strict=True):
            if values is not None and np.ndim(values) != 1:
                raise CoterieError(f"'{name}' has the shape {np.shape(values)}: give one value for each row.")
            if values is not None and (missing := encode(values).missing).any():
                raise CoterieError(f"'{name}' has no value in {at_rows(missing)}: these rows cannot be split by it.")
        if order is None:
            people = None if groups is None else encode(groups)
            return cls(_sides(given, names[0]), None, None if people is None else people.labels[people.codes])
        from coterie.data.sort_keys import sort_keys

        keys, note = sort_keys(order, names[1])
        return cls(None, keys, None, () if note is None else (note,))

    def take(self, rows: Ints) -> RowSplits:
        """The same of some rows."""
        given, order, groups = (None if one is None else one[rows] for one in (self.given, self.order, self.groups))
        return RowSplits(given, order, groups, self.notes)

    def partition(
        self, dealt: Partition, ids: npt.NDArray[np.uint64], fraction: float, seed: int, side: int
    ) -> Partition:
        """The same rows of the same clients with others held out: of a ``side``, the latest, or of whole groups.

        As they were where nothing is said of rows of clients without names, or no row is of that side and it is not
        TEST; where clients have names, chance holds out the same rows of each whoever else is there.
        """
        said = self.given is not None and (side == TEST or bool((self.given == side).any()))
        if not said and (not fraction or (self.order is None and self.groups is None and not dealt.names)):
            return dealt
        by = np.lexsort((dealt.row, dealt.client))
        client, row = dealt.client[by], dealt.row[by]
        if said and self.given is not None:
            test = self.given[row] == side
        else:
            rows = KeyedRows(ids, client, np.bincount(client, minlength=len(ids)))
            order, groups = (None if one is None else one[row] for one in (self.order, self.groups))
            test = split_rows(rows, fraction, seed, int(side != TEST), order, groups)
        bare = np.flatnonzero(np.bincount(client[~test], minlength=len(ids)) == 0)
        if len(bare):
            who = dealt.names[bare[0]] if dealt.names else f"{bare[0] + 1}"
            raise CoterieError(
                f"All rows of client {who} are held out, so that no model can be trained on any: give each client rows "
                "to train on, or leave that client out."
            )
        sort = np.lexsort((client, test))
        return replace(dealt, client=client[sort], row=row[sort], trained=int(np.sum(~test)))


@dataclass(frozen=True)
class KeyedRows:
    """Rows of arrays, sorted by client."""

    ids: npt.NDArray[np.uint64]
    codes: Ints
    counts: Ints


def _sides(values: Any, name: str) -> Ints | None:
    """The side of every row, of texts such as train and test, or of True for those that are held out."""
    if values is None:
        return None
    texts = np.asarray(values)
    if texts.dtype.kind == "b":
        return np.where(texts, TEST, TRAIN)
    coded = encode(texts)
    sides = [SIDES.get(str(label).lower(), -1) for label in coded.labels]
    if -1 in sides:
        raise CoterieError(
            f"'{name}' says which rows are held out by train, validation or test, not by "
            f"'{coded.labels[sides.index(-1)]}': write these, or give it another name."
        )
    return np.array(sides, dtype=np.int64)[coded.codes]


def given_test(table: Table, clients: Clients, name: str | None) -> Bools | None:
    """``given`` of :class:`Splits` from a column of the table; a CoterieError where it leaves a client no row."""
    column = _column(table, name, "given_split", clients)
    if column is None:
        return None
    test = np.asarray(_sides(column, str(name)) == TEST)
    if not test.any():
        raise CoterieError(f"No row of '{name}' says test: hold rows out, or let splits be 0.")
    if (bare := np.flatnonzero(np.bincount(clients.codes[~test], minlength=len(clients)) == 0)).size:
        raise CoterieError(
            f"All rows of client {clients.labels[bare[0]]} are held out by '{name}', so that nothing can be fitted on "
            "any: give each client rows to train on, or leave that client out."
        )
    return test


def split_keys(
    table: Table, clients: Clients, order_by: str | None, split_by: str | None
) -> tuple[Any, Any, list[str]]:
    """``order`` and ``groups`` of :class:`Splits` from columns of the clients' table, and what to say of them."""
    order, groups = _column(table, order_by, "order_by", clients), _column(table, split_by, "split_by", clients)
    if split_by is not None:
        need_groups(clients, groups, split_by)
    if order is None:
        return None, groups, []
    from coterie.data.sort_keys import sort_keys

    order, note = sort_keys(order, str(order_by))
    notes = [] if note is None else [note]
    least, most = (f.reduceat(order, clients.starts) for f in (np.minimum, np.maximum))
    if still := int(((least == most) & (clients.counts > 1)).sum()):
        notes.append(
            f"All rows of {still:,} of {plural(len(clients), 'client')} ({clients.name}) have the same '{order_by}': "
            "those held out are the last in the table."
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


def _by_groups(clients: SortedRows, fraction: float, seed: int, repeat: int, groups: Any) -> Bools:
    """Draw whole groups, stratified by the client in which each group first occurs."""
    column = encode(groups)
    group, g = column.codes, len(column.labels)
    u = uniform(seed, "split", label_ids(column.labels), repeat, 1)[:, 0]
    codes = clients.codes
    _, first = np.unique(group, return_index=True)
    home = codes[first]
    by_home = np.argsort(home, kind="stable")
    counts = np.bincount(home, minlength=len(clients.ids)).astype(np.int64)
    chosen = np.zeros(g, dtype=bool)
    chosen[by_home] = _smallest(u[by_home], counts, share(counts, clients.ids, fraction, seed, repeat))
    test = chosen[group]
    trained = np.bincount(codes, weights=~test, minlength=len(clients.ids)) > 0
    bare = ~trained[codes]  # clients whose groups were all drawn elsewhere: their last-drawn group stays in training
    if bare.any():
        rows = np.flatnonzero(bare)
        last = rows[np.lexsort((u[group[rows]], codes[rows]))]
        ends = np.flatnonzero(np.append(codes[last][1:] != codes[last][:-1], True))
        chosen[group[last[ends]]] = False
        test = chosen[group]
    return test
