"""Partitions: which rows of a table are which client's, evenly, by Dirichlet shares, by classes or by a column.

Every row goes to one client only. Who gets which row, which rows are held out and who is in which group are functions
of the seed and of the row's or client's number. A function says who gets what (:class:`Partition`); ``.take(X, y)``
gathers the rows, once::

    partitioned = dirichlet(labels, clients=20, alpha=0.1).take(images, labels)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from coterie.data.columns import at_rows
from coterie.data.labels import encode
from coterie.errors import CoterieError
from coterie.lazy_modules import special
from coterie.numerics.arrays import Bools, Ints
from coterie.numerics.keyed_random import normal, starts, uniform
from coterie.options import Option, checked

Array = npt.NDArray[Any]

Rows = Annotated[int, Option("How many rows there are.", low=1)]
Number = Annotated[int, Option("How many clients there are.", low=1)]
Groups = Annotated[int, Option("Hidden groups of clients.", low=1)]
Least = Annotated[int, Option("Rows that every client has at least.", low=1)]
Shards = Annotated[int, Option("Shards a client.", low=1)]
Each = Annotated[int, Option("Classes a client.", low=1)]
Noise = Annotated[float, Option("Variance of the noise of the last client.", low=0.0)]
Concentration = Annotated[float, Option("Of shares.", above=0.0, remedy="0.1 makes clients unlike, 100 alike.")]
TestShare = Annotated[float, Option("Share of every client's rows that is held out.", low=0.0, below=1.0)]

TRIES = 20  # how often Dirichlet shares are drawn anew before rows are moved


@dataclass(frozen=True)
class ClientRows:
    """Rows sorted by client."""

    X: Array  # (n, ...)
    y: Array  # (n, ...) int64 classes 0, ..., K - 1, where outcomes are classes
    starts: Ints  # (m,) rows of client i are starts[i]:stops[i]
    stops: Ints
    weights: npt.NDArray[np.float64] | None = None  # (n,); None: 1 each


@dataclass(frozen=True)
class PartitionedRows:
    """What clients got, to train on and held out."""

    train: ClientRows
    test: ClientRows
    group: Ints  # (m,) hidden group of every client
    row: Ints  # (n,) which row of the table each is, those of train first
    classes: int  # how many there are; 0 where outcomes are no classes
    names: tuple[str, ...] = ()  # what clients are called; empty where they have numbers only


@dataclass(frozen=True)
class Partition:
    """Who gets which rows; those to train on first, then held-out ones, each sorted by client."""

    group: Ints  # (m,) hidden group of every client
    client: Ints  # (n,) whose each row is
    row: Ints  # (n,) which row of the table it is
    trained: int  # how many are trained on
    names: tuple[str, ...] = ()

    def take(self, X: npt.ArrayLike, y: npt.ArrayLike, classes: int | None = None) -> PartitionedRows:
        """What everybody got of X and y (n, ...), in the table's order; whole numbers y (n,) are classes.

        ``classes`` are by default one more than the largest label. A CoterieError for numbers that are not finite, and
        for more or fewer rows than were partitioned.
        """
        X, y = np.asarray(X), np.asarray(y)
        for name, values in (("X", X), ("y", y)):
            if len(values) != len(self.row):
                raise CoterieError(f"{name} has {len(values):,} rows; the partition has {len(self.row):,}.")
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                bad = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
                raise CoterieError(f"{name} has values that are not finite in {at_rows(bad)}: fill or drop them first.")
        return self.take_sorted(X[self.row], y[self.row], classes)

    def take_sorted(self, X: Array, y: Array, classes: int | None = None) -> PartitionedRows:
        """The same of rows that are in the partition's order already."""
        labels = y.ndim == 1 and y.dtype.kind in "biu"
        y = y.astype(np.int64) if labels else y
        K = classes if classes is not None else int(y.max(initial=-1)) + 1 if labels else 0
        train, test = (self._part(X, y, s) for s in (slice(0, self.trained), slice(self.trained, len(y))))
        return PartitionedRows(train, test, self.group, self.row, K, self.names)

    def _part(self, X: Array, y: Array, rows: slice) -> ClientRows:
        stops = np.cumsum(np.bincount(self.client[rows], minlength=len(self.group))).astype(np.int64)
        return ClientRows(X[rows], y[rows], np.concatenate([[0], stops[:-1]]).astype(np.int64), stops)


