"""Known clusters over rounds, from a table to coefficients: theory chooses the parameters, the exact optimum certifies.

Algorithms 1 and 2 of Lyu, Hanzely, Kolar (2022), in ``async_l2gd`` and ``async_al2sgd``. Clients keep the exact optimum
of (2.1) beside their parameters: how far a run is from it, and the gradients there that (3.4) needs, are their sums.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.families import Family
from coterie.federation import Federation, PerCluster, PerRow, Site, require_all_replies, work
from coterie.methods.async_al2sgd import AsyncAL2SGD
from coterie.methods.async_l2gd import AsyncL2GD
from coterie.methods.clustered_l2gd import theory
from coterie.methods.clustered_l2gd.client_work import Monitor, Reply
from coterie.methods.clustered_l2gd.cluster_rounds import Levels, expected_communications, own_levels, traffic
from coterie.methods.clustered_l2gd.options import Options
from coterie.methods.clustered_l2gd.strong_convexity import client_constants, mu_F
from coterie.methods.given_strengths import given
from coterie.methods.local_training.whitening import in_standard_columns
from coterie.methods.problem_and_estimates import Estimates, GroupedProblem, in_table, summarise
from coterie.methods.stepwise import trace_steps
from coterie.methods.tree.client_work import reveal
from coterie.methods.tree.strengths import learn
from coterie.numerics.arrays import Bools, Floats
from coterie.objectives.constants import Constants, squared_gradients
from coterie.objectives.gradient_steps import Momentum
from coterie.relations.clusters import ClusterTies
from coterie.status_line import steps

log = logging.getLogger(__name__)


def fit(
    fed: Federation,
    problem: GroupedProblem,
    gamma: npt.ArrayLike | None = None,
    lam: npt.ArrayLike | None = None,
    alpha: npt.ArrayLike | None = None,
    rounds: Mapping[str, Any] | None = None,
    accelerated: bool = False,
) -> Estimates:
    """Run Algorithm 1, or 2 (``accelerated``), as ``rounds`` (``options.Options``) ask for it, and say how far it came.

    Strengths are those of ``given_strengths``, of the columns as they are; without gamma they are learned by marginal
    likelihood, and are of columns less their means, in standard units. Covariances are those of the exact solution.
    Shared columns, which nothing ties, always are. ``info["rounds"]`` has what was chosen and why, the ``trace`` of
    (step, gap, communications between, within), ``gap``, ``status``, and communications expected and counted. A
    CoterieError for options that cannot be.
    """
    options = Options.of(rounds or {})
    options.check(accelerated, fed.clients.k)
    learned, to_table = gamma is None, None
    if gamma is None:
        fed, to_table = in_standard_columns(fed, problem)
        gamma, lam = learn(fed, problem)
    ties = ClusterTies.of(fed.clients.clusters, fed.clients.k, gamma, lam, alpha, problem.tree.parents)
    if ties.upper:
        options.check_nested()
    exact = solve_exactly(fed, problem, ties)
    mine = np.isin(np.arange(len(exact.root)), problem.personal)
    own = None if mine.all() else mine
    if own is not None and not learned:  # what nothing ties may be in any columns, so steps are in those that suit them
        fed, to_table = in_standard_columns(fed, problem, all_columns=False)
        exact = solve_exactly(fed, problem, ties)
    plan = (plan_async_al2sgd if accelerated else plan_async_l2gd)(fed, ties, options, own)
    trace: list[tuple[int, float, int, int]] = []
    state: dict[str, Any] = {}
    states = replace(plan.method, monitor=distance_monitor(problem.family, exact.root)).run(fed, plan.stops)
    for state in steps(states, plan.stops[-1], "Steps", itemgetter("t")):
        between = state["between"] + state.get("refreshes", 0)
        trace.append((state["t"], gap(state["observed"]), int(between), int(state["within"].sum())))
    theta = require_all_replies(fed.ask(reveal))["theta"]
    nodes, root = centres(ties, theta, exact)
    if own is not None:
        plan.about["shared"] = np.flatnonzero(~own).tolist()
        for w in (*nodes, root):
            w[..., ~own] = theta[0, ~own]
    status = "finished" if state["status"] == "running" else state["status"]
    info = plan.about | {"status": status, "gap": trace[-1][1], "trace": trace}
    info |= {"differing": gap_to_spread(state["observed"]), "accuracy": options.accuracy, "asked": dict(rounds or {})}
    info |= {"communications": _counted(options, plan.method, state, theta.shape[1])}
    strengths = {"gamma": summarise(ties.gamma), "alpha": summarise(ties.alpha), "lam": summarise(ties.lam)}
    if ties.upper:
        alphas = [ties.alpha, *(above for _, above in ties.upper)]
        strengths |= {"alpha": list(map(summarise, alphas)), "lam": [summarise(lam) for _, lam in ties.tree]}
    strengths |= {"columns": "standard" if learned else "as they are"}
    found = replace(exact, client=theta, nodes=nodes, root=root, info={"strengths": strengths, "rounds": info})
    return found if to_table is None else in_table(found, to_table)


def centres(ties: ClusterTies, theta: Floats, exact: Estimates) -> tuple[tuple[Floats, ...], Floats]:
    """Centres of clusters at every level (k_l, d), and the network's (d,): averages (2.2), and by alpha the parent's.

    Those to which nobody is tied are the exact solver's.
    """
    sums = np.zeros((len(ties.alpha), theta.shape[1]))
    np.add.at(sums, ties.clusters, ties.gamma[:, None] * theta)
    means = ties.level_means(ties.averages(sums)[0], ties.Gamma)
    reached = ties.passed * ties.Gamma
    w = np.where(np.any(reached[-1] > 0.0), means[-1], exact.root)
    root, nodes = w[0], []
    for level in range(len(exact.nodes) - 1, -1, -1):
        alpha = np.divide(
            ties.passed[level + 1], ties.passed[level], out=np.zeros(len(w)), where=ties.passed[level] > 0.0
        )
        total = np.bincount(ties.nodes[level], reached[level])[ties.nodes[level], None]
        own = alpha[:, None] * w + (1.0 - alpha[:, None]) * means[level]
        w = np.where(total > 0.0, own, exact.nodes[level][ties.nodes[level]])
        nodes.append(w[np.unique(ties.nodes[level], return_index=True)[1]])
    return tuple(reversed(nodes)), root


def _counted(options: Options, method: AsyncL2GD | AsyncAL2SGD, state: dict[str, Any], d: int) -> dict[str, Any]:
    """Communications of a run and what they are in the mean; those within clusters as means over these."""
    T, k = state["t"], len(method.p)
    mean = expected_communications(method.p0, method.p, T, method.ties.equal & isinstance(method, AsyncL2GD))
    if method.personal is not None:  # no round of the network is free
        mean |= {"between": method.p0 * T}
    if method.q:
        spoken = T * Levels.of(method.ties, method.p0, method.p, method.q).probability
        mean = {"between": float(spoken[-1].max()), "within": spoken[:-1].sum(axis=0), "printed": spoken[0]}
    out: dict[str, Any] = {"between": int(state["between"]), "between_expected": mean["between"]}
    out |= {"within": float(np.mean(state["within"])), "within_expected": float(np.mean(mean["within"]))}
    out["within_printed"] = float(np.mean(mean["printed"]))
    if isinstance(method, AsyncAL2SGD):
        out |= {"refreshes": int(state["refreshes"]), "refreshes_expected": method.rho * T}
    if options.coordinator == "peers":
        out["peers"] = traffic(options.network, k, d, out["between"] + out.get("refreshes", 0), T)
    return out


@work
def keep(site: Site, optimum: Floats | None = None) -> Reply:
    """Keep the optimum, (m, d); None where the exact solver has left it here."""
    site.state[OPTIMUM] = site.state["coefficients"] if optimum is None else optimum
    return {}


@work
def squared_distances(site: Site, tied: bool, centre: Any = 0.0) -> Reply:
    """Squared distances of theta, of 0 and of ``centre`` from the optimum; ``tied``: of clients with gamma > 0 only."""
    theta, best = site.state["theta"], site.state[OPTIMUM]
    counted = 1.0 * (site.state["gamma"] > 0.0) if tied else np.ones(len(site))
    with np.errstate(over="ignore", invalid="ignore"):
        square = np.sum((theta - best) ** 2, axis=1)
    finite = np.isfinite(square)
    now, begun = counted * np.where(finite, square, 0.0), counted * np.sum(best**2, axis=1)
    spread = counted * np.sum((best - centre) ** 2, axis=1)
    return {"diverged": 1.0 - finite, "now": now, "start": begun, "spread": spread, "counted": counted}


def solve_exactly(fed: Federation, problem: GroupedProblem, ties: ClusterTies) -> Estimates:
    """Solve (2.1); every client keeps its part of the optimum."""
    how: dict[str, Any] = {"lam": [lam for _, lam in ties.tree]} if ties.upper else {"alpha": ties.alpha}
    exact = given(fed, problem, ties.gamma, **how)
    fed.ask(keep, optimum=PerRow(exact.client) if len(exact.client) else None)
    return exact


def distance_monitor(family: Family, centre: Any = 0.0) -> Monitor:
    """What :func:`gap` is told by clients, and how far their optima are from the model ``centre`` (d,).

    Clients with gamma = 0 of a GLM do not count: the exact solver holds them by a weak prior, which (2.1) has not.
    """
    return Monitor(squared_distances, {"tied": family.needs_prior, "centre": centre})


def gap_to_spread(observed: Mapping[str, Any]) -> float:
    """The distance from the optimum over that of the optimum from the centre: free of where columns have their zero."""
    if not observed or not observed["spread"] > 0.0:
        return float("nan")
    return float(np.sqrt(observed["now"] / observed["spread"]))


def gap(observed: Mapping[str, Any]) -> float:
    """``|theta - optimum| / |optimum|`` of all clients stacked, the distance where it is 0; NaN if none counts."""
    if not observed or not observed["counted"]:
        return float("nan")
    now, start = float(observed["now"]), float(observed["start"])
    return float(np.sqrt(now / start if start > 0.0 else now))


OPTIMUM = "optimum"  # name of the clients' state that holds it
MOST, MANY = 100_000, 20_000  # steps that are chosen at most, and that are said before they are taken
UNKNOWN = 10_000
"""Steps where no theory says how many: F is flat in some direction, or eta larger than any theorem takes."""


@dataclass(frozen=True)
class Plan:
    """A method with its parameters, where to stop on the way, and what to say about it."""

    method: AsyncL2GD | AsyncAL2SGD
    stops: list[int]
    about: dict[str, Any]


def rounds_asked(ties: ClusterTies, L: Floats, c: Constants, options: Options) -> dict[str, Any]:
    """What ``theory.rounds_of`` takes: rounds of all levels where these are several, or something is shared."""
    (p0, p), shared, common = options.probabilities_asked, float(np.mean(c.shared)), options.probabilities == "common"
    asked = p0 is not None or p is not None or (common and np.max(ties.C1) > 0.0)  # no rounds of all without ties
    nested = own_levels(ties, L, shared) if ties.upper or (shared and not asked) else None
    return {"p0": p0, "p": p, "common": common, "nested": nested, "shared": shared}


def patterns(own: Bools | None) -> list[str] | None:
    """What the algorithms are told of columns that are not shared."""
    return None if own is None else [str(j) for j in np.flatnonzero(own)]


def plan_async_l2gd(fed: Federation, ties: ClusterTies, options: Options, own: Bools | None = None) -> Plan:
    """Algorithm 1: probabilities by (3.3), a step size that is Theorem 3.5's and then decreases."""
    c = client_constants(fed, OPTIMUM, own)
    batch = options.rows(0, int(c.rows.max()))
    L = ties.most(theory.batch_smoothness(c.L, c.L_row, batch))
    asked = rounds_asked(ties, L, c, options)
    nested, chosen = asked["nested"], theory.choose(ties, L, options.eta, **asked)
    mu, gradients = mu_F(fed, ties, OPTIMUM, own=own), gradients_at_optimum(fed, ties, OPTIMUM, own)
    loss = theory.batch_noise(gradients.loss, gradients.rows, batch)
    if nested is None:
        sigma2 = theory.noise(chosen.p0, chosen.p, gradients.phi, gradients.psi, loss, exact=not batch)
    else:
        sigma2 = nested.noise(gradients.ties, loss)
    decreasing = options.eta is None and mu > 0.0
    if decreasing:
        bound: Any = partial(
            theory.scheduled_bound, smoothness=chosen.smoothness, mu=mu, sigma2=sigma2, start=gradients.start
        )
    else:
        sharper = chosen.smoothness if 2.0 * chosen.eta * chosen.smoothness > 1.0 + 1e-12 else None
        bound = partial(theory.bound, eta=chosen.eta, mu=mu, sigma2=sigma2, start=gradients.start, smoothness=sharper)
    known = mu > 0.0 and chosen.eta * chosen.smoothness <= 1.0 + 1e-12
    T = options.steps or (_said(_steps(bound, options.accuracy**2 * gradients.start), options) if known else UNKNOWN)
    eta = (lambda t: float(theory.schedule(t, chosen.smoothness, mu))) if decreasing else chosen.eta
    peers = options.peers(chosen.p0, len(ties.alpha))
    peers |= {"seed": options.seed, "batch": batch, "q": chosen.q, "personal": patterns(own)}
    method = AsyncL2GD(ties, chosen.p0, chosen.p, chosen.tau, eta, **peers)
    why = chosen.why + ("; the step decreases later (Gower et al. 2019, Theorem 3.2)" if decreasing else "")
    about = {"eta": chosen.eta, "mu": mu, "sigma2": sigma2, "smoothness": chosen.smoothness, "why": why}
    about |= {"steps": T, "p0": chosen.p0, "p": summarise(chosen.p), "tau": summarise(chosen.tau), "batch": batch}
    about["promised"] = float(np.sqrt(bound(T) / gradients.start)) if known and gradients.start > 0.0 else float("inf")
    return Plan(method, trace_steps(T, min(options.looks, T)), about)


