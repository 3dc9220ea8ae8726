"""Intervals of the likelihood: how far a parameter goes while the best of all others keep the deviance near its least.

An end is where the parameter is largest, or smallest, of all points whose deviance exceeds the least by no more than a
chi-squared quantile: one constrained search each (Neale and Miller 1997), in coordinates in which the deviance is
round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import exp, log
from typing import Any, cast

import numpy as np
import pandas as pd
from scipy.optimize import minimize
from scipy.special import chdtri

from coterie.engines.local_engines import local_engine
from coterie.errors import CoterieError
from coterie.families import family_named
from coterie.methods import hierarchical
from coterie.methods.tree.marginal_likelihood import independent
from coterie.methods.tree.penalised_tree import prepare, solve
from coterie.methods.tree.quadrature import quadrature_points
from coterie.methods.tree.sweep import zero_deviations
from coterie.methods.tree.variances import STARTS, Variances, run_to_end
from coterie.numerics.arrays import Floats, full
from coterie.relations.clusters import ClusterTree
from coterie.relations.covariance import means_frame
from coterie.results.inference import need_level
from coterie.results.model import Nodes
from coterie.runs.run_table_method import in_basis, objective

STEP, WIDE = 1e-3, 30.0  # of differences and of the search, in units in which the deviance rises by the square
Function = Callable[[Floats], float]


@dataclass(frozen=True, eq=False)
class Likelihood:
    """The deviance of a fit as a function of all its parameters: variances, the residual one or coefficients."""

    fed: Any
    search: Variances
    start: Floats  # standard deviations at the least, then the logarithm of the residual one, or coefficients
    w: Floats  # coefficients there
    info: dict[str, Any]

    def deviance(self, v: Floats, along: Floats | None = None) -> float:
        """At parameters v; where ``along`` (p,) is given with a last one, the coefficient along it."""
        search, setup = self.search, self.search.setup
        if not setup.family.is_quadratic:
            return float(search.evaluate(self.fed, v, zero_deviations(setup.tree, len(setup.z)))[0])
        a = search.parameters
        sigma = exp(min(max(v[a], -200.0), 200.0))
        s = solve(self.fed, setup, search.factors(v[:a] / sigma)[0])
        value, logdet, dof = setup.residual(s.value), s.logdet, setup.dof(search.reml)
        if search.reml:
            A = full(s.swept.A[-1][0])
            kept = independent(A)
            logdet += float(np.linalg.slogdet(A[np.ix_(kept, kept)])[1])
        if along is not None:
            best = s.positions.at[-1][0]
            value += (v[-1] - along @ best) ** 2 / float(along @ s.inverse @ along)
        return float(dof * (log(2.0 * np.pi) + 2.0 * log(sigma)) + value / sigma**2 + logdet)

    def covariance(self, v: Floats, level: int, group: int) -> Floats:
        """D (p, p) of a level, as the table of variances has it."""
        search, setup = self.search, self.search.setup
        L = search.factors(v[: search.parameters])[0][level]
        D = np.zeros((setup.p, setup.p))
        D[np.ix_(setup.z, setup.z)] = L[group] @ L[group].T
        F = means_frame(self.info, setup.p) @ setup.table
        return np.asarray(F @ D @ F.T)


def opened(result: Any, fed: Any, problem: Any, reml: bool) -> Likelihood:
    """The likelihood of a fit, restricted or full, at its least deviance."""
    options, info, family = result.fitting.options, result.model.info, problem.family
    setup = prepare(fed, problem.tree, family, problem.personal, problem.intercept, problem.basis)
    points = quadrature_points(options.quadrature, problem, setup.rows / len(fed.clients))
    setup = replace(setup, points=points)
    structures = hierarchical.structures(info["covariance"], problem, setup, options.covariance == "auto")
    search = Variances(setup, structures, info["own"], reml)
    ends = [run_to_end(search.run(fed, search.init(fed, *start)), "", 0.0) for start in STARTS]
    end = min(ends, key=lambda state: state.deviance)
    deviance, s, sigma2 = search.evaluate(fed, end.x, end.u)
    known = -2.0 * (result.log_likelihood - hierarchical.in_table_units(setup, reml))
    if reml == result.reml and abs(deviance - known) > 0.01:
        raise CoterieError("The search for the least deviance ends elsewhere than the fit: there is no profile of it.")
    w = s.positions.at[-1][0]
    start = end.x if not setup.family.is_quadratic else np.append(end.x * sigma2**0.5, 0.5 * log(sigma2))
    return Likelihood(fed, search, start, w, info)


def crossing(f: Function, g: Function, n: int, above: float, sign: float, start: Floats) -> float:
    """The largest (``sign`` 1) or smallest (-1) value of g over points z (n,) at which f is no more than ``above``."""

    def slope(h: Function, z: Floats) -> Floats:
        return np.array([(h(z + step) - h(z - step)) / (2.0 * STEP) for step in STEP * np.eye(n)])

    inside = {"type": "ineq", "fun": lambda z: above - f(z), "jac": lambda z: -slope(f, z)}
    found: Any = cast(Any, minimize)(
        lambda z: -sign * g(z),
        start,
        jac=lambda z: -sign * slope(g, z),
        method="SLSQP",
        bounds=[(-WIDE, WIDE)] * n,
        constraints=[inside],
        options={"maxiter": 60, "ftol": 1e-7},
    )
    over = f(found.x) - above
    return float(g(found.x)) if (found.success and over < 1e-3) or abs(over) < 1e-3 else float("nan")


def interval(f: Function, g: Function, v: Floats, level: float) -> tuple[float, float]:
    """Both ends for g, of the deviance f that is least at v."""
    n, above = len(v), float(chdtri(1, 1.0 - level))
    rough = np.full(n, 1e-3) * np.maximum(1.0, np.abs(v))
    H = _hessian(f, v, rough)
    values, vectors = np.linalg.eigh(H / np.outer(s := np.sqrt(np.maximum(np.diag(H), 1e-8)), s))
    turn = (vectors / np.sqrt(0.5 * np.maximum(values, 1e-3))) / s[:, None]  # z to v: f is |z|^2
    least = f(v)

    def round_f(z: Floats) -> float:
        return f(v + turn @ z) - least

    def scaled_g(z: Floats) -> float:
        return (g(v + turn @ z) - here) / size

    here = g(v)
    up, down = (np.array([g(v + turn @ e) for e in sign * np.eye(n)]) for sign in (0.1, -0.1))
    slack = 1e-3 * float(np.abs(up - here).max())
    lowest = bool((np.minimum(up, down) >= here - slack).all())  # a deviation of zero: it rises both ways
    along = up - here if lowest else up - down
    size = float(np.linalg.norm(along)) or 1.0
    start = 0.9 * above**0.5 * along / size
    upper = here + size * crossing(round_f, scaled_g, n, above, 1.0, start)
    lower = here if lowest else here + size * crossing(round_f, scaled_g, n, above, -1.0, -start)
    return lower, upper


def _hessian(f: Function, v: Floats, step: Floats) -> Floats:
    """Second derivatives by differences."""
    n, E = len(v), np.diag(step)
    H, here = np.empty((n, n)), f(v)
    for i in range(n):
        for j in range(i + 1):
            if i == j:
                H[i, i] = (f(v + E[i]) - 2.0 * here + f(v - E[i])) / step[i] ** 2
            else:
                both = f(v + E[i] + E[j]) - f(v + E[i] - E[j]) - f(v - E[i] + E[j]) + f(v - E[i] - E[j])
                H[i, j] = H[j, i] = both / (4.0 * step[i] * step[j])
    return H


def profile(result: Any, level: float) -> pd.DataFrame:
    """See :meth:`Inference.profile`."""
    level, m = need_level(level), result.model
    family = family_named(m.family)
    if not m.has_variances or m.client_sigma2 is not None:
        raise CoterieError(
            f"There is no profile of the method '{m.method}'{' with residual by-client' * m.has_variances}: "
            "'hierarchical' and 'single-cluster' with one residual variance have it."
        )
    if m.scattering.usual is not None:
        raise CoterieError(
            f"There is no profile of family {m.family}, whose dispersion would have to be searched with all else: use "
            "coterie.bootstrap."
        )
    if result.fitting is None:
        raise CoterieError(
            "A profile searches the likelihood again, for which the rows must be here: take a result of coterie.fit on "
            "a table, not one that was loaded or whose rows stay at their sites."
        )
    clients, (problem, _) = result.fitting.clients, result.fitting.problem()
    flat = not m.levels
    if flat:
        problem = replace(problem, tree=ClusterTree())
    clients = in_basis(clients, problem)
    with local_engine(objective(clients, family), None if flat else clients.clusters, clients.ids) as fed:
        like = opened(result, fed, problem, result.reml)
        full_one = opened(result, fed, problem, False) if result.reml else like
        rows = [*_of_coefficients(result, full_one, level), *_of_variances(result, like, level)]
    return pd.DataFrame(rows, columns=["level", *result._own, "term", "term2", "estimate", "lower", "upper"])


def _of_coefficients(result: Any, like: Likelihood, level: float) -> Iterator[dict[str, Any]]:
    """Rows for the global coefficients."""
    setup, m, a = like.search.setup, result.model, like.search.parameters
    for j, term in enumerate(m.terms):
        along = setup.table[j]
        f, v, w = like.deviance, like.start, np.append(np.zeros(a), along)
        if setup.family.is_quadratic:
            f, v, w = partial(like.deviance, along=along), np.append(v, along @ like.w), np.eye(a + 2)[-1]
        ends = interval(f, w.dot, v, level)
        lower, upper = (float(end + setup.origin[j]) for end in ends)
        yield {"level": "global", "term": term, "term2": "", "estimate": m.root[j], "lower": lower, "upper": upper}


def _of_variances(result: Any, like: Likelihood, level: float) -> Iterator[dict[str, Any]]:
    """Rows for the standard deviations and correlations, like ``variance_components``."""
    m, a = result.model, like.search.parameters
    levels = {"client": 0} | {name: k for k, name in enumerate(Nodes(m).names[1:-1], start=1)}
    clusters = {label: k for k, label in enumerate(m.levels[0].labels)} if result._own else {}
    terms = {term: j for j, term in enumerate(m.terms)}
    for row in result.variance_components.to_dict("records"):
        estimate = row.pop("sd")
        if row["level"] == "residual":
            lower, upper = interval(like.deviance, lambda v: exp(v[a]), like.start, level)
        else:
            at = levels[row["level"]], clusters.get(row.get("cluster"), 0)
            i, j = terms[row["term"]], terms[row["term2"] or row["term"]]

            def g(v: Floats, at: tuple[int, int] = at, i: int = i, j: int = j) -> float:
                D = like.covariance(v, *at)
                return float(D[i, i] ** 0.5 if i == j else D[i, j] / (D[i, i] * D[j, j]) ** 0.5)

            lower, upper = interval(like.deviance, g, like.start, level)
            lower = 0.0 if i == j and (estimate == 0.0 or lower <= 1e-3 * estimate) else lower
        yield {**{k: v for k, v in row.items() if k != "cov"}, "estimate": estimate, "lower": lower, "upper": upper}
