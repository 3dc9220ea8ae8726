"""The similarity network: which clients are tied to which, and how strongly (paper 003, IV-A)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError, listed
from coterie.lazy_modules import sparse
from coterie.numerics import keyed_random
from coterie.numerics.arrays import Floats, Ints, float_array
from coterie.options import Option, checked
from coterie.relations import clusters, neighbours

Number = Annotated[int, Option("How many clients there are.", low=1)]
Neighbours = Annotated[int, Option("Neighbours of a client.", low=1)]
Drawn = Annotated[int, Option("Clients that every client is tied to.", low=0)]

SQUARED = 1e100  # numbers up to this, and down to its inverse, can be squared and added up as they are


@dataclass(frozen=True, eq=False)
class Network:
    """An undirected graph whose nodes are clients."""

    n: int  # clients, numbered from 0 to n - 1
    edges: Ints  # (M, 2) each row i < j, unique, sorted
    weight: Floats  # (M,) positive and finite

    @classmethod
    @checked
    def of(cls, n: Number, edges: npt.ArrayLike, weight: npt.ArrayLike | None = None) -> Network:
        """A network of n clients from a user's own edges: pairs (M, 2) of different clients, in any order.

        A pair may come twice, in one or both directions, with one weight. Weights are one positive number, or (M,); by
        default 1. A CoterieError for a self-loop, a client that is not there, a weight that is negative, zero or not a
        number, a pair with two weights, or a wrong shape.
        """
        try:
            pairs = np.asarray(edges)
        except ValueError as e:
            raise CoterieError("Edges must be pairs of clients' numbers, each of two.") from e
        if pairs.size == 0:
            pairs = np.empty((0, 2), dtype=np.int64)
        if pairs.ndim != 2 or pairs.shape[1] != 2 or not np.issubdtype(pairs.dtype, np.integer):
            raise CoterieError(
                "Edges must be pairs of clients' numbers, an integer array of shape (M, 2), not "
                f"{pairs.dtype} of shape {pairs.shape}."
            )
        pairs = pairs.astype(np.int64)
        weights = _weights(weight, len(pairs))
        unknown = np.unique(pairs[(pairs < 0) | (pairs >= n)])
        if len(unknown):
            raise CoterieError(f"Edges name clients not there ({listed(unknown)}): numbers go from 0 to {n - 1:,}.")
        loops = np.unique(pairs[pairs[:, 0] == pairs[:, 1], 0])
        if len(loops):
            raise CoterieError(f"Clients {listed(loops)} have an edge to themselves: leave such edges out.")
        return cls(n, *_merged(n, pairs, weights))

    @classmethod
    def from_adjacency(cls, A: Any, *, symmetrise: bool = False) -> Network:
        """A network from a scipy sparse matrix or an array (n, n) of weights, 0 where there is no edge.

        With ``symmetrise`` the greater of ``A[i, j]`` and ``A[j, i]`` is taken; otherwise they must be equal.
        """
        try:
            matrix = sparse.coo_array(A, dtype=np.float64)
        except (TypeError, ValueError) as e:
            raise CoterieError("An adjacency matrix must be a square table of numbers.") from e
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.shape[0]:
            raise CoterieError(f"An adjacency matrix must be square, not {matrix.shape}.")
        matrix.sum_duplicates()
        there = matrix.data != 0.0
        i, j, weight = matrix.row[there].astype(np.int64), matrix.col[there].astype(np.int64), matrix.data[there]
        if not symmetrise:
            gap = abs(matrix - matrix.T)
            if gap.nnz and gap.max() > 1e-12 * abs(matrix).max():
                raise CoterieError("The adjacency matrix is not symmetric: give (A + A') / 2, or say symmetrise=True.")
        i, j = np.minimum(i, j), np.maximum(i, j)
        order = np.lexsort((-weight, j, i))  # the heavier of two comes first
        key, first = np.unique((i * matrix.shape[0] + j)[order], return_index=True)
        return cls.of(matrix.shape[0], _pairs(key, matrix.shape[0]), weight[order][first])

    @classmethod
    @checked
    def nearest(
        cls,
        points: npt.ArrayLike,
        k: Neighbours,
        *,
        weighted: bool = False,
        mutual: bool = False,
        connected: bool = False,
        distance: neighbours.Distance | None = None,
        seed: int = 0,
    ) -> Network:
        """The graph of the k nearest neighbours: i and j are tied where either is near the other, or ``mutual``, both.

        Points (n, q) are compared by Euclidean distance, or by ``distance(i, j)``, the exact distances (M,) of pairs,
        where Euclidean ones only come close: neighbours are then the nearest among a client's 8 k nearest points.
        ``weighted`` ties weigh ``exp(-d_ij^2 / (s_i s_j))`` with the distance s_i of client i to its k-th neighbour
        (Zelnik-Manor, Perona 2004, Self-tuning spectral clustering, NIPS), 0.01 at least; otherwise 1. Identical points
        have weight 1, and clients with s_i = 0 the mean scale. ``connected`` joins components by their nearest pairs:
        the edges of the minimum spanning tree between them. ``seed`` is of the approximate search that is used for more
        than 20,000 clients in more than 5 dimensions.
        """
        P = neighbours.snapped(_points(points))
        n = len(P)
        if n == 1:
            raise CoterieError("One client has no neighbours: a similarity network needs two clients at least.")
        _need_others(k, n)
        far = distance or partial(neighbours.lengths, P)
        near, scale = neighbours.search(P, k, seed, distance)
        i, j = np.repeat(np.arange(n), k), near.ravel()
        key, times = np.unique(np.minimum(i, j) * n + np.maximum(i, j), return_counts=True)
        edges = _pairs(key[times == 2] if mutual else key, n)
        if connected:
            added = neighbours.join(P, clusters.joined(n, edges))
            edges = _pairs(np.sort(np.concatenate([edges, added]) @ [n, 1]), n)
        if not weighted:
            return cls(n, edges, np.ones(len(edges)))
        return cls(n, edges, neighbours.kernel(far(edges[:, 0], edges[:, 1]), scale, edges))

    @classmethod
    @checked
    def complete(cls, n: Number) -> Network:
        """Everyone tied to everyone: for few clients."""
        i, j = np.triu_indices(n, 1)
        return cls(n, np.stack([i, j], axis=1).astype(np.int64), np.ones(len(i)))

    @classmethod
    @checked
    def random(cls, n: Number, k: Drawn, seed: int = 0) -> Network:
        """Every client tied to k others drawn at random: what a network that says nothing is worth."""
        _need_others(k, n)
        u = keyed_random.uniform(seed, "random network", np.arange(n), 0, k)
        drawn = np.full((n, k), -1, dtype=np.int64)
        for c in range(k):  # Floyd's sample without repeats, of the n - 1 others
            last = n - 1 - k + c
            t = np.floor(u[:, c] * (last + 1)).astype(np.int64)
            drawn[:, c] = np.where((drawn == t[:, None]).any(axis=1), last, t)
        i = np.repeat(np.arange(n), k)
        j = drawn.ravel()
        j = j + (j >= i)
        edges = _pairs(np.unique(np.minimum(i, j) * n + np.maximum(i, j)), n)
        return cls(n, edges, np.ones(len(edges)))

    def __len__(self) -> int:
        return len(self.edges)

    @cached_property
    def degree(self) -> Ints:
        """Neighbours of every client, (n,)."""
        return np.asarray(np.bincount(self.edges.ravel(), minlength=self.n), dtype=np.int64)

    @cached_property
    def adjacency(self) -> Any:
        """Weights as a symmetric scipy matrix (n, n) in compressed rows."""
        i, j = self.edges.T
        data = np.concatenate([self.weight, self.weight])
        return sparse.csr_array((data, (np.concatenate([i, j]), np.concatenate([j, i]))), shape=(self.n, self.n))

    @cached_property
    def components(self) -> Ints:
        """Which connected component every client is in, (n,), numbered by their first clients."""
        return clusters.joined(self.n, self.edges)

    def merged(self, Z: Floats, tolerance: float = 1e-4) -> Ints:
        """Clusters (n,) of clients whose z (n, q) are equal: components of the edges over which z does not change.

        Coordinates are equal that differ by no more than ``tolerance`` times the root mean square of Z. Clusters are
        counted from 0 in the order of their first clients.
        """
        near = tolerance * float(np.sqrt(np.mean(Z * Z))) if Z.size else 0.0
        i, j = self.edges.T
        return clusters.joined(self.n, self.edges[np.max(np.abs(Z[i] - Z[j]), axis=1, initial=0.0) <= near])

    def against(self, known: npt.ArrayLike, seed: int = 0) -> dict[str, float]:
        """How well the network agrees with known clusters (n,); NaN where there is nothing to compare.

        ``inside`` is the share of weight on edges inside clusters, ``chance`` what it would be if edges were drawn
        again with the same degrees, ``modularity`` their difference, ``assortativity`` that over ``1 - chance``;
        adjusted Rand indices of the known clusters are with the ``components`` and with a ``spectral`` clustering into
        as many clusters, for whose k-means ``seed`` is.
        """
        labels = clusters.codes(known, self.n)
        total = float(self.weight.sum())
        out = dict.fromkeys(("inside", "chance", "modularity", "assortativity"), np.nan)
        if len(self):
            i, j = self.edges.T
            out["inside"] = float(self.weight[labels[i] == labels[j]].sum()) / total
            strength = np.bincount(labels[i], self.weight, labels.max() + 1)
            strength += np.bincount(labels[j], self.weight, labels.max() + 1)
            out["chance"] = float(np.sum((strength / (2.0 * total)) ** 2))
            out["modularity"] = out["inside"] - out["chance"]
            if out["chance"] < 1.0:
                out["assortativity"] = out["modularity"] / (1.0 - out["chance"])
        out["components"] = clusters.adjusted_rand_index(self.components, labels)
        found = clusters.spectral_clustering(self.adjacency, int(labels.max()) + 1, seed)
        return out | {"spectral": clusters.adjusted_rand_index(found, labels)}


def _need_others(k: int, n: int) -> None:
    if k >= n:
        raise CoterieError(f"k must be at most {n - 1} among {n} clients, not {k}: take a smaller k.")


def _points(points: npt.ArrayLike) -> Floats:
    P = float_array("Points of clients", points)
    P = P[:, None] if P.ndim == 1 else P
    if P.ndim != 2 or not P.size:
        raise CoterieError(f"Points of clients must be a table with a row for each client, not {P.shape}.")
    wrong = np.flatnonzero(~np.isfinite(P).all(axis=1))
    if len(wrong):
        raise CoterieError(f"Points of clients {listed(wrong)} are not finite numbers: fill them in or leave them out.")
    wide = float(np.abs(P).max())
    if wide > 0.0 and not 1.0 / SQUARED < wide < SQUARED:  # else squares overflow or vanish
        P = np.ldexp(P, -int(np.floor(np.log2(wide))))
    return P


def _weights(weight: npt.ArrayLike | None, m: int) -> Floats:
    w = np.ones(m) if weight is None else float_array("Weights of edges", weight)
    if w.ndim == 0:
        w = np.full(m, w)
    if w.shape != (m,):
        raise CoterieError(f"There are {m:,} edges and weights of shape {w.shape}: give one weight for each edge.")
    wrong = np.flatnonzero(~(np.isfinite(w) & (w > 0.0)))
    if len(wrong):
        raise CoterieError(
            f"Weights of edges must be positive finite numbers, but edge {wrong[0]} has {w[wrong[0]]}: "
            "leave edges without weight out."
        )
    return w


def _merged(n: int, pairs: Ints, weight: Floats) -> tuple[Ints, Floats]:
    """Edges as the network keeps them: each once."""
    key = pairs.min(axis=1, initial=n) * n + pairs.max(axis=1, initial=0)
    unique, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    differs = np.flatnonzero(weight != weight[first][inverse])
    if len(differs):
        i, j = pairs[differs[0]]
        raise CoterieError(f"Clients {i} and {j} have edges of different weight: keep one of them.")
    return _pairs(unique, n), weight[first]


def _pairs(key: Ints, n: int) -> Ints:
    """Edges i, j (M, 2) from numbers ``i n + j``."""
    return np.stack([key // n, key % n], axis=1)
