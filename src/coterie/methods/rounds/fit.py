"""Known clusters over rounds, from a table to coefficients: theory chooses the parameters, the exact optimum certifies.

Algorithms 1 and 2 of Lyu, Hanzely, Kolar (2022), in ``async_l2gd`` and ``async_al2sgd``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.federation import Federation
from coterie.methods.async_al2sgd import AsyncAL2SGD
from coterie.methods.async_l2gd import AsyncL2GD
from coterie.methods.estimates import Estimates, GroupedProblem
from coterie.methods.replies import require_all_replies
from coterie.methods.rounds.certificate import certify, differing, gap, look
from coterie.methods.rounds.counts import expected
from coterie.methods.rounds.options import Options
from coterie.methods.rounds.peers import traffic
from coterie.methods.rounds.plan import accelerate, descend, some
from coterie.methods.tree.at_home import reveal
from coterie.methods.tree.learned_strengths import learn
from coterie.numerics.kernels import Floats
from coterie.relations.ties import Ties


def fit(
    fed: Federation,
    problem: GroupedProblem,
    gamma: npt.ArrayLike | None = None,
    lam: npt.ArrayLike | None = None,
    alpha: npt.ArrayLike | None = None,
    rounds: Mapping[str, Any] | None = None,
    accelerated: bool = False,
) -> Estimates:
    """Run Algorithm 1, or 2 (``accelerated``), and say how far it came.

    Parameters
    ----------
    gamma, lam, alpha
        Strengths, as in ``given_strengths``; without gamma they are learned by marginal likelihood.
    rounds : mapping, optional
        See :class:`~coterie.methods.rounds.options.Options`.

    Returns
    -------
    Estimates
        Covariances are those of the exact solution. ``info["rounds"]`` has what was chosen and why, the ``trace`` of
        (step, gap, communications between, within), ``gap``, ``status``, and communications expected and counted.

    Raises
    ------
    CoterieError
        For options that cannot be; where columns are shared or clusters nested.
    """
    options = Options.of(rounds or {})
    options.check(accelerated, fed.clients.k)
    if gamma is None:
        gamma, lam = learn(fed, problem)
    ties = Ties.of(fed.clients.clusters, fed.clients.k, gamma, lam, alpha)
    exact = certify(fed, problem, ties)
    plan = (accelerate if accelerated else descend)(fed, ties, options)
    trace: list[tuple[int, float, int, int]] = []
    state: dict[str, Any] = {}
    for state in replace(plan.method, look=look(problem.family, exact.root)).run(fed, plan.stops):
        between = state["between"] + state.get("refreshes", 0)
        trace.append((state["t"], gap(state["seen"]), int(between), int(state["within"].sum())))
    theta = require_all_replies(fed.ask(reveal))["theta"]
    own, network = _averages(ties, theta)
    if not ties.alpha @ ties.Gamma > 0.0:
        network = exact.root  # nobody is tied to it: what the exact solver says of clients never seen
    alpha, tied = ties.alpha[:, None], ties.Gamma[:, None] > 0.0
    nodes = tuple(np.where(tied, alpha * network + (1.0 - alpha) * own, at) for at in exact.nodes)
    status = "finished" if state["status"] == "running" else state["status"]
    about = plan.about | {"status": status, "gap": trace[-1][1], "trace": trace, "differing": differing(state["seen"])}
    about |= {"accuracy": options.accuracy, "asked": dict(rounds or {})}
    about |= {"communications": _counted(options, plan.method, state, theta.shape[1])}
    strengths = {"gamma": some(ties.gamma), "alpha": some(ties.alpha), "lam": some(ties.lam)}
    return replace(exact, client=theta, nodes=nodes, root=network, info={"strengths": strengths, "rounds": about})


def _averages(ties: Ties, theta: Floats) -> tuple[Floats, Floats]:
    """(2.2): averages of clusters (k, d) and of the network (d,)."""
    sums = np.zeros((len(ties.alpha), theta.shape[1]))
    np.add.at(sums, ties.clusters, ties.gamma[:, None] * theta)
    return ties.averages(sums)


def _counted(options: Options, method: AsyncL2GD | AsyncAL2SGD, state: dict[str, Any], d: int) -> dict[str, Any]:
    """Communications of a run and what they are in the mean; those within clusters as means over these."""
    T, k = state["t"], len(method.p)
    mean = expected(method.p0, method.p, T, method.ties.equal & isinstance(method, AsyncL2GD))
    out: dict[str, Any] = {"between": int(state["between"]), "between_expected": mean["between"]}
    out |= {"within": float(np.mean(state["within"])), "within_expected": float(np.mean(mean["within"]))}
    out["within_printed"] = float(np.mean(mean["printed"]))
    if isinstance(method, AsyncAL2SGD):
        out |= {"refreshes": int(state["refreshes"]), "refreshes_expected": method.rho * T}
    if options.coordinator == "peers":
        out["peers"] = traffic(options.network, k, d, out["between"] + out.get("refreshes", 0), T)
    return out
