"""Known clusters: the tree above the clients, how a sweep over it is solved, and how strongly clients are tied to it.

A level l node hangs on ``parents[l]``. With no cluster level the clients hang on the root itself.

Strengths have the form (2.1) of Lyu, Hanzely, Kolar (2022): client i of cluster j is tied to its cluster's average with
``(1 - alpha_j) gamma_i`` and to the network's with ``alpha_j gamma_i``; (2.2) has the averages. Proposition 2.2 takes
(2.3) there: ``alpha_j = lambda_j / (lambda_j + Gamma_j)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from coterie.data.clients import Clients
from coterie.errors import CoterieError
from coterie.numerics import tree_fold
from coterie.numerics.arrays import Floats, Ints, full, pack

SMALL = 1e-6
"""What is left of a column of length 1 beside the others, below which they give it."""


@dataclass(frozen=True)
class Swept:
    """A tree after ``climb``: what arrived at each level's nodes, and last at the root."""

    A: list[Floats]  # (k_l, P) of each level
    b: list[Floats]  # (k_l, p)
    drop: float  # sum of b'L M^-1 L'b over all nodes above the clients
    logdet: float  # sum of log |I + L'AL| over them

    def root(self) -> tuple[Floats, Floats]:
        """The root's minimiser (p,) and the inverse of its curvature (p, p)."""
        A, b = full(self.A[-1][0]), self.b[-1][0]
        size = np.sqrt(np.where(np.diag(A) > 0.0, np.diag(A), 1.0))
        A = A / np.outer(size, size)
        try:
            if len(b) and np.diag(np.linalg.cholesky(A)).min() < SMALL:
                raise np.linalg.LinAlgError
            inverse = np.linalg.inv(A)
        except np.linalg.LinAlgError:  # nothing, or too little, arrived: the smallest of the minimisers
            inverse = np.linalg.pinv(A, rcond=1e-12, hermitian=True)
        inverse /= np.outer(size, size)
        return inverse @ b, (inverse + inverse.T) / 2


@dataclass(frozen=True)
class Positions:
    """Where every node above the clients is, fine to coarse, the root last."""

    at: list[Floats]  # (k_l, p) values
    cov: list[Floats]  # (k_l, P) their covariances
    u: list[Floats]  # (k_l, q) deviations from the parents, in units of L; the root has none

    def towards(self, goal: Positions, t: float) -> Positions:
        """A fraction t of the way to another place (covariances are the goal's)."""
        at = [a + t * (b - a) for a, b in zip(self.at, goal.at, strict=True)]
        return Positions(at, goal.cov, [a + t * (b - a) for a, b in zip(self.u, goal.u, strict=True)])

    @property
    def penalty(self) -> float:
        """Sum of all ``|u|^2``."""
        return sum(float(np.sum(u * u)) for u in self.u)


