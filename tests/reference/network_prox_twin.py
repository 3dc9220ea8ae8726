"""Algorithm 5 of paper 003, corrected, as printed otherwise: NumPy, and SciPy's sparse LU, factored once.

Rows are clients here (columns in the paper), and the prox's step is 1. Corrected: N'G instead of G is in the caller's
V; the W-step is the prox of each p; Omega's sign is that of ``<Omega, W - B Z>``, so U = -Omega is the network's dual.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import splu


def differences(n: int, edges: np.ndarray) -> sp.csr_array:
    """B (M, n): ``(B Z)_e = z_i - z_j``."""
    m = len(edges)
    e = np.arange(m)
    values = np.concatenate([np.ones(m), -np.ones(m)])
    return sp.csr_array((values, (np.concatenate([e, e]), edges.T.ravel())), shape=(m, n))


def project(X: np.ndarray, p: float, radius: np.ndarray) -> np.ndarray:
    """Rows onto balls of the dual norm: linf for p = 1, l2 for 2, l1 for inf (by sorting)."""
    if p == 1:
        return np.clip(X, -radius[:, None], radius[:, None])
    if p == 2:
        return X * np.minimum(1.0, radius / np.maximum(np.linalg.norm(X, axis=1), 1e-300))[:, None]
    size = np.sort(np.abs(X), axis=1)[:, ::-1]
    levels = (np.cumsum(size, axis=1) - radius[:, None]) / np.arange(1, X.shape[1] + 1)
    kept = np.maximum((size > levels).sum(axis=1), 1)
    level = np.maximum(levels[np.arange(len(X)), kept - 1], 0.0)[:, None]
    return np.sign(X) * np.maximum(np.abs(X) - level, 0.0)


def admm(
    V: np.ndarray, edges: np.ndarray, weight: np.ndarray, p: float, rho: float, mass: np.ndarray | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Z and the feasible dual U = -Omega after each iteration."""
    h = np.ones(len(V)) if mass is None else mass
    B = differences(len(V), edges)
    factors = splu(sp.csc_array(sp.diags_array(h) + rho * (B.T @ B)), permc_spec="MMD_AT_PLUS_A")
    W, Omega = B @ V, np.zeros((len(edges), V.shape[1]))
    while True:
        Z = factors.solve(h[:, None] * V + B.T @ (Omega + rho * W))
        A = B @ Z - Omega / rho
        W = A - project(rho * A, p, weight) / rho  # the prox of weight ||.||_p / rho, by Moreau
        Omega = Omega + rho * (W - B @ Z)
        yield Z, -Omega


def relative_gap(V: np.ndarray, edges: np.ndarray, weight: np.ndarray, p: float, Z: np.ndarray, U: np.ndarray) -> float:
    """(primal of Z - dual of U) / primal, no metric."""
    B = differences(len(V), edges)
    primal = 0.5 * np.sum((Z - V) ** 2) + weight @ np.linalg.norm(B @ Z, p, axis=1)
    pull = B.T @ U
    dual = np.sum(pull * V) - 0.5 * np.sum(pull**2)
    return float((primal - dual) / primal)


def merged(Z: np.ndarray, edges: np.ndarray, inside: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """Means of Z over clients that edges with U inside its ball join; inside (M,) and mass (n,)."""
    n = len(Z)
    i, j = edges[inside].T
    _, group = sp.csgraph.connected_components(sp.coo_array((np.ones(len(i)), (i, j)), shape=(n, n)), directed=False)
    total = np.bincount(group, mass)
    means = [np.bincount(group, mass * column) / total for column in Z.T]
    return np.stack(means, axis=1)[group]
