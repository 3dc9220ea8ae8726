"""Weighted averaging and bias correction of a table: options, what theory makes of them, and coefficients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np

from coterie.errors import plural
from coterie.federation import Federation, PerRow, Site, require_all_replies, work
from coterie.methods import local
from coterie.methods.aggregation.rules import AGGREGATORS
from coterie.methods.collaboration import theory
from coterie.methods.collaboration.choose_collaborators import weights
from coterie.methods.collaboration.collaborators import Collaborators, require_rows
from coterie.methods.collaboration.metric_and_similarity import Metric, around_pooled
from coterie.methods.collaboration.optimisers import OPTIMISERS
from coterie.methods.collaboration.optimum import optimum
from coterie.methods.collaboration.options import Options
from coterie.methods.collaboration.theory import curvature
from coterie.methods.problem_and_estimates import Estimates, GroupedProblem, summarise
from coterie.methods.stepwise import trace_steps
from coterie.methods.weighted_averaging_and_bias_correction import BiasCorrection, WeightedAveraging
from coterie.numerics.arrays import Floats, pack
from coterie.objectives.mean_loss import expand, sizes
from coterie.status_line import steps


@dataclass(frozen=True)
class Plan:
    """A method with its parameters; with what alpha (M,) averaging would end where it ends; what to say about it."""

    method: WeightedAveraging
    effective_alpha: Floats
    about: dict[str, Any]


def plan(fed: Federation, metric: Metric, options: Options, corrected: bool) -> Plan:
    """The method with weights, step size and, for bias correction, beta: theory's where they are not given."""
    require_rows(fed, options.batch)
    chosen = weights(fed, metric, options, corrected)
    pairs, alpha = chosen.pairs, chosen.alpha
    losses = curvature(fed, pairs, metric)
    L, delta = losses.smoothness(alpha), losses.delta_at_most
    most = theory.largest_step(L, alpha, delta) if corrected else 1.0 / L
    eta = most / options.local if isinstance(options.eta, str) else np.full(len(alpha), float(options.eta))
    common: dict[str, Any] = {"pairs": pairs, "metric": metric, "alpha": alpha, "eta": eta}
    common |= {name: getattr(options, name) for name in ("batch", "local", "participation", "seed")}
    common |= {"optimiser": OPTIMISERS[options.optimiser](), "aggregator": AGGREGATORS[options.rule](corrected)}
    about: dict[str, Any] = {"steps": options.n_steps, "batch": options.batch, "rule": options.rule}
    about |= {"alpha": summarise(alpha), "eta": summarise(eta), "L": summarise(L), "delta": summarise(losses.delta)}
    about |= {"delta_at_most": summarise(delta), "collaborators": summarise(np.diff(pairs.starts))}
    about["speedup"] = None if np.isnan(chosen.speedup).any() else summarise(chosen.speedup)
    limit = "min(1 / (2 L), 1 / (sqrt(8) alpha delta)), of Theorem 5.2" if corrected else "1 / L, of Theorem 4.1"
    beyond = eta * options.local > most * (1.0 + 1e-9)
    about["uncovered"] = []
    if beyond.any():
        about["uncovered"].append(
            f"eta = {np.max(eta):.3g} is above {np.min(most[beyond]):.3g}, the largest step of theory ({limit}), "
            f"for {np.sum(beyond):,} of {plural(len(eta), 'main client')}: nothing is promised of their runs."
        )
    if not corrected:
        return Plan(WeightedAveraging(**common), alpha, about)
    beta: Any = options.beta
    if isinstance(beta, str):
        beta = theory.best_beta(eta, delta, alpha, chosen.noise, chosen.average, options.n_steps)
    keep = float(options.keep)
    method = BiasCorrection(**common, beta=beta, first=options.first, keep=keep)
    if np.any(beta > 1.0):
        about["uncovered"].append(
            f"beta = {np.max(beta):g} is above 1, beyond which Theorems 5.2 and C.4 promise nothing: the correction "
            f"goes beyond the newest bias{', and grows for ever from 2 on' if np.any(beta >= 2.0) else ''}."
        )
    return Plan(method, keep * alpha, about | {"beta": summarise(beta), "keep": keep})


