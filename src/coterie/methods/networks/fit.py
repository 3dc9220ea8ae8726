"""A similarity network, from a table to coefficients: exactly, or by a run of Algorithm 6 with its gap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation, PerRow, Site, require_all_replies, work
from coterie.methods import local, pooled
from coterie.methods.local_training.whitening import InFrame, in_standard_columns
from coterie.methods.networks.objective import NetworkObjective, Prior, centred_columns, derivatives
from coterie.methods.networks.optimum import Optimum, lambda_max, optimum
from coterie.methods.networks.options import HELD_OUT, Asked, Run
from coterie.methods.problem_and_estimates import Estimates, GroupedProblem, in_table
from coterie.methods.similarity_network import SimilarityNetwork
from coterie.methods.stepwise import trace_steps
from coterie.methods.tree.penalised_tree import Setup, prepare
from coterie.numerics.arrays import Floats, Ints, full, pack
from coterie.objectives.constants import extreme_eigenvalues, hessians
from coterie.objectives.mean_loss import sizes
from coterie.relations.network import Network
from coterie.relations.parameter_layout import Layout
from coterie.status_line import steps

SOLVED = 1e-5  # residual of the optimality conditions up to which the optimum counts as reached
ENOUGH = 1e-4  # share of the decrease still to come, at which a run ends whose steps were not given
KEPT = 20_000  # edges at most that are kept in the result


def fit(
    fed: Federation,
    problem: GroupedProblem,
    network: Mapping[str, Any] | None = None,
    rounds: Mapping[str, Any] | None = None,
) -> Estimates:
    """Tie clients along a ``network`` (``options.Asked``; lam is a number here), exactly or by a run of ``rounds``.

    Ties are of columns less their means, in standard units. Clients never seen get the pooled model.
    Covariances are given the groups that merged. ``info["network"]`` has the
    network, the groups, the certificate and, of a run, its ``trace`` of (step, gap) and what its steps sent, in bytes;
    the ledger has the computation of the optimum, for the gap, too. A CoterieError for options that cannot be, and
    where all columns are shared.
    """
    asked, run = Asked.of(network or {}), Run.of(rounds or {})
    if asked.lam == HELD_OUT:
        raise CoterieError("lam is chosen by held-out rows in coterie.fit only: give a number here.")
    if not len(problem.personal):
        raise CoterieError("All columns are shared, so there is nothing to tie along a network: use method 'pooled'.")
    everyone = pooled.fit(fed, problem)
    standard, to_table, setup, graph, how = set_up(fed, problem, asked, alone=asked.lam == 0.0)
    lam, layout = float(asked.lam), how["layout"]
    best = optimum(standard, graph, lam, asked.p, solver=asked.solver, **how)
    about, theta, groups = _about(graph, asked, best), best.theta, best.groups
    if not run.exact:
        objective = NetworkObjective(standard, graph, lam, asked.p, **how)
        if np.isinf(objective.lam):
            objective = replace(objective, lam=lambda_max(objective, best.x, best.Z))
        theta, run_info = _run(objective, run, best, np.asarray(np.linalg.solve(to_table, everyone.root)))
        about |= run_info
    elif (end := solved_end(fed, problem, graph, lam, layout)) is not None:
        return replace(end, log_likelihood=None, info={"network": about})
    rows = setup.rows if problem.family.has_dispersion else None
    cov, sigma2 = coefficient_covariance(standard, layout, setup.unit, theta, groups, rows)
    own = in_table(replace(everyone, client=theta * setup.unit, client_cov=cov), to_table)
    alone: dict[str, Any] = {"client": own.client, "client_cov": own.client_cov, "info": {"network": about}}
    return replace(everyone, sigma2=sigma2, log_likelihood=None, **alone)


def set_up(
    fed: Federation, problem: GroupedProblem, asked: Asked, alone: bool = False
) -> tuple[InFrame, Floats, Setup, Network, dict[str, Any]]:
    """Rows in standard columns, what takes coefficients to the table's, their sums, the network and the objective.

    The last are arguments of ``optimum`` and ``path``: layout, unit, prior and centred columns. Where clients are
    ``alone``, each has the prior of those without neighbours.
    """
    graph = asked.similarity.network(fed, problem) if asked.edges is None else asked.edges
    standard, to_table = in_standard_columns(fed, problem)
    setup = prepare(standard, problem.tree, problem.family, problem.personal, problem.intercept)
    how: dict[str, Any] = {"layout": Layout.columns(setup.p, problem.personal), "unit": setup.unit}
    how["prior"] = Prior.of(graph, problem.family, alone, setup.prior())
    how["centred"] = centred_columns(setup.mean, problem.personal, problem.intercept)
    return standard, to_table, setup, graph, how


def solved_end(
    fed: Federation, problem: GroupedProblem, network: Network, lam: float, layout: Layout
) -> Estimates | None:
    """What `local` fits for lambda = 0, and `pooled` for infinity, where that is the objective's minimum.

    None for any other lambda, for lambda = 0 where some column is shared, for infinity where the network has several
    components (``optimum`` makes one model for each), and for layouts that tie parameters or fix them.
    """
    both = np.stack([layout.shared >= 0, layout.personal >= 0])
    plain = bool(both.any(axis=0).all()) and layout.d1 + layout.d2 == both.sum()
    if lam == 0.0 and plain and not both[0].any():
        return local.fit(fed, problem)
    if np.isinf(lam) and plain and network.components.max() == 0:
        return pooled.fit(fed, problem)
    return None


def _about(graph: Network, asked: Asked, best: Optimum) -> dict[str, Any]:
    """What there is to say of the network and the optimum."""
    learned = asked.edges is None
    about: dict[str, Any] = {"space": asked.similarity.space if learned else "edges", "lam": float(asked.lam)}
    about |= {"p": asked.p, "ties": len(graph.edges)}
    if len(graph.edges) <= KEPT:
        about |= {"edges": graph.edges.tolist(), "weight": graph.weight.tolist()}
    about |= {"components": int(graph.components.max()) + 1, "isolated": int(np.sum(graph.degree == 0))}
    about |= {"groups": best.groups.tolist(), "kkt": best.kkt, "exchanges": best.exchanges}
    about["status"] = "exact" if best.kkt <= SOLVED else "not reached"
    return about


def _run(objective: NetworkObjective, run: Run, best: Optimum, root: Floats) -> tuple[Floats, dict[str, Any]]:
    """Algorithm 6 from the pooled model ``root`` (d,), and how far it came."""
    fed, layout, unit = objective.fed, objective.layout, objective.unit
    prior, prior_curvature = objective.prior, 0.0 if objective.prior is None else objective.prior.z
    if prior is not None and prior.alone is not None and prior.own is not None:
        prior_curvature = prior_curvature + prior.alone * float(np.linalg.norm(prior.own, 2)) ** 2
    taking = run.transport.participation, run.transport.batch
    size = step_sizes(fed, layout, unit, run.phases is None, root, prior_curvature, *taking)
    factor = 1.0 if run.eta == "auto" else float(run.eta)
    method = SimilarityNetwork(
        network=objective.network,
        layout=layout,
        lam=objective.lam,
        p=objective.p,
        unit=unit,
        eta=lambda t: factor * run.step(t) * size.eta,
        own=lambda t: factor * run.step(t) * size.own,
        phases=run.phases,
        held=0.0 if prior is None else prior.z / size.weight,
        prior=None if prior is None or prior.alone is None else replace(prior, alone=prior.alone / size.weight),
        transport=run.transport,
    )
    start = layout.split(np.tile(root / unit, (len(fed.clients), 1)))
    begun = state = method.init(fed, *start)
    first, trace, sent = _left(objective, best, start), [(0, 1.0)], np.zeros(2, dtype=np.int64)
    before = _bytes(fed)
    states = method.run(fed, trace_steps(run.taken), begun)
    for state in steps(states, run.taken, "Steps", itemgetter("t"), most=run.steps is None):
        sent += _bytes(fed) - before
        excess = _left(objective, best, (state["x"], state["Z"]))
        trace.append((state["t"], excess / first if first > 0.0 else 0.0))
        before = _bytes(fed)
        if run.steps is None and abs(trace[-1][1]) <= ENOUGH:
            break
    status = "finished" if state["status"] == "running" else state["status"]
    about: dict[str, Any] = {"status": status, "trace": trace, "gap": trace[-1][1], "steps": trace[-1][0]}
    about |= {"bytes_up": int(sent[0]), "bytes_down": int(sent[1])}
    about |= {"eta": factor * size.eta, "link": {"up": run.transport.up, "down": run.transport.down}}
    if run.bytes_per_update is not None:
        about["bytes_per_update"] = run.bytes_per_update
    about |= {"quarantined": np.flatnonzero(state["quarantined"]).tolist(), "feedback": run.transport.feedback}
    return layout.theta(state["x"], state["Z"]), about


def _bytes(fed: Federation) -> Ints:
    return np.array([fed.ledger.bytes_up, fed.ledger.bytes_down])


def _left(objective: NetworkObjective, best: Optimum, at: tuple[Floats, Floats]) -> float:
    """How much F is above its minimum."""
    evaluation = objective.ask(*at)
    return evaluation.value / evaluation.weight - best.value


CUT = 1e-10  # curvature, relative to the largest, below which a direction is not seen and has no variance


def coefficient_covariance(
    fed: Federation, layout: Layout, unit: Floats, theta: Floats, groups: Ints, rows: float | None
) -> tuple[Floats, float]:
    """Packed covariances (n, P) of clients' coefficients, and the residual variance of a Gaussian outcome.

    They are those of the groups' own maximum likelihood: neither the penalty nor the doubt about the groups is in them.
    ``unit`` (d,) is that of theta (n, d); covariances are in the table's. ``rows`` is the number of all rows, where
    there is a residual variance to be found; else it is 1.
    """
    k = int(groups.max()) + 1
    sums: Any = require_all_replies(fed.total(derivatives, by=groups, groups=k, unit=unit, theta=PerRow(theta)))
    H, N, M = full(sums["A"]), layout.N.toarray(), layout.M.toarray()
    zz, zx = np.linalg.pinv(N.T @ H @ N, rcond=CUT, hermitian=True), N.T @ H @ M
    left = zz @ zx  # (k, d2, d1)
    xx = np.linalg.pinv((M.T @ H @ M - np.swapaxes(zx, 1, 2) @ left).sum(axis=0), rcond=CUT, hermitian=True)
    joint = M @ xx @ M.T + N @ (zz + left @ xx @ np.swapaxes(left, 1, 2)) @ N.T
    cross = N @ (left @ xx) @ M.T
    cov = (joint - cross - np.swapaxes(cross, 1, 2)) * unit * unit[:, None]
    seen = float(np.sum(np.linalg.matrix_rank(N.T @ H @ N, hermitian=True))) + layout.d1 if layout.d2 else layout.d1
    sigma2 = 1.0 if rows is None else 2.0 * float(sums["value"].sum()) / max(rows - seen, 1.0)
    return pack(cov * sigma2)[groups], sigma2


LEAST_CURVATURE = 1e-6  # curvature of a client's own block at least, relative to the largest


class StepSizes(NamedTuple):
    """Step sizes: of x, and of every client's z (n,); and the weight of all rows."""

    eta: float
    own: Floats
    weight: float


