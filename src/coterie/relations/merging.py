"""Clients that have merged along a network, and the tree in which they merge as the penalty grows (clusterpath)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coterie.numerics.kernels import Floats, Ints
from coterie.relations.agreement import by_first
from coterie.relations.network import Network


def merged(network: Network, Z: Floats, tolerance: float = 1e-4) -> Ints:
    """Clusters of clients whose z are equal: components of the edges over which z does not change.

    Parameters
    ----------
    Z : (n, q)
    tolerance : float, default 1e-4
        Coordinates are equal that differ by no more than this, times the root mean square of Z.

    Returns
    -------
    (n,) int64
        Labels, counted from 0 in the order of the clusters' first clients.
    """
    near = tolerance * float(np.sqrt(np.mean(Z * Z))) if Z.size else 0.0
    i, j = network.edges.T
    return joined(network.n, network.edges[np.max(np.abs(Z[i] - Z[j]), axis=1, initial=0.0) <= near])


def joined(n: int, edges: Ints) -> Ints:
    """Components (n,) of some edges (K, 2), counted in the order of their first clients."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(n, n))
    return by_first(connected_components(graph, directed=False)[1].astype(np.int64))


@dataclass(frozen=True)
class MergeTree:
    """Which groups merge at which lambda.

    Attributes
    ----------
    lam : (K,) float64
        Rising.
    labels : (K, n) int64
        Groups at each: once merged, clients stay so, also where the solutions themselves part again (which they may,
        on most graphs).
    merges : tuple of (float, tuple of int, int)
        In rising order of lambda: where groups merged, the first clients of those that did, and how many clients the
        new one has.
    """

    lam: Floats
    labels: Ints
    merges: tuple[tuple[float, tuple[int, ...], int], ...]


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
    """Edges (n - groups, 2) that tie every group together."""
    order = np.argsort(labels, kind="stable")
    same = labels[order][1:] == labels[order][:-1]
    return np.stack([order[:-1][same], order[1:][same]], axis=1)
