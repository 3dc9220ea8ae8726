"""Known clusters over rounds, from a table to coefficients: theory chooses the parameters, the exact optimum certifies.

Algorithms 1 and 2 of Lyu, Hanzely, Kolar (2022), in ``async_l2gd`` and ``async_al2sgd``. Clients keep the exact optimum
of (2.1) beside their parameters: how far a run is from it, and the gradients there that (3.4) needs, are their sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.families import Family
from coterie.federation import Federation, PerRow, Site, work
from coterie.methods.async_al2sgd import AsyncAL2SGD
from coterie.methods.async_l2gd import AsyncL2GD
from coterie.methods.clustered_l2gd.client_work import Monitor, Reply
from coterie.methods.clustered_l2gd.coordinator import expected_communications, traffic
from coterie.methods.clustered_l2gd.options import Options
from coterie.methods.clustered_l2gd.plan import OPTIMUM, plan_async_al2sgd, plan_async_l2gd
from coterie.methods.estimates import Estimates, GroupedProblem, summarise
from coterie.methods.given_strengths import given
from coterie.methods.replies import require_all_replies
from coterie.methods.tree.client_work import reveal
from coterie.methods.tree.strengths import learn
from coterie.numerics.arrays import Floats
from coterie.relations.clusters import Ties


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

    Strengths are those of ``given_strengths``; without gamma they are learned by marginal likelihood. Covariances are
    those of the exact solution. ``info["rounds"]`` has what was chosen and why, the ``trace`` of (step, gap,
    communications between, within), ``gap``, ``status``, and communications expected and counted. A CoterieError for
    options that cannot be; where columns are shared or clusters nested.
    """
    options = Options.of(rounds or {})
    options.check(accelerated, fed.clients.k)
    if gamma is None:
        gamma, lam = learn(fed, problem)
    ties = Ties.of(fed.clients.clusters, fed.clients.k, gamma, lam, alpha)
    exact = solve_exactly(fed, problem, ties)
    plan = (plan_async_al2sgd if accelerated else plan_async_l2gd)(fed, ties, options)
    trace: list[tuple[int, float, int, int]] = []
    state: dict[str, Any] = {}
    for state in replace(plan.method, monitor=distance_monitor(problem.family, exact.root)).run(fed, plan.stops):
        between = state["between"] + state.get("refreshes", 0)
        trace.append((state["t"], gap(state["observed"]), int(between), int(state["within"].sum())))
    theta = require_all_replies(fed.ask(reveal))["theta"]
    own, network = _averages(ties, theta)
    if not ties.alpha @ ties.Gamma > 0.0:
        network = exact.root  # nobody is tied to it: what the exact solver says of clients never seen
    alpha, tied = ties.alpha[:, None], ties.Gamma[:, None] > 0.0
    nodes = tuple(np.where(tied, alpha * network + (1.0 - alpha) * own, at) for at in exact.nodes)
    status = "finished" if state["status"] == "running" else state["status"]
    info = plan.about | {"status": status, "gap": trace[-1][1], "trace": trace}
    info |= {"differing": gap_to_spread(state["observed"]), "accuracy": options.accuracy, "asked": dict(rounds or {})}
    info |= {"communications": _counted(options, plan.method, state, theta.shape[1])}
    strengths = {"gamma": summarise(ties.gamma), "alpha": summarise(ties.alpha), "lam": summarise(ties.lam)}
    return replace(exact, client=theta, nodes=nodes, root=network, info={"strengths": strengths, "rounds": info})


def _averages(ties: Ties, theta: Floats) -> tuple[Floats, Floats]:
    """(2.2): averages of clusters (k, d) and of the network (d,)."""
    sums = np.zeros((len(ties.alpha), theta.shape[1]))
    np.add.at(sums, ties.clusters, ties.gamma[:, None] * theta)
    return ties.averages(sums)


def _counted(options: Options, method: AsyncL2GD | AsyncAL2SGD, state: dict[str, Any], d: int) -> dict[str, Any]:
    """Communications of a run and what they are in the mean; those within clusters as means over these."""
    T, k = state["t"], len(method.p)
    mean = expected_communications(method.p0, method.p, T, method.ties.equal & isinstance(method, AsyncL2GD))
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


def solve_exactly(fed: Federation, problem: GroupedProblem, ties: Ties) -> Estimates:
    """Solve (2.1) exactly; every client keeps its part of the optimum.

    A CoterieError where not all columns are personal: rounds tie whole vectors.
    """
    if len(problem.tree.parents) > 1:
        raise CoterieError("Methods over rounds take one level of clusters: name the finest only.")
    exact = given(fed, problem, ties.gamma, alpha=ties.alpha)
    if len(problem.personal) < len(exact.root):
        raise CoterieError(
            "Methods over rounds tie all coefficients of a client: share none, leave out columns that do not vary "
            "within any client, or use an exact method."
        )
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
    """``|theta - optimum| / |optimum|`` of all clients stacked, the distance over that of the start.

    Where the optimum is 0 it is the distance itself; NaN where no client counts, or none answered.
    """
    if not observed or not observed["counted"]:
        return float("nan")
    now, start = float(observed["now"]), float(observed["start"])
    return float(np.sqrt(now / start if start > 0.0 else now))
