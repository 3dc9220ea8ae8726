"""The alternating direction method, over-relaxed, with a few steps of conjugate gradients in place of a factorisation.

Splitting ``W = BZ`` with penalty rho as in Algorithm 5 of seed 003. What is different: over-relaxation (Eckstein and
Bertsekas 1992); ``(H + rho B'B) Z = ...`` is solved roughly, from the last Z (Eckstein and Yao 2017), which needs no
factors and lets rho change; rho balances the two residuals (He, Yang and Wang 2000, in relative form).
"""

from __future__ import annotations

import numpy as np

from coterie.numerics.kernels import Floats, Ints, summing
from coterie.numerics.network.edges import project, times
from coterie.numerics.network.merge import Certified, certify
from coterie.numerics.network.problem import Problem

RELAX = 1.7
CG_STEPS = 3
CHECK = 10
"""Iterations between two looks at the gap."""
ADAPT = 400
"""After so many iterations rho stays as it is, so that they converge."""


@summing
def split(
    Z: Floats,
    U: Floats,
    W: Floats,
    level: Floats,
    R: Floats,
    edges: Ints,
    weight: Floats,
    p: float,
    rho: float,
    relax: float,
) -> tuple[float, float, float, float]:
    """Prox and dual step on edges, ``R += B'(rho (W - BZ) - U)``; squares of BZ - W, BZ, the change of W, and U."""
    q = Z.shape[1]
    apart, wide, moved, dual = 0.0, 0.0, 0.0, 0.0
    x = np.empty(q)
    for e in range(edges.shape[0]):
        i, j = edges[e, 0], edges[e, 1]
        for a in range(q):
            U[e, a] += rho * (relax * (Z[i, a] - Z[j, a]) + (1.0 - relax) * W[e, a])
            x[a] = U[e, a]
        level[e] = project(U[e], p, weight[e], level[e])
        for a in range(q):
            w, d, u = (x[a] - U[e, a]) / rho, Z[i, a] - Z[j, a], U[e, a]
            apart += (w - d) * (w - d)
            wide += d * d
            moved += (w - W[e, a]) * (w - W[e, a])
            dual += u * u
            W[e, a] = w
            pull = rho * (w - d) - u
            R[i, a] += pull
            R[j, a] -= pull
    return apart, wide, moved, dual


@summing
def laplacian(X: Floats, starts: Ints, neighbour: Ints, rho: float, out: Floats) -> None:
    """``out += rho B'B X``."""
    q = X.shape[1]
    for i in range(X.shape[0]):
        for a in range(q):
            out[i, a] += rho * (starts[i + 1] - starts[i]) * X[i, a]
        for k in range(starts[i], starts[i + 1]):
            j = neighbour[k]
            for a in range(q):
                out[i, a] -= rho * X[j, a]


@summing
def conjugate(
    Z: Floats, R: Floats, H: Floats, near: Floats, starts: Ints, neighbour: Ints, rho: float, steps: int, work: Floats
) -> None:
    """Improve Z where R is the residual of ``(H + rho B'B) Z``; ``near`` is the inverse of the diagonal blocks."""
    S, D, A = work[0], work[1], work[2]
    times(near, R, D)
    before = np.sum(R * D)
    for step in range(steps):
        times(H, D, A)
        laplacian(D, starts, neighbour, rho, A)
        curvature = np.sum(D * A)
        if not curvature > 0.0:
            return
        length = before / curvature
        for i in range(Z.shape[0]):
            for a in range(Z.shape[1]):
                Z[i, a] += length * D[i, a]
                R[i, a] -= length * A[i, a]
        if step < steps - 1:
            times(near, R, S)
            after = np.sum(R * S)
            for i in range(Z.shape[0]):
                for a in range(Z.shape[1]):
                    D[i, a] = S[i, a] + after / before * D[i, a]
            before = after


class Relaxed:
    """The state of the splitting: Z, a feasible U, W, and the penalty."""

    def __init__(self, problem: Problem, Z: Floats, U: Floats) -> None:
        i, j = problem.edges.T
        self.problem, self.Z, self.U, self.W = problem, Z.copy(), U.copy(), Z[i] - Z[j]
        self.level, self.work = np.zeros(len(i)), np.empty((3, *Z.shape))
        self.rho, self.done = problem.penalty, 0
        self.near = problem.blocks(self.rho)

    def restart(self, at: Certified) -> None:
        """Go on from another pair."""
        i, j = self.problem.edges.T
        self.Z, self.U, self.W = at.Z.copy(), at.U.copy(), at.Z[i] - at.Z[j]

    def residual(self, relax: float) -> tuple[Floats, tuple[float, float, float, float]]:
        """New W and U; the residual of the equations for the next Z, and the sizes that ``split`` returns."""
        problem, R = self.problem, np.empty_like(self.Z)
        times(problem.H, problem.V - self.Z, R)
        return R, split(
            self.Z, self.U, self.W, self.level, R, problem.edges, problem.weight, problem.p, self.rho, relax
        )

    def improve(self, best: Certified, gap: float, budget: int) -> Certified:
        """Iterate until the gap is reached or the budget of iterations is spent."""
        problem, spent = self.problem, 0
        while best.gap > gap and spent < budget:
            for _ in range(CHECK):
                R, sizes = self.residual(RELAX)
                conjugate(self.Z, R, problem.H, self.near, *problem.neighbours, self.rho, CG_STEPS, self.work)
            spent += CHECK
            best = certify(problem, self.U, self.Z, best=best)
            ratio = balance(sizes, self.rho)
            if not 0.5 < ratio < 2.0 and self.done + spent < ADAPT:
                self.rho *= ratio
                self.near = problem.blocks(self.rho)
        self.done += spent
        return best


def balance(sizes: tuple[float, float, float, float], rho: float) -> float:
    """By how much rho should grow: the root of the relative primal residual over the relative dual one."""
    apart, wide, moved, dual = sizes
    if min(apart, wide, moved, dual) <= 0.0:
        return 1.0
    return float(np.clip(((apart / wide) / (rho * rho * moved / dual)) ** 0.25, 0.2, 5.0))
