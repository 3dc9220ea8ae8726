"""One sweep up the tree of known clusters, and one down: every node above the clients solved from the clients' sums.

A level l node hangs on ``parents[l]``; the root holds what no level takes. The kernels are those of ``tree_fold``.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from coterie.numerics import tree_fold
from coterie.numerics.arrays import Floats, Ints, full, pack
from coterie.relations.clusters import ClusterTree

SMALL = 1e-6  # what is left of a column of length 1 beside the others, below which they give it


@dataclass(frozen=True)
class Swept:
    """A tree after :func:`sweep_up`: what arrived at each level's nodes, and last at the root."""

    A: list[Floats]  # (k_l, P) of each level
    b: list[Floats]  # (k_l, p)
    drop: float  # sum of b'L M^-1 L'b over all nodes above the clients
    logdet: float  # sum of log |I + L'AL| over them

    def convex(self, root: bool) -> bool:
        """Whether the quadratic of all nodes above the clients, and of the ``root``, has a minimum."""
        A = full(self.A[-1][0])
        return bool(np.isfinite(self.logdet) and (not root or np.linalg.eigvalsh(A).min(initial=0.0) >= -SMALL))

    @cached_property
    def scaled(self) -> tuple[Floats, Floats, Floats | None]:
        """The root's curvature (p, p) in units (p,) that make its diagonal 1, and the diagonal of its Cholesky factor.

        The last is None where a column nearly depends on others.
        """
        A = full(self.A[-1][0])
        size = A.diagonal()
        size = np.sqrt(np.where(size > 0.0, size, 1.0))
        A = A / (size[:, None] * size)
        with suppress(np.linalg.LinAlgError):
            pivots: Floats = np.asarray(np.linalg.cholesky(A).diagonal(), dtype=np.float64)
            if pivots.min(initial=1.0) >= SMALL:
                return A, size, pivots
        return A, size, None

    def root(self) -> tuple[Floats, Floats]:
        """The root's minimiser (p,) and the inverse of its curvature (p, p)."""
        (A, size, pivots), b = self.scaled, self.b[-1][0]
        if pivots is not None:
            inverse = np.linalg.inv(A)
        else:  # nothing, or too little, arrived: the smallest of the minimisers
            values, vectors = np.linalg.eigh(A)  # some are below zero far from the optimum of a loss that is not convex
            size_of = np.abs(values)
            kept = size_of > 1e-12 * size_of.max(initial=0.0)
            inverse = (vectors * np.where(kept, 1.0 / np.where(kept, size_of, 1.0), 0.0)) @ vectors.T
        inverse /= size[:, None] * size
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


def zero_deviations(tree: ClusterTree, q: int) -> list[Floats]:
    """Deviations (k_l, q) of zero for every level."""
    return [np.zeros((len(p), q)) for p in tree.parents]


