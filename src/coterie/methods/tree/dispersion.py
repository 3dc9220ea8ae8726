"""The dispersion of a family that has one in each row's likelihood: where Laplace's deviance is least, from sums.

At learned variances and w the deviance's slope by the logarithm of the dispersion is that of the profile, and is a sum
over clients; secant steps find where it is zero. What learns no variances takes the dispersion of learned ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from math import copysign, exp, inf, log
from typing import Any

import numpy as np

from coterie.families import Family
from coterie.federation import Federation, PerCluster, Site, find_work, require_all_replies, work, work_name
from coterie.methods.hierarchical import searched
from coterie.methods.problem_and_estimates import Estimates, GroupedProblem
from coterie.methods.tree.client_work import Reply, client_factors, single_direction
from coterie.methods.tree.marginal_likelihood import leverage
from coterie.methods.tree.penalised_tree import Setup, Solution, per_cluster, prepare, solve
from coterie.methods.tree.quadrature import quadrature_points
from coterie.methods.tree.sweep import sweep_down, sweep_up
from coterie.methods.tree.variances import FEW_ROWS, State, Variances
from coterie.numerics import tree_fold
from coterie.numerics.arrays import Floats, Ints, full
from coterie.objectives.glm import GLM
from coterie.objectives.quadrature import hermite
from coterie.queries import Query, WrappedFederation

ROOM = "coterie.methods."
LEAST = 1e-6  # below which outcomes scatter as if there were none
STEPS, LONGEST, NEAR = 40, 2.0, 1e-5  # of its logarithm


@work
def in_family(site: Site, inner: str, message: dict[str, Any], dispersion: float) -> Reply:
    """Work of a method, on rows whose family has this dispersion."""

    def dispersed(o: Any) -> Any:
        if isinstance(o, GLM):
            return replace(o, family=o.family.at(dispersion))
        return replace(o, train=dispersed(o.train), held=dispersed(o.held))

    view = copy(site)
    view.objective = dispersed(site.objective)
    out: Mapping[str, Any] = find_work(ROOM + inner)(view, **message)
    return dict(out)


class InFamily(WrappedFederation):
    """A federation whose outcomes have a dispersion."""

    def __init__(self, fed: Federation, dispersion: float) -> None:
        super().__init__(fed)
        self.dispersion, self.reveals = dispersion, getattr(fed, "reveals", True)

    def _answer(self, query: Query) -> Any:
        inner = work_name(query.work).removeprefix(ROOM)
        message = {"inner": inner, "message": dict(query.message), "dispersion": self.dispersion}
        return query._replace(work=in_family, message=message).of(self.fed)


def fit_at(
    fit: Callable[..., Estimates], fed: Federation, problem: GroupedProblem, learns: bool, options: Mapping[str, Any]
) -> Estimates:
    """What a method estimates; with the dispersion of outcomes, where they have one, which is found first."""
    if problem.family.unknown:
        how = {name: options[name] for name in ("covariance", "own", "quadrature") if name in options}
        fed, problem = with_dispersion(fed, problem, learns, **how)
    fitted, dispersion = fit(fed, problem, **options), problem.family.dispersion
    return fitted if dispersion is None else replace(fitted, sigma2=dispersion)


def said_of(family: Family, dispersion: float) -> list[str]:
    """A sentence where outcomes do not scatter as the family may."""
    if family.usual is None or dispersion > LEAST:
        return []
    least = f"the dispersion is the least that is searched for ({LEAST:g})"
    if family.counted:
        return [f"Counts scatter no more than Poisson's: {least}. Take family poisson, which says as much."]
    return [f"The columns give the outcome: {least}, and standard errors may be too large."]


def with_dispersion(
    fed: Federation,
    problem: GroupedProblem,
    learns: bool,
    covariance: str = "auto",
    own: bool = False,
    quadrature: int | None = None,
) -> tuple[InFamily, GroupedProblem]:
    """The federation and the problem at the dispersion that is found: with one model for all, or learned variances."""

    def pooled(dispersion: float) -> float:
        here, family = InFamily(fed, dispersion), problem.family.at(dispersion)
        nobody = np.empty(0, dtype=np.int64)
        setup = prepare(here, problem.tree, family, nobody, problem.intercept, problem.basis)
        L = [np.zeros((1, 0, 0))] * (1 + len(problem.tree.parents))
        return slope(here, setup, L, solve(here, setup, L))

    found = zero_of(pooled, problem.family.usual or 1.0)
    if learns and problem.learnable:
        profile, some, none = (_Profile(fed, problem, covariance, own, quadrature) for _ in range(3))
        found = zero_of(profile, found)
        if profile.few_rows and found > LEAST and none.deviance(LEAST) < some.deviance(found):
            found = LEAST  # a second optimum: rows hardly tell a dispersion from clients that differ
    return InFamily(fed, found), replace(problem, family=problem.family.at(found))


@dataclass
class _Profile:
    """The slope where variances are learned, each time from those of the last."""

    fed: Federation
    problem: GroupedProblem
    covariance: str
    own: bool
    quadrature: int | None
    last: tuple[Variances, State] | None = None

    @property
    def few_rows(self) -> bool:
        coefficients = len(self.problem.personal) * len(self.fed.clients)
        return self.last is not None and self.last[0].setup.rows < FEW_ROWS * coefficients

    def deviance(self, dispersion: float) -> float:
        """Minus twice the log-likelihood, with what depends on the dispersion alone."""
        (fed, search, state), problem = self._searched(dispersion), self.problem
        setup = prepare(fed, problem.tree, search.setup.family, problem.personal, problem.intercept, problem.basis)
        return state.deviance + 2.0 * setup.constant

    def __call__(self, dispersion: float) -> float:
        fed, search, state = self._searched(dispersion)
        return slope(fed, search.setup, search.factors(state.x)[0], search.evaluate(fed, state.x, state.u)[1])

    def _searched(self, dispersion: float) -> tuple[Federation, Variances, State]:
        fed, family = InFamily(self.fed, dispersion), self.problem.family.at(dispersion)
        if self.last is None:
            problem = replace(self.problem, family=family)
            setup = prepare(fed, problem.tree, family, problem.personal, problem.intercept, problem.basis)
            points = quadrature_points(self.quadrature, problem, setup.rows / len(fed.clients))
            setup = replace(setup, points=points)
            self.last = searched(fed, setup, problem, self.covariance, False, self.own)[:2]
        search, state = self.last
        search = replace(search, setup=replace(search.setup, family=family), tolerance=1e-10)
        *_, state = search.run(fed, search.start(fed, state.x, state.u))
        self.last = search, state
        return fed, search, state


def zero_of(slope: Callable[[float], float], start: float) -> float:
    """Where a slope by a logarithm, that rises through zero, is zero; ``LEAST`` where it is above zero everywhere."""
    x, low, high = log(start), -inf, inf
    g = slope(start)
    step = -copysign(1.0, g)
    for _ in range(STEPS):
        low, high = (low, x) if g > 0.0 else (x, high)
        new = x + max(-LONGEST, min(LONGEST, step))
        if not low < new < high:
            new = 0.5 * (low + high)
        if new < log(LEAST):
            return LEAST
        before, x, g = (x, g), new, slope(exp(new))
        rise = (g - before[1]) / (x - before[0])
        step = -g / rise if rise > 0.0 else -copysign(1.0, g)
        if abs(step) < NEAR:
            return exp(x + step)
    return exp(x)


@work
def by_dispersion(site: Site, unit: Floats, z: Ints, L: Floats, w: Floats, C: Floats, delta: Floats) -> Reply:
    """Each client's part of the slope, after ``leverage``."""
    L, which = client_factors(site, L)
    A, b, a, parent = site.state["A"], site.state["b"], site.state["a"], site.clusters
    theta, _, S = tree_fold.unfold(A, b, L, which, z, w, C, parent)
    moved, _, _ = tree_fold.unfold(A, a, L, which, z, delta, C, parent)
    return {"slope": site.objective.by_dispersion(unit, theta, S, moved)}


