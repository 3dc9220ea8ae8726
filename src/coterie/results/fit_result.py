"""The result of a fit: what a user reads, predicts with, saves and loads."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from coterie import files
from coterie.data.columns import at_rows, rows_text
from coterie.data.design import Design
from coterie.data.labels import label_text
from coterie.data.table import Table, meant
from coterie.errors import CoterieError, checked_calls, nearest, plural
from coterie.families import family_named
from coterie.numerics.arrays import Floats
from coterie.results.fit_options import Prediction
from coterie.results.inference import Inference
from coterie.results.model import Model, Nodes
from coterie.results.predict import IntervalOf, Missing, Scale, notes_of, predict_rows, read_rows, too_large

if TYPE_CHECKING:
    from coterie.report.matplotlib_plots import FitPlots

GROUPED = ("network", "training")
"""Records of a model that may tell groups of clients."""


@checked_calls
@dataclass(frozen=True, eq=False, repr=False)
class FitResult(Inference):
    """A fitted model, the evidence for it, and what it cost.

    Attributes
    ----------
    model : Model
        The fitted model: of the recommended method, or of the one that was asked for.
    design : Design or None
        Turns tables into the model's columns; None for models of arrays, which read columns named like their terms.
    formula : str
    log_likelihood : float
        NaN for methods without one.
    reml : bool
        Whether it is the restricted likelihood.
    comparison : DataFrame, index "method"
        Held-out loss of every method, its paired gains over local and pooled models, and how far it is behind the
        best, each with a 95% interval over clusters, or clients; and the loss of choosing it. Empty where nothing was
        compared.
    client_gains : DataFrame, index = client label
        Held-out loss of each client, its gains over the local and the pooled model (positive: better off), and whether
        it is worse off beyond the noise of splits.
    recommended, reason : str
        The best method, and one sentence why.
    loss : str
        Name of the loss: "squared error", "log loss" or "Poisson deviance".
    notes : list of str
        Findings in plain words.
    ledger : dict
        exchanges, bytes_down, bytes_up, gradient_calls, seconds.
    settings : dict
        Everything that was chosen, and why.
    data_fingerprint : str
        Hash of the columns that were used.
    versions : dict of str
    offset, weights : str or None
        Columns that are added to the linear predictor, and of row weights.
    mean_weight : float
        The mean of the weights of the fitted rows.
    local_coefficients : DataFrame or None
        Each client's coefficients from its own rows alone, like `client_coefficients`.
    call : dict
        The sections that :meth:`config` gives.
    checked : dict or None
        :attr:`fit_check` of a result that was loaded.
    fitting : object or None
        The rows that were fitted, where they are here; a result that was loaded has none.
    """

    model: Model
    design: Design | None
    formula: str
    log_likelihood: float
    reml: bool
    comparison: pd.DataFrame
    client_gains: pd.DataFrame
    recommended: str
    reason: str
    loss: str
    notes: list[str] = field(default_factory=list)
    ledger: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    data_fingerprint: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    offset: str | None = None
    weights: str | None = None
    mean_weight: float = 1.0
    local_coefficients: pd.DataFrame | None = None
    call: dict[str, dict[str, Any]] = field(default_factory=dict)
    checked: dict[str, Any] | None = None
    fitting: Any = field(default=None, metadata={"saved": False})

    @cached_property
    def fit_check(self) -> dict[str, Any]:
        """Whether the model fits: points of a QQ plot of quantile residuals, and findings; empty where no rows are."""
        from coterie.results.residuals import fit_check

        if self.checked is not None or self.fitting is None:
            return self.checked or {}
        return fit_check(self, self.fitting.clients)

    @property
    def family(self) -> str:
        """Of the model: a name of ``families.FAMILIES``."""
        return self.model.family

    @property
    def method(self) -> str:
        """The method of the fitted model."""
        return self.model.method

    @property
    def theory(self) -> dict[str, Any]:
        """What was promised of a run over rounds, beside what was measured; empty for exact methods."""
        return {name: self.model.info[name] for name in ("rounds", "training", "network") if name in self.model.info}

    @property
    def theta(self) -> Floats:
        """(m, d): the coefficients of every client, as :attr:`client_coefficients` has them with names."""
        return self.model.client

    def client(self, label: Any) -> pd.Series[float]:
        """The coefficients of a client, by its label."""
        at = {label_text(one): k for k, one in enumerate(self.model.labels)}
        if (k := at.get(label_text(label))) is None:
            raise CoterieError(f"There is no client '{label}' in the fit.{nearest(label, at)}")
        found: pd.Series[float] = self.client_coefficients.iloc[k]
        return found

    @cached_property
    def cluster_coefficients(self) -> pd.DataFrame:
        """Coefficients of every cluster; indexed by (level, cluster) where there are several levels."""
        levels = Nodes(self.model).levels
        frames = [
            pd.DataFrame(nodes, index=pd.Index(level.labels, name=level.name), columns=list(self.model.terms))
            for level, nodes in zip(levels, self.model.nodes, strict=True)
        ]
        if not frames:
            return pd.DataFrame(columns=list(self.model.terms), index=pd.Index([], name="cluster"), dtype=np.float64)
        if len(frames) == 1:
            return frames[0]
        return pd.concat(frames, keys=[level.name for level in levels], names=["level", "cluster"])

    @cached_property
    def client_coefficients(self) -> pd.DataFrame:
        """Coefficients of every client, indexed by its label."""
        return pd.DataFrame(self.model.client, self._clients, list(self.model.terms))

    @cached_property
    def client_std_errors(self) -> pd.DataFrame:
        """Posterior standard deviations like `client_coefficients`; NaN for methods without."""
        diagonal = np.cumsum(np.arange(1, len(self.model.terms) + 1)) - 1
        errors = np.sqrt(np.maximum(self.model.client_cov[:, diagonal], 0.0))
        return pd.DataFrame(errors, self._clients, list(self.model.terms))

    @cached_property
    def merged(self) -> pd.Series[int] | None:
        """The group (1, 2, ...) of clients that merged along a network, or were found to be one, by client label.

        None for other methods.

        As a column of the table it is a cluster for other methods: ``df["group"] = df["school"].map(result.merged)``.
        """
        groups = next((self.model.info[k]["groups"] for k in GROUPED if "groups" in self.model.info.get(k, ())), None)
        return None if groups is None else pd.Series(np.asarray(groups) + 1, self._clients, name="group")

    @cached_property
    def client_residual_sd(self) -> pd.Series[float] | None:
        """Each client's residual standard deviation, where each has its own; else None."""
        variance = self.model.client_sigma2
        return None if variance is None else pd.Series(np.sqrt(variance), self._clients, name="residual_sd")

    @property
    def _clients(self) -> Any:
        return pd.Index(self.model.labels, name=self.model.client_name)

    def predict(
        self,
        df: Any,
        interval: float | None = None,
        type: Scale = "response",
        missing: Missing = "error",
        interval_of: IntervalOf = "auto",
    ) -> pd.DataFrame:
        """Predict the rows of a table.

        A client that the fit has seen is answered by its own coefficients, even if the table puts it into another
        cluster; a client never seen, or without a label, by its cluster's, then by the coarser clusters', at last by
        the global ones. Cluster columns may be missing, and so may the outcome.

        Parameters
        ----------
        df : DataFrame
            pandas or polars.
        interval : float, optional
            Probability that the interval holds, such as 0.9. It has the uncertainty of the coefficients and, where they
            are learned, of the variances; for clients never seen, also how far clients and clusters differ.
        type : {"response", "link"}, default "response"
            Means, or linear predictors.
        missing : {"error", "empty"}, default "error"
            What to do with rows that have missing, infinite or non-numeric values in a column that is used, or a
            level that the fit has not seen: raise, or leave their predictions empty (NaN) and say why in ``source``.

        interval_of : {"auto", "mean", "outcome"}, default "auto"
            Whether the interval is of the row's mean or of a new outcome, which has its own noise besides; "auto" is
            "outcome" for family "gaussian", else "mean". Where the fit had weights, a Gaussian outcome's variance is
            that of the row's own, if the table has their column, else that of a row of mean weight. Of binomial and
            Poisson outcomes it is the shortest interval that holds with at least the probability; its ends belong to
            it.

        Returns
        -------
        DataFrame
            Indexed like `df`: ``prediction``; ``source``, a category that says what answered: "client", "cluster" (the
            column's name if there are several levels) or "global", or "none: " and the reason where nothing could;
            with `interval` also ``lower`` and ``upper``.
            They are NaN for clients never seen where the method does not say how clients differ, and where an end
            is too large a number.
            ``.attrs["notes"]`` says in words what a reader should know.

        Raises
        ------
        CoterieError
            For columns that are not there, for rows that cannot be predicted unless `missing` is "empty", for an
            interval that is no probability, and for one of binomial or Poisson outcomes on the scale of the link.
        """
        asked = Prediction(interval, interval_of, type, missing)
        family = family_named(self.model.family)
        if interval is None and interval_of != "auto":
            raise CoterieError("interval_of says what an interval is of: give interval too, such as 0.9 (--interval).")
        outcome = family.has_dispersion if interval_of == "auto" else interval_of == "outcome"
        if interval is not None and outcome and type == "link" and not family.has_dispersion:
            raise CoterieError(
                f"Outcomes of family {family} have no interval on the scale of the link: take type='response' or "
                "interval_of='mean'."
            )
        table = Table.of(df)
        df = table.frame
        m = self.model
        if m.client_name not in df.columns:
            raise CoterieError(
                f"The client column '{m.client_name}' is not in the table.{meant(m.client_name, list(df.columns))} "
                "Leave its cells empty to predict for clients never seen."
            )
        X, offset, why, reasons = read_rows(table, self.design, m.terms, self.offset, missing)
        clusters = {v.name: df[v.name] for v in m.levels if v.name in df.columns}
        weights, weighing = self._weights(table) if interval is not None and outcome else (1.0, [])
        a = predict_rows(m, X, df[m.client_name], clusters, offset, asked.interval, type, weights, outcome)
        why, reasons, endless = too_large(a, why, reasons, missing)
        source = pd.Categorical.from_codes(
            np.where(why < 0, a.level, len(a.names) + why), categories=pd.Index([*a.names, *reasons])
        )
        out = pd.DataFrame({"prediction": a.prediction, "source": source}, index=df.index)
        if a.lower is not None:
            out["lower"], out["upper"] = a.lower, a.upper
        silent = bool(a.lower is not None and np.isnan(a.lower[(why < 0) & ~endless & ~np.isnan(weights)]).any())
        notes = notes_of(m, df[m.client_name], clusters, a, silent) + weighing
        if endless.any():
            notes.append(f"An end of the interval is too large a number in {rows_text(np.flatnonzero(endless))}.")
        if self.design is not None and (why >= 0).any():
            found = {c: table[c].read_as_missing for c in self.design.columns}
            notes += [f"In '{c}' {texts}, which was read as missing." for c, texts in found.items() if texts]
        if interval is not None and not outcome:
            notes.append("The intervals are for the mean, not for a new outcome.")
        out.attrs["notes"] = notes
        return out

    def _weights(self, table: Table) -> tuple[Floats | float, list[str]]:
        """Weights of rows (n,) by the mean of the fitted ones, for intervals of outcomes; and what to say of them."""
        if self.design is not None and (trials := self.design.read_trials(table)) is not None:
            bad = ~((trials >= 1.0) & (trials < np.inf))
            notes = ["Bounds are shares of the trials of each row."]
            if bad.any():
                notes.append(f"There is no interval without trials in '{self.design.outcome}': {at_rows(bad)}.")
            return np.where(bad, np.nan, np.rint(trials)), notes
        if self.weights is None or not family_named(self.model.family).has_dispersion:
            return 1.0, []
        if self.weights not in table.names:
            return 1.0, [
                f"The table has no column '{self.weights}', so the intervals are for outcomes of the fitted rows' mean "
                f"weight, {self.mean_weight:.4g}."
            ]
        weights = table[self.weights].floats / self.mean_weight
        bad = ~((weights > 0.0) & (weights < np.inf))
        notes = [f"There is no interval without a weight above 0 in '{self.weights}': {at_rows(bad)}."]
        return np.where(bad, np.nan, weights), notes * bool(bad.any())

    def save(self, path: str | os.PathLike[str], force: bool = False) -> None:
        """Write the result into a directory, as ``model.json`` and a safetensors file.

        A crash at any moment leaves the model that was there before, or the new one.

        Parameters
        ----------
        path : path
            A new directory, or one that may hold other files; a coterie model in it is replaced, and a ``report.html``
            that coterie wrote of that one is removed (``coterie report`` writes the new one's).
        force : bool, default False
            Whether a ``model.json`` of something else is replaced too.

        Raises
        ------
        CoterieError
            If the path is a file, holds a ``model.json`` of something else that is not to be replaced, or cannot be
            written.
        """
        from coterie.results.saved_results import save_fit

        save_fit(self, files.place(path), force)

    def config(self) -> dict[str, Any]:
        """The call written down: sections of a configuration, which :func:`coterie.fit` takes again.

        A table in memory is a placeholder there, whose remedy is said when the configuration is read.
        """
        if not self.call:
            raise CoterieError("This model was not made by coterie.fit, so that there is no call to write down.")
        return {name: dict(table) for name, table in self.call.items()}

    @property
    def plot(self) -> FitPlots:
        """Pictures for notebooks, such as ``plot.gains()``: see :class:`coterie.report.matplotlib_plots.FitPlots`."""
        from coterie.report.matplotlib_plots import FitPlots

        return FitPlots(self)

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write the report as one HTML page, which needs no network and no other file."""
        from coterie.report.fit_page import write_report

        write_report(self, path)

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {text}" if name else text for name, text in self._summary())

    def _repr_html_(self) -> str:
        (_, title), *rest = self._summary()
        rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in rest)
        return f"<p><strong>{escape(title)}</strong></p><table>{rows}</table>"

    def _summary(self) -> list[tuple[str, str]]:
        m = self.model
        sizes = [f"{plural(len(m.labels), 'client')} ({m.client_name})"]
        sizes += [f"{plural(len(v.labels), 'cluster')} ({v.name})" for v in m.levels]
        lines = [("", f"{m.method} model of {self.formula}, {m.family}"), ("fitted for", ", ".join(sizes))]
        if self.reason:
            lines.append(("recommended", f"{self.recommended}. {self.reason}"))
        shown = [f"{t} {v:.4g}" for t, v in zip(m.terms[:8], m.root[:8], strict=True)]
        more = f", and {len(m.terms) - 8:,} more" if len(m.terms) > 8 else ""
        lines.append(("global coefficients", ", ".join(shown) + more))
        if np.isfinite(self.log_likelihood):
            lines.append(("log-likelihood", f"{self.log_likelihood:,.6g}{' (REML)' if self.reml else ''}"))
        return lines
