"""Clients in hidden groups that label rows by other rules, as functions of the seed and of the row's number."""

from __future__ import annotations

import numpy as np

from coterie.data.partition import PartitionedRows, iid
from coterie.numerics.arrays import Floats, Ints
from coterie.numerics.keyed_random import uniform


def noisy_labels(X: Floats, y: Ints, clients: int, channels: Floats, seed: int = 0) -> PartitionedRows:
    """Rows (n, p) with classes (n,) partitioned among clients, half of each client's to test on.

    In group g, a row of class a has label b with probability ``channels[g, a, b]`` (G, K, K), drawn for each row by
    itself. Rows to test on are labelled by the same rule: a client is judged by what it calls things.
    """
    partition = iid(len(X), clients, seed, 0.5, len(channels))
    upto = np.cumsum(channels, axis=2)[partition.group[partition.client], y[partition.row]]
    u = uniform(seed, "labels", partition.row.astype(np.uint64), 0, 1)
    K = channels.shape[1]
    read = np.minimum((u >= upto).sum(axis=1), K - 1).astype(np.int64)
    return partition.take_sorted(X[partition.row], read, K)


def rotated_channels(classes: int, noise: float) -> Floats:
    """Group g reads class a as ``(a + g) mod K``; with probability ``noise`` as any other one: (K, K, K).

    With two classes, one group calls spam what the other calls mail.
    """
    plain = np.full((classes, classes), noise / (classes - 1))
    np.fill_diagonal(plain, 1.0 - noise)
    return np.stack([np.roll(plain, g, axis=1) for g in range(classes)])


def tilted_channels(classes: int, noise: float) -> Floats:
    """Group g reads class g as ``(g + 1) mod K`` with probability ``noise``, and all others as they are: (K, K, K).

    The noise rotates over the classes: with two, one group misses spam and the other one mail.
    """
    T = np.tile(np.eye(classes), (classes, 1, 1))
    for g in range(classes):
        T[g, g, g] -= noise
        T[g, g, (g + 1) % classes] += noise
    return T
