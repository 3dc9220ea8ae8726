"""The dispersion of a family that has one in each row's likelihood: where Laplace's deviance is least, from sums.

At learned variances and w the deviance's slope by the logarithm of the dispersion is that of the profile, and is a sum
over clients; secant steps find where it is zero. What learns no variances takes the dispersion of learned ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, replace
from math import exp, inf, isnan, log
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.families import DEGREES, Family, family_named
from coterie.federation import Federation, PerCluster, Site, find_work, require_all_replies, work, work_name
from coterie.methods import pooled
from coterie.methods.hierarchical import searched
from coterie.methods.problem_and_estimates import Estimates, GroupedProblem
from coterie.methods.tree.client_work import Reply, client_factors, single_direction
from coterie.methods.tree.marginal_likelihood import leverage
from coterie.methods.tree.penalised_tree import Setup, Solution, per_cluster, prepare, solve
from coterie.methods.tree.quadrature import quadrature_points
from coterie.methods.tree.sweep_up_and_down import place, sweep_down, sweep_up
from coterie.methods.tree.variances import FEW_ROWS, State, Variances
from coterie.numerics import tree_fold
from coterie.numerics.arrays import Floats, Ints, full
from coterie.objectives.glm import GLM
from coterie.objectives.quadrature import hermite
from coterie.queries import Query, WrappedFederation

ROOM = "coterie.methods."
LEAST = 1e-6  # below which outcomes scatter as if there were none
STEPS, LONGEST, NEAR, CLOSE = 40, 2.0, 1e-5, 0.02  # of its logarithm
START, EXACT = 5.0, 1e-14  # degrees of freedom; share of outcomes' variance below which there is no scale
_FOUND: ContextVar[dict[tuple[Any, ...], Family] | None] = ContextVar("found", default=None)


@work
def in_family(site: Site, inner: str, message: dict[str, Any], family: str, dispersion: float) -> Reply:
    """Work of a method, on rows whose family has this dispersion."""
    known = family_named(family).at(dispersion)

    def dispersed(o: Any) -> Any:
        if isinstance(o, GLM):
            return replace(o, family=known)
        return replace(o, train=dispersed(o.train), held=dispersed(o.held))

    view = copy(site)
    view.objective = dispersed(site.objective)
    out: Mapping[str, Any] = find_work(ROOM + inner)(view, **message)
    return dict(out)


class InFamily(WrappedFederation):
    """A federation whose outcomes have a dispersion."""

    def __init__(self, fed: Federation, family: Family) -> None:
        super().__init__(fed)
        self.family, self.reveals = family, getattr(fed, "reveals", True)

    def _answer(self, query: Query) -> Any:
        inner = work_name(query.work).removeprefix(ROOM)
        known = {"family": self.family.name, "dispersion": self.family.dispersion}
        message = {"inner": inner, "message": dict(query.message), **known}
        return query._replace(work=in_family, message=message).of(self.fed)


def fit_at(
    fit: Callable[..., Estimates], fed: Federation, problem: GroupedProblem, learns: bool, options: Mapping[str, Any]
) -> Estimates:
    """What a method estimates; with the dispersion of outcomes, where they have one, which is found first."""
    found = isnan(problem.family.degrees)
    if problem.family.usual is not None:
        if problem.family.unknown:
            problem = replace(problem, family=_shared(fed, problem, learns and problem.learnable, options))
        fed = InFamily(fed, problem.family)
    fitted, family = fit(fed, problem, **options), problem.family
    if family.dispersion is None:
        return fitted
    info = fitted.info | {name: fitted.info[name] + found for name in ("parameters",) if name in fitted.info}
    return replace(fitted, sigma2=family.dispersion, family=family.name, info=info)


@contextmanager
def shared_dispersions() -> Iterator[None]:
    """Within it, methods of the same rows share the dispersions that are found: each is searched for once."""
    token = _FOUND.set({})
    try:
        yield
    finally:
        _FOUND.reset(token)


def _shared(fed: Federation, problem: GroupedProblem, learns: bool, options: Mapping[str, Any]) -> Family:
    """The family of a problem, found before or now."""
    usual: dict[str, Any] = {"covariance": "auto", "own": False, "quadrature": None}
    how = usual | {name: value for name, value in options.items() if name in usual}
    key = (*map(len, problem.tree.parents), *how.values()) if learns else ()
    found, memo = None, _FOUND.get()
    if memo is None or (found := memo.get(key)) is None:
        found = with_dispersion(fed, problem, learns, **how)
        if memo is not None:
            memo[key] = found
    return found


def find(fed: Federation, problem: GroupedProblem, **options: Any) -> Estimates:
    """A method that finds the dispersion alone."""
    return pooled.fit(fed, problem)


def said_of(family: Family | str, dispersion: float) -> list[str]:
    """A sentence where outcomes do not scatter as the family may."""
    family = family_named(family)
    if family.usual is None:
        return []
    if family.degrees == DEGREES[0]:
        return [f"Outcomes lie so far out that nothing is sure of their mean: {family} has no variance."]
    if family.degrees >= DEGREES[1]:
        return [f"No outcome lies farther out than normal ones: {family} says what family gaussian says."]
    if dispersion > LEAST or family.any_number:
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
) -> Family:
    """The family at the dispersion that is found: with one model for all, or learned variances."""
    start, least = problem.family.usual or 1.0, LEAST
    if problem.family.any_number:
        start = _square(fed, problem)
        least = EXACT * start
    found = best(_Pooled(fed, problem), problem.family, start, START, least)
    if learns:
        profile, some, none = (_Profile(fed, problem, covariance, own, quadrature) for _ in range(3))
        found = best(profile, problem.family, found.kind[1], found.degrees, least)
        doubtful = profile.few_rows and not problem.family.any_number and found.kind[1] > LEAST
        if doubtful and none.deviance(problem.family.at(LEAST)) < some.deviance(found):
            found = problem.family.at(LEAST)  # a second optimum: rows hardly tell it from clients that differ
    if isnan(problem.family.degrees):  # once more, as for those who give them: no digit depends on the way here
        problem = replace(problem, family=problem.family.with_degrees(found.degrees))
        return with_dispersion(fed, problem, learns, covariance, own, quadrature)
    return found


def _square(fed: Federation, problem: GroupedProblem) -> float:
    """The variance of outcomes that may be any number."""
    nobody, known = np.empty(0, dtype=np.int64), problem.family.at(1.0)
    setup = prepare(InFamily(fed, known), problem.tree, known, nobody, problem.intercept, problem.basis)
    return max(float(setup.square) / setup.rows, 1e-150)


@dataclass
class _Pooled:
    """Slopes of one model for all, each time from that of the last."""

    fed: Federation
    problem: GroupedProblem
    last: Floats | None = None

    def __call__(self, family: Family) -> Floats:
        fed, tree, nobody = InFamily(self.fed, family), self.problem.tree, np.empty(0, dtype=np.int64)
        setup = prepare(fed, tree, family, nobody, self.problem.intercept, self.problem.basis)
        L = [np.zeros((1, 0, 0))] * (1 + len(tree.parents))
        start = None if self.last is None else place(tree, self.last / setup.unit, L[1:], nobody)
        s = solve(fed, setup, L, start=start)
        self.last = s.positions.at[-1][0] * setup.unit
        return slopes(fed, setup, L, s)


@dataclass
class _Profile:
    """Slopes where variances are learned, each time from those of the last."""

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

    def deviance(self, family: Family) -> float:
        """Minus twice the log-likelihood, with what depends on the dispersion alone."""
        (fed, search, state), problem = self._searched(family), self.problem
        setup = prepare(fed, problem.tree, search.setup.family, problem.personal, problem.intercept, problem.basis)
        return state.deviance + 2.0 * setup.constant

    def __call__(self, family: Family) -> Floats:
        fed, search, state = self._searched(family)
        return slopes(fed, search.setup, search.factors(state.x)[0], search.evaluate(fed, state.x, state.u)[1])

    def _searched(self, family: Family) -> tuple[Federation, Variances, State]:
        fed = InFamily(self.fed, family)
        if self.last is None:
            problem = replace(self.problem, family=family)
            setup = prepare(fed, problem.tree, family, problem.personal, problem.intercept, problem.basis)
            points = quadrature_points(self.quadrature, problem, setup.rows / len(fed.clients))
            setup = replace(setup, points=points)
            self.last = searched(fed, setup, problem, self.covariance, False, self.own)[:2]
        search, state = self.last
        larger = family.scale / search.setup.family.scale  # all parameters are in units of it
        setup = replace(search.setup, family=family, unit=search.setup.unit * larger)
        search = replace(search, setup=setup, tolerance=1e-10)
        *_, state = search.run(fed, search.start(fed, state.x / larger, state.u))
        self.last = search, state
        return fed, search, state


def best(slopes: Callable[[Family], Floats], family: Family, start: float, degrees: float, least: float) -> Family:
    """The family where slopes by the logarithm of the dispersion, and of degrees of freedom, are zero.

    Degrees of freedom that are to be found are searched within ``DEGREES``, each time at the best dispersion.
    """
    rise = 0.0

    def at_best(family: Family) -> Family:
        nonlocal start, rise
        start, rise = zero_of(lambda d: float(slopes(family.at(d))[0]), start, rise, least)
        if family.any_number and start <= least:
            raise CoterieError(
                f"Most outcomes lie exactly on their models, so that family {family} has no scale: "
                "take family gaussian."
            )
        # half of the deviance's curvature is information; where rows hardly tell, no more than a factor of e
        return family.at(start, min((2.0 / rise) ** 0.5, 1.0) if rise > 0.0 else 0.0)

    if not isnan(family.degrees):
        return at_best(family)

    def by_degrees(degrees: float) -> float:
        return float(slopes(at_best(family.with_degrees(degrees)))[1])

    return family.with_degrees(zero_of(by_degrees, degrees, 0.0, *DEGREES, near=1e-4)[0]).at(start)


def zero_of(
    slope: Callable[[float], float],
    start: float,
    rise: float = 0.0,
    least: float = LEAST,
    most: float = inf,
    near: float = NEAR,
) -> tuple[float, float]:
    """Where a slope by a logarithm, that rises through zero, is zero, or the bound behind which it is; and its rise.

    That is by the logarithm, near there: 0 where it is not known.
    """
    x, low, high, apart = log(start), -inf, inf, 0.0
    g = slope(start)
    for _ in range(STEPS):
        step = -g / rise if rise > 0.0 else (-1.0 if g >= 0.0 else 1.0)
        if abs(step) < near:
            if apart > CLOSE and x + CLOSE < log(most):  # a secant from far away is no rise near here
                rise = (slope(exp(x + CLOSE)) - g) / CLOSE
            return exp(x + step), rise
        low, high = (low, x) if g >= 0.0 else (x, high)
        new = x + max(-LONGEST, min(LONGEST, step))
        if not low < new < high:
            new = 0.5 * (low + high)
        if not log(least) <= new <= log(most):
            bound = least if new < x else most
            if most == inf or log(bound) == x:  # without a bound above, nothing rises below the other
                return bound, 0.0
            new = log(bound)
        before, x, g = (x, g), new, slope(exp(new))
        apart, rise = abs(x - before[0]), (g - before[1]) / (x - before[0])
    return exp(x), rise


@work
def by_dispersion(site: Site, unit: Floats, z: Ints, L: Floats, w: Floats, C: Floats, delta: Floats) -> Reply:
    """Each client's part of the slope, after ``leverage``."""
    L, which = client_factors(site, L)
    A, b, a, parent = site.state["A"], site.state["b"], site.state["a"], site.clusters
    theta, _, S = tree_fold.unfold(A, b, L, which, z, w, C, parent)
    moved, _, _ = tree_fold.unfold(A, a, L, which, z, delta, C, parent)
    return {"slopes": site.objective.by_dispersion(unit, theta, S, moved)}


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
    return {"slopes": np.einsum("mj,jmk->mk", weight / weight.sum(axis=1, keepdims=True), np.stack(each))}


