"""Semismooth Newton steps on the augmented Lagrangian of a quadratic with a penalty over edges.

``min g's + 1/2 s'Hs + sum_e radius_e ||z_i - z_j||_p`` over ``s = (x - x_0, Z - Z_0)``, as in [1]_ (there for p = 2 and
without x). Given duals U, ``phi = g's + 1/2 s'Hs + (1/sigma) sum_e (<y_e, u_e> - ||u_e||^2 / 2)`` with
``y = U + sigma B Z`` and u the projection of y on the dual balls is smooth; its minimiser gives the next U. The same
steps serve the Z-step of paper 003 (no x; a duality gap ends them) and the models of proximal Newton (residuals do).

References
----------
.. [1] Sun, Toh, Yuan (2021), Convex clustering: model, theoretical guarantee and efficient algorithm, JMLR 22.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from coterie.numerics.arrays import Floats, Ints, summing
from coterie.numerics.network.conjugate_gradients import Curvature, EdgeCurvature, conjugate, curvature_times, factor
from coterie.numerics.network.edge_penalty_problem import (
    Certified,
    Problem,
    certify,
    l1_level,
    metric_times,
    norm,
    penalty_and_slack,
    project,
)

Graph = tuple[Ints, Floats, float]  # edges (M, 2), the radius of each one's dual ball (M,), and p
GROW = 3.0  # by how much sigma grows with new duals
ROUNDS, STEPS = 100, 300  # of a model's minimisation: changes of the duals at most, and Newton steps in all
PRODUCTS = 500  # products with the curvature at most in one of its steps
NOBODY = np.empty(0, dtype=np.int64)


@summing
def multipliers(Z: Floats, U: Floats, sigma: float, graph: Graph, New: Floats, level: Floats, G: Floats) -> float:
    """New becomes the projections u (M, q), which G gains at i and loses at j; sigma times the edges' part of phi.

    ``level`` (M,) is where to look for the thresholds of p = inf first.
    """
    at, radius, p = graph
    value, y = 0.0, np.empty(Z.shape[1])
    for e in range(at.shape[0]):
        i, j = at[e, 0], at[e, 1]
        for k in range(Z.shape[1]):
            y[k] = U[e, k] + sigma * (Z[i, k] - Z[j, k])
            New[e, k] = y[k]
        level[e] = project(New[e], p, radius[e], level[e])
        for k in range(Z.shape[1]):
            u = New[e, k]
            value += u * (y[k] - 0.5 * u)
            G[i, k] += u
            G[j, k] -= u
    return value


@summing
def slopes(Z: Floats, U: Floats, sigma: float, graph: Graph, level: Floats) -> tuple[Floats, Floats]:
    """Derivatives of the projections: a and b (M, q) of ``diag(a) - b b'``; for p = 1, where b is 0, it is (0, q)."""
    at, radius, p = graph
    a, b = np.ones(U.shape), np.zeros((0 if p == 1.0 else U.shape[0], U.shape[1]))
    y = np.empty(U.shape[1])
    for e in range(at.shape[0]):
        for k in range(y.shape[0]):
            y[k] = U[e, k] + sigma * (Z[at[e, 0], k] - Z[at[e, 1], k])
        if p == 2.0:
            size = norm(y, 2.0)
            if size > radius[e]:
                for k in range(y.shape[0]):
                    a[e, k] = radius[e] / size
                    b[e, k] = np.sqrt(radius[e] / size) / size * y[k]
        elif p == 1.0:
            for k in range(y.shape[0]):
                a[e, k] = 1.0 if abs(y[k]) <= radius[e] else 0.0
        elif radius[e] == 0.0:
            a[e] = 0.0
        elif norm(y, 1.0) > radius[e]:
            down, count = l1_level(y, radius[e], level[e]), 0
            for k in range(y.shape[0]):
                a[e, k] = 1.0 if abs(y[k]) > down else 0.0
                b[e, k] = a[e, k] * np.sign(y[k])
                count += int(a[e, k])
            for k in range(y.shape[0]):
                b[e, k] /= np.sqrt(max(count, 1))
    return a, b