def plan_async_al2sgd(fed: Federation, ties: ClusterTies, options: Options, own: Bools | None = None) -> Plan:
    """Algorithm 2: Corollary 4.4, or own p_j, and rho for fewest communications."""
    c = client_constants(fed, OPTIMUM, own)
    batch = options.rows(1, int(c.rows.max()))
    L = ties.most(theory.batch_smoothness(c.L, c.L_row, batch))
    mu, asked = mu_F(fed, ties, OPTIMUM, own=own), rounds_asked(ties, L, c, options)
    L_F = float(np.max(c.L + ties.gamma)) + asked["shared"]
    chosen = theory.choose_accelerated(ties, L, L_F, mu, options.rho, options.paper, **asked)
    k = chosen.steps
    many = int(min(max(k.iterations(options.accuracy**2), 1.0), MOST))
    T = options.steps or (_said(many, options) if mu > 0.0 else min(many, UNKNOWN))
    peers = options.peers(chosen.p0, len(ties.alpha)) | {"q": chosen.q, "personal": patterns(own)}
    momentum = Momentum(k.a1, k.a2, k.b1, k.b2, k.eta)
    method = AsyncAL2SGD(
        ties, chosen.p0, chosen.p, chosen.tau, momentum, k.rho, seed=options.seed, batch=batch, **peers
    )
    about = {"eta": k.eta, "mu": mu, "rho": k.rho, "smoothness": chosen.smoothness, "why": chosen.why}
    about |= {"steps": T, "p0": chosen.p0, "p": summarise(chosen.p), "tau": summarise(chosen.tau), "batch": batch}
    about["promised"] = float(np.sqrt(k.factor) * (1.0 - k.rate) ** (0.5 * T)) if mu > 0.0 else float("inf")
    return Plan(method, trace_steps(T, min(options.looks, T)), about)


