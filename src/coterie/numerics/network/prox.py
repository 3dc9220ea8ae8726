"""The prox of a similarity network: clients pulled together along edges, solved to a certified duality gap.

``min_Z 1/2 sum_i (z_i - v_i)' H_i (z_i - v_i) + sum_e weight_e ||z_i - z_j||_p`` is the Z-step of paper 003
(Algorithm 5). Its dual has a vector ``U_e`` on every edge, in the ball of the dual norm with radius ``weight_e``.

It is found by the alternating direction method, over-relaxed with rough Z-steps, and Newton's method in turns. The
former splits ``W = BZ`` with penalty rho as in Algorithm 5. What is different: over-relaxation (Eckstein and Bertsekas
1992); ``(H + rho B'B) Z = ...`` is solved roughly, from the last Z (Eckstein and Yao 2017), which needs no factors and
lets rho change; rho balances the two residuals (He, Yang and Wang 2000, in relative form).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.lazy_modules import sparse
from coterie.numerics.arrays import Floats, Ints, summing
from coterie.numerics.network.conjugate_gradients import EdgeCurvature, conjugate
from coterie.numerics.network.edge_penalty_problem import (
    Certified,
    Problem,
    certify,
    l1_level,
    metric_times,
    project_all,
)
from coterie.numerics.network.newton import newton
from coterie.options import Option, checked

RELAX = 1.7
CG_STEPS, CG_TOLERANCE = 10, 0.15
CHECK = 10  # iterations between two looks at the gap
LEAN = 3.0
"""By how much the primal residual should be below the dual one for p = inf (relative residuals; by measurement)."""
ADAPT = 400  # after so many iterations rho stays as it is, so that they converge


@summing
def split(
    Z: Floats,
    U: Floats,
    X: Floats,
    level: Floats,
    R: Floats,
    edges: Ints,
    weight: Floats,
    p: float,
    rho: float,
    relax: float,
) -> None:
    """Prox and dual step on every edge, and ``R += B'(rho (W - BZ) - U)``.

    X is what U is the projection of, so that ``rho W = X - U`` need not be stored. Like ``project``, but with the steps
    before and after it in the same loops: this is where the time goes.
    """
    q = Z.shape[1]
    d, pull = np.empty(q), np.empty(q)
    for e in range(edges.shape[0]):
        i, j, radius = edges[e, 0], edges[e, 1], weight[e]
        if p == 1.0:
            for a in range(q):
                far = rho * (Z[i, a] - Z[j, a])
                x = relax * (U[e, a] + far) + (1.0 - relax) * X[e, a]
                u = min(max(x, -radius), radius)
                X[e, a], U[e, a] = x, u
                R[i, a] += x - 2.0 * u - far
                R[j, a] -= x - 2.0 * u - far
            continue
        for a in range(q):
            d[a] = rho * (Z[i, a] - Z[j, a])
        size = 0.0
        for a in range(q):
            x = relax * (U[e, a] + d[a]) + (1.0 - relax) * X[e, a]
            X[e, a] = x
            size += x * x if p == 2.0 else abs(x)
        if p == 2.0:
            shrink = radius / np.sqrt(size) if size > radius * radius else 1.0
            for a in range(q):
                U[e, a] = shrink * X[e, a]
        else:
            bound = 0.0
            if size > radius:
                level[e] = bound = l1_level(X[e], radius, level[e])
            for a in range(q):
                U[e, a] = X[e, a] - min(max(X[e, a], -bound), bound)
        for a in range(q):
            pull[a] = X[e, a] - 2.0 * U[e, a] - d[a]
        for a in range(q):
            R[i, a] += pull[a]
        for a in range(q):
            R[j, a] -= pull[a]


@summing
def imbalance(Z: Floats, U: Floats, X: Floats, Before: Floats, edges: Ints, rho: float) -> float:
    """The relative primal residual ``||BZ - W|| / ||BZ||`` over the relative dual one, ``rho ||W - Before|| / ||U||``.

    1 where either is 0.
    """
    apart, wide, moved, dual = 0.0, 0.0, 0.0, 0.0
    for e in range(edges.shape[0]):
        for a in range(Z.shape[1]):
            d, u = Z[edges[e, 0], a] - Z[edges[e, 1], a], U[e, a]
            w = (X[e, a] - u) / rho
            apart += (w - d) ** 2
            wide += d * d
            moved += (w - Before[e, a]) ** 2
            dual += u * u
    if min(min(apart, wide), min(moved, dual)) <= 0.0:
        return 1.0
    return float(np.sqrt(apart / wide * dual / moved) / rho)


class Equations:
    """``(H + rho B'B) Z = ...`` of a Z-step, preconditioned by its diagonal blocks."""

    def __init__(self, problem: Problem, rho: float) -> None:
        (n, q), nothing = problem.V.shape, np.empty((0, problem.V.shape[1]))
        no_x = np.empty((n, q, 0)), np.empty((0, 0))
        self.curvature, self.near = (problem.H, *no_x), (problem.blocks(rho), *no_x)
        self.ties = EdgeCurvature(problem.edges, rho, nothing, nothing, *problem.neighbours)

    def improve(self, Z: Floats, R: Floats, tolerance: float, steps: int, work: Floats) -> None:
        """Improve Z, whose residual is R, both in place."""
        no_x = np.empty(0)
        conjugate(self.curvature, self.ties, self.near, Z, no_x, R, no_x, tolerance, steps, work)


class Relaxed:
    """The state of the splitting: Z, a feasible U, X with ``rho W = X - U``, and the penalty."""

    def __init__(self, problem: Problem, at: Certified, rho: float | None = None) -> None:
        self.problem, self.done = problem, 0
        self.level, self.work = np.zeros(len(at.U)), np.empty((3, *at.Z.shape))
        self.rho = problem.penalty if rho is None else rho
        self.equations = Equations(problem, self.rho)
        self.restart(at)

    def restart(self, at: Certified) -> None:
        """Go on from another pair."""
        i, j = self.problem.edges.T
        self.Z, self.U, self.X = at.Z.copy(), at.U.copy(), at.U + self.rho * (at.Z[i] - at.Z[j])

    def residual(self, relax: float) -> Floats:
        """New W and U, and the residual of the equations for the next Z."""
        problem, R = self.problem, np.empty_like(self.Z)
        metric_times(problem.H, problem.V - self.Z, R)
        split(self.Z, self.U, self.X, self.level, R, problem.edges, problem.weight, problem.p, self.rho, relax)
        return R

    def step(self, R: Floats) -> None:
        """The next Z, roughly."""
        self.equations.improve(self.Z, R, CG_TOLERANCE, CG_STEPS, self.work)

    def improve(self, best: Certified, gap: float, budget: int) -> Certified:
        """Iterate until the gap is reached or the budget of iterations is spent."""
        problem, spent = self.problem, 0
        while best.gap > gap and spent < budget:
            for k in range(CHECK):
                if k == CHECK - 1:
                    before, Z = (self.X - self.U) / self.rho, self.Z.copy()
                R = self.residual(RELAX)
                self.step(R)
            spent += CHECK
            best = certify(problem, self.U, self.Z, best=best)
            if best.gap > gap and self.done + spent < ADAPT:
                lean = LEAN if problem.p == np.inf else 1.0
                self.rebalance(lean * imbalance(Z, self.U, self.X, before, problem.edges, self.rho))
        self.done += spent
        return best

    def rebalance(self, ratio: float) -> None:
        """Change rho by the root of what sets primal and dual residual apart, if that is much."""
        change = float(np.clip(np.sqrt(ratio), 0.2, 5.0))
        if not 0.5 < change < 2.0:
            self.rho *= change
            self.X = self.U + change * (self.X - self.U)
            self.equations = Equations(self.problem, self.rho)


FIRST = {1.0: 60, 2.0: 60, float("inf"): 400}
"""Iterations of the splitting, for each p, before Newton's method has its first turn: most problems are solved by then.

For p = inf the faces of the dual balls change at nearly every Newton step until the end is near."""
MANY = 50_000  # edges from which clients are sorted first, since they no longer lie in cache together
PRODUCTS = 4  # Hessian products that take about as long as one iteration of the splitting


@dataclass(frozen=True)
class Proximal:
    """A solution of the network prox and its certificate."""

    Z: Floats  # (n, q): clients that have merged have equal rows
    # (M, q): U with ||U_e|| <= weight_e in the dual norm and H (V - Z) = B'U, the sum over each client's edges with the
    # sign of its end, as far as the gap says
    dual: Floats
    # (primal - dual) / primal, from this Z and this U; primal counts as 1e-20 of ||V||_H^2 / 2 at least, so that rows
    # of V that differ by rounding do not ask for more than there is
    gap: float
    iterations: int


@checked
def network_prox(
    V: npt.ArrayLike,
    edges: npt.ArrayLike,
    weight: npt.ArrayLike,
    p: float = 2,
    gap: Annotated[float, Option("Stop when (primal - dual) / primal is at most this.", low=0.0)] = 1e-6,
    *,
    metric: npt.ArrayLike | None = None,
    start: Proximal | None = None,
    iterations: Annotated[int, Option("Stop after so many.", low=1)] = 100_000,
) -> Proximal:
    """Minimise ``1/2 sum_i (z_i - v_i)' H_i (z_i - v_i) + sum_e weight_e ||z_i - z_j||_p`` over Z.

    V (n, q) has a row for each client; ``edges`` (M, 2) are pairs of clients, each once; ``weight`` is one for all or
    (M,), lambda part of it; ``metric`` are positive masses (n,) or symmetric positive definite matrices H (n, q, q), by
    default the identity. ``start`` is a former solution on the same edges, also for other weights, V or metric.

    The alternating direction method, relaxed and with rough Z-steps, takes turns with semismooth Newton steps on the
    augmented Lagrangian. A CoterieError for numbers that are not finite, edges that name unknown clients, tie a client
    to itself or come twice, negative weights, shapes that do not fit.
    """
    problem = Problem.of(V, edges, weight, p, metric)
    U = np.zeros((len(problem.edges), problem.V.shape[1]))
    Z = problem.V.copy()
    if start is not None:
        if start.dual.shape != U.shape or start.Z.shape != Z.shape:
            raise CoterieError("The start is of another network: its clients, edges and columns must be those of now.")
        U, Z = start.dual.copy(), start.Z.copy()
        project_all(U, problem.p, problem.weight)
    tied = np.flatnonzero(problem.weight > 0.0)
    if len(tied) < MANY:
        found, done = _take_turns(problem.of_edges(tied), Z, U[tied], gap, iterations)
        U[tied] = found.U
        return Proximal(found.Z, U, found.gap, done)
    clients, tied = _close(problem.edges[tied], len(Z), tied)
    found, done = _take_turns(problem.of_edges(tied).of_clients(clients), Z[clients], U[tied], gap, iterations)
    U[tied], Z[clients] = found.U, found.Z
    return Proximal(Z, U, found.gap, done)


def _close(edges: Ints, n: int, names: Ints) -> tuple[Ints, Ints]:
    """An order of n clients (reverse Cuthill and McKee) and one of edges in which neighbours are near in memory.

    Edges (M, 2) are called ``names`` (M,).
    """
    i, j = edges.T
    ones = np.ones(2 * len(edges), np.int8)
    graph = sparse.coo_array((ones, (np.concatenate([i, j]), np.concatenate([j, i]))), shape=(n, n)).tocsr()
    clients = sparse.csgraph.reverse_cuthill_mckee(graph, symmetric_mode=True).astype(np.int64)
    rank = np.argsort(clients)[edges]
    return clients, names[np.lexsort((rank.max(axis=1), rank.min(axis=1)))]


def smoothed(V: Floats, edges: Ints, weight: Floats, metric: Floats | None = None) -> Floats:
    """Minimise ``1/2 sum_i m_i |z_i - v_i|^2 + 1/2 sum_e weight_e |z_i - z_j|^2`` over Z; m (n,) is ``metric``, or 1.

    This solves ``(M + L) Z = M V`` with the network's Laplacian L: implicit, so that no weight is too large.
    """
    mass = np.ones(len(V)) if metric is None else metric
    i, j = edges.T
    A = sparse.coo_array((weight, (i, j)), shape=(len(V), len(V)))
    A = A + A.T
    system = sparse.diags_array(mass + A.sum(axis=1)) - A
    return np.asarray(sparse.linalg.splu(system.tocsc()).solve(np.ascontiguousarray(mass[:, None] * V)))


def _take_turns(problem: Problem, Z: Floats, U: Floats, gap: float, iterations: int) -> tuple[Certified, int]:
    """From Z and a feasible U to a certified pair; and the iterations that it took, Newton's steps among them.

    Turns of the splitting and of Newton's method grow in length, so that neither costs more than the other twice.
    """
    best, turn, done = certify(problem, U, Z), FIRST[problem.p], 0
    if best.gap <= gap:
        return best, 0
    splitting = Relaxed(problem, Certified(Z, U, best.gap))
    while best.gap > gap and done < iterations:
        before = splitting.done
        best = splitting.improve(best, gap, min(turn, iterations - done))
        done += splitting.done - before
        if best.gap > gap and done < iterations:
            entry = best.gap
            best, steps = newton(problem, best, 3.0 * splitting.rho, gap, PRODUCTS * turn)
            done += steps
            if best.gap < 0.1 * entry:
                splitting.restart(best)
        turn *= 2
    return best, done
