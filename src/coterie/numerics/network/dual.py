"""Projected gradients on the dual, accelerated (Beck and Teboulle 2009) and restarted (O'Donoghue and Candes 2015).

With ``U_e`` on edges and ``Z(U) = V - H^-1 B'U`` the dual is ``max <U, B Z(U)> + 1/2 ||B'U||^2_{H^-1}`` over
``||U_e|| <= weight_e`` in the dual norm. ``B H^-1 B'`` is at most the diagonal of ``deg_i / h_i + deg_j / h_j`` with h
the smallest curvature of a client, which gives each edge its own step.
"""

from __future__ import annotations

import numpy as np

from coterie.numerics.kernels import Floats, Ints, kernel
from coterie.numerics.network.edges import project
from coterie.numerics.network.problem import Problem


def steps(problem: Problem) -> Floats:
    """A step (M,) for each edge."""
    n = len(problem.V)
    degree = np.bincount(problem.edges.ravel(), minlength=n)
    largest = (
        np.linalg.norm(problem.inverse, 2, axis=(1, 2)) if problem.inverse.shape[1] > 1 else problem.inverse[:, 0, 0]
    )
    load = degree * largest
    return np.asarray(1.0 / (load[problem.edges[:, 0]] + load[problem.edges[:, 1]]))


@kernel
def ascend(U: Floats, Y: Floats, Z: Floats, edges: Ints, weight: Floats, p: float, step: Floats, t: float) -> float:
    """One step from Y, where Z = Z(Y): U and the extrapolated Y change in place; returns the next t, 1 at a restart."""
    q = U.shape[1]
    new = np.empty_like(U)
    against = 0.0
    for e in range(edges.shape[0]):
        i, j = edges[e, 0], edges[e, 1]
        for a in range(q):
            new[e, a] = Y[e, a] + step[e] * (Z[i, a] - Z[j, a])
        project(new[e], p, weight[e])
        for a in range(q):
            against += (Y[e, a] - new[e, a]) * (new[e, a] - U[e, a]) / step[e]
    after = 1.0 if against > 0.0 else 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * t * t))
    factor = 0.0 if against > 0.0 else (t - 1.0) / after
    for e in range(edges.shape[0]):
        for a in range(q):
            Y[e, a] = new[e, a] + factor * (new[e, a] - U[e, a])
            U[e, a] = new[e, a]
    return after
