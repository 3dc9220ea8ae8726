"""Nearest neighbours among clients' points, and the shortest edges that join a graph's components."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from coterie.lazy_modules import sparse
from coterie.numerics.arrays import Floats, Ints
from coterie.relations.clusters import joined

Distance = Callable[[Ints, Ints], Floats]

EXACT = 20_000  # clients up to which neighbours are searched exactly, in any number of dimensions
FLAT = 5  # dimensions up to which trees find neighbours exactly and fast, for any number of clients
CANDIDATES = 8  # near points that are ranked again by another distance, for each neighbour that is wanted
FAINT = 0.01
"""The smallest weight of a tie between neighbours: one that is next to nothing only sets from where lambda counts."""
BLOCK = 1 << 22  # numbers held at once


def snapped(P: Floats) -> Floats:
    """Points on a grid of 2^-36 of their range, so that ties do not hang on how sums were rounded."""
    wide = float(np.ptp(P, axis=0).max())
    grid = 2.0 ** (np.floor(np.log2(wide)) - 36.0) if wide > 0.0 else 1.0
    return np.asarray(np.round(P / grid) * grid)


def search(P: Floats, k: int, seed: int = 0, distance: Distance | None = None) -> tuple[Ints, Floats]:
    """The k nearest others of every point (n, q), (n, k), and the distance to the k-th, (n,).

    Exact by scikit-learn; approximate by nearest-neighbour descent (pynndescent) where both n and q are large. With
    another distance, the nearest by it among more that are near.
    """
    near = _search(P, k if distance is None else min(CANDIDATES * k, len(P) - 1), seed)
    i, j = np.repeat(np.arange(len(P)), near.shape[1]), near.ravel()
    far = (lengths(P, i, j) if distance is None else distance(i, j)).reshape(near.shape)
    order = np.argsort(far, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(near, order, axis=1), np.take_along_axis(far, order[:, -1:], axis=1)[:, 0]


def _search(P: Floats, k: int, seed: int) -> Ints:
    P = P - P.mean(axis=0)  # distances by expanded squares round less
    if len(P) > EXACT and P.shape[1] > FLAT:
        return _descend(P, k, seed)
    from sklearn.neighbors import NearestNeighbors

    return np.asarray(NearestNeighbors(n_neighbors=k).fit(P).kneighbors(return_distance=False), dtype=np.int64)


def _descend(P: Floats, k: int, seed: int) -> Ints:
    """Every point is most often its own nearest neighbour, but not where others are identical."""
    from pynndescent import NNDescent

    n = len(P)
    found = NNDescent(P, n_neighbors=max(k + 1, 15), random_state=seed).neighbor_graph[0].astype(np.int64)
    other = (found != np.arange(n)[:, None]) & (found >= 0)
    order = np.argsort(~other, axis=1, kind="stable")[:, :k]
    near = np.take_along_axis(found, order, axis=1)
    short = np.flatnonzero(other.sum(axis=1) < k)
    if len(short):
        from sklearn.neighbors import NearestNeighbors

        exact = NearestNeighbors(n_neighbors=k + 1).fit(P).kneighbors(P[short], return_distance=False)
        own = exact == short[:, None]
        own[~own.any(axis=1), -1] = True
        near[short] = exact[~own].reshape(len(short), k)
    return near


def lengths(P: Floats, i: Ints, j: Ints) -> Floats:
    """Distances between points i and j, (M,)."""
    out = np.empty(len(i))
    step = max(1, BLOCK // P.shape[1])
    for at in range(0, len(i), step):
        here = slice(at, at + step)
        out[here] = np.linalg.norm(P[i[here]] - P[j[here]], axis=1)
    return out


def kernel(d: Floats, scale: Floats, edges: Ints) -> Floats:
    """Weights (M,) of edges of lengths d by the clients' scales (n,): see ``Network.nearest``."""
    if not scale.any():
        return np.where(d > 0.0, FAINT, 1.0)
    scale = np.where(scale > 0.0, scale, scale[scale > 0.0].mean())
    return np.maximum(np.exp(-(d / scale[edges[:, 0]]) * (d / scale[edges[:, 1]])), FAINT)


def join(P: Floats, labels: Ints) -> Ints:
    """The shortest edges that join components into one, (components - 1, 2), each row i < j.

    Boruvka: the shortest edge that leaves a component belongs to the minimum spanning tree; all components but the
    largest look for theirs, join, and look again.
    """
    labels = labels.copy()
    added = [np.empty((0, 2), dtype=np.int64)]
    P = P - P.mean(axis=0)
    while labels.max(initial=0) > 0:
        edges = _leaving(P, labels)
        kept, labels = _joined(labels, edges)
        added.append(edges[kept])
    out = np.sort(np.concatenate(added), axis=1)
    return out[np.lexsort((out[:, 1], out[:, 0]))]


def _joined(labels: Ints, edges: Ints) -> tuple[Ints, Ints]:
    """Which edges, shortest first, join components not joined before, and the new components."""
    m = int(labels.max()) + 1
    ends = np.sort(labels[edges], axis=1)
    _, first = np.unique(ends @ [m, 1], return_index=True)  # of two components' edges the shortest
    tree = sparse.csgraph.minimum_spanning_tree(sparse.coo_array((first + 1.0, tuple(ends[first].T)), shape=(m, m)))
    kept = np.sort(tree.data.astype(np.int64)) - 1
    return kept, joined(m, ends[kept])[labels]


def _leaving(P: Floats, labels: Ints) -> Ints:
    """For every component but the largest the shortest edge that leaves it, shortest first.

    Among the s + 1 nearest of a point in a component of s points, one lies outside: small components are searched
    together in one index, large ones, which are few, in an index of the others.
    """
    from sklearn.neighbors import NearestNeighbors

    n, size = len(P), np.bincount(labels)
    looks = np.arange(len(size)) != np.argmax(size)
    small = looks & (size <= max(8, int(np.sqrt(n))))
    i, j = np.flatnonzero(looks[labels]), np.full(n, -1, dtype=np.int64)
    index = NearestNeighbors().fit(P)
    reach = 1 << np.ceil(np.log2(size[labels])).astype(np.int64)
    for most in np.unique(reach[small[labels]]):
        mine = np.flatnonzero(small[labels] & (reach == most))
        k = min(int(most) + 1, n)
        for at in range(0, len(mine), max(1, BLOCK // k)):
            rows = mine[at : at + max(1, BLOCK // k)]
            near = index.kneighbors(P[rows], k, return_distance=False)
            outside = labels[near] != labels[rows][:, None]
            j[rows] = near[np.arange(len(rows)), outside.argmax(axis=1)]
    for c in np.flatnonzero(looks & ~small):
        others = np.flatnonzero(labels != c)
        mine = np.flatnonzero(labels == c)
        j[mine] = others[NearestNeighbors(n_neighbors=1).fit(P[others]).kneighbors(P[mine], 1, False)[:, 0]]
    d = lengths(P, i, j[i])
    order = np.lexsort((np.maximum(i, j[i]), np.minimum(i, j[i]), d))
    _, first = np.unique(labels[i[order]], return_index=True)
    chosen = order[np.sort(first)]
    return np.stack([i[chosen], j[i[chosen]]], axis=1)