def _said(T: int, options: Options) -> int:
    """Steps that theory chooses, with a word where they are many: rows are nearly separated, or ties weak or strong."""
    if T > MANY:
        remedy = "give steps, or a larger accuracy (--rounds)"
        log.warning(
            "%s steps over rounds, for an accuracy of %g, may take minutes: %s.", f"{T:,}", options.accuracy, remedy
        )
    return T


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
def send_squares(site: Site, gamma: Floats, at: str, means: Floats, own: Any = None) -> Reply:
    """Squares of the gradients of distances from averages (k, levels + 1, d), of losses and rows, and of theta."""
    theta = site.state[at]
    loss, rows = squared_gradients(site.objective, theta, own)
    ties = gamma[:, None] ** 2 * np.sum((theta[:, None] - means[site.clusters]) ** 2, axis=2)
    return {"ties": ties, "loss": loss, "rows": rows, "start": np.sum(theta**2, axis=1)}


@dataclass(frozen=True)
class GradientsAtOptimum:
    """What (3.4) needs at the optimum, for every cluster (k,), and ``start``, ``|0 - optimum|^2``.

    ``ties`` (levels + 1, k) has its share of the squared gradients of ties to each level's average, ``loss`` is ``|grad
    F_j|^2`` and ``rows`` is ``sum_i n_i sum_l |grad f_il|^2``. In what is shared both add up to nothing.
    """

    ties: Floats
    loss: Floats
    rows: Floats
    start: float

    @property
    def phi(self) -> Floats:
        """A cluster's share of ``|grad phi|^2``."""
        return np.asarray(self.ties[-1])

    @property
    def psi(self) -> Floats:
        """``(1 - alpha_j)^2 |grad psi_j|^2``."""
        return np.asarray(self.ties[0])


def gradients_at_optimum(fed: Federation, ties: ClusterTies, at: str, own: Bools | None = None) -> GradientsAtOptimum:
    """Ask, in two exchanges of sums, for the squares at the optimum, which the clients keep as state ``at``."""
    gamma = PerRow(ties.gamma)
    sums = require_all_replies(fed.total(send_weighted, by="cluster", gamma=gamma, at=at))["s"]
    means = np.stack(ties.level_means(ties.averages(sums)[0], ties.Gamma), axis=1)
    how: dict[str, Any] = {"means": PerCluster(means)} | ({} if own is None else {"own": own})
    s = require_all_replies(fed.total(send_squares, by="cluster", gamma=gamma, at=at, **how))
    return GradientsAtOptimum(ties.share**2 * s["ties"].T, s["loss"], s["rows"], float(s["start"].sum()))
