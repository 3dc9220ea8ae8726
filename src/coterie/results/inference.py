"""What a statistician reads in a fit: its summary, its variances, and likelihoods with numbers of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, log, nan
from numbers import Real
from typing import Any, Literal

import numpy as np
import pandas as pd

from coterie.data.design import Design
from coterie.data.table import Table
from coterie.errors import CoterieError, checked_calls, nearest, plural
from coterie.families import family_named
from coterie.lazy_modules import special
from coterie.methods.tree.variance_posterior import degrees_of_freedom, mean_over_scale
from coterie.numerics.arrays import Floats
from coterie.results.model import Model
from coterie.results.predict import read_rows
from coterie.results.variance_intervals import variances


@checked_calls
class Inference:
    """What a fit of a table says beside its coefficients, and what its variances are."""

    model: Model
    design: Design | None
    formula: str
    offset: str | None
    log_likelihood: float
    reml: bool
    notes: list[str]
    fitting: Any

    @cached_property
    def global_coefficients(self) -> pd.DataFrame:
        """Columns term, estimate, std_error, df: the root, and the columns that all clients share.

        An interval is ``estimate`` plus and minus ``std_error`` times a quantile of Student's t with ``df`` degrees of
        freedom. They are infinite where variances count as known: then the normal quantile is meant.
        """
        m = self.model
        sd, df = combined(m, np.eye(len(m.terms)))
        return pd.DataFrame({"term": list(m.terms), "estimate": m.root, "std_error": sd, "df": df})

    @cached_property
    def variance_components(self) -> pd.DataFrame:
        """Columns level, term, term2, sd, cov: how far members of a level stray from their parent.

        ``term2`` is empty for variances; for pairs (full covariance) ``sd`` is the correlation. Where each cluster has
        its own client variances there is a column "cluster" too. A Gaussian outcome's last row is the residual; a
        learned dispersion is the ``cov`` of its row, without ``sd``. Where the covariance was chosen ("auto") or is
        "full", it is of columns less their means: the intercept is the model at the means.
        """
        return variances(self.model)[["level", *self._own, "term", "term2", "sd", "cov"]]

    @property
    def _own(self) -> list[str]:
        return ["cluster"] if len(self.model.D_client) > 1 else []

    @property
    def rows(self) -> int | None:
        """Rows of weight above 0 that were fitted; None for methods without a likelihood."""
        return self.model.info.get("rows")

    @property
    def parameters(self) -> int | None:
        """How many parameters the likelihood has, as lme4 counts: coefficients, variances, correlations, the residual.

        None for methods without a likelihood, and where every client has a residual variance of its own.
        """
        countable = self.log_likelihood == self.log_likelihood and self.model.client_sigma2 is None
        return self.model.info.get("parameters") if countable else None

    @property
    def aic(self) -> float:
        """Akaike's criterion, of the restricted likelihood where ``reml``; NaN where parameters are not counted."""
        return nan if self.parameters is None else 2.0 * (self.parameters - self.log_likelihood)

    @property
    def bic(self) -> float:
        """The same of Schwarz, with the number of rows."""
        if self.parameters is None or self.rows is None:
            return nan
        return log(self.rows) * self.parameters - 2.0 * self.log_likelihood

    def summary(self, level: float = 0.95) -> Summary:
        """Coefficients with tests, variances with intervals, and the likelihood; ``print`` shows it.

        Intervals and tests of coefficients are Student's t with the ``df`` of :attr:`global_coefficients`. Intervals of
        variances are chi-squared with Satterthwaite's degrees of freedom, which the uncertainty of the variances gives,
        and those of correlations Fisher's z. All come from sums alone.

        Parameters
        ----------
        level : float, default 0.95
            Probability that the intervals hold.

        Raises
        ------
        CoterieError
            For a level that is no probability.
        """
        return summarise(self, need_level(level))

    def contrast(self, weights: Mapping[str, Mapping[str, float]], level: float = 0.95) -> pd.DataFrame:
        """Combinations of global coefficients, with tests.

        Parameters
        ----------
        weights : mapping from names to mappings from terms to numbers
            ``{"Catholic less public": {"sector[T.Catholic]": 1}, "at x = 2": {"(Intercept)": 1, "x": 2}}``.
        level : float, default 0.95
            Probability that the intervals hold.

        Returns
        -------
        DataFrame, indexed by name
            Columns estimate, std_error, df, t, p, lower, upper, as in :meth:`summary`.

        Raises
        ------
        CoterieError
            For terms that there are not, and for methods without a likelihood.
        """
        if not isinstance(weights, Mapping) or not all(isinstance(one, Mapping) for one in weights.values()):
            raise CoterieError("A contrast has a name and weights of terms: {'at x = 2': {'(Intercept)': 1, 'x': 2}}.")
        terms, names = self.model.terms, list(weights)
        C = np.zeros((len(names), len(terms)))
        for row, name in zip(C, names, strict=True):
            for term, weight in weights[name].items():
                if term not in terms:
                    raise CoterieError(f"There is no term '{term}' in the fit.{nearest(term, terms)}")
                if not isinstance(weight, Real) or not isfinite(weight):
                    raise CoterieError(f"The weight of '{term}' must be a finite number, not {weight!r}.")
                row[terms.index(term)] = weight
        return self._tested(C @ self.model.root, C, names, level)

    def marginal_mean(self, table: Any, minus: Any = None, level: float = 0.95) -> pd.DataFrame:
        """The mean of the outcome over rows, at the global coefficients; or by how much it exceeds that of other rows.

        The effect of a column is ``fit.marginal_mean(df.assign(x=1), df.assign(x=0))``. Standard errors are by the
        delta method. Where the link is no identity, the mean over clients differs from that at the global coefficients.

        Parameters
        ----------
        table, minus : DataFrame
            Rows with the columns of the formula.
        level : float, default 0.95
            Probability that the interval holds.

        Returns
        -------
        DataFrame of one row
            Columns estimate, std_error, df, t, p, lower, upper, as in :meth:`summary`.

        Raises
        ------
        CoterieError
            For rows that cannot be predicted, and for methods without a likelihood.
        """
        m, family = self.model, family_named(self.model.family)
        estimate, slope = 0.0, np.zeros((1, len(m.terms)))
        for sign, rows in ((1.0, table), (-1.0, minus)):
            if rows is not None:
                X, offset, _, _ = read_rows(Table.of(rows), self.design, m.terms, self.offset, "error")
                X = X if X.shape[1] == len(m.terms) else np.column_stack([np.ones(len(X)), X])
                if not len(X):
                    raise CoterieError("The table has no rows, so there is no mean over them.")
                eta = X @ m.root + (0.0 if offset is None else offset)
                step = 1e-5 * np.maximum(1.0, np.abs(eta))  # far beyond the rounding of eta, in whatever units it is
                estimate += sign * float(family.mean(eta).mean())
                slope += sign * ((family.mean(eta + step) - family.mean(eta - step)) / (2.0 * step)) @ X / len(X)
        return self._tested(np.array([estimate]), slope, ["mean" if minus is None else "difference"], level)

    def _tested(self, estimate: Floats, C: Floats, names: list[str], level: float) -> pd.DataFrame:
        """Estimates (k,) with the standard errors and tests of combinations C (k, p) of coefficients."""
        if self.log_likelihood != self.log_likelihood:
            raise CoterieError(f"The method '{self.model.method}' has no likelihood, so there are no tests.")
        sd, df = combined(self.model, C)
        frame = pd.DataFrame({"estimate": estimate, "std_error": sd, "df": df}, pd.Index(names))
        return with_tests(frame, need_level(level))

    def profile(self, level: float = 0.95) -> pd.DataFrame:
        """Intervals of the likelihood, which searches it twice for every parameter.

        They hold a parameter's values at which the best of all other parameters lowers the likelihood by no more than a
        chi-squared quantile. Variances of a restricted likelihood are profiled by it, coefficients always by the full
        one.

        Parameters
        ----------
        level : float, default 0.95
            Probability that the intervals hold.

        Returns
        -------
        DataFrame
            Columns level ("global" for coefficients), term, term2, estimate, lower, upper, of standard deviations and
            correlations as in :attr:`variance_components`; NaN where no end was found.

        Raises
        ------
        CoterieError
            For methods that learn no variances, results without rows, and a level that is no probability.
        """
        from coterie.results.likelihood_tests_and_profiles import profile

        return profile(self, level)

    def simulate(self, n: int = 1, seed: int = 0, *, redraw: bool | None = None, table: Any = None) -> pd.DataFrame:
        """Draw outcomes for the fitted rows from the fit.

        Parameters
        ----------
        n : int, default 1
            How many samples.
        seed : int, default 0
        redraw : bool, optional
            Whether clients and clusters get new coefficients, drawn around the global ones, or keep those of the fit;
            by default new ones where the method says how they differ.
        table : DataFrame, optional
            The table that was fitted, for a result that was loaded.

        Returns
        -------
        DataFrame
            A row for each fitted row, by its position in the table, and a column for each sample; weights of a
            Gaussian outcome are precisions, other weights change nothing.

        Raises
        ------
        CoterieError
            Where there are no rows, or a table of others, and for ``redraw`` of a method without variances.
        """
        from coterie.results.simulate import simulate

        return simulate(self, n, seed, redraw, table)

    def residuals(
        self, kind: Literal["quantile", "response"] = "quantile", seed: int = 0, *, table: Any = None
    ) -> pd.Series[float]:
        """How far outcomes lie from what their clients' coefficients say.

        Parameters
        ----------
        kind : {"quantile", "response"}, default "quantile"
            Randomised quantile residuals (Dunn and Smyth 1996), which are standard normal where the model fits, for
            every family; or outcomes less their means.
        seed : int, default 0
            Of what is drawn between the steps of counted outcomes.
        table : DataFrame, optional
            The table that was fitted, for a result that was loaded.

        Returns
        -------
        Series
            A value for each fitted row, by its position in the table; NaN for rows of weight 0.

        Raises
        ------
        CoterieError
            Where there are no rows, or a table of others, and for a kind that there is not.
        """
        from coterie.results.residuals import residuals

        return residuals(self, kind, seed, table)

    def influence(self, *, table: Any = None) -> pd.DataFrame:
        """What leaving out each client does to the global coefficients, variances kept, without fitting again.

        Exact for a Gaussian outcome; for other families it is one step from the curvature at the fit.

        Parameters
        ----------
        table : DataFrame, optional
            The table that was fitted, for a result that was loaded.

        Returns
        -------
        DataFrame, indexed by client
            ``rows``; ``distance``, which is Cook's; and by how many standard errors each coefficient moves.

        Raises
        ------
        CoterieError
            Where there are no rows, or a table of others, and for methods without a likelihood.
        """
        from coterie.results.residuals import influence

        return influence(self, table)


