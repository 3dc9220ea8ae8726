"""Tests of fits that are nested in each other, by their likelihoods; a variance at its bound is a mixture."""

from __future__ import annotations

from itertools import pairwise
from math import nan
from typing import Any

import pandas as pd

from coterie.data.design import INTERCEPT
from coterie.errors import CoterieError, listed, plural
from coterie.results.inference import Inference
from coterie.results.model import Model, Nodes

ORDER = {"isotropic": 0, "two": 1, "diagonal": 2, "full": 3}  # a structure holds those before it


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
    from scipy.special import chdtrc

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
    p, test = float(chdtrc(df, chisq)), f"chi-squared({df})"
    if variances:
        below = float(chdtrc(df - 1, chisq)) if df > 1 else float(chisq <= 0.0)
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