@checked
def iid(rows: Rows, clients: Number, seed: int = 0, test_fraction: TestShare = 0.2, groups: Groups = 1) -> Partition:
    """Every client gets as many rows as the others, give or take one, whatever they are.

    ``groups`` are hidden groups of clients, as large as each other, give or take a client. A CoterieError for more
    clients than rows, and numbers out of range.
    """
    need_rows(rows, clients, 1)
    order = shuffled(seed, rows)
    owner = np.empty(rows, dtype=np.int64)
    owner[order] = np.arange(rows) % clients
    return partition_rows(owner, clients, order, seed, test_fraction, groups)


@checked
def dirichlet(
    labels: npt.ArrayLike,
    clients: Number,
    alpha: Concentration,
    least: Least = 1,
    seed: int = 0,
    test_fraction: TestShare = 0.2,
) -> Partition:
    """Shares of each class drawn from a symmetric Dirichlet distribution over the clients (Yurochkin et al. 2019).

    Small ``alpha`` gives clients of few classes and of very unequal size, a large one clients that are all alike.
    ``labels`` (n,) are whole numbers from 0. Shares are drawn anew up to 20 times until every client has ``least``
    rows, those held out included; then rows of the largest clients are moved to those that lack some, so that this
    always ends. A CoterieError for more clients than rows allow, and labels and numbers that cannot be.

    References
    ----------
    Yurochkin et al. (2019), Bayesian nonparametric federated learning of neural networks, ICML, section 4.
    """
    codes = encode(whole_labels(labels)).codes  # labels may have gaps
    return _by_shares(codes, np.ones((codes.max() + 1, clients), dtype=bool), alpha, least, seed, test_fraction)


def _by_shares(codes: Ints, owned: Bools, alpha: float, least: int, seed: int, fraction: float) -> Partition:
    """Shares of each class drawn over the clients that own it (K, m)."""
    clients = owned.shape[1]
    need_rows(len(codes), clients, least)
    sizes = np.bincount(codes)
    best = _shares(seed, owned, alpha, sizes, 0)
    for attempt in range(1, TRIES):
        if best.sum(axis=0).min() >= least:
            break
        other = _shares(seed, owned, alpha, sizes, attempt)
        best = max(best, other, key=lambda counts: int(counts.sum(axis=0).min()))
    order = shuffled(seed, len(codes))
    owner = _cut(codes, order, best)
    return partition_rows(_fill(owner, clients, least, order), clients, order, seed, fraction)


def _cut(codes: Ints, order: Ints, counts: Ints) -> Ints:
    """Whose each row is, where clients get so many rows (K, m) of each class."""
    owner = np.empty(len(codes), dtype=np.int64)
    owner[_by_class(codes, order)] = np.repeat(np.tile(np.arange(counts.shape[1]), len(counts)), counts.ravel())
    return owner


