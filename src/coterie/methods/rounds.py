"""Known clusters over rounds, from a table to coefficients: theory chooses the parameters, the exact optimum certifies.

Algorithms 1 and 2 of Lyu, Hanzely, Kolar (2022), in ``async_l2gd`` and ``async_al2sgd``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.federation import Federation
from coterie.methods import async_al2sgd_theory, async_l2gd_theory
from coterie.methods import async_l2gd_rates as rates
from coterie.methods.async_al2sgd import AsyncAL2SGD
from coterie.methods.async_l2gd import AsyncL2GD
from coterie.methods.certificate import AT, certify, gap, reveal
from coterie.methods.complete import complete
from coterie.methods.curvature import ask_constants, mu_F
from coterie.methods.fitted import Fitted, Problem
from coterie.methods.learned_strengths import learn
from coterie.methods.optimum import optimum
from coterie.methods.peers import traffic
from coterie.methods.rounds_options import Options
from coterie.methods.ties import Ties
from coterie.numerics.kernels import Floats
from coterie.objectives.steps import Momentum

MOST = 100_000
"""Steps that are chosen at most."""
UNKNOWN = 10_000
"""Steps where F is flat in some direction, so that no theory says how many."""


@dataclass(frozen=True)
class Plan:
    """A method with its parameters, where to stop on the way, and what to say about it."""

    method: AsyncL2GD | AsyncAL2SGD
    stops: list[int]
    about: dict[str, Any]


def fit(
    fed: Federation,
    problem: Problem,
    gamma: npt.ArrayLike | None = None,
    lam: npt.ArrayLike | None = None,
    alpha: npt.ArrayLike | None = None,
    rounds: Mapping[str, Any] | None = None,
    accelerated: bool = False,
) -> Fitted:
    """Run Algorithm 1, or 2 (``accelerated``), and say how far it came.

    Parameters
    ----------
    gamma, lam, alpha
        Strengths, as in ``given_strengths``; without gamma they are learned by marginal likelihood.
    rounds : mapping, optional
        See :class:`~coterie.methods.rounds_options.Options`.

    Returns
    -------
    Fitted
        Covariances are those of the exact solution. ``info["rounds"]`` has what was chosen and why, the ``trace`` of
        (step, gap, communications between, within), ``gap``, ``status``, and communications expected and counted.

    Raises
    ------
    CoterieError
        For options that cannot be; where columns are shared or clusters nested; where a step size is too large.
    """
    options = Options.of(rounds or {})
    if gamma is None:
        gamma, lam = learn(fed, problem)
    ties = Ties.of(fed.clients.clusters, fed.clients.k, gamma, lam, alpha)
    exact = certify(fed, problem, ties)
    plan = (accelerate if accelerated else descend)(fed, problem.family, ties, options)
    trace, state = [], {}
    for state in plan.method.run(fed, plan.stops):
        between = state["between"] + state.get("refreshes", 0)
        trace.append((state["t"], gap(fed, problem.family, ties), int(between), int(state["within"].sum())))
    theta = complete(fed.ask(reveal))["theta"]
    own, network = _averages(ties, theta)
    nodes = (ties.alpha[:, None] * network + (1.0 - ties.alpha[:, None]) * own,) if exact.nodes else ()
    status = "finished" if state["status"] == "running" else state["status"]
    about = plan.about | {"status": status, "gap": trace[-1][1], "trace": trace}
    about |= {"communications": _counted(options, plan.method, state, theta.shape[1])}
    strengths = {"gamma": _few(ties.gamma), "alpha": _few(ties.alpha), "lam": _few(ties.lam)}
    return replace(exact, client=theta, nodes=nodes, root=network, info={"strengths": strengths, "rounds": about})


def descend(fed: Federation, family: str, ties: Ties, options: Options) -> Plan:
    """Algorithm 1: probabilities by (3.3), a step size that is Theorem 3.5's and then decreases."""
    batch = options.batch or 0
    c = ask_constants(fed, AT)
    L = _by_cluster(ties, rates.batch_smoothness(c.L, c.L_row, batch))
    p0, p = options.p0, options.p
    if options.one_coin:
        p0, p = 0.1 if p0 is None else p0, 0.0
    chosen = async_l2gd_theory.choose(ties, L, p0, p, options.eta, options.probabilities == "common")
    mu, at = mu_F(fed, ties, AT), optimum(fed, ties, AT)
    loss = rates.batch_noise(at.loss, at.rows, batch)
    sigma2 = rates.noise(chosen.p0, chosen.p, at.phi, at.psi, loss, exact=not batch)
    decreasing = options.eta is None and mu > 0.0
    if decreasing:
        bound: Any = partial(rates.scheduled_bound, smoothness=chosen.smoothness, mu=mu, sigma2=sigma2, start=at.start)
    else:
        bound = partial(rates.bound, eta=chosen.eta, mu=mu, sigma2=sigma2, start=at.start)
    T = options.steps or (_steps(bound, options.accuracy**2 * at.start) if mu > 0.0 else UNKNOWN)
    eta = (lambda t: float(rates.schedule(t, chosen.smoothness, mu))) if decreasing else chosen.eta
    who = options.peers(chosen.p0, len(ties.alpha))
    method = AsyncL2GD(ties, eta, chosen.p0, chosen.p, chosen.tau, seed=options.seed, batch=batch, **who)
    why = chosen.why + ("; the step decreases later (Gower et al. 2019, Theorem 3.2)" if decreasing else "")
    about = {"eta": chosen.eta, "mu": mu, "sigma2": sigma2, "smoothness": chosen.smoothness, "why": why}
    about |= {"steps": T, "p0": chosen.p0, "p": _few(chosen.p), "tau": _few(chosen.tau), "batch": batch}
    about["promised"] = float(np.sqrt(bound(T) / at.start)) if mu > 0.0 and at.start > 0.0 else float("inf")
    return Plan(method, _stops(T), about)


def accelerate(fed: Federation, family: str, ties: Ties, options: Options) -> Plan:
    """Algorithm 2: Corollary 4.4, or own p_j, and rho for fewest communications."""
    batch = 1 if options.batch is None else options.batch
    c = ask_constants(fed, AT)
    L = _by_cluster(ties, rates.batch_smoothness(c.L, c.L_row, batch))
    mu, common = mu_F(fed, ties, AT), options.probabilities == "common"
    L_F = float(np.max(c.L + ties.gamma))
    p0, p = options.p0, options.p
    if options.one_coin:
        p0, p = 0.1 if p0 is None else p0, 0.0
    chosen = async_al2sgd_theory.choose(ties, L, L_F, mu, p0, p, options.rho, common, options.paper)
    k = chosen.steps
    T = options.steps or int(min(max(k.iterations(options.accuracy**2), 1.0), MOST))
    who = options.peers(chosen.p0, len(ties.alpha))
    momentum = Momentum(k.a1, k.a2, k.b1, k.b2, k.eta)
    method = AsyncAL2SGD(ties, momentum, chosen.p0, chosen.p, chosen.tau, k.rho, options.seed, batch, **who)
    about = {"eta": k.eta, "mu": mu, "rho": k.rho, "smoothness": chosen.smoothness, "why": chosen.why}
    about |= {"steps": T, "p0": chosen.p0, "p": _few(chosen.p), "tau": _few(chosen.tau), "batch": batch}
    about["promised"] = float(np.sqrt(k.factor) * (1.0 - k.rate) ** (0.5 * T)) if mu > 0.0 else float("inf")
    return Plan(method, _stops(T), about)