@work
def curvature_bound(site: Site, unit: Floats, theta: Floats) -> dict[str, Any]:
    """What a client's curvature is at most, to be added up, and the weight of its rows."""
    return {"A": pack(_most(site, unit, theta)), "weight": sizes(site.objective)}


@work
def own_curvature(site: Site, unit: Floats, theta: Floats, shared: Ints, personal: Ints) -> dict[str, Any]:
    """The largest curvature of a client's own block, and the sums of its curvatures in both, as one mean row has."""
    layout, H = Layout(np.asarray(shared), np.asarray(personal)), _most(site, unit, theta)
    A, B = (np.array([P.T @ (P.T @ a).T for a in H]).reshape(len(H), *2 * P.shape[1:]) for P in (layout.N, layout.M))
    top = extreme_eigenvalues(pack(A))[1] if layout.d2 else np.zeros(len(H))
    return {"top": top, "own": np.trace(A, axis1=1, axis2=2), "shared": np.trace(B, axis1=1, axis2=2)}


def _most(site: Site, unit: Floats, theta: Floats) -> Floats:
    return full(hessians(site.objective, theta, most=True)) * unit * unit[:, None]


def step_sizes(
    fed: Federation,
    layout: Layout,
    unit: Floats,
    both: bool = True,
    theta: Floats | None = None,
    held: Floats | float = 0.0,
    participation: float = 1.0,
    batch: int = 0,
) -> StepSizes:
    """Steps with which f surely descends, given gradients of all rows (for Poisson outcomes: near ``theta`` (d,)).

    Few rows may all point in one direction, in which their curvature is the sum of all that they have. So where
    gradients are of ``batch`` rows, a client's curvature counts with its sum over ``batch`` added: runs stay stable,
    unless some rows are much larger than the mean. Clients hold ``unit * (M x + N z_n)``; ``both`` says whether x and Z
    move at once. ``held`` is added to the curvature of every client's own block, summed over its rows as theirs is.
    Clients that take part with probability ``participation`` count so much more, and steps are so much shorter.
    """
    at = np.tile(np.zeros(layout.d) if theta is None else theta, (len(fed.clients), 1))
    sums = require_all_replies(fed.total(curvature_bound, unit=unit, theta=PerRow(at)))
    weight, M = float(sums["weight"]), layout.M.toarray()
    common = float(np.linalg.eigvalsh(M.T @ full(sums["A"]) @ M)[-1]) / weight if layout.d1 else 0.0
    share = participation * (0.5 if both and layout.d1 and layout.d2 else 1.0)
    blocks: dict[str, Any] = {"shared": layout.shared, "personal": layout.personal}
    each = require_all_replies(fed.ask(own_curvature, unit=unit, theta=PerRow(at), **blocks))
    top = (each["top"] + held) / weight
    if batch:
        top, common = top + each["own"] / (batch * weight), common + float(each["shared"].max()) / (batch * weight)
    top = np.maximum(top, LEAST_CURVATURE * float(top.max(initial=0.0)))
    return StepSizes(share / common if common > 0.0 else 1.0, share / np.where(top > 0.0, top, 1.0), weight)