@checked
def pathological(
    labels: npt.ArrayLike, clients: Number, each: Each = 2, seed: int = 0, test_fraction: TestShare = 0.2
) -> Partition:
    """Every client has rows of ``each`` classes, and each class is divided evenly among the clients that have it.

    Clients take classes by turns until each is taken once, and draw the others. ``labels`` (n,) are whole numbers from
    0. A CoterieError for more classes a client than there are, classes that no client has, and
    fewer rows of a class than clients that have it.

    References
    ----------
    Li, Diao, Chen, He (2022), Federated learning on non-IID data silos, ICDE, section IV-A: label skew, #C = k.
    """
    codes = encode(whole_labels(labels)).codes
    owned, sizes = _owners(len(np.bincount(codes)), clients, each, seed), np.bincount(codes)
    if few := np.flatnonzero(owned.sum(axis=1) > sizes).tolist():
        raise CoterieError(
            f"{sizes[few[0]]:,} rows of a class are too few for the {owned[few[0]].sum():,} clients that have it: ask "
            "for fewer clients, or for fewer classes each."
        )
    place = np.where(owned, owned.cumsum(axis=1), 0)  # 1, 2, ... among those that have it
    many = owned.sum(axis=1, keepdims=True)
    counts = np.where(owned, place * sizes[:, None] // many - (place - 1) * sizes[:, None] // many, 0)
    order = shuffled(seed, len(codes))
    return partition_rows(_cut(codes, order, counts), clients, order, seed, test_fraction)


@checked
def extended_dirichlet(
    labels: npt.ArrayLike,
    clients: Number,
    alpha: Concentration,
    each: Each = 2,
    least: Least = 1,
    seed: int = 0,
    test_fraction: TestShare = 0.2,
) -> Partition:
    """Every client has ``each`` classes at most, and shares of each class are Dirichlet's among those that may have it.

    Arguments and errors are those of :func:`pathological` and :func:`dirichlet`; a client that lacks rows up to
    ``least`` gets some of the largest clients', of whatever class.

    References
    ----------
    Li, Lyu (2023), Convergence analysis of sequential federated learning on heterogeneous data, NeurIPS, appendix:
    the extended Dirichlet strategy ExDir(C, alpha).
    """
    codes = encode(whole_labels(labels)).codes
    owned = _owners(codes.max() + 1, clients, each, seed)
    return _by_shares(codes, owned, alpha, least, seed, test_fraction)


@checked
def quantity(
    rows: Rows, clients: Number, alpha: Concentration, least: Least = 1, seed: int = 0, test_fraction: TestShare = 0.2
) -> Partition:
    """Clients' shares of all rows are drawn from a symmetric Dirichlet distribution, whatever the rows are.

    References
    ----------
    Li, Diao, Chen, He (2022), Federated learning on non-IID data silos, ICDE, section IV-A: quantity skew.
    """
    return _by_shares(
        np.zeros(rows, dtype=np.int64), np.ones((1, clients), dtype=bool), alpha, least, seed, test_fraction
    )


def noisy(X: Array, client: Ints, row: Ints, clients: int, sigma: Noise, seed: int) -> Array:
    """Inputs (n, ...) with Gaussian noise of variance ``sigma * i / clients`` for client i = 1, ..., keyed by the row.

    References
    ----------
    Li, Diao, Chen, He (2022), Federated learning on non-IID data silos, ICDE, section IV-A: feature skew by noise.
    """
    flat = X.reshape(len(X), -1)
    noise = normal(starts(seed, "feature noise", row.astype(np.uint64)), 0, flat.shape[1])
    scale = np.sqrt(sigma * (client + 1.0) / clients)[:, None]
    return np.asarray((flat + scale * noise).reshape(X.shape).astype(np.result_type(X.dtype, np.float32)))


def _owners(K: int, m: int, each: int, seed: int) -> Bools:
    """Which clients have which classes (K, m): each once by turns, the others drawn."""
    if each > K:
        raise CoterieError(f"There are {K:,} classes, and {each:,} were asked for each client: ask for fewer.")
    u = uniform(seed, "classes", np.arange(m, dtype=np.uint64), 0, K)
    turn = np.arange(max(m, K))
    u[turn % m, shuffled(seed, K, "class order")[turn % K]] = -1.0
    owned = np.zeros((K, m), dtype=bool)
    owned[np.argsort(u, axis=1)[:, :each].T, np.arange(m)] = True
    if not owned.any(axis=1).all():
        raise CoterieError(f"{m:,} clients with {each:,} of {K:,} classes leave some class to nobody: ask for more.")
    return owned


@checked
def shards(
    labels: npt.ArrayLike, clients: Number, each: Shards = 2, seed: int = 0, test_fraction: TestShare = 0.2
) -> Partition:
    """Rows sorted by class and cut into ``clients * each`` shards of one size; every client gets ``each`` of them.

    Hence a client has about ``each`` classes at most; ``labels`` (n,) are whole numbers from 0. A CoterieError for more
    shards than rows, and labels and numbers that cannot be.

    References
    ----------
    McMahan et al. (2017), Communication-efficient learning of deep networks from decentralized data, section 3.
    """
    codes = whole_labels(labels)
    n, many = len(codes), clients * each
    need_rows(n, clients, each)
    order = shuffled(seed, n)
    taker = np.empty(many, dtype=np.int64)
    taker[shuffled(seed, many, "shards")] = np.arange(many) % clients
    owner = np.empty(n, dtype=np.int64)
    owner[_by_class(codes, order)] = np.repeat(taker, np.diff(np.arange(many + 1) * n // many))
    return partition_rows(owner, clients, order, seed, test_fraction)


@checked
def by_column(column: Any, seed: int = 0, test_fraction: TestShare = 0.2) -> Partition:
    """The clients that a column of the table names, numbers or text (n,), in natural order and with their ``names``.

    A CoterieError for an empty column, and for rows without a client.
    """
    coded = encode(column)
    if not len(coded.codes):
        raise CoterieError("The column of clients has no rows.")
    if coded.missing.any():
        raise CoterieError(f"The column of clients is empty in {at_rows(coded.missing)}: fill or drop them first.")
    names = tuple(str(label) for label in coded.labels)
    return partition_rows(coded.codes, len(names), shuffled(seed, len(coded.codes)), seed, test_fraction, names=names)


def partition_rows(
    owner: Ints, m: int, order: Ints, seed: int, fraction: float, groups: int = 1, names: tuple[str, ...] = ()
) -> Partition:
    """Hold a share of every client's rows out, the first ones of a shuffled order; put clients into groups.

    With a share above 0, at least one row of each client is held out and one is not; a client with a single row trains
    on it and has none to test on.
    """
    group = np.empty(m, dtype=np.int64)
    group[shuffled(seed, m, "hidden group")] = np.arange(m) % groups
    counts = np.bincount(owner, minlength=m)
    coin = uniform(seed, "held out", np.arange(m, dtype=np.uint64), 0, 1)[:, 0]
    most = np.maximum(counts - 1, 0)
    take = np.clip(np.floor(counts * fraction + coin).astype(np.int64), np.minimum(1, most), most)
    client = owner[order]
    test = places(client, counts) < (take if fraction else np.zeros_like(take))[client]
    sort = np.lexsort((client, test))
    return Partition(group, client[sort], order[sort], int(np.sum(~test)), names)


def _by_class(codes: Ints, order: Ints) -> Ints:
    """Rows sorted by class, those of one in the order given."""
    return order[np.argsort(codes[order], kind="stable")]


def places(client: Ints, counts: Ints) -> Ints:
    """How many rows of the same client come before each row."""
    sort = np.argsort(client, kind="stable")
    out = np.empty(len(client), dtype=np.int64)
    out[sort] = np.arange(len(client)) - np.repeat(np.cumsum(counts) - counts, counts)
    return out


def shuffled(seed: int, n: int, stream: str = "deal") -> Ints:
    """The numbers 0, ..., n - 1 in an order that the seed makes."""
    return np.argsort(uniform(seed, stream, np.arange(n, dtype=np.uint64), 0, 1)[:, 0], kind="stable").astype(np.int64)


def whole_labels(labels: npt.ArrayLike) -> Ints:
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


def need_rows(n: int, m: int, least: int) -> None:
    """A CoterieError where n rows do not give each of m clients as many as it must have at least."""
    if m * least > n:
        raise CoterieError(
            f"{n:,} rows are not enough for {m:,} clients with {least:,} each: ask for "
            + (f"{n // least:,} clients or fewer" if n >= least else "fewer rows each")
            + (", or for fewer rows each." if 1 < least <= n else ".")
        )


def _shares(seed: int, owned: Bools, alpha: float, sizes: Ints, attempt: int) -> Ints:
    """Rows of each class at each client that owns it (K, m), by cutting classes at cumulative sums of drawn shares.

    A gamma variable of shape a is one of shape a + 1 times U^(1/a); in logarithms no shape is too small for it.
    """
    K, m = owned.shape
    u = uniform(seed, "dirichlet", np.arange(m, dtype=np.uint64), attempt, 2 * K)
    with np.errstate(divide="ignore"):
        log = np.log(special.gammaincinv(alpha + 1.0, u[:, :K])) + np.log1p(-u[:, K:]) / max(alpha, 1e-300)
    log = np.where(owned.T, log, -np.inf)
    share = np.exp(log - log.max(axis=0)).T
    cuts = np.cumsum(share, axis=1)
    cuts = np.rint(cuts / cuts[:, -1:] * sizes[:, None]).astype(np.int64)
    return np.asarray(np.diff(cuts, axis=1, prepend=0))


def _fill(owner: Ints, m: int, least: int, order: Ints) -> Ints:
    """Move rows of the largest clients to those that have fewer than ``least``."""
    counts = np.bincount(owner, minlength=m)
    lack = np.maximum(least - counts, 0)
    place = places(owner[order], counts)
    spare = np.argsort(-place, kind="stable")[: lack.sum()]  # rows far down belong to the largest clients
    owner = owner.copy()
    owner[order[spare]] = np.repeat(np.arange(m), lack)
    return owner