CUT = 1e-10  # curvature, relative to the largest, below which a direction is not seen and has no variance


@work
def sandwich_terms(site: Site, theta: Floats, w: Floats, own: Floats) -> dict[str, Any]:
    """Curvature times w; times w squared over the weight of rows, as variances are; and what its own rows say."""
    value, _, A = expand(site.objective, theta)
    value, A = (np.where(np.isfinite(each), each, np.nan) for each in (value, A))  # of models that diverged
    weight = sizes(site.objective)
    weight = np.where(weight > 0.0, weight, 1.0)
    own = np.where(local.light_residuals(site, np.full(len(site), theta.shape[1])), 0.0, own)
    square = (w**2 / weight)[:, None] * A
    return {
        "A": w[:, None] * A,
        "V": square,
        "own": (own * w)[:, None] * A,
        "all": (own * weight)[:, None] * A,
        "sse": 2.0 * own * weight * value,
        "n": own * site.objective.moments()["rows"],
    }


def coefficient_covariance(
    fed: Federation,
    pairs: Collaborators,
    alpha: Floats,
    metric: Metric,
    theta: Floats,
    residual_alone: Callable[[], float] | None,
) -> tuple[Floats, float | None]:
    """Packed covariances (M, P) of main clients' coefficients, and the residual variance of a Gaussian outcome.

    ``H^-1 V H^-1`` with ``H = sum_k w_k H_k`` and ``V = sum_k w_k^2 H_k / n_k``, times the residual variance of the
    main clients' own rows: their squared residuals at theta over what these expect per unit of it where nobody is
    biased, ``n_0 - 2 tr(H^-1 w_0 H_0) + tr(H^-1 V H^-1 n_0 H_0)``; n - d where a client works alone. Clients whose own
    residuals may lie in rows of no weight do not count. Where that is more than there are rows, residuals tell of the
    noise of light collaborators, and where it is less than one, of nothing: then the variance is that of models of a
    client's own rows (``residual_alone``, None without dispersion), if it is larger.
    """
    M = len(pairs.main)
    w = pairs.weights(alpha)
    own = np.concatenate([np.ones(M), np.zeros(len(pairs.pair_main))])
    clients, mains = pairs.request_client, pairs.request_main
    message: dict[str, Any] = {"theta": PerRow(theta[mains]), "w": PerRow(w), "own": PerRow(own)}
    s = require_all_replies(fed.total(sandwich_terms, to=clients, by=mains, groups=M, **message))
    names = ("A", "V", "own", "all")
    H, V, part, whole = (metric.hessian(s[name]) for name in names)
    # Of a run that diverged nothing is known of the models.
    diverged = np.asarray(~np.isfinite(H + V + part + whole).all(axis=(1, 2)))
    H, V, part, whole = (np.where(diverged[:, None, None], np.eye(H.shape[-1]), S) for S in (H, V, part, whole))
    values, vectors = np.linalg.eigh(H)
    seen = values > CUT * np.maximum(values[:, -1:], 1.0)
    inverse = vectors * np.where(seen, 1.0 / np.where(seen, values, 1.0), 0.0)[:, None] @ vectors.swapaxes(1, 2)
    cov = inverse @ V @ inverse
    dof = float(np.sum(s["n"]) - 2.0 * np.sum(inverse * part) + np.sum(cov * whole))
    sigma2 = float(s["sse"].sum()) / max(dof, 1.0) if residual_alone else None
    if residual_alone and sigma2 is not None and not 1.0 <= dof <= np.sum(s["n"]):
        sigma2 = max(sigma2, residual_alone())
    cov = np.where(diverged[:, None, None], np.nan, cov * (1.0 if sigma2 is None else sigma2))
    return pack(metric.R @ cov @ metric.R.T), sigma2


