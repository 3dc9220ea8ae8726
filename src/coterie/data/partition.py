"""Labelled rows dealt out among clients: evenly, by Dirichlet shares, in shards, by a column, or at groups' angles.

Every row goes to one client only. Who gets which row, which rows are held out and who is in which group are functions
of the seed and of the row's or client's number. A function says who gets what (:class:`Deal`); ``.of(X, y)`` gathers
the rows, once::

    dealt = dirichlet(labels, clients=20, alpha=0.1).of(images, labels)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.data.columns import at_rows
from coterie.data.dealing import I64, Array, Deal, Dealt, dealt_out, need_rows, places, shuffled, whole, whole_labels
from coterie.data.labels import encode
from coterie.errors import CoterieError
from coterie.numerics.keyed_random import uniform

TRIES = 20  # how often Dirichlet shares are drawn anew before rows are moved


def iid(rows: int, clients: int, seed: int = 0, test_fraction: float = 0.2, groups: int = 1) -> Deal:
    """Every client gets as many rows as the others, give or take one, whatever they are.

    Parameters
    ----------
    rows : int
        How many there are.
    clients : int
    seed : int, default 0
    test_fraction : float, default 0.2
        Share of every client's rows that is held out, from 0 to below 1. With more than 0, at least one row is and one
        is not; a client with a single row trains on it and has none to test on.
    groups : int, default 1
        Hidden groups, as large as each other, give or take a client.

    Returns
    -------
    Deal

    Raises
    ------
    CoterieError
        For more clients than rows, and numbers out of range.
    """
    n, m = whole("rows", rows), whole("clients", clients)
    need_rows(n, m, 1)
    order = shuffled(seed, n)
    owner = np.empty(n, dtype=np.int64)
    owner[order] = np.arange(n) % m
    return dealt_out(owner, m, order, seed, test_fraction, whole("groups", groups))


def dirichlet(
    labels: npt.ArrayLike, clients: int, alpha: float, least: int = 1, seed: int = 0, test_fraction: float = 0.2
) -> Deal:
    """Shares of each class drawn from a symmetric Dirichlet distribution over the clients (Yurochkin et al. 2019).

    Small ``alpha`` gives clients of few classes and of very unequal size, a large one clients that are all alike.

    Parameters
    ----------
    labels : (n,)
        Classes, whole numbers from 0.
    clients : int
    alpha : float
        Concentration, above 0.
    least : int, default 1
        Rows that every client has at least, those held out included. Shares are drawn anew up to 20 times until they
        give as many; then rows of the largest clients are moved to those that lack some, so that this always ends.
    seed : int, default 0
    test_fraction : float, default 0.2
        As in :func:`iid`.

    Returns
    -------
    Deal

    Raises
    ------
    CoterieError
        For ``least`` rows a client more than there are, labels that are no whole numbers, and numbers out of range.

    References
    ----------
    Yurochkin et al. (2019), Bayesian nonparametric federated learning of neural networks, ICML, section 4.
    """
    codes, m, least = whole_labels(labels), whole("clients", clients), whole("least", least)
    codes = encode(codes).codes  # labels may have gaps
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float, np.number)) or not 0.0 < alpha < np.inf:
        raise CoterieError(f"alpha must be a number above 0, not {alpha!r}: 0.1 makes clients unlike, 100 alike.")
    need_rows(len(codes), m, least)
    sizes = np.bincount(codes)
    best = _shares(seed, m, len(sizes), float(alpha), sizes, 0)
    for attempt in range(1, TRIES):
        if best.sum(axis=0).min() >= least:
            break
        other = _shares(seed, m, len(sizes), float(alpha), sizes, attempt)
        best = max(best, other, key=lambda counts: int(counts.sum(axis=0).min()))
    order = shuffled(seed, len(codes))
    by_class = order[np.argsort(codes[order], kind="stable")]
    owner = np.empty(len(codes), dtype=np.int64)
    owner[by_class] = np.repeat(np.tile(np.arange(m), len(sizes)), best.ravel())
    return dealt_out(_fill(owner, m, least, order), m, order, seed, test_fraction)


def shards(labels: npt.ArrayLike, clients: int, each: int = 2, seed: int = 0, test_fraction: float = 0.2) -> Deal:
    """Rows sorted by class and cut into ``clients * each`` shards of one size; every client gets some of them.

    Parameters
    ----------
    labels : (n,)
        Classes, whole numbers from 0.
    clients : int
    each : int, default 2
        Shards a client, hence about the most classes it has.
    seed : int, default 0
    test_fraction : float, default 0.2
        As in :func:`iid`.

    Returns
    -------
    Deal

    Raises
    ------
    CoterieError
        For more shards than rows, labels that are no whole numbers, and numbers out of range.

    References
    ----------
    McMahan et al. (2017), Communication-efficient learning of deep networks from decentralized data, section 3.
    """
    codes, m, each = whole_labels(labels), whole("clients", clients), whole("each", each)
    n, many = len(codes), m * each
    need_rows(n, m, each)
    order = shuffled(seed, n)
    by_class = order[np.argsort(codes[order], kind="stable")]
    taker = np.empty(many, dtype=np.int64)
    taker[shuffled(seed, many, "shards")] = np.arange(many) % m
    owner = np.empty(n, dtype=np.int64)
    owner[by_class] = np.repeat(taker, np.diff(np.arange(many + 1) * n // many))
    return dealt_out(owner, m, order, seed, test_fraction)


def by_column(column: Any, seed: int = 0, test_fraction: float = 0.2) -> Deal:
    """The clients that a column of the table names, in natural order.

    Parameters
    ----------
    column : (n,) labels
        Numbers or text.
    seed : int, default 0
    test_fraction : float, default 0.2
        As in :func:`iid`.

    Returns
    -------
    Deal
        With ``names``.

    Raises
    ------
    CoterieError
        For an empty column, and for rows without a client.
    """
    coded = encode(column)
    if not len(coded.codes):
        raise CoterieError("The column of clients has no rows.")
    if coded.missing.any():
        raise CoterieError(f"The column of clients is empty in {at_rows(coded.missing)}: fill or drop them first.")
    names = tuple(str(label) for label in coded.labels)
    return dealt_out(coded.codes, len(names), shuffled(seed, len(coded.codes)), seed, test_fraction, names=names)


def rotated(
    images: npt.ArrayLike,
    labels: npt.ArrayLike,
    clients: int = 40,
    rotations: Sequence[float] = (0, 90, 180, 270),
    seed: int = 0,
    test_fraction: float = 0.5,
) -> Dealt:
    """Images dealt out evenly to clients in hidden groups that hold them at other angles.

    Parameters
    ----------
    images : (n, h, h)
    labels : (n,)
        Classes, whole numbers from 0.
    clients : int, default 40
    rotations : sequence of float, default (0, 90, 180, 270)
        Degrees, counter-clockwise, of each hidden group; groups are as large as each other, give or take a client.
        Angles other than quarter turns are interpolated, with empty corners.
    seed : int, default 0
    test_fraction : float, default 0.5
        Share of every client's rows that is held out, between 0 and 1; at least one row is, and one is not.

    Returns
    -------
    Dealt
        X (n, h, h) of the type of the images.

    Raises
    ------
    CoterieError
        For more clients than two rows each allow, no rotation, images that are not square or not finite, labels that
        are no whole numbers, and numbers out of range.
    """
    angles = np.atleast_1d(np.asarray(rotations, dtype=np.float64))
    if not angles.size or not np.isfinite(angles).all():
        raise CoterieError("rotations must be angles in degrees, one for each group at least.")
    images, codes = np.asarray(images), whole_labels(labels)
    if images.ndim != 3 or images.shape[1] != images.shape[2]:
        raise CoterieError(f"Images to turn must be square, (rows, height, height), not {images.shape}.")
    deal = tested(len(codes), clients, len(angles), seed, test_fraction)
    dealt = deal.of(images, codes)
    group = deal.group[deal.client]
    turned = np.concatenate([dealt.train.X, dealt.test.X])
    for g, angle in enumerate(angles):
        turned[group == g] = _turn(turned[group == g], angle)
    return deal.parts(turned, codes[deal.row])


def rotated_digits(
    clients: int = 40,
    rotations: Sequence[float] = (0, 90, 180, 270),
    seed: int = 0,
    test_fraction: float = 0.5,
) -> Dealt:
    """Scikit-learn's 1,797 handwritten digits (8 x 8), seen by clients that hold them at other angles.

    Arguments are those of :func:`rotated`.

    Returns
    -------
    Dealt
        Columns are a constant 1 and the 64 pixels, from 0 to 1.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    dealt = rotated(digits.images / 16.0, digits.target, clients, rotations, seed, test_fraction)
    train, test = (
        replace(part, X=np.insert(part.X.reshape(len(part.X), -1), 0, 1.0, axis=1))
        for part in (dealt.train, dealt.test)
    )
    return replace(dealt, train=train, test=test)


