"""Two ways to minimise objective (1)-(2): proximal Newton, with few exchanges, and consensus ADMM, without Hessians.

Proximal Newton minimises the quadratic model with the penalty, goes there or part of the way, and asks again.

ADMM: ``theta_n = argmin f_n(theta) + rho/2 |theta - (M x + N z_n - y_n)|^2`` at the clients; the coordinator averages
``theta_n + y_n`` for x and takes its network prox for Z; ``y_n`` adds up what is left (Boyd et al. 2011, section 7).
rho follows the residuals. The certificate is that of ``optimum``; it comes down to about 1e-7.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import PerRow, Site, work
from coterie.methods.network.objective import Evaluation, NetworkObjective
from coterie.methods.replies import require_all_replies
from coterie.numerics.arrays import Floats, Ints
from coterie.numerics.network.newton import minimise
from coterie.numerics.network.prox import Proximal, network_prox

EXCHANGES = 200
"""Exchanges at most: a count far too high takes dozens."""
ROUNDING = 1e-13
STIFF = 1e4
"""How much stiffer than the clients the augmented term may be at the start of a model."""
SHORTEST = 1e-10
"""Share of a step that is tried last."""


@dataclass(frozen=True)
class Descent:
    """Where it ended, the duals and the residual there, and how many exchanges it took."""

    here: Evaluation
    U: Floats
    kkt: float
    exchanges: int


@np.errstate(over="ignore", invalid="ignore")  # a step that overflows is halved
def descend(at: NetworkObjective, x: Floats, Z: Floats, dual: Floats, kkt: float) -> Descent:
    """Go from (x, Z), with duals of F as they are in ``Optimum``, to where the residual is at most ``kkt``.

    A step counts where F falls by a part of what the model promised, or where the residual halves: near the optimum F
    is known to rounding only, and models are solved only as well as they are worth.
    """
    here, exchanges = at.ask(x, Z), 1
    if not np.isfinite(here.value):
        raise CoterieError("The means overflow at the offsets given: an offset is the logarithm of a size.")
    U, sigma = at.feasible(dual * here.weight, here), 0.0
    best = residual = at.kkt(here, U)
    while residual > kkt:
        model = at.model(here)
        stiffness = min(max(sigma, model.sigma), STIFF * model.sigma)
        goal = minimise(model, U, stiffness, max(min(0.1 * residual, residual**1.5), 0.2 * kkt), here.scale)
        sigma, U = goal.sigma, goal.U
        dx, dz = goal.x - here.x, goal.Z - here.Z
        promised = float(model.gx @ dx + np.sum(model.gz * dz))
        promised += at.penalty(goal.Z, here.weight) - at.penalty(here.Z, here.weight)
        t = 1.0
        while True:
            if exchanges >= EXCHANGES or t < SHORTEST:
                return Descent(here, U, at.kkt(here, U), exchanges)
            there, exchanges = at.ask(here.x + t * dx, here.Z + t * dz), exchanges + 1
            new = at.kkt(there, U)
            falls = there.value <= here.value + 1e-4 * t * promised + ROUNDING * (1.0 + abs(here.value))
            if falls or new <= 0.5 * best:
                break
            t *= 0.5 if np.isfinite(there.value) else 0.1
        here, residual, best = there, new, min(best, new)
    return Descent(here, U, residual, exchanges)


ROUNDS = 3000
CHECK_EVERY = 10
"""Rounds between two checks of the certificate."""
GAP = 1e-13
"""Relative duality gap of the network prox."""
UNEVEN = 10.0
"""Ratio of primal and dual residuals at which rho is changed by 2."""
ADAPT = 400
"""After so many exchanges rho stays as it is: where rounding ends progress, residuals would drive it away."""
AT = "network theta"


@work
def client_minimiser(site: Site, unit: Floats, target: Floats, rho: float) -> dict[str, Floats]:
    """Each client's minimiser of its loss and ``rho/2 |theta - target|^2``, from its last one."""
    m, d = target.shape
    root = rho**0.5
    start = root * (site.state.get(AT, target) - target)
    everyone, all_columns = np.arange(m, dtype=np.int64), np.arange(d, dtype=np.int64)
    L, which = np.eye(d)[None] / root, np.zeros(m, dtype=np.int64)
    u = site.objective.modes(unit, L, which, all_columns, np.ascontiguousarray(target), everyone, start)[3]
    site.count(m)
    site.state[AT] = target + u / root
    return {"theta": site.state[AT]}


def columns(at: NetworkObjective) -> tuple[Ints, Ints]:
    """Which columns are shared and which personal, in the order of x and of z; a CoterieError for other layouts."""
    shared, personal = np.argsort(at.layout.shared), np.argsort(at.layout.personal)
    shared, personal = shared[-at.layout.d1 :][: at.layout.d1], personal[-at.layout.d2 :][: at.layout.d2]
    if sorted([*shared, *personal]) != list(range(at.layout.d)):
        raise CoterieError("ADMM takes columns that are shared or personal, not sums, ties or zeros: use Newton.")
    return shared, personal


def admm(at: NetworkObjective, x: Floats, Z: Floats, kkt: float) -> Descent:
    """Go from (x, Z) to where the residual is at most ``kkt``; exchanges of d numbers for each client."""
    shared, personal = columns(at)
    here, exchanges = at.ask(x, Z, curved=False), 1
    rho = 0.25 * here.weight / at.network.n
    y, prox, U = np.zeros((at.network.n, at.layout.d)), None, np.zeros((len(at.network.edges), at.layout.d2))
    residual = at.kkt(here, U)
    prior_curvature = np.zeros(at.network.n) if at.prior is None else at.prior.z
    while residual > kkt and exchanges < ROUNDS:
        for _ in range(CHECK_EVERY):
            before = at.layout.theta(x, Z)
            theta = require_all_replies(at.fed.ask(client_minimiser, unit=at.unit, target=PerRow(before - y), rho=rho))[
                "theta"
            ]
            exchanges += 1
            V = theta + y
            x = V[:, shared].sum(axis=0) / (at.network.n + (0.0 if at.prior is None else at.prior.x / rho))
            edges, radius, p = at.graph(here.weight)
            mass = 1.0 + prior_curvature / rho
            middle = V[:, personal] / mass[:, None]
            prox = network_prox(middle, edges, radius / rho, p, gap=GAP, metric=mass, start=prox)
            Z, U = prox.Z, rho * prox.dual
            now = at.layout.theta(x, Z)
            y = V - now
            primal, dual = float(np.linalg.norm(theta - now)), float(np.linalg.norm(now - before))
            change = 2.0 if primal > UNEVEN * dual else 0.5 if dual > UNEVEN * primal else 1.0
            change = change if exchanges < ADAPT else 1.0
            rho, y = rho * change, y / change
            prox = Proximal(prox.Z, prox.dual / change, prox.gap, prox.iterations)
        here, exchanges = at.ask(x, Z, curved=False), exchanges + 1
        residual = at.kkt(here, at.feasible(U, here))
    return Descent(here, at.feasible(U, here), residual, exchanges)
