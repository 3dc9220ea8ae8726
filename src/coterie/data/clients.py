"""Clients: the rows of a table sorted by cluster and client, as contiguous arrays with offsets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.data.array_input import cluster_columns, coded_labels
from coterie.data.columns import at_rows
from coterie.data.labels import Coded, Labels, label_ids, spelling_notes
from coterie.errors import CoterieError, listed, plural
from coterie.numerics.arrays import Bools, Floats, Ints, float_array

_BLOCK = 1 << 17  # numbers


@dataclass(frozen=True, eq=False)
class Level:
    """One level of clusters, named as its column."""

    name: str
    labels: Labels  # (k,) sorted by coarser cluster, then by label
    parent: Ints  # (k,) index into the next coarser level; all 0 at the coarsest


@dataclass(frozen=True, eq=False)
class Clients:
    """All clients of a table: rows sorted by (coarsest ... finest cluster, client), in table order within a client.

    Where terms remember rows, such as a mean or knots, ``relearn`` gives from table positions of the rows to learn from
    what computes X (NaN outside of a spline's range) at any positions.
    """

    X: Floats  # (n, p) design matrix, C-contiguous
    y: Floats  # (n,)
    offset: Floats  # (n,) known part of the linear predictor (zeros)
    weights: Floats  # (n,) row weights (ones), or trials
    starts: Ints  # (m,) rows of client i are starts[i]:stops[i]
    stops: Ints
    terms: tuple[str, ...]  # (p,) names of the columns of X; "(Intercept)" for the intercept
    labels: Labels  # (m,) as they were in the table
    name: str  # the client column
    ids: npt.NDArray[np.uint64]  # (m,) hashes of the labels: the key of every random number
    levels: tuple[Level, ...]  # fine to coarse; empty without a cluster column
    clusters: Ints  # (m,) finest cluster of each client, sorted; zeros without clusters
    order: Ints  # (n,) position in the table (counted from 0) of each sorted row
    trials: bool = False  # outcomes are shares of trials, of which there are as many as weights say
    notes: tuple[str, ...] = ()  # what a user should know about how the table was read
    relearn: Callable[[Ints], Callable[[Ints], Floats]] | None = None

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def counts(self) -> Ints:
        """Rows of each client, (m,) int64."""
        return self.stops - self.starts

    @property
    def codes(self) -> Ints:
        """Client index of each row, (n,) int64."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.counts)

    @property
    def observations(self) -> Ints:
        """Rows of each client that weigh, or trials, (m,)."""
        if self.trials:
            return np.bincount(self.codes, self.weights, len(self)).astype(np.int64)
        return self.counts if self.weights.all() else np.bincount(self.codes[self.weights > 0], minlength=len(self))

    @property
    def spread(self) -> tuple[Floats, Floats]:
        """Means and standard deviations (p,) of the columns; by blocks, since numpy adds few columns slowly."""
        n, p = self.X.shape
        starts = range(0, n, max(_BLOCK // max(p, 1), 1))

        def added(of: Callable[[Floats], Floats]) -> Floats:
            blocks = (np.ascontiguousarray(self.X[k : k + starts.step].T) for k in starts)
            return np.asarray(sum((of(block).sum(axis=1) for block in blocks), np.zeros(p)) / n)

        mean = added(lambda block: block)
        return mean, np.sqrt(added(lambda block: np.square(block - mean[:, None])))

    @property
    def single_rows(self) -> bool:
        """No client has two observations, so that the variances of clients and rows cannot be told apart."""
        return bool(np.all(self.observations <= 1))

    @property
    def finest_clusters(self) -> Clients:
        """The same rows, those of each finest cluster as one client's."""
        level, *coarser = self.levels
        first = np.flatnonzero(np.diff(self.clusters, prepend=-1))
        last = np.append(first[1:], len(self)) - 1
        above: dict[str, Any] = {"labels": level.labels, "clusters": level.parent, "levels": tuple(coarser)}
        above |= {"name": level.name, "ids": label_ids(level.labels)}
        return replace(self, starts=self.starts[first], stops=self.stops[last], **above)

    def subset(self, mask: Bools) -> Clients:
        """The same clients with the sorted rows of a mask (n,) alone; a client may be left without rows."""
        mask = np.asarray(mask, dtype=bool)
        if mask.shape != self.y.shape:
            raise CoterieError(f"The mask has {mask.size:,} entries; the table has {plural(len(self.y), 'row')}.")
        before = np.concatenate([[0], np.cumsum(mask, dtype=np.int64)])
        rows = {name: getattr(self, name)[mask] for name in ("X", "y", "offset", "weights", "order")}
        return replace(self, starts=before[self.starts], stops=before[self.stops], **rows)

    def split(self, test: Bools) -> tuple[Clients, Clients]:
        """Training rows and held-out rows, by a mask (n,) of the latter.

        Terms that remember rows learn from the training rows alone; held-out rows outside their range are left out.
        """
        train, held = self.subset(~test), self.subset(test)
        if self.relearn is None or not len(train.y) or not len(held.y):
            return train, held
        columns = self.relearn(train.order)
        X = columns(held.order)
        known: Bools = np.asarray(np.isfinite(X).all(axis=1))
        return replace(train, X=columns(train.order)), replace(held.subset(known), X=X[known])

    @classmethod
    def from_arrays(
        cls,
        X: npt.ArrayLike,
        y: npt.ArrayLike,
        clients: Any,
        clusters: Any = None,
        terms: Sequence[str] | None = None,
        offset: npt.ArrayLike | None = None,
        weights: npt.ArrayLike | None = None,
        name: str = "client",
    ) -> Clients:
        """Clients from a design matrix (n, p), with its own column of ones if an intercept is wanted, and y (n,).

        X is not copied when it is C-contiguous float64 and its rows are already sorted. ``clients`` are labels (n,),
        ``clusters`` labels (n,) or (n, L), fine to coarse; ``terms`` are ``x0, x1, ...`` if not given, ``offset`` and
        ``weights`` (n,). A CoterieError for shapes that do not match, and for missing, infinite or negative values
        where they cannot be.
        """
        design = _finite(X, "X")
        if design.ndim != 2:
            raise CoterieError(f"X must have two dimensions (rows, columns), not {design.ndim}.")
        if len(design) == 0:
            raise CoterieError("X has no rows: give one at least.")
        n, p = design.shape
        given = {"y": y, "offset": np.zeros(n) if offset is None else offset}
        given["weights"] = np.ones(n) if weights is None else weights
        vectors = {what: _finite(values, what) for what, values in given.items()}
        for what, values in vectors.items():
            if values.shape != (n,):
                raise CoterieError(f"{what} has shape {values.shape}; X has {plural(n, 'row')}.")
        if np.any(vectors["weights"] < 0):
            raise CoterieError(
                f"weights has {int((vectors['weights'] < 0).sum()):,} negative values: make them 0 or more."
            )
        above = [(k, coded_labels(v, n, k)) for k, v in cluster_columns(clusters)]
        columns = [(name, coded_labels(clients, n, "clients")), *above]
        tree = arrange(columns)
        notes = tuple(note for what, c in columns for note in spelling_notes(what, c.labels, c.joined))
        names = tuple(terms) if terms is not None else tuple(f"x{j}" for j in range(p))
        if len(names) != p:
            raise CoterieError(
                f"{plural(len(names), 'name')} of terms cannot name {plural(p, 'column')} of X: name each."
            )
        if not tree.presorted:
            design = design[tree.order]
            vectors = {k: v[tree.order] for k, v in vectors.items()}
        return replace(tree.clients(design, **vectors, terms=names, order=tree.order), notes=notes)


def relative_weights(weights: Floats) -> Floats:
    """Weights divided by the mean of those that are not zero: a constant factor, however large or small, is none."""
    top = weights.max(initial=0.0)
    if not 0.0 < top < np.inf:
        return weights
    scaled = weights / top  # so that no sum of weights overflows
    return np.asarray(scaled / scaled[weights > 0.0].mean(), dtype=np.float64)


def mean_weight(weights: Floats) -> float:
    """The mean that :func:`relative_weights` divides weights by."""
    top = weights.max(initial=0.0)
    return float(top * (weights / top)[weights > 0.0].mean()) if 0.0 < top < np.inf else 1.0


def _finite(values: npt.ArrayLike, what: str) -> Floats:
    array = np.ascontiguousarray(float_array(what, values))
    if not np.isfinite(array.sum()):
        bad = np.asarray(~np.isfinite(array).reshape(len(array), -1).all(axis=1))
        if bad.any():
            raise CoterieError(f"{what} has missing or infinite values in {at_rows(bad)}: fill or drop them.")
    return array


@dataclass(frozen=True, eq=False)
class LabelTree:
    """Clients and clusters in order, before any number of a row is looked at."""

    name: str
    labels: Labels
    levels: tuple[Level, ...]
    clusters: Ints
    starts: Ints
    stops: Ints
    order: Ints
    presorted: bool

    def clients(
        self, X: Floats, y: Floats, offset: Floats, weights: Floats, terms: tuple[str, ...], order: Ints
    ) -> Clients:
        """Clients on this tree, from arrays whose rows are already sorted.

        A CoterieError where a client's sums, of 16 digits, would lose light rows beside heavy ones that are too few.
        """
        counted = weights > 0.0
        if weights.min(initial=np.inf, where=counted) < 1e-8 * weights.max(initial=0.0):
            heaviest = np.repeat(np.maximum.reduceat(weights, self.starts), self.stops - self.starts)
            light = counted & (weights < 1e-8 * heaviest)
            heavy = np.add.reduceat(counted & ~light, self.starts, dtype=np.int64)
            if (np.logical_or.reduceat(light, self.starts) & (heavy <= X.shape[1])).any():
                raise CoterieError(
                    f"The weights in a {self.name} span more than eight powers of ten, so that its light rows are lost "
                    "beside the heavy ones: give the lightest a weight of 0, which leaves them out, or bound the "
                    "heaviest."
                )
        tree = {name: getattr(self, name) for name in ("labels", "name", "levels", "clusters", "starts", "stops")}
        ids = label_ids(self.labels)
        return Clients(X=X, y=y, offset=offset, weights=weights, terms=terms, order=order, ids=ids, **tree)


def arrange(columns: Sequence[tuple[str, Coded]]) -> LabelTree:
    """Sort clients into their tree, from names and labels of the client column and of cluster columns, fine to coarse.

    A CoterieError if a client is in two clusters, or a cluster in two coarser ones.
    """
    parents = [_parents(*child, *parent) for child, parent in itertools.pairwise(columns)]
    rank, levels = _rank([(name, column.labels) for name, column in columns], parents)
    codes = columns[0][1].codes
    if not np.array_equal(rank, np.arange(len(rank))):
        codes = rank[codes]
    counts = np.bincount(codes, minlength=len(rank)).astype(np.int64)
    stops = np.cumsum(counts)
    order, presorted = _stable_order(codes)
    first = levels[0]
    return LabelTree(first.name, first.labels, tuple(levels[1:]), first.parent, stops - counts, stops, order, presorted)


def _parents(name: str, child: Coded, parent_name: str, parent: Coded) -> Ints:
    """The parent of each child, or an error that lists children with two parents."""
    out = np.zeros(len(child.labels), dtype=np.int64)
    out[child.codes] = parent.codes
    torn = out[child.codes] != parent.codes
    if torn.any():
        back = np.zeros(len(parent.labels), dtype=np.int64)
        back[parent.codes] = child.codes
        if np.array_equal(back[parent.codes], child.codes):
            raise CoterieError(
                f"Every '{parent_name}' is in one '{name}', not the other way round: name the columns from fine to "
                "coarse, the client first."
            )
        bad = np.unique(child.codes[torn])
        homes = [parent.labels[np.unique(parent.codes[child.codes == c])] for c in bad[:3]]
        cases = [f"{child.labels[c]!s} in {listed(map(str, h))}" for c, h in zip(bad, homes, strict=False)]
        more = f"; and {len(bad) - 3:,} more" if len(bad) > 3 else ""
        raise CoterieError(
            f"{len(bad):,} of {plural(len(child.labels), 'label')} of '{name}' are in more than one '{parent_name}': "
            f"{'; '.join(cases)}{more}. Correct them or, if they are different ones that share a label, "
            f"join '{parent_name}' and '{name}' into a new column and use it instead of '{name}'. "
            f"If the groups cross, name '{name}' alone, with C({parent_name}) in the formula."
        )
    return out


def _rank(tables: Sequence[tuple[str, Labels]], parents: Sequence[Ints]) -> tuple[Ints, list[Level]]:
    """The new place of each client, and all levels fine to coarse, each sorted by (parent's place, label)."""
    name, labels = tables[-1]
    rank = np.arange(len(labels), dtype=np.int64)
    levels = [Level(name, labels, np.zeros(len(labels), dtype=np.int64))]
    for (name, labels), parent in zip(tables[-2::-1], parents[::-1], strict=True):
        above = rank[parent]
        by_place = np.argsort(above, kind="stable")
        rank = np.empty(len(labels), dtype=np.int64)
        rank[by_place] = np.arange(len(labels))
        levels.insert(0, Level(name, labels[by_place], above[by_place]))
    return rank, levels


def _stable_order(codes: Ints) -> tuple[Ints, bool]:
    """Rows in the order of their codes, ties in table order; and whether they were so already."""
    n = len(codes)
    rows = np.arange(n, dtype=np.int64)
    if n == 0 or bool(np.all(codes[1:] >= codes[:-1])):
        return rows, True
    if int(codes.max()) >= 2**62 // n:
        return np.argsort(codes, kind="stable").astype(np.int64), False
    key = codes * n + rows  # sorting distinct integers is several times faster than a stable argsort
    key.sort()
    return key - key // n * n, False