@dataclass(frozen=True, eq=False, repr=False)
class Summary:
    """A fit as a statistician reads it.

    Attributes
    ----------
    title : str
    facts : dict of str
        What was fitted, to how many rows and clients, and the likelihood with its criteria.
    coefficients : DataFrame, index "term"
        Columns estimate, std_error, df, t (z where ``df`` is infinite), p, lower, upper.
    variances : DataFrame
        Like ``variance_components``, with ``lower`` and ``upper`` of ``sd`` (of the correlation for pairs).
    level : float
        Probability that the intervals hold.
    notes : list of str
    """

    title: str
    facts: dict[str, str]
    coefficients: pd.DataFrame
    variances: pd.DataFrame
    level: float
    notes: list[str]

    def __str__(self) -> str:
        from coterie.report.tables import summary_text

        return summary_text(self)

    __repr__ = __str__


def need_level(level: float) -> float:
    """A probability; a CoterieError for what is none."""
    if isinstance(level, bool) or not isinstance(level, (int, float)) or not 0.0 < level < 1.0:
        raise CoterieError(f"level must be a probability between 0 and 1, such as 0.95, not {level!r}.")
    return float(level)


def summarise(result: Any, level: float) -> Summary:
    """The summary of a FitResult."""
    m, frame = result.model, result.global_coefficients.set_index("term")
    notes = list(result.notes)
    if result.log_likelihood != result.log_likelihood:
        frame = frame.assign(std_error=nan, df=nan)
        notes.append(f"The method '{m.method}' has no likelihood, so there are no standard errors and no tests.")
    if "centred" in m.info:
        notes.append("Variances are of columns less their means: that of the intercept is of the model at the means.")
    frame = with_tests(frame, level)
    facts = {"formula": result.formula, "family": f"{m.family} ({family_named(m.family).link})"}
    sizes = [plural(result.rows, "row")] if result.rows is not None else []
    sizes += [f"{plural(len(m.labels), 'client')} ({m.client_name})"]
    facts["fitted to"] = ", ".join(sizes + [f"{plural(len(v.labels), 'cluster')} ({v.name})" for v in m.levels])
    if result.log_likelihood == result.log_likelihood:
        points = m.info.get("quadrature", 0) if m.has_variances else 0
        way = f"quadrature of {points} points" if points > 1 else "Laplace" if points else "ML"
        kind = "restricted log-likelihood (REML)" if result.reml else f"log-likelihood ({way})"
        counted = f", {plural(result.parameters, 'parameter')}" if result.parameters is not None else ""
        facts[kind] = f"{result.log_likelihood:,.3f}{counted}"
    if result.parameters is not None:
        facts["AIC, BIC"] = f"{result.aic:,.2f}, {result.bic:,.2f}"
    kept = ["level", *result._own, "term", "term2", "sd", "lower", "upper", "cov"]
    return Summary(f"{m.method} model of {result.formula}", facts, frame, variances(m, level)[kept], level, notes)