def slopes(fed: Federation, setup: Setup, L: list[Floats], s: Solution) -> Floats:
    """Slopes (k,) of Laplace's deviance, where the tree is solved (two exchanges): see ``GLM.by_dispersion``."""
    if setup.points > 1:
        over: dict[str, Any] = {"unit": setup.unit, "z": setup.z, "L": L[0], "w": s.positions.at[-1]}
        return np.asarray(require_all_replies(fed.total(by_dispersion_over, **over, points=setup.points))["slopes"])
    none = 0.0 * s.inverse
    at = sweep_down(setup.tree, s.swept, L[1:], setup.z, s.positions.at[-1][0], none)
    sent: dict[str, Any] = {"unit": setup.unit, "z": setup.z, "L": per_cluster(L[0])}
    sent |= {"w": PerCluster(at.at[0]), "C": PerCluster(at.cov[0])}
    a = require_all_replies(fed.total(leverage, by="cluster", **sent))["a"]
    swept = sweep_up(setup.tree, s.swept.A[0], a, L[1:], setup.z)
    moved = sweep_down(setup.tree, swept, L[1:], setup.z, np.zeros(setup.p), none)
    return np.asarray(require_all_replies(fed.total(by_dispersion, delta=PerCluster(moved.at[0]), **sent))["slopes"])
