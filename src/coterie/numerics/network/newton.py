"""The augmented Lagrangian with semismooth Newton steps (Sun, Toh and Yuan 2021, there for p = 2 and no metric).

Given U, ``phi(Z) = 1/2 ||Z - V||_H^2 + (1/sigma) sum_e (<x_e, u_e> - ||u_e||^2 / 2)`` with ``x = U + sigma B Z`` and u
the projection of x on the dual balls is smooth; its minimiser gives the next U. The projection's Jacobian on an edge is
``scale (M - s s')``: M is the diagonal of entries that move, s a unit vector or 0.
"""

from __future__ import annotations

import numpy as np

from coterie.numerics.kernels import Bools, Floats, Ints, summing
from coterie.numerics.network.edges import project, times
from coterie.numerics.network.merge import Certified, certify
from coterie.numerics.network.problem import Problem

GROW = 3.0
"""By how much sigma grows with each new U."""


@summing
def envelope(
    Z: Floats,
    U: Floats,
    edges: Ints,
    weight: Floats,
    p: float,
    sigma: float,
    New: Floats,
    level: Floats,
    scale: Floats,
    S: Floats,
    M: Bools,
    G: Floats,
) -> float:
    """The edges' part of phi; New becomes u, G gains its adjoint, and scale, S and M hold the Jacobians."""
    q = Z.shape[1]
    value = 0.0
    x = np.empty(q)
    for e in range(edges.shape[0]):
        i, j = edges[e, 0], edges[e, 1]
        for a in range(q):
            x[a] = U[e, a] + sigma * (Z[i, a] - Z[j, a])
            New[e, a] = x[a]
        level[e] = project(New[e], p, weight[e], level[e])
        kept, moved = 0.0, 0.0
        for a in range(q):
            u = New[e, a]
            value += u * (x[a] - 0.5 * u)
            kept += u * u
            moved += abs(x[a] - u)
            M[e, a] = p == 2.0 or (u == x[a] if p == 1.0 else u != 0.0 or x[a] == 0.0)
            G[i, a] += u
            G[j, a] -= u
        inside = moved == 0.0
        scale[e] = 1.0
        if p == 2.0 and not inside:
            size = 0.0
            for a in range(q):
                size += x[a] * x[a]
            scale[e] = weight[e] / np.sqrt(size)
        _unit(New[e], M[e], p, inside, kept, S[e])
    return value / sigma


@summing
def _unit(u: Floats, M: Bools, p: float, inside: bool, kept: float, s: Floats) -> None:
    """The direction in which the projection does not move."""
    count = 0.0
    for a in range(u.shape[0]):
        s[a] = 0.0
        count += 1.0 if u[a] != 0.0 else 0.0
        if inside:
            M[a] = True
        elif p == np.inf:
            M[a] = u[a] != 0.0
    if inside or p == 1.0 or kept == 0.0:
        return
    for a in range(u.shape[0]):
        if p == 2.0:
            s[a] = u[a] / np.sqrt(kept)
        elif u[a] != 0.0:
            s[a] = np.copysign(1.0 / np.sqrt(count), u[a])


@summing
def curve(
    X: Floats, H: Floats, edges: Ints, p: float, sigma: float, scale: Floats, S: Floats, M: Bools, out: Floats
) -> None:
    """``out = (H + sigma B' J B) X``."""
    q = X.shape[1]
    times(H, X, out)
    for e in range(edges.shape[0]):
        i, j = edges[e, 0], edges[e, 1]
        along, t = 0.0, sigma * scale[e]
        if p != 1.0:
            for a in range(q):
                along += S[e, a] * (X[i, a] - X[j, a])
        for a in range(q):
            y = t * (X[i, a] - X[j, a] - along * S[e, a]) if M[e, a] else 0.0
            out[i, a] += y
            out[j, a] -= y


@summing
def add_blocks(edges: Ints, sigma: float, scale: Floats, S: Floats, M: Bools, out: Floats) -> None:
    """``out_i += sigma sum of J_e`` over the edges of client i, (n, q, q)."""
    q = S.shape[1]
    for e in range(edges.shape[0]):
        for end in range(2):
            i = edges[e, end]
            for a in range(q):
                if M[e, a]:
                    t = sigma * scale[e]
                    out[i, a, a] += t
                    for b in range(q):
                        out[i, a, b] -= t * S[e, a] * S[e, b]


