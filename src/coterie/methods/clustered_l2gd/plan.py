"""What theory chooses for a run with known clusters: probabilities, step sizes and steps, from clients' constants.

Equation and theorem numbers are those of Lyu, Hanzely, Kolar (2022). Clients keep the exact optimum: gradients there,
which (3.4) needs, are their sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from coterie.federation import Federation, PerCluster, PerRow, Site, work
from coterie.methods.async_al2sgd import AsyncAL2SGD
from coterie.methods.async_l2gd import AsyncL2GD
from coterie.methods.clustered_l2gd import async_al2sgd_theory
from coterie.methods.clustered_l2gd import async_l2gd_theory as theory
from coterie.methods.clustered_l2gd.client_work import Reply
from coterie.methods.clustered_l2gd.constants import client_constants, mu_F
from coterie.methods.clustered_l2gd.options import Options
from coterie.methods.estimates import summarise
from coterie.methods.replies import require_all_replies
from coterie.methods.stepwise import trace_steps
from coterie.numerics.arrays import Floats
from coterie.objectives.constants import squared_gradients
from coterie.objectives.gradient_steps import Momentum
from coterie.relations.clusters import Ties

OPTIMUM = "optimum"
"""Name of the clients' state that holds it."""
MOST = 100_000
"""Steps that are chosen at most."""
UNKNOWN = 10_000
"""Steps where no theory says how many: F is flat in some direction, or eta larger than any theorem takes."""


@dataclass(frozen=True)
class Plan:
    """A method with its parameters, where to stop on the way, and what to say about it."""

    method: AsyncL2GD | AsyncAL2SGD
    stops: list[int]
    about: dict[str, Any]


def plan_async_l2gd(fed: Federation, ties: Ties, options: Options) -> Plan:
    """Algorithm 1: probabilities by (3.3), a step size that is Theorem 3.5's and then decreases."""
    c = client_constants(fed, OPTIMUM)
    batch = options.rows(0, int(c.rows.max()))
    L = ties.most(theory.batch_smoothness(c.L, c.L_row, batch))
    p0, p = options.probabilities_asked
    chosen = theory.choose(ties, L, p0, p, options.eta, options.probabilities == "common")
    mu, gradients = mu_F(fed, ties, OPTIMUM), gradients_at_optimum(fed, ties, OPTIMUM)
    loss = theory.batch_noise(gradients.loss, gradients.rows, batch)
    sigma2 = theory.noise(chosen.p0, chosen.p, gradients.phi, gradients.psi, loss, exact=not batch)
    decreasing = options.eta is None and mu > 0.0
    if decreasing:
        bound: Any = partial(
            theory.scheduled_bound, smoothness=chosen.smoothness, mu=mu, sigma2=sigma2, start=gradients.start
        )
    else:
        sharper = chosen.smoothness if 2.0 * chosen.eta * chosen.smoothness > 1.0 + 1e-12 else None
        bound = partial(theory.bound, eta=chosen.eta, mu=mu, sigma2=sigma2, start=gradients.start, smoothness=sharper)
    known = mu > 0.0 and chosen.eta * chosen.smoothness <= 1.0 + 1e-12
    T = options.steps or (_steps(bound, options.accuracy**2 * gradients.start) if known else UNKNOWN)
    eta = (lambda t: float(theory.schedule(t, chosen.smoothness, mu))) if decreasing else chosen.eta
    peers = options.peers(chosen.p0, len(ties.alpha))
    method = AsyncL2GD(ties, eta, chosen.p0, chosen.p, chosen.tau, seed=options.seed, batch=batch, **peers)
    why = chosen.why + ("; the step decreases later (Gower et al. 2019, Theorem 3.2)" if decreasing else "")
    about = {"eta": chosen.eta, "mu": mu, "sigma2": sigma2, "smoothness": chosen.smoothness, "why": why}
    about |= {"steps": T, "p0": chosen.p0, "p": summarise(chosen.p), "tau": summarise(chosen.tau), "batch": batch}
    about["promised"] = float(np.sqrt(bound(T) / gradients.start)) if known and gradients.start > 0.0 else float("inf")
    return Plan(method, trace_steps(T, min(options.looks, T)), about)


