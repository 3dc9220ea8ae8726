"""Known clusters: the tree above the clients, and how strongly clients are tied to it.

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
class Ties:
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
    ) -> Ties:
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
