"""Lyu, Hanzely, Kolar (2022), the tree model (5.1): a model for each client, with learned strengths.

Learned variances replace the grid search of section 6.2; ``given_strengths`` takes them as numbers. The minimiser is
Henderson's BLUP for any design, which is also the marginalised estimator of Proposition 5.3.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np

from coterie.federation import Federation, require_all_replies
from coterie.methods.problem_and_estimates import Estimates, GroupedProblem, collect
from coterie.methods.tree import variances
from coterie.methods.tree.covariance_structure import STRUCTURES, Structure
from coterie.methods.tree.penalised_tree import Setup, prepare
from coterie.methods.tree.quadrature import of_integrals, quadrature_points
from coterie.methods.tree.variance_uncertainty import explore
from coterie.methods.tree.variances import State, Variances


def fit(
    fed: Federation,
    problem: GroupedProblem,
    covariance: str = "auto",
    reml: bool = True,
    own: bool = False,
    residual: str = "common",
    quadrature: int | None = None,
    intervals: bool | Literal["later"] = False,
) -> Estimates:
    """Learn the variances and solve the tree under them.

    ``covariance`` is the structure of D, in standard units of the columns: auto, isotropic, two, diagonal or full.
    "auto" takes the smallest deviance plus ``log(clients)`` for each variance parameter, of structures for columns less
    their means. A structure that is named is one of the columns as they are; only "full" does not depend on where a
    column has its zero. For a Gaussian outcome, likelihood is restricted where ``reml``, and ``residual`` may be
    "by-client": a residual variance for each, learned after the structure of D is chosen. ``own``: every finest cluster
    has its own client variances. ``quadrature``: points for integrals over clients that stray in one direction, 1 for
    Laplace's approximation; by default many where a client has few rows. ``intervals``: covariances have what the
    uncertainty of the variances adds; "later", those of `Estimates.later` have, once they are asked for.
    """
    reml = reml and problem.family.has_dispersion
    about = problem.tree, problem.family, problem.personal, problem.intercept, problem.basis
    setup = prepare(fed, *about)
    setup = replace(setup, points=quadrature_points(quadrature, problem, setup.rows / len(fed.clients)))
    search, state, tried, several = searched(fed, setup, problem, covariance, reml, own)
    logs = 0.0
    if residual == "by-client" and problem.family.has_dispersion:
        state, logs = variances.learn_residual_variances(fed, search, state)
    deviance, s, sigma2 = state.solved or search.evaluate(fed, state.x, state.u)
    L = search.factors(state.x)[0]
    integrals = of_integrals(fed, setup, L, s, quadrature, several, bool(intervals))

    def unsure() -> Estimates:
        return collect(fed, setup, s, L, sigma2, unsure=explore(fed, search, L, s, sigma2, covariance == "auto"))

    fitted = unsure() if intervals is True else collect(fed, setup, s, L, sigma2)
    info: dict[str, Any] = {"covariance": search.structures[0].name, "criterion": tried, "status": state.status}
    info |= {"iterations": state.iteration, "reml": reml, "own": own, "rows": int(setup.rows)}
    info["parameters"] = setup.p + search.parameters + problem.family.scatters
    info |= integrals
    if problem.single_rows:
        info["straying"] = problem.straying.tolist()
    if problem.intercept in problem.personal and (covariance == "auto" or search.structures[0].name == "full"):
        info["centred"] = {"intercept": problem.intercept, "means": mean_weights(setup, problem.intercept)}
    if residual == "by-client" and problem.family.has_dispersion:
        each = require_all_replies(fed.ask(variances.residual_variance))["v"] * sigma2
        fitted = replace(fitted, client_sigma2=each, sigma2=float(each.mean()))
        info |= {"residual": residual, "status": state.status}
    later = unsure if intervals == "later" else None
    if later is not None:
        fitted = replace(fitted, client_cov=fitted.client_cov[:0].copy())
    likelihood = -0.5 * (deviance + logs) + in_table_units(setup, reml)
    return replace(fitted, log_likelihood=likelihood, info=info, later=later)


def searched(
    fed: Federation, setup: Setup, problem: GroupedProblem, covariance: str, reml: bool, own: bool
) -> tuple[Variances, State, dict[str, float], bool]:
    """The search of the structure that is taken, and where it ended; what each structure that was tried reached.

    Last, whether searches of one ended at different optima.
    """
    tried: dict[str, float] = {}
    several: dict[str, bool] = {}
    runs: dict[str, tuple[Variances, State]] = {}
    # members of the finest level that is learned
    members = len(fed.clients) if len(problem.straying) else problem.tree.sizes[0]
    for name in candidates(covariance, problem, members):
        search = Variances(setup, structures(name, problem, setup, covariance == "auto"), own, reml)
        begun = variances.search_starts(covariance, setup, problem.intercept, members)
        starts = [partial(search.init, fed, *start) for start in begun]
        if runs:  # simpler structures come first: go on from the last
            other, last = runs[next(reversed(runs))]
            onwards = partial(search.follow, fed, other, last.x, last.u)
            starts = [onwards, *starts] if len(starts) > 1 else [onwards]
        state, several[name] = variances.lowest_end(fed, search, starts, name, members)
        state = zero_small_variances(fed, search, state)
        tried[name] = state.deviance + search.parameters * float(np.log(members))
        runs[name] = search, state
    return *runs[min(tried, key=lambda name: tried[name])], tried, any(several.values())


def in_table_units(setup: Setup, reml: bool) -> float:
    """What a log-likelihood has beside minus half of the deviance, in the units of the table."""
    units = float(np.log(setup.unit).sum()) if reml else 0.0
    if reml and setup.basis is not None:
        units += float(np.linalg.slogdet(setup.basis.matrix)[1])
    return units - (setup.constant - (0.5 * setup.rows * np.log(2.0 * np.pi) if setup.family.has_dispersion else 0.0))


def mean_weights(setup: Setup, intercept: int | None) -> list[float]:
    """How often each coefficient counts in a client's model at the means: the intercept once, shared columns not."""
    means = np.zeros(setup.p)
    means[setup.z] = (setup.mean / setup.units)[setup.z]
    means[intercept] = 1.0
    return [float(v) for v in means]