@dataclass(frozen=True)
class PenalisedQuadratic:
    """``g's + 1/2 s'Hs`` around (x, Z), x and gx (d1,), Z and gz (n, q), and the penalty's edges."""

    x: Floats
    Z: Floats
    gx: Floats
    gz: Floats
    curvature: Curvature
    graph: Graph

    @property
    def sigma(self) -> float:
        """An augmented term about as stiff as the clients."""
        Hzz, at = self.curvature[0], self.graph[0]
        return float(np.sum(np.diagonal(Hzz, axis1=1, axis2=2)) / max(2.0 * len(at) * self.Z.shape[1], 1.0)) or 1.0


class Lagrangian:
    """phi for one U and sigma, with gradient (gx, gz) and projections ``new`` where it was evaluated last."""

    def __init__(self, model: PenalisedQuadratic, U: Floats, sigma: float) -> None:
        self.model, self.U, self.sigma = model, U.copy(), sigma
        self.new, self.level = np.empty_like(U), np.zeros(len(U))
        self.gx, self.gz = np.empty_like(model.x), np.empty_like(model.Z)

    def at(self, x: Floats, Z: Floats) -> float:
        """phi(x, Z); everything is of this place from now on."""
        model = self.model
        self.x, self.Z, dx, dz = x, Z, x - model.x, Z - model.Z
        curvature_times(model.curvature, dz, dx, self.gz, self.gx)
        value = 0.5 * float(np.vdot(dz, self.gz) + dx @ self.gx) + float(np.vdot(dz, model.gz) + dx @ model.gx)
        self.gx += model.gx
        self.gz += model.gz
        return value + multipliers(Z, self.U, self.sigma, model.graph, self.new, self.level, self.gz) / self.sigma

    def direction(self, tolerance: float, steps: int) -> tuple[Floats, Floats, int]:
        """Newton's direction, and the steps of conjugate gradients that it took."""
        a, b = slopes(self.Z, self.U, self.sigma, self.model.graph, self.level)
        ties = EdgeCurvature(self.model.graph[0], self.sigma, a, b, NOBODY, NOBODY)
        dx, dz = np.zeros_like(self.gx), np.zeros_like(self.gz)
        factors, work = factor(self.model.curvature, ties), np.empty((3, *dz.shape))
        taken = conjugate(self.model.curvature, ties, factors, dz, dx, -self.gz, -self.gx, tolerance, steps, work)
        return dx, dz, taken

    def along(self, dx: Floats, dz: Floats) -> float:
        """The slope of phi in a direction."""
        return float(self.gx @ dx + np.vdot(self.gz, dz))

    def renew(self, grow: float) -> float:
        """The projections become U, and sigma grows; phi at the same place."""
        self.U, self.new = self.new, self.U
        self.sigma *= grow
        return self.at(self.x, self.Z)


@dataclass(frozen=True)
class Solved:
    """Where a model is smallest, its duals, and the sigma that it ended with."""

    x: Floats
    Z: Floats
    U: Floats
    sigma: float


def minimise(model: PenalisedQuadratic, U: Floats, sigma: float, accuracy: float, scale: float) -> Solved:
    """Minimise the quadratic with its penalty until both residuals, in units of ``scale``, are at most ``accuracy``.

    It starts from duals U (M, q) and ``sigma``, the weight of the augmented term.
    """
    phi, apart, steps = Lagrangian(model, U, sigma), 1.0, 0
    phi.at(model.x, model.Z)
    for turn in range(ROUNDS):
        goal = max(0.5 * accuracy, min(0.1 * apart, 0.1))
        while (off := stationary(phi.gx, phi.gz) / scale) > goal and steps < STEPS:
            dx, dz, _ = phi.direction(min(0.1, off**0.5, 0.5 * goal / off), PRODUCTS)
            _search_by_slope(phi, dx, dz)
            steps += 1
        off, apart = residuals(model.graph, phi.x, phi.Z, phi.gx, phi.gz, phi.new, scale)
        if max(off, apart) <= accuracy or steps >= STEPS or not np.isfinite(off) or turn == ROUNDS - 1:
            break
        phi.renew(GROW if apart > off else 1.0)
    return Solved(phi.x, phi.Z, phi.new, phi.sigma)


