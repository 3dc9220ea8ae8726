"""What the likelihood says: tests of fits that are nested in each other, and intervals of the likelihood.

In a test a variance at its bound is a mixture. An interval's end is where a parameter is largest, or smallest, of all
points whose deviance exceeds the least by no more than a chi-squared quantile: one constrained search each (Neale and
Miller 1997), in coordinates in which the deviance is round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from math import exp, log, nan
from typing import Any, cast

import numpy as np
import pandas as pd
from scipy.optimize import minimize
from scipy.special import chdtri

from coterie.data.design import INTERCEPT
from coterie.engines.local_engines import local_engine
from coterie.errors import CoterieError, checked_call, listed, plural
from coterie.families import family_named
from coterie.lazy_modules import special
from coterie.methods import hierarchical
from coterie.methods.tree.covariance_structure import means_frame
from coterie.methods.tree.marginal_likelihood import independent
from coterie.methods.tree.penalised_tree import prepare, solve
from coterie.methods.tree.quadrature import quadrature_points
from coterie.methods.tree.sweep_up_and_down import zero_deviations
from coterie.methods.tree.variances import STARTS, Variances, run_to_end
from coterie.numerics.arrays import Floats, full
from coterie.relations.clusters import ClusterTree
from coterie.results.inference import Inference, need_level
from coterie.results.model import Model, Nodes
from coterie.runs.run_table_method import objective
from coterie.status_line import steps

ORDER = {"isotropic": 0, "two": 1, "diagonal": 2, "full": 3}  # a structure holds those before it


@checked_call
def compare_fits(*fits: Any, bootstrap: int = 0, seed: int = 0) -> pd.DataFrame:
    """Likelihood-ratio tests of nested fits of the same rows, from the smallest to the largest.

    A variance cannot be below zero. Where the smaller fit lacks one variance, twice the difference of the
    log-likelihoods is a mixture of two chi-squared distributions in equal parts, with ``df`` and ``df - 1`` degrees of
    freedom. Where it lacks several, the same mixture bounds ``p`` from above (Perlman 1969), and ``test`` says so;
    ``bootstrap`` gives it exactly.

    Parameters
    ----------
    *fits : FitResult
        Two at least, of methods with a likelihood: "hierarchical", "single-cluster" and "pooled". Those with other
        fixed effects, and those beside "pooled", need ``reml=False``.
    bootstrap : int, default 0
        Outcomes that are drawn from each smaller fit, and fitted by both, for ``p`` without any approximation.
    seed : int, default 0
        Of these.

    Returns
    -------
    DataFrame, index "fit"
        A row for each fit, smallest first: method, formula, parameters, log_likelihood, aic, bic; then chisq, df, p and
        test, over the fit before it.

    Raises
    ------
    CoterieError
        For fits of other rows, outcomes or families, those that are not nested, and restricted likelihoods of other
        fixed effects.
    """
    if len(fits) < 2 or not all(isinstance(fit, Inference) for fit in fits):
        raise CoterieError("compare_fits takes two results of coterie.fit at least, each of a formula.")
    for fit in fits:
        if fit.parameters is None:
            raise CoterieError(
                f"The fit by '{fit.model.method}' has no likelihood that can be compared: fit it by 'hierarchical', "
                "'single-cluster' or 'pooled', with one residual variance."
            )
    order = sorted(range(len(fits)), key=lambda k: fits[k].parameters)
    rows: list[dict[str, Any]] = [
        {"fit": k + 1, "method": (f := fits[k]).model.method, "formula": f.formula} for k in order
    ]
    for row, k in zip(rows, order, strict=True):
        row |= {name: getattr(fits[k], name) for name in ("parameters", "log_likelihood", "aic", "bic")}
        row |= {"chisq": nan, "df": nan, "p": nan, "test": ""}
    for row, (small, large) in zip(rows[1:], pairwise(fits[k] for k in order), strict=True):
        row |= likelihood_ratio(small, large)
        if bootstrap:
            from coterie.results.simulate import bootstrapped_ratio

            row |= bootstrapped_ratio(small, large, row["chisq"], bootstrap, seed)
    return pd.DataFrame(rows).set_index("fit")


def likelihood_ratio(small: Any, large: Any) -> dict[str, Any]:
    """The test of a fit over one that is nested in it."""
    need_same_rows(small, large)
    a, b = small.model, large.model
    if small.reml != large.reml or (small.reml and set(a.terms) != set(b.terms)):
        raise CoterieError(
            "Restricted likelihoods (REML) of other fixed effects cannot be compared, nor one with a full likelihood: "
            "fit with reml=False (--ml)."
        )
    points = {m.info["quadrature"] for m in (a, b) if m.info.get("quadrature") and _straying(m)}
    if len(points) > 1:
        raise CoterieError(
            "The fits integrate over clients by other numbers of points, by which their likelihoods differ: give both "
            "quadrature=1 (--quadrature 1)."
        )
    levels, more = _straying(a), _straying(b)
    nested = set(a.terms) <= set(b.terms) and all(levels[k] <= more.get(k, frozenset()) for k in levels)
    nested &= _holds(a, b, levels, more) and not (a.info.get("own", False) and not b.info.get("own", False))
    df = large.parameters - small.parameters
    if not nested or df == 0:
        raise CoterieError(
            f"The {a.method} model of {a_formula(small)} is not nested in the {b.method} model of {a_formula(large)}"
            + f", as each has {plural(small.parameters, 'parameter')}" * (df == 0)
            + ": compare their aic or bic instead."
        )
    variances = sum(_groups(more[k] - levels.get(k, frozenset()), b.info.get("covariance", "full")) for k in more)
    chisq = max(2.0 * (large.log_likelihood - small.log_likelihood), 0.0)
    p, test = float(special.chdtrc(df, chisq)), f"chi-squared({df})"
    if variances:
        below = float(special.chdtrc(df - 1, chisq)) if df > 1 else float(chisq <= 0.0)
        p, test = 0.5 * (p + below), f"mixture of chi-squared({df - 1}) and ({df})"
        test = test if variances == 1 else f"at most, by a {test}"
    return {"chisq": chisq, "df": float(df), "p": p, "test": test}


def _groups(terms: frozenset[str], structure: str) -> int:
    """How many variances some terms have that are not related to each other."""
    if structure == "isotropic":
        return min(len(terms), 1)
    return len({term == INTERCEPT for term in terms}) if structure == "two" else len(terms)


def _holds(a: Model, b: Model, levels: dict[str, frozenset[str]], more: dict[str, frozenset[str]]) -> bool:
    """Whether the structure of b's covariances holds a's, of terms by level; a level that a lacks is zero in b."""
    structure = b.info.get("covariance", "full")
    if max(map(len, levels.values()), default=0) > 1:
        if structure != "full" and ("centred" in a.info) != ("centred" in b.info):
            return False  # of columns as they are, and of columns less their means
        if ORDER[a.info.get("covariance", "isotropic")] > ORDER[structure]:
            return False
    alone = [{INTERCEPT}] if structure == "two" else []
    whole = all(terms == more[k] or terms in alone for k, terms in levels.items())
    return whole or ORDER[structure] >= ORDER["diagonal"]


def a_formula(fit: Any) -> str:
    """How a fit is called in a sentence."""
    shared = fit.settings.get("shared") or []
    return f"{fit.formula}" + (f" (shared: {listed(shared)})" if shared and fit.model.has_variances else "")


def _straying(m: Model) -> dict[str, frozenset[str]]:
    """The terms that have a variance, by level."""
    if not m.has_variances:
        return {}
    out = {"client": frozenset(m.terms[int(j)] for j in m.info.get("straying", m.personal))}
    for level in Nodes(m).levels:
        if len(level.labels) > 1:
            out[level.name] = frozenset(m.terms[int(j)] for j in m.personal)
    return out


def need_same_rows(a: Any, b: Any) -> None:
    """A CoterieError where two fits are of other rows, outcomes, clients or families."""
    one, other = (fit.settings.get("family", fit.model.family) for fit in (a, b))  # degrees of freedom may be found
    if one != other:
        raise CoterieError(f"One fit is of family {one} and one of {other}: fit both by one family.")
    same = a.rows == b.rows and len(a.model.labels) == len(b.model.labels) and a.offset == b.offset
    same &= a.weights == b.weights and a.settings.get("outcome") == b.settings.get("outcome")
    same &= a.settings.get("sites") == b.settings.get("sites")
    if not same or a.formula.partition("~")[0].strip() != b.formula.partition("~")[0].strip():
        raise CoterieError(
            "The fits are of other rows, outcomes, offsets or weights: fit both to the same table, without the rows in "
            "which a column of either is missing."
        )


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
    clients = problem.in_basis(clients)
    with local_engine(objective(clients, family), None if flat else clients.clusters, clients.ids) as fed:
        like = opened(result, fed, problem, result.reml)
        full_one = opened(result, fed, problem, False) if result.reml else like
        all_of_them = chain(_of_coefficients(result, full_one, level), _of_variances(result, like, level))
        rows = list(steps(all_of_them, len(m.terms) + len(result.variance_components), "Profiles"))
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
