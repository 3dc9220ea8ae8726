"""The tree above the clients: known clusters, clusters of clusters, one root; and how a sweep over it is solved.

A level l node hangs on ``parents[l]``. With no cluster level the clients hang on the root itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie.data.clients import Clients
from coterie.numerics import free_nodes, tree_fold
from coterie.numerics.kernels import Floats, Ints, full, pack

SMALL = 1e-6
"""What is left of a column of length 1 beside the others, below which they give it."""


@dataclass(frozen=True)
class Swept:
    """A tree after ``climb``: what arrived at each level, and at the root.

    Attributes
    ----------
    A, b : list of (k_l, P), (k_l, p)
        What arrived at each level's nodes; the last entry is the root.
    drop, logdet : float
        Sums of ``b'L M^-1 L'b`` and of ``log |I + L'AL|`` over all nodes above the clients.
    """

    A: list[Floats]
    b: list[Floats]
    drop: float
    logdet: float

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
    """Where every node above the clients is.

    Attributes
    ----------
    at : list of (k_l, p)
        Values, fine to coarse, the root last.
    cov : list of (k_l, P)
        Their covariances.
    u : list of (k_l, q)
        Deviations from the parents, in units of L; the root has none.
    """

    at: list[Floats]
    cov: list[Floats]
    u: list[Floats]

    def towards(self, goal: Positions, t: float) -> Positions:
        """A fraction t of the way to another place (covariances are the goal's)."""
        at = [a + t * (b - a) for a, b in zip(self.at, goal.at, strict=True)]
        return Positions(at, goal.cov, [a + t * (b - a) for a, b in zip(self.u, goal.u, strict=True)])

    @property
    def penalty(self) -> float:
        """Sum of all ``|u|^2``."""
        return sum(float(np.sum(u * u)) for u in self.u)


@dataclass(frozen=True)
class Tree:
    """Parents of every cluster, fine to coarse.

    Parameters
    ----------
    parents : tuple of (k_l,) int
        Level l's parents as indices into level l + 1; all 0 at the coarsest level. Empty: clients hang on the root.
    """

    parents: tuple[Ints, ...] = ()

    @classmethod
    def of(cls, clients: Clients) -> Tree:
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
        ``ridge`` only (``free_nodes``).
        """
        As, bs, drop, logdet = [A], [b], 0.0, 0.0
        for level in range(len(self.parents)):
            Ll, alone, which = own(L[level], len(A))
            A1, b1, dropped, logs = tree_fold.fold(A, b, Ll, which, z)
            if alone.any():
                A1[alone], b1[alone], dropped[alone] = free_nodes.fold(A[alone], b[alone], z, ridge)
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
                theta[alone], S[alone] = free_nodes.unfold(A[alone], b[alone], z, ridge, *here)
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
