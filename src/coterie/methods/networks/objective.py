"""Objective (1)-(2) of paper 003 at a point: what clients send for it, its gradient and Hessians, and weak priors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.families import Family
from coterie.federation import Federation, PerRow, Replies, Site, require_all_replies, work
from coterie.numerics.arrays import Floats, Ints, full, pack
from coterie.numerics.network.edge_penalty_problem import adjoint, penalty_and_slack, project_all
from coterie.numerics.network.newton import Graph, PenalisedQuadratic, residuals
from coterie.objectives.glm import GLM
from coterie.objectives.mean_loss import OVERFLOW, decode_loss, overflowed, sizes
from coterie.relations.network import Network
from coterie.relations.parameter_layout import Layout

FLAT = 1e-9
"""Curvature that a client's model has in every direction, relative to its mean: where rows say nothing, z stays."""

CANCELLED = 1e-8
"""Gradients are reckoned no smaller than this share of the sums that cancel in them: a millionth is above rounding."""


@dataclass(frozen=True)
class Evaluation:
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
class NetworkObjective:
    """F times the weight of all rows, over a federation; with ``labels`` (n,), groups of clients are the nodes."""

    fed: Federation
    network: Network
    lam: float
    p: float
    layout: Layout
    unit: Any = None  # (d,) by which columns are multiplied: that of parameters, and of differences that are penalised
    prior: Prior | None = None  # what holds parameters that separated outcomes take to infinity: ``Prior.of``
    labels: Ints | None = None
    centred: Floats | None = None  # (d, d), see ``centred_columns``

    def __post_init__(self) -> None:
        object.__setattr__(self, "unit", np.asarray(np.ones(self.layout.d) if self.unit is None else self.unit) * 1.0)

    def ask(self, x: Floats, Z: Floats, curved: bool = True) -> Evaluation:
        """One exchange: value, gradient and, where ``curved``, Hessian at (x, Z)."""
        theta, n = self.layout.theta(x, Z), self.network.n
        if (by := self.labels) is None:
            s: Replies = self.fed.ask(derivatives, unit=self.unit, theta=PerRow(theta), curved=curved)
        else:
            s = self.fed.total(derivatives, by=by, groups=n, unit=self.unit, theta=PerRow(theta[by]))
        s = require_all_replies(s)
        g, value = s["g"], float(decode_loss(s["value"].sum()))
        if np.isinf(value):  # nothing is known of its slope, which must not look like that of an optimum
            g = np.full_like(g, np.nan)
        A = s["A"]
        if self.prior is not None and self.prior.alone is not None:
            more, slope, bend = self.prior.of_models(theta)
            value, g, A = value + more, g + slope, A + bend if curved else A
        gx, gz = self.layout.to_shared(g.sum(axis=0)), self.layout.to_personal(g)
        if self.prior is not None:
            held = self.prior.z
            value += 0.5 * self.prior.x * float(x @ x) + 0.5 * float(held @ np.sum(Z**2, axis=1))
            gx, gz = gx + self.prior.x * x, gz + held[:, None] * Z
        weight, scale = float(s["weight"].sum()) or 1.0, float(np.sqrt(s["square"].sum()))
        if curved:  # of rows that are fitted exactly nothing but the rounding of sums that cancel is left
            scale = max(scale, CANCELLED * float(np.linalg.norm(np.einsum("nij,nj->ni", full(A), theta))))
        return Evaluation(x, Z, value + self.penalty(Z, weight), gx, gz, A, scale or 1.0, weight)

    def graph(self, weight: float) -> Graph:
        """Edges, and what their duals are bounded by, for a weight of all rows."""
        return self.network.edges, self.lam * weight * self.network.weight, float(self.p)

    def penalty(self, Z: Floats, weight: float) -> float:
        """``lambda R sum_e weight_e ||z_i - z_j||_p``."""
        edges, radius, p = self.graph(weight)
        return float(penalty_and_slack(Z, np.zeros((len(edges), Z.shape[1])), edges, radius, p)[0])

    def feasible(self, U: Floats, here: Evaluation) -> Floats:
        """The duals nearest to U (M, d2)."""
        P, (_, radius, p) = U.copy(), self.graph(here.weight)
        project_all(P, p, radius)
        return P

    def kkt(self, here: Evaluation, U: Floats) -> float:
        """The residual of ``optimum.Optimum`` for feasible duals U."""
        gz = np.empty_like(here.gz)
        adjoint(U, self.network.edges, gz)
        gz += here.gz
        left = max(residuals(self.graph(here.weight), here.x, here.Z, here.gx, gz, U, here.scale))
        if (C := self.centred) is None:
            return left
        scale = here.scale * (len(C) / np.sum(C**2)) ** 0.5  # gradients by columns less their means are so small
        return max(left, float(np.linalg.norm(C.T @ self._of_all(here))) / scale)

    def _of_all(self, here: Evaluation) -> Floats:
        """The gradient (d,) by what all clients' models move together, of which the penalty knows nothing."""
        return np.asarray(self.layout.M @ here.gx + self.layout.N @ here.gz.sum(axis=0))

    def together(self, here: Evaluation) -> tuple[Floats, Floats]:
        """Newton's step of x (d1,), and of all rows of Z (d2,), in centred columns."""
        C: Floats = np.eye(self.layout.d) if self.centred is None else self.centred
        H = C.T @ full(here.A.sum(axis=0)) @ C
        step = C @ np.linalg.lstsq(H, -(C.T @ self._of_all(here)), rcond=None)[0]
        return self.layout.M.T @ step, self.layout.N.T @ step

    def model(self, here: Evaluation) -> PenalisedQuadratic:
        """The quadratic at ``here`` with the penalty over edges."""
        H = full(here.A)
        M, N = self.layout.M.toarray(), self.layout.N.toarray()
        left = N.T @ H
        Hzz, Hzx, Hxx = left @ N, left @ M, M.T @ H.sum(axis=0) @ M
        own = np.mean(np.diagonal(H, axis1=1, axis2=2), axis=1)
        mean = float(np.mean(own))
        flat = FLAT * np.where(own > 0.0, own, mean if mean > 0.0 else 1.0)
        held = (0.0, 0.0) if self.prior is None else (self.prior.z, self.prior.x)
        Hzz = Hzz + (flat + held[0])[:, None, None] * np.eye(N.shape[1])
        Hxx = Hxx + (flat.sum() + held[1]) * np.eye(M.shape[1])
        blocks = np.ascontiguousarray(Hzz), np.ascontiguousarray(Hzx), np.ascontiguousarray(Hxx)
        return PenalisedQuadratic(here.x, here.Z, here.gx, here.gz, blocks, self.graph(here.weight))


