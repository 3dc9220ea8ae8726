"""Clusters: the known tree above the clients, how strongly clients are tied to it, and clusterings that are found.

A level l node hangs on ``parents[l]``. With no cluster level the clients hang on the root itself.

Strengths have the form (2.1) of Lyu, Hanzely, Kolar (2022): client i of cluster j is tied to its cluster's average with
``(1 - alpha_j) gamma_i`` and to the network's with ``alpha_j gamma_i``; (2.2) has the averages. Proposition 2.2 takes
(2.3) there: ``alpha_j = lambda_j / (lambda_j + Gamma_j)``.

With nested clusters it is the same again at every level: of what a cluster passes on, ``alpha_j gamma_i``, its parent r
keeps ``(1 - alpha_r)`` as a tie to its own average, weighted by just that, and passes on the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.data.clients import Clients
from coterie.errors import CoterieError
from coterie.lazy_modules import pd, sparse
from coterie.numerics.arrays import Floats, Ints


@dataclass(frozen=True)
class ClusterTree:
    """Parents of every cluster, fine to coarse; without any, clients hang on the root."""

    parents: tuple[Ints, ...] = ()  # (k_l,) indices into level l + 1; all 0 at the coarsest level

    @classmethod
    def of(cls, clients: Clients) -> ClusterTree:
        """The tree that a table's cluster columns give."""
        return cls(tuple(level.parent for level in clients.levels))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of nodes of each level, then 1 for the root."""
        return (*(len(p) for p in self.parents), 1)

    def up(self, level: int, values: Floats) -> Floats:
        """Sum a level's values (k_l, ...) into their parents."""
        if self.sizes[level + 1] == 1:
            return np.asarray(values.sum(axis=0))[None]
        out = np.zeros((self.sizes[level + 1], *values.shape[1:]))
        np.add.at(out, self.parents[level], values)
        return out


def strengths(name: str, value: npt.ArrayLike, size: int) -> Floats:
    """One strength for each of ``size`` clients or clusters; a CoterieError where one is negative or missing."""
    given = np.asarray(value, dtype=np.float64)
    if given.shape not in ((), (size,)) or not np.all(given >= 0.0):
        raise CoterieError(f"{name} must be one number that is not negative, or {size} of them.")
    return np.broadcast_to(given, (size,))