def combined(m: Model, C: Floats) -> tuple[Floats, Floats]:
    """Standard errors (k,) and degrees of freedom of combinations C (k, p) of global coefficients."""
    variance = np.maximum(np.einsum("kp,pq,kq->k", C, m.root_cov, C), 0.0)
    relative = np.zeros(len(variance))
    if m.uncertainty is not None:
        spread = np.einsum("kp,npq,kq->nk", C, m.uncertainty.root, C) / np.where(variance > 0.0, variance, 1.0)
        relative = np.square(spread).sum(axis=0)
    df = degrees_of_freedom(relative)
    if m.method == "pooled" and family_named(m.family).has_dispersion and "rows" in m.info:
        df = np.full(len(C), max(float(m.info["rows"] - len(m.terms)), 1.0))
    return np.sqrt(variance / mean_over_scale(relative)), df


def with_tests(frame: pd.DataFrame, level: float) -> pd.DataFrame:
    """Columns t, p, lower and upper beside estimate, std_error and df; where that is infinite, of a normal one."""
    est, se, df = (frame[name].to_numpy(dtype=np.float64) for name in ("estimate", "std_error", "df"))
    with np.errstate(divide="ignore", invalid="ignore"):
        t = est / se
    half = special.stdtrit(df, 0.5 + level / 2.0) * se
    return frame.assign(t=t, p=2.0 * special.stdtr(df, -np.abs(t)), lower=est - half, upper=est + half)