def fit(
    fed: Federation, problem: GroupedProblem, rounds: Mapping[str, Any] | None = None, corrected: bool = False
) -> Estimates:
    """Run Algorithm 2, or 3 (``corrected``), for every main client at once, from the pooled model.

    Clients that are not main ones, and those never seen, get the pooled model. Covariances take the weights as given:
    they hold the variance of all who were listened to, and no bias. ``info["collaboration"]`` has what was chosen and
    why, and the ``trace`` of (step, distance from where the run goes, relative to the start's). A CoterieError for
    options (``options.Options``) that cannot be.
    """
    options = Options.of(rounds or {}, corrected)
    everyone, metric = around_pooled(fed, problem)
    chosen = plan(fed, metric, options, corrected)
    pairs, effective_alpha = chosen.method.pairs, chosen.effective_alpha
    with_prior = options.with_prior(metric)
    goal = optimum(fed, pairs, effective_alpha, with_prior)
    if options.solved_directly and not corrected:
        theta, trace, quarantined, diverged = goal.theta, [(goal.exchanges, 0.0)], [], []
        status = "exact" if goal.reached.all() else "not reached"
    else:
        method, eta = replace(chosen.method, prior_curvature=goal.prior_curvature), np.asarray(chosen.method.eta)
        if options.eta == "auto":  # what holds a model adds to the curvature that its steps are chosen by
            eta = eta / (1.0 + options.local * eta * goal.prior_curvature)
            method = replace(method, eta=eta)
            chosen.about["eta"] = summarise(eta)
        trace, state = [], {}
        states = method.run(fed, trace_steps(options.n_steps))
        for state in steps(states, options.n_steps, "Steps", itemgetter("t")):
            trace.append((state["t"], _gap(metric, state["x"], goal.theta)))
        theta, quarantined = metric.theta(state["x"]), np.flatnonzero(state["quarantined"]).tolist()
        status = "finished" if state["status"] == "running" else state["status"]
        diverged = pairs.main[state.get("diverged", [])].tolist()
    client, cov = everyone.client.copy(), everyone.client_cov.copy()
    residual_alone = (lambda: local.fit(fed, problem).sigma2) if problem.family.has_dispersion else None
    covariance, own = coefficient_covariance(fed, pairs, effective_alpha, metric, theta, residual_alone)
    client[pairs.main], cov[pairs.main] = theta, covariance
    summary = chosen.about | {"status": status, "trace": trace, "gap": trace[-1][1], "corrected": corrected}
    summary |= {"prior": with_prior.prior, "quarantined": quarantined, "diverged": diverged}
    summary["asked"] = {k: v for k, v in (rounds or {}).items() if isinstance(v, (str, bool, int, float))}
    summary["main"] = None if options.main is None else pairs.main.tolist()
    sigma2 = everyone.sigma2 if own is None or len(pairs.main) < len(client) else own
    info = {"collaboration": summary}
    return replace(everyone, client=client, client_cov=cov, sigma2=sigma2, log_likelihood=None, info=info)


def alone(
    fed: Federation, problem: GroupedProblem, rounds: Mapping[str, Any] | None = None, corrected: bool = False
) -> Estimates:
    """A model of each client's own rows under the prior of the method: what its gain is to be measured against."""
    everyone, metric = around_pooled(fed, problem)
    nobody = np.empty(0, dtype=np.int64)
    pairs = Collaborators(np.arange(len(everyone.client)), nobody, nobody, np.empty(0))
    with_prior = Options.of(rounds or {}, corrected).with_prior(metric)
    return replace(everyone, client=optimum(fed, pairs, np.zeros(len(pairs.main)), with_prior).theta)


def _gap(metric: Metric, x: Floats, goal: Floats) -> float:
    """Distance to the goal over that of the start, all main clients together; 0 where the start is there."""
    target = metric.u(goal)
    start = float(np.linalg.norm(target))
    return float(np.linalg.norm(x - target)) / start if start > 0.0 else 0.0