@dataclass(frozen=True)
class ClusterTies:
    """How strongly clients and clusters are tied."""

    gamma: Floats  # (m,) finite, 0 or more; a client with 0 is alone
    alpha: Floats  # (k,) 0 (clusters apart) to 1 (no clusters)
    clusters: Ints  # (m,) cluster of each client, sorted
    # Of coarser levels, fine to coarse: the node over each cluster (k,), and that node's alpha (k,)
    upper: tuple[tuple[Ints, Floats], ...] = ()

    @classmethod
    def of(
        cls,
        clusters: Ints,
        k: int,
        gamma: npt.ArrayLike,
        lam: Any,
        alpha: npt.ArrayLike | None,
        parents: Sequence[Ints] = (),
    ) -> ClusterTies:
        """From gamma with alpha (2.1) or lam (2.3), each one number or one for each client or cluster.

        With neither, the clusters are one: alpha = 1. With nested clusters, whose ``parents`` are those of a
        ``ClusterTree``, lam has an entry for each level, or is one number. A CoterieError names what does not fit.
        """
        ties = strengths("gamma", gamma, len(clusters))
        if not np.all(np.isfinite(ties)):
            raise CoterieError("gamma must be finite: one model for all clients is the method 'pooled'.")
        if lam is not None and alpha is not None:
            raise CoterieError("Give lam (form 2.3) or alpha (form 2.1), not both.")
        if lam is None:
            fractions = strengths("alpha", 1.0 if alpha is None else alpha, k)
            if not np.all(fractions <= 1.0):
                raise CoterieError("alpha must lie between 0 (clusters apart) and 1 (no clusters).")
            return cls(ties, fractions, clusters)
        levels = lam if isinstance(lam, list | tuple) and len(parents) > 1 else [lam] * max(len(parents), 1)
        if len(levels) != max(len(parents), 1):
            raise CoterieError(f"There are {len(parents)} levels of clusters: give lam one entry for each of them.")
        total, node, found = np.bincount(clusters, ties, minlength=k), np.arange(k), []
        for level, strength in enumerate(levels):
            tied = strengths("lam", strength, len(total))
            with np.errstate(invalid="ignore", divide="ignore"):
                fractions = np.where(np.isinf(tied), 1.0, np.where(tied > 0.0, tied / (tied + total), 0.0))
            found.append((node, fractions[node]))
            if parents:
                total, node = np.bincount(parents[level], fractions * total), parents[level][node]
        return cls(ties, found[0][1], clusters, tuple(found[1:]))

    @cached_property
    def nodes(self) -> Ints:
        """The node over each cluster at every level, (levels + 1, k): itself first, the root at last."""
        k = len(self.alpha)
        return np.stack([np.arange(k), *(node for node, _ in self.upper), np.zeros(k, dtype=np.int64)])

    @cached_property
    def passed(self) -> Floats:
        """What share of gamma reaches each level, (levels + 1, k): 1 first, the product of all alphas at last."""
        return np.cumprod([np.ones(len(self.alpha)), self.alpha, *(alpha for _, alpha in self.upper)], axis=0)

    @cached_property
    def share(self) -> Floats:
        """What share of gamma ties clients to the average of each level, (levels + 1, k)."""
        return np.concatenate([self.passed[:-1] - self.passed[1:], self.passed[-1:]])

    @cached_property
    def tree(self) -> list[tuple[Ints, Floats]]:
        """Of every level: the parent, and lambda, of each of its nodes."""
        out = []
        for level, above in enumerate(self.nodes[1:]):
            _, first = np.unique(self.nodes[level], return_index=True)
            total = np.bincount(self.nodes[level], self.passed[level] * self.Gamma)
            alpha = [self.alpha, *(a for _, a in self.upper)][level][first]
            with np.errstate(divide="ignore", invalid="ignore"):
                out.append((above[first], np.where(alpha < 1.0, alpha * total / (1.0 - alpha), np.inf)))
        return out

    def level_means(self, mean: Floats, weight: Floats) -> list[Floats]:
        """Averages of every level over each cluster, each (k, d), from those of clusters and their sums of gamma."""
        out = [mean]
        for node, passed in zip(self.nodes[1:], self.passed[1:], strict=True):
            total = np.bincount(node, passed * weight)
            sums = np.zeros((len(total), mean.shape[1]))
            np.add.at(sums, node, (passed * weight)[:, None] * mean)
            out.append((sums / np.where(total > 0.0, total, 1.0)[:, None])[node])
        return out

    @cached_property
    def C(self) -> Floats:  # noqa: N802
        """The largest tie to each level's average, (levels + 1, k); 0 where fewer than two clients share it."""
        out = np.zeros(self.share.shape)
        for level, node in enumerate(self.nodes):
            size = self.share[level] * self.strongest
            counted = np.bincount(self.clusters, self.gamma > 0.0, minlength=len(self.alpha))
            shared = np.bincount(node, counted * (self.passed[level] > 0.0)) > 1
            most = np.zeros(node.max() + 1)
            np.maximum.at(most, node, size)
            out[level] = (most * shared)[node]
        return out

    @cached_property
    def Gamma(self) -> Floats:  # noqa: N802
        """Sums of gamma within clusters, (k,)."""
        return np.asarray(np.bincount(self.clusters, self.gamma, minlength=len(self.alpha)), dtype=np.float64)

    @cached_property
    def lam(self) -> Floats:
        """Proposition 2.2: the strengths (k,) of (2.3) that give the minimiser of (2.1); infinite at alpha = 1."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.alpha < 1.0, self.alpha * self.Gamma / (1.0 - self.alpha), np.inf)

    @cached_property
    def strongest(self) -> Floats:
        """The largest gamma of every cluster, (k,)."""
        return self.most(self.gamma)

    def most(self, values: Floats) -> Floats:
        """The largest of the clients' values (m,), none below 0, in every cluster (k,)."""
        out = np.zeros(len(self.alpha))
        np.maximum.at(out, self.clusters, values)
        return out

    @cached_property
    def C1(self) -> Floats:  # noqa: N802
        """``alpha_j max gamma_i`` (k,); 0 where fewer than two clients share the network's average."""
        tied = int(np.sum((self.alpha[self.clusters] * self.gamma) > 0.0))
        return self.alpha * self.strongest if tied > 1 else np.zeros(len(self.alpha))

    @cached_property
    def C2(self) -> Floats:  # noqa: N802
        """``(1 - alpha_j) max gamma_i`` (k,); 0 where fewer than two clients share the cluster's average."""
        tied = np.bincount(self.clusters, self.gamma > 0.0, minlength=len(self.alpha))
        return np.where(tied > 1, (1.0 - self.alpha) * self.strongest, 0.0)

    @cached_property
    def equal(self) -> npt.NDArray[np.bool_]:
        """Clusters (k,) whose clients have equal gamma, so that a pull keeps the cluster's average where it was."""
        smallest = np.full(len(self.alpha), np.inf)
        np.minimum.at(smallest, self.clusters, self.gamma)
        return np.asarray((smallest == self.strongest) | ~np.isfinite(smallest))

    def averages(self, sums: Floats) -> tuple[Floats, Floats]:
        """(2.2): cluster averages (k, d) and the network's (d,), from the clusters' sums of gamma_i theta_i (k, d).

        Averages over no strength are 0.
        """
        own = np.divide(sums, self.Gamma[:, None], out=np.zeros_like(sums), where=self.Gamma[:, None] > 0.0)
        total = float(self.alpha @ self.Gamma)
        network = self.alpha @ sums / total if total > 0.0 else np.zeros(sums.shape[1])
        return own, network


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
    n = adjacency.shape[0]
    degree = np.asarray(adjacency.sum(axis=1)).ravel()
    root = sparse.diags_array(1.0 / np.sqrt(np.where(degree > 0.0, degree, 1.0)))
    normal = root @ adjacency @ root + sparse.diags_array(np.where(degree > 0.0, 1.0, 2.0))  # eigenvalues 0 to 2
    if n <= SMALL or k >= n - 1:
        return np.asarray(np.linalg.eigh(normal.toarray())[1][:, ::-1][:, :k])
    start = np.random.default_rng(seed).random(n)
    try:
        values, vectors = sparse.linalg.eigsh(
            normal, k, which="LA", v0=start, maxiter=50, ncv=min(n, max(2 * k + 1, 40))
        )
    except sparse.linalg.ArpackNoConvergence:
        values, vectors = sparse.linalg.eigsh(normal.tocsc(), k, sigma=2.01, which="LM", v0=start)
    return np.asarray(vectors[:, np.argsort(-values, kind="stable")])


def joined(n: int, edges: Ints) -> Ints:
    """Components (n,) of some edges (K, 2), counted in the order of their first clients."""
    graph = sparse.coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(n, n))
    return by_first(sparse.csgraph.connected_components(graph, directed=False)[1].astype(np.int64))


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
