"""Duals over edges, ``Pi(U + sigma (z_i - z_j))`` with Pi the projection onto a dual ball, and their derivatives."""

from __future__ import annotations

import numpy as np

from coterie.numerics.kernels import Floats, Ints, kernel
from coterie.numerics.network.edges import l1_level, norm, project

Graph = tuple[Ints, Floats, float]
"""Edges (M, 2), the radius of each one's dual ball (M,), and p."""
DUAL = {1: np.inf, 2: 2, np.inf: 1}
"""The dual norm of each."""


@kernel
def multipliers(Z: Floats, U: Floats, sigma: float, graph: Graph, P: Floats, G: Floats) -> None:
    """P becomes the duals (M, q); they are added to G (n, q) at i and taken off it at j."""
    edges, radius, p = graph
    for e in range(edges.shape[0]):
        i, j = edges[e, 0], edges[e, 1]
        for k in range(Z.shape[1]):
            P[e, k] = U[e, k] + sigma * (Z[i, k] - Z[j, k])
        project(P[e], p, radius[e], 0.0)
        for k in range(Z.shape[1]):
            G[i, k] += P[e, k]
            G[j, k] -= P[e, k]


@kernel
def slopes(Z: Floats, U: Floats, sigma: float, graph: Graph) -> tuple[Floats, Floats]:
    """Derivatives of Pi there: a and b (M, q) of ``diag(a) - b b'``."""
    edges, radius, p = graph
    a, b, y = np.ones(U.shape), np.zeros(U.shape), np.empty(U.shape[1])
    for e in range(edges.shape[0]):
        y[:] = U[e] + sigma * (Z[edges[e, 0]] - Z[edges[e, 1]])
        if p == 2.0:
            size = norm(y, 2.0)
            if size > radius[e]:
                a[e] = radius[e] / size
                b[e] = np.sqrt(radius[e] / size) / size * y
        elif p == 1.0:
            for k in range(y.shape[0]):
                a[e, k] = 1.0 if abs(y[k]) <= radius[e] else 0.0
        elif radius[e] == 0.0:
            a[e] = 0.0
        elif norm(y, 1.0) > radius[e]:
            down, count = l1_level(y, radius[e], 0.0), 0
            for k in range(y.shape[0]):
                a[e, k] = 1.0 if abs(y[k]) > down else 0.0
                b[e, k] = a[e, k] * np.sign(y[k])
                count += int(a[e, k])
            b[e] /= np.sqrt(max(count, 1))
    return a, b