def _search_by_slope(phi: Lagrangian, dx: Floats, dz: Floats) -> None:
    """Go along a direction: phi is convex there, so the sign of its slope says on which side its minimum is."""
    x, Z, slope = phi.x, phi.Z, phi.along(dx, dz)
    low, high, t = 0.0, np.inf, 1.0
    for _ in range(30):
        phi.at(x + t * dx, Z + t * dz)
        here = phi.along(dx, dz)
        if abs(here) <= 0.5 * abs(slope) or (here < 0.0 and t >= 1.0):
            return
        low, high = (low, t) if here > 0.0 else (t, high)
        t = 0.5 * (low + high)
    phi.at(x + t * dx, Z + t * dz)


def residuals(
    graph: Graph, x: Floats, Z: Floats, gx: Floats, gz: Floats, U: Floats, scale: float
) -> tuple[float, float]:
    """How far (x, Z) is from stationary, and U from complementary to it.

    gx and gz are the Lagrangian's gradients, U's edges in them.
    """
    at, radius, p = graph
    slack = float(penalty_and_slack(Z, U, at, radius, p)[1])
    size = float(np.sqrt(np.sum(Z**2) + len(Z) * np.sum(x**2)))
    return stationary(gx, gz) / scale, slack / (scale * size) if size > 0.0 else 0.0


def stationary(gx: Floats, gz: Floats) -> float:
    """The length of gradients by Z and, shared by all clients, by x."""
    return float(np.sqrt(np.sum(gz**2) + np.sum(gx**2) / max(len(gz), 1)))


def of_prox(problem: Problem) -> PenalisedQuadratic:
    """The quadratic of a network prox: no x, and no slope at V."""
    n, q = problem.V.shape
    curvature = problem.H, np.empty((n, q, 0)), np.empty((0, 0))
    graph = problem.edges, problem.weight, problem.p
    return PenalisedQuadratic(np.empty(0), problem.V, np.empty(0), np.zeros((n, q)), curvature, graph)


def newton(problem: Problem, best: Certified, sigma: float, gap: float, budget: int) -> tuple[Certified, int]:
    """Newton steps from a certified pair until the gap is reached or the budget of Hessian products is spent.

    With p = 2 and masses the optimum lies in the span of V's rows: where there are fewer of these than columns, it is
    looked for there, as a step costs the cube of the columns.
    """
    n, q = problem.V.shape
    if problem.p != 2.0 or problem.H.shape[1] > 1 or q <= n:
        return _steps(problem, best, sigma, gap, budget)
    axes = np.linalg.qr(problem.V.T)[0]
    span = replace(problem, V=problem.V @ axes)
    found, steps = _steps(span, certify(span, best.U @ axes, best.Z @ axes), sigma, gap, budget)
    return certify(problem, found.U @ axes.T, found.Z @ axes.T, best=best), steps


def _steps(problem: Problem, best: Certified, sigma: float, gap: float, budget: int) -> tuple[Certified, int]:
    phi, x = Lagrangian(of_prox(problem), best.U, sigma), np.empty(0)
    value, spent, steps = phi.at(x, best.Z), 0, 0
    while best.gap > gap and spent < budget:
        if _settled(problem, phi):
            value = phi.renew(GROW)
            spent += 1
            if _settled(problem, phi):
                continue
        _, dz, taken = phi.direction(0.1, min(300, budget))
        Z, slope, step = phi.Z, phi.along(x, dz), 1.0
        after = phi.at(x, Z + dz)
        while after > value + 1e-4 * step * slope + 1e-13 * abs(value) and step > 1e-3:
            step *= 0.5
            after = phi.at(x, Z + step * dz)
            spent += 1
        value, spent, steps = after, spent + taken + 1, steps + 1
        best = certify(problem, phi.new, phi.Z, best=best)
    return best, steps


def _settled(problem: Problem, phi: Lagrangian) -> bool:
    """Whether the gradient is small against the change of U, so that U may move on."""
    moved = np.empty_like(phi.gz)
    metric_times(problem.inverse, phi.gz, moved)
    change = phi.new - phi.U
    return float(np.vdot(phi.gz, moved)) <= 0.1 * float(np.vdot(change, change)) / phi.sigma