FAR = 10.0
"""Standard deviations of a column between its mean and zero, from which its zero is no place to reckon at."""


def centred_columns(mean: Floats, personal: Ints, intercept: int | None) -> Floats | None:
    """What takes coefficients of personal columns less their means to those of the columns (d, d); None if alike.

    Where clients share the intercept, personal columns keep their zero. If that is far, all slopes with the intercept
    move rows by far less than one slope: gradients by these are small beside others where they are not zero.
    """
    if intercept is None or intercept in personal or not np.abs(mean[personal]).max(initial=0.0) > FAR:
        return None
    C = np.eye(len(mean))
    C[intercept, personal] = -mean[personal] / mean[intercept]
    return C


Reply = dict[str, Floats]


@work
def derivatives(site: Site, unit: Floats, theta: Floats, curved: bool = True) -> Reply:
    """A client's loss, summed over its rows, at its theta (m, d), whose columns are in units ``unit`` (d,).

    ``square`` is ``n sum_r |grad_r|^2`` over its n rows: what the squared gradient would be if no rows cancelled. The
    Hessian is left out where it is not ``curved``. Where numbers overflow, the loss is ``OVERFLOW``, and the rest 0.
    """
    if not isinstance(site.objective, GLM):
        kind = type(site.objective).__name__
        raise CoterieError(f"The exact solver over a network needs rows and a family, not {kind}: use rounds.")
    site.count(len(site))
    value, score, A, square = site.objective.derivatives(unit, theta)
    g, A = -score, A if curved else A[:, :0]
    if (over := overflowed(value, g, A, square)).any():
        value[over], g[over], A[over], square[over] = OVERFLOW, 0.0, 0.0, 0.0
    return {"value": value, "g": g, "A": A, "square": square, "weight": sizes(site.objective)}


@dataclass(frozen=True)
class Prior:
    """Adds ``1/2 x |x|^2 + sum_n 1/2 z_n |z_n|^2 + 1/2 sum_n alone_n |own @ theta_n|^2`` to the summed losses."""

    z: Floats
    x: float
    alone: Floats | None = None  # (n,)
    own: Floats | None = None  # (q, d)

    @classmethod
    def of(cls, network: Network, family: Family, alone: bool = False, own: Floats | None = None) -> Prior:
        """Outcomes that a client separates would take it to infinity, so each has a normal prior around 0.

        A client without neighbours, or ``alone``, is held by that of `local`, standard deviation 2.5; the clients of a
        larger component together by that of `pooled`, whose precision of 1e-9 matters where the whole component is
        separated only. A Gaussian outcome needs none. ``own`` (``Setup.prior``) holds a client that is alone at
        the means of columns, and not where they are zero.
        """
        size = np.bincount(network.components)[network.components]
        root, apart = family.root_precision, (size == 1) | alone
        if own is None:
            return cls(np.where(apart, family.prior_sd**-2, root / size), root)
        return cls(np.where(apart, 0.0, root / size), root, apart.astype(np.float64), own)

    def joined(self, labels: Ints) -> Prior:
        """That of groups of clients."""
        alone = None if self.alone is None else np.bincount(labels, self.alone).astype(np.float64)
        return replace(self, z=np.bincount(labels, self.z).astype(np.float64), alone=alone)

    def of_models(self, theta: Floats) -> tuple[float, Floats, Floats]:
        """Value, gradient (n, d) and packed Hessians (n, P) of what holds clients alone."""
        if self.alone is None or self.own is None:
            return 0.0, np.zeros_like(theta), np.zeros((len(theta), 0))
        u, held = theta @ self.own.T, self.alone[:, None]
        return 0.5 * float(held[:, 0] @ np.sum(u**2, axis=1)), held * (u @ self.own), held * pack(self.own.T @ self.own)