def tested(rows: int, clients: int, groups: int, seed: int, fraction: float) -> Deal:
    """:func:`iid` where every client must have a row to train on and one to test on, or a CoterieError."""
    n, m = whole("rows", rows), whole("clients", clients)
    if 2 * m > n:
        raise CoterieError(f"{n} rows are not enough for {m} clients: each needs one to train on and one to test on.")
    if not 0.0 < fraction < 1.0:
        raise CoterieError(f"The test fraction must be between 0 and 1, not {fraction:g}.")
    return iid(n, m, seed, fraction, groups)


def _shares(seed: int, m: int, K: int, alpha: float, sizes: I64, attempt: int) -> I64:
    """Rows of each class at each client (K, m), by cutting classes at the cumulative sums of drawn shares.

    A gamma variable of shape a is one of shape a + 1 times U^(1/a); in logarithms no shape is too small for it.
    """
    from scipy.special import gammaincinv

    u = uniform(seed, "dirichlet", np.arange(m, dtype=np.uint64), attempt, 2 * K)
    with np.errstate(divide="ignore"):
        log = np.log(gammaincinv(alpha + 1.0, u[:, :K])) + np.log1p(-u[:, K:]) / max(alpha, 1e-300)
    share = np.exp(log - log.max(axis=0)).T
    cuts = np.cumsum(share, axis=1)
    cuts = np.rint(cuts / cuts[:, -1:] * sizes[:, None]).astype(np.int64)
    return np.asarray(np.diff(cuts, axis=1, prepend=0))


def _fill(owner: I64, m: int, least: int, order: I64) -> I64:
    """Move rows of the largest clients to those that have fewer than ``least``."""
    counts = np.bincount(owner, minlength=m)
    lack = np.maximum(least - counts, 0)
    place = places(owner[order], counts)
    spare = np.argsort(-place, kind="stable")[: lack.sum()]  # rows far down belong to the largest clients
    owner = owner.copy()
    owner[order[spare]] = np.repeat(np.arange(m), lack)
    return owner


def _turn(images: Array, angle: float) -> Array:
    """Images (n, h, h) turned counter-clockwise."""
    if angle % 90.0 == 0.0:
        return np.rot90(images, int(angle // 90.0) % 4, axes=(1, 2))
    from scipy.ndimage import rotate

    return np.asarray(rotate(images, angle, axes=(2, 1), reshape=False, order=1))