def candidates(covariance: str, problem: GroupedProblem, clients: int) -> list[str]:
    """Structures to try: one that was asked for, or all that the number of clients can carry."""
    if covariance != "auto":
        return [covariance]
    q = len(problem.personal)
    if q <= 1:
        return ["diagonal"]
    names = [n for n in STRUCTURES if n != "two" or (problem.intercept in problem.personal and q > 2)]
    names = [n for n in names if n != "diagonal" or q <= 12 or clients >= 2 * q]  # categories of many levels have one
    return [n for n in names if n != "full" or (q <= 8 and clients >= 5 * q * (q + 1))]


def structures(
    name: str, problem: GroupedProblem, setup: Setup | None = None, automatic: bool = False
) -> tuple[Structure, ...]:
    """The structure of every level; one with a single node has no variance.

    Those that "auto" tries are of columns less their means, and small levels simple. So is "full" by any name, which is
    the same model wherever a column has its zero, and is found more surely near the means. Clients stray in
    ``problem.straying`` only; where that is nothing, the finest clusters take their place.
    """
    q, at = len(problem.personal), np.flatnonzero(problem.personal == problem.intercept)
    intercept = int(at[0]) if len(at) else None
    centre = seen = None
    if setup is not None and (automatic or name == "full"):
        centre = setup.mean[problem.personal]
    if setup is not None and setup.basis is not None:
        seen = setup.deviation * setup.units[setup.z]

    def named(name: str) -> Structure:
        return Structure.named(name, q, intercept, centre)

    clients = named(name).among(np.flatnonzero(np.isin(problem.personal, problem.straying)))
    out = [clients]
    for nodes in problem.tree.sizes[:-1]:
        simple = "two" if automatic and nodes < 5 * q else "diagonal" if automatic and name == "full" else name
        if name == "isotropic" or (len(out) == 1 and not len(problem.straying)):
            simple = name
        level = named(simple)
        out.append(level if nodes > 1 else Structure(name, level.basis[:0]))
    return tuple(out if seen is None else (structure.seen(seen) for structure in out))


def zero_small_variances(fed: Federation, search: Variances, state: State) -> State:
    """Standard deviations that might as well be zero are zero: an answer, not a failure to converge."""
    sets, at = [], 0
    for structure, groups in zip(search.structures, search.groups, strict=True):
        for _ in range(groups):
            sets += [at + np.flatnonzero(rows) for rows in structure.rows]
            at += len(structure)
    small = [where for where in sets if 0.0 < np.linalg.norm(state.x[where]) < 0.02]
    everything = [np.concatenate(small)] if len(small) > 1 else []
    for where in [*everything, *small]:  # all at once, or those that can be
        x = state.x.copy()
        x[where] = 0.0
        deviance, s, sigma2 = search.evaluate(fed, x, state.u)
        if deviance <= state.deviance + 1e-6 + 1e-11 * abs(state.deviance):
            state = replace(state, x=x, deviance=deviance, u=s.positions.u, **search.known(deviance, s, sigma2))
            if len(where) == sum(map(len, small)):
                break
    return state
