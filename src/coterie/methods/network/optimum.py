"""Seed 003, objective (1)-(2), minimised exactly for GLMs: proximal Newton over exchanges, with a KKT certificate.

``F(x, Z) = 1/R sum_n f_n(M x + N z_n) + lambda sum_e weight_e ||z_i - z_j||_p``, f_n a client's loss summed over its
rows and R the weight of all rows. Clients send gradient and Hessian; the coordinator minimises the quadratic model with
the penalty over edges and goes there, or part of the way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation
from coterie.methods.network.exact import Exact
from coterie.methods.network.hold import Hold
from coterie.methods.network.model import minimise
from coterie.numerics.kernels import Floats, Ints
from coterie.relations.layout import Layout
from coterie.relations.merging import merged
from coterie.relations.network import Network

EXCHANGES = 200
"""Exchanges at most: a count far too high takes dozens."""
ROUNDING = 1e-13


@dataclass(frozen=True)
class Optimum:
    """The minimiser and its certificate.

    Attributes
    ----------
    x : (d1,), Z : (n, d2), theta : (n, d)
        Shared and personal parameters, and every client's; in the units given.
    dual : (M, d2)
        U on the edges, ``||U_e|| <= lambda weight_e`` in the dual norm.
    value : float
        F there, with what holds parameters that nothing else does (``hold.Hold``).
    kkt : float
        The larger of two residuals, free of units. Stationarity: the length of ``1/R grad_z f_n + sum_e +-U_e`` over
        all clients, with that by x shared by them, over what the rows' gradients would be if they did not cancel.
        Complementarity: ``lambda sum_e weight_e ||z_i - z_j||_p - <U_e, z_i - z_j>`` over that times the length of
        theta. The duals are feasible as they are.
    exchanges : int
    groups : (n,) int64
        Clients with equal z have equal numbers.
    """

    x: Floats
    Z: Floats
    theta: Floats
    dual: Floats
    value: float
    kkt: float
    exchanges: int
    groups: Ints


@np.errstate(over="ignore", invalid="ignore")  # a step that overflows is halved
def optimum(
    fed: Federation,
    network: Network,
    lam: float,
    p: float = 2,
    *,
    layout: Layout,
    unit: Floats | None = None,
    hold: Hold | None = None,
    start: Optimum | None = None,
    kkt: float = 1e-6,
) -> Optimum:
    """Minimise F.

    Parameters
    ----------
    fed : Federation
        Clients with rows and a family; all must answer.
    network : Network
    lam : float
        0 or more, and finite: ``extremes`` has 0 and infinity as `local` and `pooled` solve them.
    p : 1, 2 or inf, default 2
    layout : Layout
        Which parameters are shared, which personal.
    unit : (d,), optional
        Columns are multiplied by it; parameters, and the differences that are penalised, are in these units.
    hold : Hold, optional
        By default nothing is held; ``Hold.of(network, family)`` holds what separated outcomes take to infinity.
    start : Optimum, optional
        A former one of the same clients, layout and network.
    kkt : float, default 1e-6
        Stop at this residual.

    Raises
    ------
    CoterieError
        For a lambda or p that cannot be, clients that are missing, objectives without rows.
    """
    if not 0.0 <= lam < np.inf or p not in (1, 2, np.inf):
        raise CoterieError(f"lam must be finite, 0 or more, and p one of 1, 2 and inf, not {lam} and {p}.")
    at = Exact(fed, network, lam, float(p), layout, np.ones(layout.d) if unit is None else unit, hold)
    q = layout.d2
    x, Z, U = (np.zeros(layout.d1), np.zeros((network.n, q)), np.zeros((len(network.edges), q)))
    if start is not None:
        x, Z, U = start.x, start.Z, start.dual
    here, exchanges, sigma = at.ask(x, Z), 1, None
    U = at.feasible(U * here.weight, here)
    best = off = at.kkt(here, U)
    while off > kkt and exchanges < EXCHANGES:
        model = at.model(here)
        goal = minimise(model, U, model.sigma if sigma is None else sigma, max(min(0.1 * off, off**1.5), 0.2 * kkt))
        sigma, U = goal.sigma, goal.U
        dx, dz = goal.x - here.x, goal.Z - here.Z
        promised = (
            float(model.gx @ dx + np.sum(model.gz * dz))
            - at.penalty(here.Z, here.weight)
            + at.penalty(goal.Z, here.weight)
        )
        t = 1.0
        while True:
            there, exchanges = at.ask(here.x + t * dx, here.Z + t * dz), exchanges + 1
            new = at.kkt(there, U)
            falls = there.value <= here.value + 1e-4 * t * promised + ROUNDING * (1.0 + abs(here.value))
            if falls or new <= 0.5 * best:
                break
            if exchanges >= EXCHANGES:
                there = here
                break
            t *= 0.5 if np.isfinite(there.value) else 0.1
        here, off, best = there, new, min(best, new)
    theta = layout.theta(here.x, here.Z)
    return Optimum(
        here.x, here.Z, theta, U / here.weight, here.value / here.weight, off, exchanges, merged(network, here.Z)
    )