def plan_async_al2sgd(fed: Federation, ties: Ties, options: Options) -> Plan:
    """Algorithm 2: Corollary 4.4, or own p_j, and rho for fewest communications."""
    c = client_constants(fed, OPTIMUM)
    batch = options.rows(1, int(c.rows.max()))
    L = ties.most(theory.batch_smoothness(c.L, c.L_row, batch))
    mu, common = mu_F(fed, ties, OPTIMUM), options.probabilities == "common"
    L_F = float(np.max(c.L + ties.gamma))
    p0, p = options.probabilities_asked
    chosen = async_al2sgd_theory.choose(ties, L, L_F, mu, p0, p, options.rho, common, options.paper)
    k = chosen.steps
    T = options.steps or int(min(max(k.iterations(options.accuracy**2), 1.0), MOST))
    peers = options.peers(chosen.p0, len(ties.alpha))
    momentum = Momentum(k.a1, k.a2, k.b1, k.b2, k.eta)
    method = AsyncAL2SGD(ties, momentum, chosen.p0, chosen.p, chosen.tau, k.rho, options.seed, batch, **peers)
    about = {"eta": k.eta, "mu": mu, "rho": k.rho, "smoothness": chosen.smoothness, "why": chosen.why}
    about |= {"steps": T, "p0": chosen.p0, "p": summarise(chosen.p), "tau": summarise(chosen.tau), "batch": batch}
    about["promised"] = float(np.sqrt(k.factor) * (1.0 - k.rate) ** (0.5 * T)) if mu > 0.0 else float("inf")
    return Plan(method, trace_steps(T, min(options.looks, T)), about)


def _steps(bound: Callable[[int], Floats], target: float) -> int:
    """The first step at which a falling bound is at the target; ``MOST`` where it is later."""
    low, high = 0, MOST
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if bound(middle) <= target else (middle + 1, high)
    return max(low, 1)


@work
def send_weighted(site: Site, gamma: Floats, at: str) -> Reply:
    """What the averages (2.2) are made from."""
    return {"s": gamma[:, None] * site.state[at]}


@work
def send_squares(site: Site, gamma: Floats, at: str, own: Floats, network: Floats) -> Reply:
    """Squares of the three gradients, of rows' gradients, and of the parameters."""
    theta = site.state[at]
    loss, rows = squared_gradients(site.objective, theta)
    phi = gamma**2 * np.sum((theta - network) ** 2, axis=1)
    psi = gamma**2 * np.sum((theta - own[site.clusters]) ** 2, axis=1)
    return {"phi": phi, "psi": psi, "loss": loss, "rows": rows, "start": np.sum(theta**2, axis=1)}


@dataclass(frozen=True)
class GradientsAtOptimum:
    """What (3.4) needs at the optimum, for every cluster (k,), and ``start``, ``|0 - optimum|^2``.

    ``phi`` is a cluster's share of ``|grad phi|^2``, ``psi`` is ``(1 - alpha_j)^2 |grad psi_j|^2``, ``loss`` is
    ``|grad F_j|^2`` and ``rows`` is ``sum_i n_i sum_l |grad f_il|^2``.
    """

    phi: Floats
    psi: Floats
    loss: Floats
    rows: Floats
    start: float


def gradients_at_optimum(fed: Federation, ties: Ties, at: str) -> GradientsAtOptimum:
    """Ask, in two exchanges of sums, for the squares at the optimum, which the clients keep as state ``at``."""
    gamma = PerRow(ties.gamma)
    own, network = ties.averages(require_all_replies(fed.total(send_weighted, by="cluster", gamma=gamma, at=at))["s"])
    message: dict[str, Any] = {"gamma": gamma, "at": at, "own": PerCluster(own), "network": network}
    s = require_all_replies(fed.total(send_squares, by="cluster", **message))
    start = float(s["start"].sum())
    return GradientsAtOptimum(ties.alpha**2 * s["phi"], (1.0 - ties.alpha) ** 2 * s["psi"], s["loss"], s["rows"], start)
