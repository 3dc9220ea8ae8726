"""Who gets which rows: what a partition of a table among clients says, and the parts that are gathered from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.data.columns import at_rows
from coterie.errors import CoterieError
from coterie.numerics.keyed_random import uniform

Array = npt.NDArray[Any]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """Rows sorted by client.

    Attributes
    ----------
    X : (n, ...)
    y : (n, ...)
        int64 classes 0, ..., K - 1, where outcomes are classes.
    starts, stops : (m,) int64
        Row range of every client.
    """

    X: Array
    y: Array
    starts: I64
    stops: I64


@dataclass(frozen=True)
class Dealt:
    """What clients got.

    Attributes
    ----------
    train, test : Part
        Rows to train on and held-out rows of the same clients.
    group : (m,) int64
        Hidden group of every client.
    row : (n,) int64
        Which row of the table each is, those of ``train`` first.
    classes : int
        How many there are; 0 where outcomes are no classes.
    names : tuple of str
        What clients are called; empty where they have numbers only.
    """

    train: Part
    test: Part
    group: I64
    row: I64
    classes: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Deal:
    """Who gets which rows; those to train on first, then held-out ones, each sorted by client.

    Attributes
    ----------
    group : (m,) int64
    client, row : (n,) int64
        The client and the row of the table of each.
    trained : int
        How many are trained on.
    names : tuple of str
    """

    group: I64
    client: I64
    row: I64
    trained: int
    names: tuple[str, ...] = ()

    def of(self, X: npt.ArrayLike, y: npt.ArrayLike, classes: int | None = None) -> Dealt:
        """What everybody got.

        Parameters
        ----------
        X, y : (n, ...)
            Of the rows that were dealt out, in the table's order. Whole numbers (n,) are classes.
        classes : int, optional
            By default one more than the largest label.

        Raises
        ------
        CoterieError
            For numbers that are not finite, and for more or fewer rows than were dealt out.
        """
        X, y = np.asarray(X), np.asarray(y)
        for name, values in (("X", X), ("y", y)):
            if len(values) != len(self.row):
                raise CoterieError(f"{name} has {len(values):,} rows; {len(self.row):,} were dealt out.")
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                bad = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
                raise CoterieError(f"{name} has values that are not finite in {at_rows(bad)}: fill or drop them first.")
        return self.parts(X[self.row], y[self.row], classes)

    def parts(self, X: Array, y: Array, classes: int | None = None) -> Dealt:
        """The same of rows that are in the deal's order already."""
        labels = y.ndim == 1 and y.dtype.kind in "biu"
        y = y.astype(np.int64) if labels else y
        K = classes if classes is not None else int(y.max(initial=-1)) + 1 if labels else 0
        train, test = (self._part(X, y, s) for s in (slice(0, self.trained), slice(self.trained, len(y))))
        return Dealt(train, test, self.group, self.row, K, self.names)

    def _part(self, X: Array, y: Array, rows: slice) -> Part:
        stops = np.cumsum(np.bincount(self.client[rows], minlength=len(self.group))).astype(np.int64)
        return Part(X[rows], y[rows], np.concatenate([[0], stops[:-1]]).astype(np.int64), stops)


def dealt_out(
    owner: I64, m: int, order: I64, seed: int, fraction: float, groups: int = 1, names: tuple[str, ...] = ()
) -> Deal:
    """Hold a share of every client's rows out, the first ones of a shuffled order; put clients into groups."""
    if not 0.0 <= fraction < 1.0:
        raise CoterieError(f"The test fraction must be from 0 to below 1, not {fraction:g}.")
    group = np.empty(m, dtype=np.int64)
    group[shuffled(seed, m, "hidden group")] = np.arange(m) % groups
    counts = np.bincount(owner, minlength=m)
    coin = uniform(seed, "held out", np.arange(m, dtype=np.uint64), 0, 1)[:, 0]
    most = np.maximum(counts - 1, 0)
    take = np.clip(np.floor(counts * fraction + coin).astype(np.int64), np.minimum(1, most), most)
    client = owner[order]
    test = places(client, counts) < (take if fraction else np.zeros_like(take))[client]
    sort = np.lexsort((client, test))
    return Deal(group, client[sort], order[sort], int(np.sum(~test)), names)


def places(client: I64, counts: I64) -> I64:
    """How many rows of the same client come before each row."""
    sort = np.argsort(client, kind="stable")
    out = np.empty(len(client), dtype=np.int64)
    out[sort] = np.arange(len(client)) - np.repeat(np.cumsum(counts) - counts, counts)
    return out


def shuffled(seed: int, n: int, stream: str = "deal") -> I64:
    """The numbers 0, ..., n - 1 in an order that the seed makes."""
    return np.argsort(uniform(seed, stream, np.arange(n, dtype=np.uint64), 0, 1)[:, 0], kind="stable").astype(np.int64)


def whole_labels(labels: npt.ArrayLike) -> I64:
    """Labels as int64, or a CoterieError."""
    values = np.asarray(labels)
    if values.ndim != 1 or not len(values):
        raise CoterieError(f"Labels must be one whole number for each row, not an array of shape {values.shape}.")
    number = values.dtype.kind in "biuf"
    bad = ~(np.isfinite(values) & (values == np.floor(values)) & (values >= 0)) if number else np.ones(1, dtype=bool)
    if not number or bad.any():
        raise CoterieError(
            f"Labels must be whole numbers from 0, unlike {values[bad.argmax()]} in data row {bad.argmax() + 1}: "
            "code classes as 0, 1, 2 and so on first."
        )
    return values.astype(np.int64)


def whole(name: str, value: Any) -> int:
    """A whole number of at least 1, or a CoterieError."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
        raise CoterieError(f"{name} must be a whole number of at least 1, not {value!r}.")
    return int(value)


def need_rows(n: int, m: int, least: int) -> None:
    """A CoterieError where n rows do not give each of m clients as many as it must have at least."""
    if m * least > n:
        raise CoterieError(
            f"{n:,} rows are not enough for {m:,} clients with {least:,} each: ask for "
            + (f"{n // least:,} clients or fewer" if n >= least else "fewer rows each")
            + (", or for fewer rows each." if 1 < least <= n else ".")
        )
