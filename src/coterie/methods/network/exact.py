"""Objective (1)-(2) of seed 003 at a place: what clients say of it, the certificate there, and Newton's model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.federation import Federation, PerRow, Replies
from coterie.methods.network.curve import curve
from coterie.methods.network.duals import Graph, multipliers
from coterie.methods.network.hold import Hold
from coterie.methods.network.model import Model, residuals
from coterie.methods.replies import require_all_replies
from coterie.numerics.kernels import Floats, Ints, full
from coterie.numerics.network.edges import penalty_and_slack
from coterie.numerics.overflow import decode_loss
from coterie.relations.layout import Layout
from coterie.relations.network import Network

FLAT = 1e-9
"""Curvature that a client's model has in every direction, relative to its mean: where rows say nothing, z stays."""


@dataclass(frozen=True)
class Place:
    """R times F at (x, Z), its gradient without the penalty, Hessians by theta, the scale of gradients, and R."""

    x: Floats
    Z: Floats
    value: float
    gx: Floats
    gz: Floats
    A: Floats
    scale: float
    weight: float


@dataclass(frozen=True)
class Exact:
    """F times the weight of all rows, over a federation; ``optimum`` has the parameters.

    Where ``labels`` (n,) are given, the nodes of the network are groups of clients that are one.
    """

    fed: Federation
    network: Network
    lam: float
    p: float
    layout: Layout
    unit: Floats
    hold: Hold | None
    labels: Ints | None = None

    def ask(self, x: Floats, Z: Floats, curved: bool = True) -> Place:
        """One exchange: value, gradient and, where ``curved``, Hessian at (x, Z)."""
        theta, n = self.layout.theta(x, Z), self.network.n
        if self.labels is None:
            s: Replies = require_all_replies(self.fed.ask(curve, unit=self.unit, theta=PerRow(theta), curved=curved))
        else:
            by = self.labels
            s = require_all_replies(self.fed.total(curve, by=by, groups=n, unit=self.unit, theta=PerRow(theta[by])))
        g, value = s["g"], float(decode_loss(s["value"].sum()))
        if np.isinf(value):  # nothing is known of its slope, which must not look like that of an optimum
            g = np.full_like(g, np.nan)
        gx, gz = self.layout.to_shared(g.sum(axis=0)), self.layout.to_personal(g)
        if self.hold is not None:
            value += 0.5 * self.hold.x * float(x @ x) + 0.5 * float(self.hold.z @ np.sum(Z**2, axis=1))
            gx, gz = gx + self.hold.x * x, gz + self.hold.z[:, None] * Z
        weight, scale = float(s["weight"].sum()), float(np.sqrt(s["square"].sum()))
        weight = weight or 1.0
        return Place(x, Z, value + self.penalty(Z, weight), gx, gz, s["A"], scale or 1.0, weight)

    def graph(self, weight: float) -> Graph:
        """Edges, and what their duals are bounded by, for a weight of all rows."""
        return self.network.edges, self.lam * weight * self.network.weight, self.p

    def penalty(self, Z: Floats, weight: float) -> float:
        """``lambda R sum_e weight_e ||z_i - z_j||_p``."""
        edges, radius, p = self.graph(weight)
        return float(penalty_and_slack(Z, np.zeros((len(edges), Z.shape[1])), edges, radius, p)[0])

    def feasible(self, U: Floats, here: Place) -> Floats:
        """The duals nearest to U (M, d2)."""
        P = np.empty_like(U)
        multipliers(np.zeros_like(here.Z), U, 0.0, self.graph(here.weight), P, np.zeros_like(here.Z))
        return P

    def kkt(self, here: Place, U: Floats) -> float:
        """The residual of ``optimum.Optimum`` for feasible duals U."""
        gz, P = here.gz.copy(), np.empty_like(U)
        multipliers(here.Z, U, 0.0, self.graph(here.weight), P, gz)
        return max(residuals(self.graph(here.weight), here.x, here.Z, here.gx, gz, U, here.scale))

    def model(self, here: Place) -> Model:
        """The quadratic at ``here`` with the penalty over edges."""
        H = full(here.A)
        M, N = self.layout.M.toarray(), self.layout.N.toarray()
        left = N.T @ H
        Hzz, Hzx, Hxx = left @ N, left @ M, M.T @ H.sum(axis=0) @ M
        own = np.mean(np.diagonal(H, axis1=1, axis2=2), axis=1)
        mean = float(np.mean(own))
        flat = FLAT * np.where(own > 0.0, own, mean if mean > 0.0 else 1.0)
        held = (0.0, 0.0) if self.hold is None else (self.hold.z, self.hold.x)
        Hzz = Hzz + (flat + held[0])[:, None, None] * np.eye(N.shape[1])
        Hxx = Hxx + (flat.sum() + held[1]) * np.eye(M.shape[1])
        blocks = np.ascontiguousarray(Hzz), np.ascontiguousarray(Hzx), np.ascontiguousarray(Hxx)
        return Model(here.x, here.Z, here.gx, here.gz, blocks, self.graph(here.weight), here.scale)
