"""Clusterings of clients: how well two agree, spectral clustering, and the tree in which groups merge (clusterpath)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.numerics.arrays import Floats, Ints

SMALL = 500  # clients up to whose number eigenvectors are those of a dense matrix


def adjusted_rand_index(labels: npt.ArrayLike, known: npt.ArrayLike) -> float:
    """How well two partitions of clients (n,) agree: 1 where they are the same, 0 in the mean where unrelated.

    Hubert, Arabie (1985), Comparing partitions, Journal of Classification.
    """
    from sklearn.metrics import adjusted_rand_score

    a = codes(labels)
    return float(adjusted_rand_score(codes(known, len(a)), a))


def codes(labels: npt.ArrayLike, n: int | None = None) -> Ints:
    """Labels of any kind as numbers from 0, (n,); a CoterieError where they are not n, or some are missing."""
    import pandas as pd

    values = np.asarray(labels)
    if values.ndim != 1 or (n is not None and len(values) != n):
        raise CoterieError(f"Known clusters need one label for each of {n} clients, not {values.shape}.")
    found, _ = pd.factorize(values)
    if np.any(found < 0):
        raise CoterieError(f"Client {np.argmax(found < 0)} has no known cluster: give every client a label.")
    return np.asarray(found, dtype=np.int64)


def by_first(labels: Ints) -> Ints:
    """The same partition, numbered from 0 in the order in which clients show it."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse].astype(np.int64)


def spectral_clustering(adjacency: Any, k: int, seed: int = 0) -> Ints:
    """Normalised spectral clustering of a graph (n, n) into k clusters, (n,).

    k-means of the :func:`leading_eigenvectors`, each client's row scaled to length 1 (Ng, Jordan, Weiss 2001).
    Components need no special care.
    """
    from sklearn.cluster import KMeans

    n = adjacency.shape[0]
    if k >= n or k == 1:
        return np.arange(n) if k > 1 else np.zeros(n, dtype=np.int64)
    vectors = leading_eigenvectors(adjacency, k, seed)
    size = np.linalg.norm(vectors, axis=1, keepdims=True)
    found = KMeans(k, n_init=10, random_state=seed).fit_predict(vectors / np.where(size > 0.0, size, 1.0))
    return np.asarray(found, dtype=np.int64)


def leading_eigenvectors(adjacency: Any, k: int, seed: int = 0) -> Floats:
    """Eigenvectors (n, k) of the k largest eigenvalues of a graph's normalised adjacency matrix, largest first.

    Lanczos' method needs products only, and is fast where clients are well mixed; graphs that are long and thin are
    factored, which is cheap for them.
    """
    from scipy import sparse
    from scipy.sparse.linalg import ArpackNoConvergence, eigsh

    n = adjacency.shape[0]
    degree = np.asarray(adjacency.sum(axis=1)).ravel()
    root = sparse.diags_array(1.0 / np.sqrt(np.where(degree > 0.0, degree, 1.0)))
    normal = root @ adjacency @ root + sparse.diags_array(np.where(degree > 0.0, 1.0, 2.0))  # eigenvalues 0 to 2
    if n <= SMALL or k >= n - 1:
        return np.asarray(np.linalg.eigh(normal.toarray())[1][:, ::-1][:, :k])
    start = np.random.default_rng(seed).random(n)
    try:
        values, vectors = eigsh(normal, k, which="LA", v0=start, maxiter=50, ncv=min(n, max(2 * k + 1, 40)))
    except ArpackNoConvergence:
        values, vectors = eigsh(normal.tocsc(), k, sigma=2.01, which="LM", v0=start)
    return np.asarray(vectors[:, np.argsort(-values, kind="stable")])


def joined(n: int, edges: Ints) -> Ints:
    """Components (n,) of some edges (K, 2), counted in the order of their first clients."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(n, n))
    return by_first(connected_components(graph, directed=False)[1].astype(np.int64))


@dataclass(frozen=True)
class MergeTree:
    """Which groups merge at which lambda.

    Once merged, clients stay so, also where the solutions themselves part again (which they may, on most graphs).
    """

    lam: Floats  # (K,) rising
    labels: Ints  # (K, n) groups at each
    merges: tuple[tuple[float, tuple[int, ...], int], ...]  # rising: lambda, groups' first clients, new size


def merge_tree(lam: Floats, labels: Sequence[Ints]) -> MergeTree:
    """The tree of groups ``labels`` (K of (n,)) found at penalties lam (K,), in any order.

    The groups at a lambda are the components of those found there and at all that are smaller.
    """
    order = np.argsort(lam, kind="stable")
    n = len(labels[0])
    now: Ints = np.arange(n, dtype=np.int64)
    rows, merges = [], []
    for k in order:
        found = np.asarray(labels[k], dtype=np.int64)
        new = joined(n, np.concatenate([_chains(now), _chains(found)]))
        first = np.unique(now, return_index=True)[1]
        by = np.argsort(new[first], kind="stable")
        cuts = np.flatnonzero(np.diff(new[first][by])) + 1
        for parts in np.split(first[by], cuts):
            if len(parts) > 1:
                merges.append((float(lam[k]), tuple(int(i) for i in parts), int(np.sum(new == new[parts[0]]))))
        rows.append(new)
        now = new
    return MergeTree(np.asarray(lam, dtype=np.float64)[order], np.array(rows), tuple(merges))


def _chains(labels: Ints) -> Ints:
    order = np.argsort(labels, kind="stable")
    same = labels[order][1:] == labels[order][:-1]
    return np.stack([order[:-1][same], order[1:][same]], axis=1)
