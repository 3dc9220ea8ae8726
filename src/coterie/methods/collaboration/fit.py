"""Main clients and their collaborators, from a table to coefficients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.federation import Federation
from coterie.methods.collaboration.collaborators import Collaborators
from coterie.methods.collaboration.metric import Metric, around_pooled
from coterie.methods.collaboration.optimum import optimum
from coterie.methods.collaboration.options import Options
from coterie.methods.collaboration.plan import plan
from coterie.methods.collaboration.spread import spread
from coterie.methods.estimates import Estimates, GroupedProblem
from coterie.methods.rounds.plan import some
from coterie.methods.stepwise import trace_steps
from coterie.numerics.kernels import Floats


def fit(
    fed: Federation, problem: GroupedProblem, rounds: Mapping[str, Any] | None = None, corrected: bool = False
) -> Estimates:
    """Run Algorithm 2, or 3 (``corrected``), for every main client at once, from the pooled model.

    Parameters
    ----------
    rounds : mapping, optional
        See :class:`~coterie.methods.collaboration.options.Options`.

    Returns
    -------
    Estimates
        Clients that are not main ones, and those never seen, get the pooled model. Covariances take the weights as
        given: they hold the variance of all who were listened to, and no bias. ``info["collaboration"]`` has what was
        chosen and why, and the ``trace`` of (step, distance from where the run goes, relative to the start's).

    Raises
    ------
    CoterieError
        For options that cannot be.
    """
    options = Options.of(rounds or {}, corrected)
    everyone, metric = around_pooled(fed, problem)
    chosen = plan(fed, metric, options, corrected)
    who, goes = chosen.method.exchange.who, chosen.goes
    held = options.under(metric)
    goal = optimum(fed, who, goes, held)
    if options.exact and not corrected:
        theta, trace, bad, gone = goal.theta, [(goal.exchanges, 0.0)], [], []
        status = "exact" if goal.reached.all() else "not reached"
    else:
        method, eta = replace(chosen.method, held=goal.held), np.asarray(chosen.method.eta)
        if options.eta == "auto":  # what holds a model adds to the curvature that its steps are chosen by
            eta = eta / (1.0 + options.local * eta * goal.held)
            method = replace(method, eta=eta)
            chosen.about["eta"] = some(eta)
        trace, state = [], {}
        for state in method.run(fed, trace_steps(options.taken)):
            trace.append((state["t"], _gap(metric, state["x"], goal.theta)))
        theta, bad = metric.theta(state["x"]), np.flatnonzero(state["quarantined"]).tolist()
        status = "finished" if state["status"] == "running" else state["status"]
        gone = who.main[state.get("gone", [])].tolist()
    client, cov = everyone.client.copy(), everyone.client_cov.copy()
    found = spread(fed, who, goes, metric, theta, problem.family == "gaussian")
    client[who.main], cov[who.main] = theta, found.covariance
    about = chosen.about | {"status": status, "trace": trace, "gap": trace[-1][1], "corrected": corrected}
    about |= {"prior": held.prior, "quarantined": bad, "diverged": gone, "asked": _plain(rounds or {})}
    about["main"] = None if options.main is None else who.main.tolist()
    sigma2 = everyone.sigma2 if found.sigma2 is None or len(who.main) < len(client) else found.sigma2
    info = {"collaboration": about}
    return replace(everyone, client=client, client_cov=cov, sigma2=sigma2, log_likelihood=None, info=info)


def alone(
    fed: Federation, problem: GroupedProblem, rounds: Mapping[str, Any] | None = None, corrected: bool = False
) -> Estimates:
    """A model of each client's own rows under the prior of the method: what its gain is to be measured against."""
    everyone, metric = around_pooled(fed, problem)
    nobody = np.empty(0, dtype=np.int64)
    who = Collaborators(np.arange(len(everyone.client)), nobody, nobody, np.empty(0))
    held = Options.of(rounds or {}, corrected).under(metric)
    return replace(everyone, client=optimum(fed, who, np.zeros(len(who.main)), held).theta)


def _gap(metric: Metric, x: Floats, goal: Floats) -> float:
    """Distance to the goal over that of the start, all main clients together; 0 where the start is there."""
    to = metric.u(goal)
    start = float(np.linalg.norm(to))
    return float(np.linalg.norm(x - to)) / start if start > 0.0 else 0.0


def _plain(rounds: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked for and can be read: no matrices."""
    return {name: value for name, value in rounds.items() if isinstance(value, (str, bool, int, float))}
