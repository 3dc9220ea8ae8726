"""Clients that have merged, and the duality gap of any Z and any feasible U.

``primal(Z) - dual(U) = 1/2 ||Z - Z(U)||_H^2 + sum_e (weight_e ||d_e|| - <U_e, d_e>)`` with ``d_e = z_i - z_j`` and
``Z(U) = V - H^-1 B'U``: a sum of terms that are not negative, so nothing cancels. Where U_e lies inside its ball the
optimum has ``d_e = 0``; with those ends set equal, the gap is of second order in the error of U instead of first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.numerics.kernels import Floats, Ints, kernel
from coterie.numerics.network.edges import adjoint, norm, penalty_and_slack, times
from coterie.numerics.network.problem import Problem

INSIDE = 1.0 - 1e-9
"""Of a ball's radius: dual vectors shorter than this are inside."""
LEAST = 1e-20
"""Of ``1/2 ||V||_H^2``: a primal value below this is that of clients that differ by rounding, and is not divided by."""


@kernel
def _root(parent: Ints, i: int) -> int:
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i


@kernel
def _join(U: Floats, edges: Ints, weight: Floats, p: float, a: int, parent: Ints) -> None:
    """``parent`` becomes a forest of clients tied by edges with U_e inside its ball (for p = 1: coordinate a of it)."""
    for i in range(parent.shape[0]):
        parent[i] = i
    dual = 1.0 if p == np.inf else 2.0
    for e in range(edges.shape[0]):
        size = abs(U[e, a]) if p == 1.0 else norm(U[e], dual)
        if size < INSIDE * weight[e]:
            i, j = _root(parent, edges[e, 0]), _root(parent, edges[e, 1])
            if i != j:
                parent[max(i, j)] = min(i, j)
    for i in range(parent.shape[0]):
        parent[i] = _root(parent, i)


@kernel
def merged(Z: Floats, U: Floats, edges: Ints, weight: Floats, p: float, mass: Floats) -> Floats:
    """Z (n, q) with the rows of merged clients (for p = 1: coordinates) replaced by their means; mass is (n, q)."""
    n, q = Z.shape
    out, parent, total = np.zeros((n, q)), np.empty(n, dtype=np.int64), np.zeros((n, q))
    for a in range(q):
        if p == 1.0 or a == 0:
            _join(U, edges, weight, p, a, parent)
        for i in range(n):  # the root is the smallest of its group, so it is met first, and its mean runs along
            r = parent[i]
            total[r, a] += mass[i, a]
            out[r, a] += (Z[i, a] - out[r, a]) * (mass[i, a] / total[r, a])
        for i in range(n):
            out[i, a] = out[parent[i], a]
    return out


def relative_gap(problem: Problem, Z: Floats, U: Floats, free: Floats) -> float:
    """(primal - dual) / primal, with ``free = Z(U)``; over ``LEAST`` of V's square where primal is smaller."""
    penalty, excess = penalty_and_slack(Z, U, problem.edges, problem.weight, problem.p)
    primal = max(penalty + _half_square(problem, Z - problem.V), LEAST * _half_square(problem, problem.V))
    gap = excess + _half_square(problem, Z - free)
    return gap / primal if primal > 0.0 else 0.0


def _half_square(problem: Problem, D: Floats) -> float:
    out = np.empty_like(D)
    times(problem.H, D, out)
    return 0.5 * float(np.vdot(D, out))


@dataclass(frozen=True)
class Certified:
    """A primal point, a feasible dual point, and their relative gap."""

    Z: Floats
    U: Floats
    gap: float


def certify(problem: Problem, U: Floats, *others: Floats, best: Certified | None = None) -> Certified:
    """The best pair of a feasible U with merged clients, or with one of the others (``Z(U)`` if none); or ``best``."""
    pull, moved = np.empty_like(problem.V), np.empty_like(problem.V)
    adjoint(U, problem.edges, pull)
    times(problem.inverse, pull, moved)
    free = problem.V - moved
    together = merged(free, U, problem.edges, problem.weight, problem.p, problem.mass)
    points = (together, *(others or (free,)))
    gaps = [relative_gap(problem, Z, U, free) for Z in points]
    least = int(np.argmin(gaps))
    if best is not None and not gaps[least] < best.gap:
        return best
    return Certified(points[least].copy(), U.copy(), gaps[least])
