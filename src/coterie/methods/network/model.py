"""The quadratic model of a Newton step with the penalty over edges, minimised exactly at the coordinator.

``min g'(s - s_0) + 1/2 (s - s_0)'H(s - s_0) + sum_e c_e ||z_i - z_j||_p`` over ``s = (x, Z)``, by an augmented
Lagrangian whose smooth subproblems are solved by semismooth Newton steps, as in [1]_; x is eliminated with the clients'
blocks in the preconditioner.

References
----------
.. [1] Sun, Toh, Yuan (2021), Convex clustering: model, theoretical guarantee and efficient algorithm, JMLR 22.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.methods.network.duals import Graph, multipliers, slopes
from coterie.methods.network.newton import Blocks, direction, times
from coterie.numerics.kernels import Floats
from coterie.numerics.network.edges import penalty_and_slack

ROUNDS = 100
"""Changes of the duals at most."""
STEPS = 300
"""Newton steps at most, in all."""


@dataclass(frozen=True)
class Model:
    """A quadratic around (x, Z), with gradient and curvature there, and edges.

    Attributes
    ----------
    x : (d1,), Z : (n, q)
    gx : (d1,), gz : (n, q)
    blocks : Blocks
    graph : Graph
    scale : float
        Gradients are measured in it.
    """

    x: Floats
    Z: Floats
    gx: Floats
    gz: Floats
    blocks: Blocks
    graph: Graph
    scale: float

    @property
    def sigma(self) -> float:
        """An augmented term about as stiff as the clients."""
        Hzz, edges = self.blocks[0], self.graph[0]
        return float(np.sum(np.diagonal(Hzz, axis1=1, axis2=2)) / max(2.0 * len(edges) * self.Z.shape[1], 1.0))

    def gradient(self, x: Floats, Z: Floats, U: Floats, sigma: float) -> tuple[Floats, Floats, Floats]:
        """Of the augmented Lagrangian by x and Z; and the new duals."""
        gz, gx, P = np.empty_like(self.Z), np.empty_like(self.x), np.empty_like(U)
        times(self.blocks, Z - self.Z, x - self.x, gz, gx)
        gx += self.gx
        gz += self.gz
        multipliers(Z, U, sigma, self.graph, P, gz)
        return gx, gz, P


def residuals(
    graph: Graph, x: Floats, Z: Floats, gx: Floats, gz: Floats, U: Floats, scale: float
) -> tuple[float, float]:
    """How far (x, Z) is from stationary, and U from complementary to it: see ``optimum.Optimum``.

    gx and gz are the Lagrangian's gradients, U's edges in them.
    """
    edges, radius, p = graph
    slack = float(penalty_and_slack(Z, U, edges, radius, p)[1])
    size = float(np.sqrt(np.sum(Z**2) + len(Z) * np.sum(x**2)))
    return stationary(gx, gz) / scale, slack / (scale * size) if size > 0.0 else 0.0


def stationary(gx: Floats, gz: Floats) -> float:
    """The length of gradients by Z and, shared by all clients, by x."""
    return float(np.sqrt(np.sum(gz**2) + np.sum(gx**2) / max(len(gz), 1)))


@dataclass(frozen=True)
class Solved:
    """Where a model is smallest, its duals, and the sigma that it ended with."""

    x: Floats
    Z: Floats
    U: Floats
    sigma: float
    steps: int
    products: int


def minimise(model: Model, U: Floats, sigma: float, accuracy: float) -> Solved:
    """Minimise the model until both residuals are at most ``accuracy``.

    Parameters
    ----------
    U : (M, q)
        Duals to start from.
    sigma : float
        Weight of the augmented term to start with.
    """
    x, Z, steps, products = model.x.copy(), model.Z.copy(), 0, 0
    gx, gz, P = model.gradient(x, Z, U, sigma)
    apart = 1.0
    for _ in range(ROUNDS):
        goal = max(0.5 * accuracy, min(0.1 * apart, 0.1))
        while (off := stationary(gx, gz) / model.scale) > goal and steps < STEPS:
            a, b = slopes(Z, U, sigma, model.graph)
            tight = min(0.1, off**0.5, 0.5 * goal / off)
            dz, dx, k = direction(model.blocks, model.graph[0], sigma, a, b, gz, gx, tight, 500)
            steps, products = steps + 1, products + k
            t = _length(model, x, Z, U, sigma, dx, dz, float(gx @ dx + np.sum(gz * dz)))
            x, Z = x + t * dx, Z + t * dz
            gx, gz, P = model.gradient(x, Z, U, sigma)
        U = P
        off, apart = residuals(model.graph, x, Z, gx, gz, U, model.scale)
        if max(off, apart) <= accuracy or steps >= STEPS or not np.isfinite(off):
            break
        sigma *= 3.0 if apart > off else 1.0
        gx, gz, P = model.gradient(x, Z, U, sigma)
    return Solved(x, Z, U, sigma, steps, products)


def _length(model: Model, x: Floats, Z: Floats, U: Floats, sigma: float, dx: Floats, dz: Floats, slope: float) -> float:
    """How far to go: the function is convex along a line, so the sign of its slope says on which side the best is."""
    low, high, t = 0.0, np.inf, 1.0
    for _ in range(30):
        gx, gz, _ = model.gradient(x + t * dx, Z + t * dz, U, sigma)
        here = float(gx @ dx + np.sum(gz * dz))
        if abs(here) <= 0.5 * abs(slope) or (here < 0.0 and t >= 1.0):
            return t
        low, high = (low, t) if here > 0.0 else (t, high)
        t = 0.5 * (low + high)
    return t
