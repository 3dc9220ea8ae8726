"""Nodes of a tree that nothing ties to their parents: ``tree_fold`` where L is infinite.

Only the columns that are not personal (z) send anything up. ``ridge`` is the precision of a prior around 0 that keeps a
node of a GLM finite; without it, the shortest solution is taken where a node's rows do not determine its own columns.
"""

from __future__ import annotations

import numpy as np

from coterie.numerics.kernels import Floats, Ints, full, pack


def fold(A: Floats, b: Floats, z: Ints, ridge: float) -> tuple[Floats, Floats, Floats]:
    """What ``tree_fold.fold`` returns for such nodes, but for the log-determinant: A1 (m, P), b1 (m, p), drop (m,)."""
    whole, inverse, others = _parts(A, z, ridge)
    K = inverse @ others
    A1 = whole - others.transpose(0, 2, 1) @ K
    b1 = b - np.einsum("mqp,mq->mp", K, b[:, z])
    A1[:, z], A1[:, :, z], b1[:, z] = 0.0, 0.0, 0.0
    return pack(A1), b1, np.einsum("mi,mij,mj->m", b[:, z], inverse, b[:, z])


def unfold(A: Floats, b: Floats, z: Ints, ridge: float, w: Floats, C: Floats) -> tuple[Floats, Floats]:
    """Values (m, p) and covariances (m, P) of such nodes, given their parents' w (m, p) and C (m, P)."""
    _, inverse, others = _parts(A, z, ridge)
    K = inverse @ others
    theta, T = w.copy(), np.tile(np.eye(w.shape[1]), (len(w), 1, 1))
    theta[:, z] = np.einsum("mij,mj->mi", inverse, b[:, z]) - np.einsum("mqp,mp->mq", K, w)
    T[:, z] = -K
    S = T @ full(C) @ T.transpose(0, 2, 1)
    S[:, z[:, None], z] += inverse
    return theta, pack(S)


def _parts(A: Floats, z: Ints, ridge: float) -> tuple[Floats, Floats, Floats]:
    """A in full, the inverse of its personal block (m, q, q), and personal by other columns (m, q, p)."""
    whole = full(A)
    others = whole[:, z].copy()
    others[:, :, z] = 0.0
    block = whole[:, z[:, None], z] + ridge * np.eye(len(z))
    size = np.sqrt(np.einsum("mii->mi", block))
    size = np.where(size > 0.0, size, 1.0)[:, :, None] * np.where(size > 0.0, size, 1.0)[:, None, :]
    return whole, np.asarray(np.linalg.pinv(block / size, rcond=1e-10, hermitian=True)) / size, others
