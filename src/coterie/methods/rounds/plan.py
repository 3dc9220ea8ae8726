"""What theory makes of the options of a run over rounds: Theorem 3.5 and its corollary, Theorem 4.3 and its."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from coterie.federation import Federation
from coterie.methods.async_al2sgd import AsyncAL2SGD
from coterie.methods.async_l2gd import AsyncL2GD
from coterie.methods.rounds import al2sgd_theory, l2gd_theory
from coterie.methods.rounds import l2gd_rates as rates
from coterie.methods.rounds.certificate import AT
from coterie.methods.rounds.curvature import ask_constants, mu_F
from coterie.methods.rounds.optimum import optimum
from coterie.methods.rounds.options import Options
from coterie.methods.stepwise import trace_steps
from coterie.numerics.kernels import Floats
from coterie.objectives.steps import Momentum
from coterie.relations.ties import Ties

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


def descend(fed: Federation, ties: Ties, options: Options) -> Plan:
    """Algorithm 1: probabilities by (3.3), a step size that is Theorem 3.5's and then decreases."""
    c = ask_constants(fed, AT)
    batch = options.rows(0, int(c.rows.max()))
    L = ties.most(rates.batch_smoothness(c.L, c.L_row, batch))
    p0, p = options.probabilities_asked
    chosen = l2gd_theory.choose(ties, L, p0, p, options.eta, options.probabilities == "common")
    mu, at = mu_F(fed, ties, AT), optimum(fed, ties, AT)
    loss = rates.batch_noise(at.loss, at.rows, batch)
    sigma2 = rates.noise(chosen.p0, chosen.p, at.phi, at.psi, loss, exact=not batch)
    decreasing = options.eta is None and mu > 0.0
    if decreasing:
        bound: Any = partial(rates.scheduled_bound, smoothness=chosen.smoothness, mu=mu, sigma2=sigma2, start=at.start)
    else:
        sharper = chosen.smoothness if 2.0 * chosen.eta * chosen.smoothness > 1.0 + 1e-12 else None
        bound = partial(rates.bound, eta=chosen.eta, mu=mu, sigma2=sigma2, start=at.start, smoothness=sharper)
    known = mu > 0.0 and chosen.eta * chosen.smoothness <= 1.0 + 1e-12
    T = options.steps or (_steps(bound, options.accuracy**2 * at.start) if known else UNKNOWN)
    eta = (lambda t: float(rates.schedule(t, chosen.smoothness, mu))) if decreasing else chosen.eta
    who = options.peers(chosen.p0, len(ties.alpha))
    method = AsyncL2GD(ties, eta, chosen.p0, chosen.p, chosen.tau, seed=options.seed, batch=batch, **who)
    why = chosen.why + ("; the step decreases later (Gower et al. 2019, Theorem 3.2)" if decreasing else "")
    about = {"eta": chosen.eta, "mu": mu, "sigma2": sigma2, "smoothness": chosen.smoothness, "why": why}
    about |= {"steps": T, "p0": chosen.p0, "p": some(chosen.p), "tau": some(chosen.tau), "batch": batch}
    about["promised"] = float(np.sqrt(bound(T) / at.start)) if known and at.start > 0.0 else float("inf")
    return Plan(method, trace_steps(T, min(options.looks, T)), about)


def accelerate(fed: Federation, ties: Ties, options: Options) -> Plan:
    """Algorithm 2: Corollary 4.4, or own p_j, and rho for fewest communications."""
    c = ask_constants(fed, AT)
    batch = options.rows(1, int(c.rows.max()))
    L = ties.most(rates.batch_smoothness(c.L, c.L_row, batch))
    mu, common = mu_F(fed, ties, AT), options.probabilities == "common"
    L_F = float(np.max(c.L + ties.gamma))
    p0, p = options.probabilities_asked
    chosen = al2sgd_theory.choose(ties, L, L_F, mu, p0, p, options.rho, common, options.paper)
    k = chosen.steps
    T = options.steps or int(min(max(k.iterations(options.accuracy**2), 1.0), MOST))
    who = options.peers(chosen.p0, len(ties.alpha))
    momentum = Momentum(k.a1, k.a2, k.b1, k.b2, k.eta)
    method = AsyncAL2SGD(ties, momentum, chosen.p0, chosen.p, chosen.tau, k.rho, options.seed, batch, **who)
    about = {"eta": k.eta, "mu": mu, "rho": k.rho, "smoothness": chosen.smoothness, "why": chosen.why}
    about |= {"steps": T, "p0": chosen.p0, "p": some(chosen.p), "tau": some(chosen.tau), "batch": batch}
    about["promised"] = float(np.sqrt(k.factor) * (1.0 - k.rate) ** (0.5 * T)) if mu > 0.0 else float("inf")
    return Plan(method, trace_steps(T, min(options.looks, T)), about)


def some(values: Floats) -> Any:
    """A number for each cluster or client, as what can be read: one, a few, or their range."""
    different = np.unique(values)
    if len(different) == 1:
        return float(different[0])
    return values.tolist() if len(values) <= 20 else {"from": float(different[0]), "to": float(different[-1])}


def _steps(bound: Callable[[int], Floats], target: float) -> int:
    """The first step at which a falling bound is at the target; ``MOST`` where it is later."""
    low, high = 0, MOST
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if bound(middle) <= target else (middle + 1, high)
    return max(low, 1)