def place(tree: ClusterTree, w: Floats, L: list[Floats], z: Ints, u: list[Floats] | None = None) -> Positions:
    """Positions of all nodes for a root value w (p,) and deviations u, zero by default."""
    at, u = [w[None]], zero_deviations(tree, len(z)) if u is None else u
    for level in reversed(range(len(tree.parents))):
        Ll, _, which = node_factors(L[level], len(u[level]))
        here = at[0][tree.parents[level]].copy()
        here[:, z] += np.einsum("mij,mj->mi", Ll[which], u[level])
        at.insert(0, here)
    return Positions(at, [np.zeros((len(a), len(w) * (len(w) + 1) // 2)) for a in at], u)


def sweep_up(tree: ClusterTree, A: Floats, b: Floats, L: list[Floats], z: Ints, prior: Floats | None = None) -> Swept:
    """Fold the clients' sums, A (k, P) and b (k, p) at the finest level, up to the root.

    ``L[l]`` is (1, q, q) for all nodes of a level or (k_l, q, q); a node whose L is infinite stands alone, held by
    ``prior`` only (``fold_free``).
    """
    As, bs, drop, logdet = [A], [b], 0.0, 0.0
    for level in range(len(tree.parents)):
        Ll, alone, which = node_factors(L[level], len(A))
        A1, b1, dropped, logs = tree_fold.fold(A, b, Ll, which, z)
        if alone.any():
            A1[alone], b1[alone], dropped[alone] = fold_free(A[alone], b[alone], z, prior)
            logs[alone] = 0.0
        drop += float(dropped.sum())
        logdet += float(logs.sum())
        A, b = tree.up(level, A1), tree.up(level, b1)
        As.append(A)
        bs.append(b)
    return Swept(As, bs, drop, logdet)


def sweep_down(
    tree: ClusterTree, swept: Swept, L: list[Floats], z: Ints, w: Floats, C: Floats, prior: Floats | None = None
) -> Positions:
    """Solve every node above the clients, given the root's value w (p,) and covariance C (p, p)."""
    at, cov = [w[None]], [pack(C)[None]]
    u: list[Floats] = []
    for level in reversed(range(len(tree.parents))):
        A, b = swept.A[level], swept.b[level]
        Ll, alone, which = node_factors(L[level], len(A))
        parent = tree.parents[level]
        theta, ul, S = tree_fold.unfold(A, b, Ll, which, z, at[0], cov[0], parent)
        if alone.any():
            here = at[0][parent[alone]], cov[0][parent[alone]]
            theta[alone], S[alone] = unfold_free(A[alone], b[alone], z, prior, *here)
            ul[alone] = 0.0 if prior is None else theta[alone] @ prior.T
        at.insert(0, theta)
        cov.insert(0, S)
        u.insert(0, ul)
    return Positions(at, cov, u)


def node_factors(L: Floats, nodes: int) -> tuple[Floats, npt.NDArray[np.bool_], Ints]:
    """L with its infinities taken out, which nodes had them, and every node's index into L."""
    which = np.zeros(nodes, dtype=np.int64) if len(L) == 1 else np.arange(nodes, dtype=np.int64)
    finite = np.isfinite(L)
    if finite.all():
        return L, np.zeros(nodes, dtype=np.bool_), which
    infinite = np.asarray(~finite.all(axis=(1, 2)))
    return np.where(infinite[:, None, None], 0.0, L), infinite[which], which


def fold_free(A: Floats, b: Floats, z: Ints, prior: Floats | None) -> tuple[Floats, Floats, Floats]:
    """``tree_fold.fold`` of nodes that nothing ties to their parents (infinite L): A1 (m, P), b1 (m, p) and drop (m,).

    Only the columns that are not personal send anything up. ``|prior @ theta|^2``, (q, p), keeps a GLM finite;
    without it, the shortest solution is taken where rows do not determine a node's own columns.
    """
    whole, inverse, others = _free_parts(A, z, prior)
    K = inverse @ others
    A1 = whole - others.transpose(0, 2, 1) @ K
    b1 = b - np.einsum("mqp,mq->mp", K, b[:, z])
    A1[:, z], A1[:, :, z], b1[:, z] = 0.0, 0.0, 0.0
    return pack(A1), b1, np.einsum("mi,mij,mj->m", b[:, z], inverse, b[:, z])


def unfold_free(A: Floats, b: Floats, z: Ints, prior: Floats | None, w: Floats, C: Floats) -> tuple[Floats, Floats]:
    """Values (m, p) and covariances (m, P) of such nodes, given their parents' w (m, p) and C (m, P)."""
    _, inverse, others = _free_parts(A, z, prior)
    K = inverse @ others
    theta, T = w.copy(), np.tile(np.eye(w.shape[1]), (len(w), 1, 1))
    theta[:, z] = np.einsum("mij,mj->mi", inverse, b[:, z]) - np.einsum("mqp,mp->mq", K, w)
    T[:, z] = -K
    S = T @ full(C) @ T.transpose(0, 2, 1)
    S[:, z[:, None], z] += inverse
    return theta, pack(S)


def _free_parts(A: Floats, z: Ints, prior: Floats | None) -> tuple[Floats, Floats, Floats]:
    """A in full, the inverse of its personal block (m, q, q), and personal by other columns (m, q, p)."""
    whole = full(A) if prior is None else full(A) + prior.T @ prior
    others = whole[:, z].copy()
    others[:, :, z] = 0.0
    block = whole[:, z[:, None], z]
    size = np.sqrt(np.einsum("mii->mi", block))
    size = np.where(size > 0.0, size, 1.0)[:, :, None] * np.where(size > 0.0, size, 1.0)[:, None, :]
    return whole, np.asarray(np.linalg.pinv(block / size, rcond=1e-10, hermitian=True)) / size, others
