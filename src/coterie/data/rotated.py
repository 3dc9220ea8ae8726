"""Clients in hidden groups, dealt from one table of rows with classes: rotated images, and labels read in other ways.

Every row goes to one client only. Who gets which row, which rows are held out and who is in which group are functions
of the seed and of the row's or client's number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from coterie.data.dealing import Dealt, Part, whole
from coterie.data.partition import rotated, tested
from coterie.errors import CoterieError
from coterie.numerics.keyed import uniform

F64 = npt.NDArray[np.float64]


def rotated_digits(
    clients: int = 40,
    rotations: Sequence[float] = (0, 90, 180, 270),
    seed: int = 0,
    test_fraction: float = 0.5,
) -> Dealt:
    """Scikit-learn's 1,797 handwritten digits (8 x 8), seen by clients that hold them at other angles.

    Parameters
    ----------
    clients : int, default 40
        Rows are dealt out evenly: 44 or 45 each.
    rotations : sequence of float, default (0, 90, 180, 270)
        Degrees, counter-clockwise, of each hidden group; groups are as large as each other, give or take a client.
        Angles other than quarter turns are interpolated, with empty corners.
    seed : int, default 0
    test_fraction : float, default 0.5
        Share of every client's rows that is held out; at least one row is, and one is not.

    Returns
    -------
    Dealt
        Columns are a constant 1 and the 64 pixels, from 0 to 1.

    Raises
    ------
    CoterieError
        For more clients than two rows each allow, no rotation, or numbers out of range.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    dealt = rotated(digits.images / 16.0, digits.target, clients, rotations, seed, test_fraction)
    return replace(dealt, train=_columns(dealt.train), test=_columns(dealt.test))


def _columns(part: Part) -> Part:
    """A constant and the pixels."""
    n = len(part.X)
    return replace(part, X=np.concatenate([np.ones((n, 1)), part.X.reshape(n, -1)], axis=1))


def noisy_labels(
    X: npt.ArrayLike,
    y: npt.ArrayLike,
    clients: int = 30,
    channels: npt.ArrayLike | None = None,
    seed: int = 0,
    test_fraction: float = 0.5,
) -> Dealt:
    """Any rows with classes, dealt out to clients whose hidden groups label them by other rules.

    In group g, a row of class a has label b with probability ``channels[g, a, b]``, drawn for each row by itself. Rows
    to test on are labelled by the same rule: a client is judged by what it calls things.

    Parameters
    ----------
    X : (n, p)
    y : (n,)
        Classes 0, ..., K - 1.
    clients : int, default 30
    channels : (G, K, K), optional
        Rows add up to 1; by default :func:`rotated_channels` with 10% of noise.
    seed : int, default 0
    test_fraction : float, default 0.5

    Returns
    -------
    Dealt

    Raises
    ------
    CoterieError
        For rows that are not finite numbers, classes that are no whole numbers, channels that are no probabilities,
        and more clients than two rows each allow.
    """
    X, labels = np.asarray(X, dtype=np.float64), np.asarray(y)
    if X.ndim != 2 or labels.shape != (len(X),) or not np.isfinite(X).all():
        raise CoterieError("X must be (rows, columns) of finite numbers, with one class for each row.")
    codes = np.full(len(X), -1, dtype=np.int64)
    if labels.dtype.kind in "biuf" and np.isfinite(labels).all() and np.array_equal(labels, np.floor(labels)):
        codes = labels.astype(np.int64)
    K = int(codes.max(initial=-1)) + 1
    T = rotated_channels(max(K, 1), 0.1) if channels is None else np.asarray(channels, dtype=np.float64)
    if codes.min(initial=0) < 0 or T.ndim != 3 or T.shape[1] != T.shape[2] or T.shape[1] < K or not len(T):
        raise CoterieError("Classes must be whole numbers from 0, and channels (groups, classes, classes).")
    if not (np.isfinite(T).all() and (T >= 0.0).all() and np.allclose(T.sum(axis=2), 1.0)):
        raise CoterieError("Channels must be probabilities: every row of each adds up to 1.")
    dealt = tested(len(X), clients, len(T), seed, test_fraction)
    upto = np.cumsum(T, axis=2)[dealt.group[dealt.client], codes[dealt.row]]
    u = uniform(seed, "labels", dealt.row.astype(np.uint64), 0, 1)
    read = np.minimum((u >= upto).sum(axis=1), T.shape[1] - 1).astype(np.int64)
    return dealt.parts(X[dealt.row], read, T.shape[1])


def rotated_channels(classes: int, noise: float = 0.1, groups: int | None = None) -> F64:
    """Group g reads class a as ``(a + g) mod K``; with probability ``noise`` as another one, all others alike.

    With two classes and two groups, one calls spam what the other calls mail. (G, K, K), by default with G = K.
    """
    K, G = whole("classes", classes), whole("groups", classes if groups is None else groups)
    if not 0.0 <= noise <= 1.0 or G > K:
        raise CoterieError(f"noise must lie between 0 and 1, and there are {K} rotations of {K} classes at most.")
    plain = np.full((K, K), noise / max(K - 1, 1))
    np.fill_diagonal(plain, 1.0 - noise if K > 1 else 1.0)
    return np.stack([np.roll(plain, g, axis=1) for g in range(G)])


def tilted_channels(classes: int, noise: float = 0.4) -> F64:
    """Group g reads class g as ``(g + 1) mod K`` with probability ``noise``, and all others as they are: (K, K, K).

    The noise rotates over the classes: with two, one group misses spam and the other one mail.
    """
    K = whole("classes", classes)
    if not 0.0 <= noise <= 1.0:
        raise CoterieError(f"noise must lie between 0 and 1, not {noise:g}.")
    T = np.tile(np.eye(K), (K, 1, 1))
    for g in range(K):
        T[g, g, g] -= noise
        T[g, g, (g + 1) % K] += noise
    return T