@work
def by_dispersion_over(site: Site, unit: Floats, z: Ints, L: Floats, w: Floats, points: int) -> Reply:
    """The same of integrals by quadrature: the mean slope over what a client's one deviation may be."""
    o, A, (ell, k), (nodes, logs) = site.objective, site.state["A"], single_direction(L), hermite(points)
    size, u = np.zeros(len(unit)), site.state["u"][:, k]
    size[z] = ell
    step = 1.0 / np.sqrt(1.0 + np.einsum("i,mij,j->m", size, full(A), size))
    v = u[:, None] + step[:, None] * nodes
    theta = w + v[:, :, None] * size
    weight = logs - 0.5 * v**2 - np.stack([o.value(theta[:, j] * unit) for j in range(len(nodes))], axis=1)
    weight = np.exp(weight - weight.max(axis=1, keepdims=True))
    each = [
        o.by_dispersion(unit, np.ascontiguousarray(theta[:, j]), 0.0 * A, 0.0 * theta[:, j]) for j in range(len(nodes))
    ]
    return {"slope": np.sum(weight * np.stack(each, axis=1), axis=1) / weight.sum(axis=1)}


def slope(fed: Federation, setup: Setup, L: list[Floats], s: Solution) -> float:
    """The slope of Laplace's deviance by the logarithm of the dispersion, where the tree is solved (two exchanges)."""
    if setup.points > 1:
        over: dict[str, Any] = {"unit": setup.unit, "z": setup.z, "L": L[0], "w": s.positions.at[-1]}
        return float(require_all_replies(fed.total(by_dispersion_over, **over, points=setup.points))["slope"])
    none = 0.0 * s.inverse
    at = sweep_down(setup.tree, s.swept, L[1:], setup.z, s.positions.at[-1][0], none)
    sent: dict[str, Any] = {"unit": setup.unit, "z": setup.z, "L": per_cluster(L[0])}
    sent |= {"w": PerCluster(at.at[0]), "C": PerCluster(at.cov[0])}
    a = require_all_replies(fed.total(leverage, by="cluster", **sent))["a"]
    swept = sweep_up(setup.tree, s.swept.A[0], a, L[1:], setup.z)
    moved = sweep_down(setup.tree, swept, L[1:], setup.z, np.zeros(setup.p), none)
    return float(require_all_replies(fed.total(by_dispersion, delta=PerCluster(moved.at[0]), **sent))["slope"])