@dataclass(frozen=True)
class ClusterTree:
    """Parents of every cluster, fine to coarse; without any, clients hang on the root."""

    parents: tuple[Ints, ...] = ()  # (k_l,) indices into level l + 1; all 0 at the coarsest level

    @classmethod
    def of(cls, clients: Clients) -> ClusterTree:
        """The tree that a table's cluster columns give."""
        return cls(tuple(level.parent for level in clients.levels))

    def still(self, q: int) -> list[Floats]:
        """Deviations (k_l, q) of zero for every level."""
        return [np.zeros((len(p), q)) for p in self.parents]

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

    def place(self, w: Floats, u: list[Floats], L: list[Floats], z: Ints) -> Positions:
        """Positions of all nodes for a root value w (p,) and deviations u."""
        at = [w[None]]
        for level in reversed(range(len(self.parents))):
            Ll, _, which = own(L[level], len(u[level]))
            here = at[0][self.parents[level]].copy()
            here[:, z] += np.einsum("mij,mj->mi", Ll[which], u[level])
            at.insert(0, here)
        return Positions(at, [np.zeros((len(a), len(w) * (len(w) + 1) // 2)) for a in at], u)

    def climb(self, A: Floats, b: Floats, L: list[Floats], z: Ints, ridge: float = 0.0) -> Swept:
        """Fold the clients' sums, A (k, P) and b (k, p) at the finest level, up to the root.

        ``L[l]`` is (1, q, q) for all nodes of a level or (k_l, q, q); a node whose L is infinite stands alone, held by
        ``ridge`` only (``fold_free``).
        """
        As, bs, drop, logdet = [A], [b], 0.0, 0.0
        for level in range(len(self.parents)):
            Ll, alone, which = own(L[level], len(A))
            A1, b1, dropped, logs = tree_fold.fold(A, b, Ll, which, z)
            if alone.any():
                A1[alone], b1[alone], dropped[alone] = fold_free(A[alone], b[alone], z, ridge)
                logs[alone] = 0.0
            drop += float(dropped.sum())
            logdet += float(logs.sum())
            A, b = self.up(level, A1), self.up(level, b1)
            As.append(A)
            bs.append(b)
        return Swept(As, bs, drop, logdet)

    def descend(self, swept: Swept, L: list[Floats], z: Ints, w: Floats, C: Floats, ridge: float = 0.0) -> Positions:
        """Solve every node above the clients, given the root's value w (p,) and covariance C (p, p)."""
        at, cov = [w[None]], [pack(C)[None]]
        u: list[Floats] = []
        for level in reversed(range(len(self.parents))):
            A, b = swept.A[level], swept.b[level]
            Ll, alone, which = own(L[level], len(A))
            parent = self.parents[level]
            theta, ul, S = tree_fold.unfold(A, b, Ll, which, z, at[0], cov[0], parent)
            if alone.any():
                here = at[0][parent[alone]], cov[0][parent[alone]]
                theta[alone], S[alone] = unfold_free(A[alone], b[alone], z, ridge, *here)
                ul[alone] = theta[alone][:, z] * ridge**0.5
            at.insert(0, theta)
            cov.insert(0, S)
            u.insert(0, ul)
        return Positions(at, cov, u)


def own(L: Floats, nodes: int) -> tuple[Floats, npt.NDArray[np.bool_], Ints]:
    """L with its infinities taken out, which nodes had them, and every node's index into L."""
    which = np.zeros(nodes, dtype=np.int64) if len(L) == 1 else np.arange(nodes, dtype=np.int64)
    infinite = np.asarray(~np.isfinite(L).all(axis=(1, 2)))
    return np.where(infinite[:, None, None], 0.0, L), infinite[which], which


def fold_free(A: Floats, b: Floats, z: Ints, ridge: float) -> tuple[Floats, Floats, Floats]:
    """``tree_fold.fold`` of nodes that nothing ties to their parents (infinite L): A1 (m, P), b1 (m, p) and drop (m,).

    Only the columns that are not personal send anything up. ``ridge`` is the precision of a prior around 0 that keeps a
    node of a GLM finite; without it, the shortest solution is taken where rows do not determine a node's own columns.
    """
    whole, inverse, others = _free_parts(A, z, ridge)
    K = inverse @ others
    A1 = whole - others.transpose(0, 2, 1) @ K
    b1 = b - np.einsum("mqp,mq->mp", K, b[:, z])
    A1[:, z], A1[:, :, z], b1[:, z] = 0.0, 0.0, 0.0
    return pack(A1), b1, np.einsum("mi,mij,mj->m", b[:, z], inverse, b[:, z])


def unfold_free(A: Floats, b: Floats, z: Ints, ridge: float, w: Floats, C: Floats) -> tuple[Floats, Floats]:
    """Values (m, p) and covariances (m, P) of such nodes, given their parents' w (m, p) and C (m, P)."""
    _, inverse, others = _free_parts(A, z, ridge)
    K = inverse @ others
    theta, T = w.copy(), np.tile(np.eye(w.shape[1]), (len(w), 1, 1))
    theta[:, z] = np.einsum("mij,mj->mi", inverse, b[:, z]) - np.einsum("mqp,mp->mq", K, w)
    T[:, z] = -K
    S = T @ full(C) @ T.transpose(0, 2, 1)
    S[:, z[:, None], z] += inverse
    return theta, pack(S)


def _free_parts(A: Floats, z: Ints, ridge: float) -> tuple[Floats, Floats, Floats]:
    """A in full, the inverse of its personal block (m, q, q), and personal by other columns (m, q, p)."""
    whole = full(A)
    others = whole[:, z].copy()
    others[:, :, z] = 0.0
    block = whole[:, z[:, None], z] + ridge * np.eye(len(z))
    size = np.sqrt(np.einsum("mii->mi", block))
    size = np.where(size > 0.0, size, 1.0)[:, :, None] * np.where(size > 0.0, size, 1.0)[:, None, :]
    return whole, np.asarray(np.linalg.pinv(block / size, rcond=1e-10, hermitian=True)) / size, others


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

    @classmethod
    def of(
        cls, clusters: Ints, k: int, gamma: npt.ArrayLike, lam: npt.ArrayLike | None, alpha: npt.ArrayLike | None
    ) -> Ties:
        """From gamma with alpha (2.1) or lam (2.3), each one number or one for each client or cluster.

        With neither, the clusters are one: alpha = 1. A CoterieError names what does not fit.
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
        total = np.bincount(clusters, ties, minlength=k)
        tied = strengths("lam", lam, k)
        with np.errstate(invalid="ignore", divide="ignore"):
            fractions = np.where(np.isinf(tied), 1.0, np.where(tied > 0.0, tied / (tied + total), 0.0))
        return cls(ties, fractions, clusters)

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