@summing
def solve(
    G: Floats,
    H: Floats,
    near: Floats,
    edges: Ints,
    p: float,
    sigma: float,
    scale: Floats,
    S: Floats,
    M: Bools,
    tolerance: float,
    steps: int,
    X: Floats,
) -> int:
    """Conjugate gradients for ``(H + sigma B' J B) X = -G``; how many steps."""
    R, D, A, Y = -G, np.empty_like(G), np.empty_like(G), np.empty_like(G)
    X[:] = 0.0
    times(near, R, D)
    before = np.sum(R * D)
    least = tolerance * tolerance * before
    for step in range(steps):
        curve(D, H, edges, p, sigma, scale, S, M, A)
        curvature = np.sum(D * A)
        if not curvature > 0.0:
            return step
        length = before / curvature
        for i in range(X.shape[0]):
            for a in range(X.shape[1]):
                X[i, a] += length * D[i, a]
                R[i, a] -= length * A[i, a]
        times(near, R, Y)
        after = np.sum(R * Y)
        if after <= least:
            return step + 1
        for i in range(X.shape[0]):
            for a in range(X.shape[1]):
                D[i, a] = Y[i, a] + after / before * D[i, a]
        before = after
    return steps


class Lagrangian:
    """phi for one U and sigma, at the Z where it was last evaluated."""

    def __init__(self, problem: Problem, U: Floats, sigma: float) -> None:
        self.problem, self.U, self.sigma = problem, U, sigma
        m, q = U.shape
        self.New, self.S, self.M = np.empty((m, q)), np.empty((m, q)), np.empty((m, q), dtype=np.bool_)
        self.scale, self.level, self.G = np.empty(m), np.zeros(m), np.empty_like(problem.V)

    def at(self, Z: Floats) -> float:
        """phi(Z); New, the gradient G and the Jacobians are of Z from now on."""
        problem = self.problem
        far = Z - problem.V
        times(problem.H, far, self.G)
        near = 0.5 * float(np.vdot(far, self.G))
        edges = envelope(
            Z,
            self.U,
            problem.edges,
            problem.weight,
            problem.p,
            self.sigma,
            self.New,
            self.level,
            *self.jacobian,
            self.G,
        )
        return near + edges

    @property
    def jacobian(self) -> tuple[Floats, Floats, Bools]:
        """Scale (M,), unit vectors (M, q) and moving entries (M, q)."""
        return self.scale, self.S, self.M

    def direction(self, tolerance: float, steps: int) -> tuple[Floats, int]:
        """Newton's direction, and the steps of conjugate gradients that it took."""
        problem, X = self.problem, np.empty_like(self.G)
        blocks = problem.H * np.eye(self.G.shape[1]) if problem.H.shape[1] == 1 else problem.H.copy()
        add_blocks(problem.edges, self.sigma, *self.jacobian, blocks)
        near = np.ascontiguousarray(np.linalg.inv(blocks))
        taken = solve(
            self.G, problem.H, near, problem.edges, problem.p, self.sigma, *self.jacobian, tolerance, steps, X
        )
        return X, taken

    def settled(self) -> bool:
        """Whether the gradient is small against the change of U, so that U may move on."""
        moved = np.empty_like(self.G)
        times(self.problem.inverse, self.G, moved)
        change = self.New - self.U
        return float(np.vdot(self.G, moved)) <= 0.1 * float(np.vdot(change, change)) / self.sigma


def newton(problem: Problem, best: Certified, sigma: float, gap: float, budget: int) -> tuple[Certified, int]:
    """Newton steps from a certified pair until the gap is reached or the budget of Hessian products is spent."""
    phi, Z = Lagrangian(problem, best.U.copy(), sigma), best.Z
    value, spent, steps = phi.at(Z), 0, 0
    while best.gap > gap and spent < budget:
        if phi.settled():
            phi.U, phi.New = phi.New, phi.U
            phi.sigma *= GROW
            value = phi.at(Z)
            spent += 1
            if phi.settled():
                continue
        X, taken = phi.direction(0.1, min(300, budget))
        slope, step = float(np.vdot(phi.G, X)), 1.0
        after = phi.at(Z + X)
        while after > value + 1e-4 * step * slope + 1e-13 * abs(value) and step > 1e-3:
            step *= 0.5
            after = phi.at(Z + step * X)
            spent += 1
        Z, value = Z + step * X, after
        spent, steps = spent + taken + 1, steps + 1
        best = certify(problem, phi.New, Z, best=best)
    return best, steps
