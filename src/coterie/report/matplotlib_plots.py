"""Pictures of a result for notebooks: by matplotlib, in the colours of the report, and of the same numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError, checked_calls, listed, nearest
from coterie.report import fit_figures, training_figures, words
from coterie.report.method_section import network_of
from coterie.report.network_figures import spring_layout
from coterie.report.svg import COLOURS, decades
from coterie.report.training_answer_and_notes import claim

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.linewidth": 0.6,
    "grid.alpha": 0.5,
}
NAMED = 30  # clients whose names stand below an axis, at most
BINS = 10


@cache
def colours() -> dict[str, str]:
    """The report's colours of a light page, by name."""
    css = resources.files("coterie.report").joinpath("templates/style.css").read_text(encoding="utf-8")
    return dict(reversed(re.findall(r"--(\w+): (#[0-9a-f]{6})\b", css.partition("@media")[0])))


def _group(code: int) -> str:
    return colours()[f"g{code}" if 0 <= code < COLOURS else "line"]


def _axes(ax: Axes | None, title: str, x: str, y: str, height: float = 3.8) -> Axes:
    """New axes where none are given, with a title and what stands beside them."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise CoterieError("Pictures are drawn by matplotlib, which is not installed: pip install '.[plot]'.") from None
    if ax is None:
        with plt.rc_context(STYLE):
            _, ax = plt.subplots(figsize=(5.8, height), layout="constrained")
    ax.set_title(title, loc="left", fontsize="medium")
    ax.set(xlabel=x, ylabel=y)
    return ax


def _lying(ax: Axes | None, title: str, x: str, names: Sequence[str], value: Any, ends: Any) -> Axes:
    """Values (k,) as points, the first on top, with intervals ``ends`` (k, 2) where they are finite."""
    ax = _axes(ax, title, x, "", 1.2 + 0.28 * len(names))
    value, at = np.asarray(value, dtype=np.float64), np.arange(len(names))
    half = np.abs(np.asarray(ends, dtype=np.float64).reshape(-1, 2) - value[:, None])
    ax.errorbar(value, at, xerr=np.nan_to_num(half).T, fmt="o", color=colours()["gain"], markersize=4, linewidth=1.2)
    ax.set_yticks(at, names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.grid(True, axis="x")
    ax.grid(False, axis="y")
    return ax


def _logarithmic(ax: Axes, low: float, high: float) -> None:
    """Ticks of the report on a logarithmic horizontal axis that holds two ends."""
    ax.set_xscale("log")
    ax.minorticks_off()
    ticks = decades(low / 1.1, high * 1.1)
    ax.set_xticks(ticks, [f"{v:,.6g}" for v in ticks])
    ax.set_xlabel(f"{ax.get_xlabel()} (logarithmic)")


@dataclass(frozen=True)
class Plots:
    """Pictures of a result: ``result.plot.gains()``; each gives matplotlib's Axes, new ones or ``ax``."""

    result: Any

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        known = [one for one in dir(type(self)) if not one.startswith("_") and callable(getattr(type(self), one))]
        raise AttributeError(f"There is no picture '{name}' of this result: there are {listed(known, 12)}.")


@checked_calls
class FitPlots(Plots):
    """Pictures of a fit of a table.

    Coefficients are in the units of the outcome, or of what the model predicts of it (such as log odds); a bar around a
    point is a 95% interval.
    """

    def methods(self, ax: Axes | None = None) -> Axes:
        """Mean gain of every method over local models (over the pooled one where local is best), with intervals."""
        result, other = self.result, words.baseline(self.result)
        frame = result.comparison
        if frame.empty:
            raise CoterieError("No methods were compared: fit with splits=1 or more.")
        frame = frame[frame.index != other].sort_values("loss_rows", kind="stable")
        gain = f"gain_over_{other}"
        title = f"Gain of each method over {fit_figures.OTHERS[other]}"
        ends = frame[[f"{gain}_low", f"{gain}_high"]]
        ax = _lying(ax, title, f"gain ({result.loss})", [str(name) for name in frame.index], frame[gain], ends)
        ax.axvline(0.0, color=colours()["ink"], linewidth=0.8)
        return ax

    def gains(self, over: str | None = None, ax: Axes | None = None) -> Axes:
        """A point for each client: what it gains over ``over`` ("local", "pooled") on held-out rows, by its rows."""
        over = words.baseline(self.result) if over is None else over
        if over not in fit_figures.OTHERS:
            raise CoterieError(f"Gains are over 'local' or 'pooled', not over '{over}'.")
        gain, rows, _ = fit_figures.gains_of(self.result, over)
        if not len(gain):
            raise CoterieError("No clients were tested: fit with splits=1 or more.")
        one, many = words.one(self.result.model.client_name), words.several(self.result.model.client_name)
        title = f"{(gain > 0).sum():,} of {len(gain):,} {many} gain over {fit_figures.OTHERS[over]}"
        ax = _axes(ax, title, f"rows of the {one}", f"gain ({self.result.loss})")
        ax.scatter(rows, gain, s=16, alpha=0.7, color=np.where(gain < 0.0, colours()["loss"], colours()["gain"]))
        ax.axhline(0.0, color=colours()["ink"], linewidth=0.8)
        if rows.max() > 8 * max(rows.min(), 1.0):
            _logarithmic(ax, rows.min(), rows.max())
        else:
            from matplotlib.ticker import MaxNLocator

            ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        return ax

    def clients(self, term: str | None = None, ax: Axes | None = None) -> Axes:
        """A coefficient of every client in order, with intervals where there are standard errors, and its cluster's.

        ``term`` is by default the first in which clients differ; of more than 200 clients, 200 are drawn.
        """
        m = self.result.model
        if term is None:
            term = m.terms[int(m.personal[0])] if len(m.personal) else m.terms[0]
        if term not in m.terms:
            raise CoterieError(f"There is no term '{term}' in the fit.{nearest(term, m.terms)}")
        j = m.terms.index(term)
        picked, value, half, around = fit_figures.estimates(self.result, j)
        at, many = np.arange(len(picked)), words.several(m.client_name)
        ax = _axes(ax, f"{term} of {words.counted(len(m.labels), m.client_name)}", "", fit_figures.unit(self.result, j))
        ax.errorbar(at, value, np.nan_to_num(half), fmt="o", color=colours()["gain"], markersize=3, linewidth=0.9)
        cluster = words.centre(m)
        ax.plot(at, around, "_", color=colours()["loss"], label=words.one(cluster) if cluster else f"all {many}")
        ax.legend(frameon=False, loc="upper left")  # the coefficients rise
        if len(picked) <= NAMED:
            ax.set_xticks(at, [words.short(m.labels[k], 14) for k in picked], rotation=90)
        else:
            some = f"{len(picked)} of {len(m.labels):,} " * (len(picked) < len(m.labels))
            ax.set_xlabel(f"{some}{many}, in order")
        return ax

    def coefficients(self, ax: Axes | None = None) -> Axes:
        """The global coefficients but for the intercept, with intervals where there are standard errors."""
        frame = self.result.summary().coefficients
        frame = frame[frame.index != "(Intercept)"] if len(frame) > 1 else frame
        names, ends = [words.short(name) for name in frame.index], frame[["lower", "upper"]]
        scale = fit_figures.unit(self.result, 0).partition(" for ")[0]
        title = "Coefficients of the model of all clients"
        ax = _lying(ax, title, f"{scale}, for one more of the column", names, frame["estimate"], ends)
        ax.axvline(0.0, color=colours()["ink"], linewidth=0.8)
        return ax

    def residuals(self, ax: Axes | None = None) -> Axes:
        """Quantiles of the residuals against those of a normal distribution: on the line where the model fits."""
        if not self.result.fit_check:
            raise CoterieError(
                "Nothing is known of the residuals: there were too few rows, or they stay at their sites."
            )
        theory, seen = self.result.fit_check["qq"]
        doubts = [name.lower() for name, _, bad in self.result.fit_check["findings"] if bad]
        title = f"Residuals: doubts about {listed(doubts)}" if doubts else "Residuals: nothing speaks against the model"
        ax = _axes(ax, title, "quantiles of a normal distribution", "quantiles of the residuals")
        ax.axline((0.0, 0.0), slope=1.0, color=colours()["line"], linewidth=1.0)
        ax.plot(theory, seen, ".", color=colours()["ink"])
        return ax

    def calibration(self, table: Any = None, ax: Axes | None = None) -> Axes:
        """Of a fit of two classes: how often class 1 came, against how likely the model said it is, in tenths of rows.

        The rows are those that were fitted, or those of ``table`` with the same clients. Only rows that were not fitted
        judge a model: models that are pulled together are less sure of their own rows than these deserve, so that the
        points lie steeper than the line.
        """
        from coterie.results.residuals import clients_of, linear_predictor

        result = self.result
        if not result.model.scattering.two_classes:
            raise CoterieError(f"Calibration is of probabilities, and family '{result.family}' has none.")
        rows = clients_of(result, table)
        said = result.model.scattering.mean(linear_predictor(result, rows, result.model.client))
        order = np.argsort(said, kind="stable")
        weight = np.where(rows.weights > 0.0, rows.weights, 0.0)[order]
        parts = [part for part in np.array_split(np.arange(len(order)), BINS) if weight[part].sum() > 0.0]
        mean = [[np.average(v[order][p], weights=weight[p]) for p in parts] for v in (said, rows.y)]
        title = f"How often, against how likely ({'fitted' if table is None else 'given'} rows)"
        ax = _axes(ax, title, "probability that the model says", "share that came")
        ax.axline((0.0, 0.0), slope=1.0, color=colours()["line"], linewidth=1.0)
        ax.plot(*mean, "o", color=colours()["gain"])
        return ax

    def network(self, ax: Axes | None = None) -> Axes:
        """Who is tied to whom, in the colours of the groups that became equal."""
        network = network_of(self.result)
        if network is None:
            raise CoterieError("No network was kept of this fit: use method='similarity-network'.")
        groups = np.asarray(self.result.merged)
        labels, code, count = np.unique(groups, return_inverse=True, return_counts=True)
        rank = np.argsort(np.argsort(-count, kind="stable"))
        code = np.where(count[code] > 1, rank[code], COLOURS)
        place = spring_layout(network)
        many = words.counted(network.n, self.result.model.client_name)
        ax = _axes(ax, f"{many} in {words.number(len(labels))} groups of equal models", "", "")
        for a, b in network.edges:
            ax.plot(*place[[a, b]].T, color=colours()["line"], linewidth=0.8, alpha=0.6, zorder=1)
        ax.scatter(place[:, 0], place[:, 1], s=30, color=[_group(k) for k in code], zorder=2)
        if network.n <= NAMED:
            for label, (x, y) in zip(self.result.model.labels, place, strict=True):
                ax.annotate(
                    words.short(label, 14), (x, y), xytext=(4, 4), textcoords="offset points", fontsize="x-small"
                )
        ax.set_aspect("equal")
        ax.axis("off")
        return ax


@checked_calls
class TrainingPlots(Plots):
    """Pictures of nets that were trained, of all methods and seeds; scores are on held-out rows."""

    def methods(self, ax: Axes | None = None) -> Axes:
        """The score of every method over rows with its interval, best first."""
        evidence, frame = self._scored(), self.result.comparison
        ends = frame[[f"{evidence.score}_low", f"{evidence.score}_high"]]
        title = words.sentence(claim(evidence)) if len(frame) == 1 else f"{evidence.best} is ahead"
        x = f"held-out {training_figures.unit(evidence.score)}"
        return _lying(ax, title, x, [str(name) for name in frame.index], frame[evidence.score], ends)

    def curves(self, against: str = "rounds", ax: Axes | None = None) -> Axes:
        """The score of every method over rounds, the mean over seeds; or against what was sent ("bytes")."""
        if against not in ("rounds", "bytes"):
            raise CoterieError(f"Curves are against 'rounds' or 'bytes', not against '{against}'.")
        evidence = self._scored()
        lines = {str(name): training_figures.curve(evidence, str(name)) for name in self.result.comparison.index}
        column, x = (0, "round") if against == "rounds" else (2, "megabytes sent, up and down")
        lines = {name: p[p[:, column] > 0.0] if column else p for name, p in lines.items()}
        if not any(map(len, lines.values())):
            raise CoterieError("No score was measured on the way: train with evaluate_every, or send something.")
        ax = _axes(ax, f"Held-out {evidence.score} over {against}", x, training_figures.unit(evidence.score))
        for k, (name, p) in enumerate(lines.items()):
            style = "-" if k < COLOURS else "--"
            if len(p):
                ax.plot(p[:, column], p[:, 1], style, marker="o"[: len(p) == 1], color=_group(k % COLOURS), label=name)
        if column:
            sent = np.concatenate([p[:, column] for p in lines.values()])
            _logarithmic(ax, sent.min(), sent.max())
        ax.legend(frameon=False)
        return ax

    def clients(self, ax: Axes | None = None) -> Axes:
        """A point for each client (in every seed) under each method, and the mean over clients."""
        evidence = self._scored()
        ax = _axes(ax, f"{evidence.score} of each client", "", training_figures.unit(evidence.score))
        names = [str(name) for name in self.result.comparison.index]
        for k, name in enumerate(names):
            value = evidence.clients(name).ravel()
            value = np.sort(value[np.isfinite(value)])
            if not len(value):
                continue
            aside = 0.7 * ((np.arange(len(value)) * 0.618034) % 1.0 - 0.5)  # golden-ratio steps spread equal ones
            ax.scatter(k + aside, value, s=8, alpha=0.6, color=_group(k % COLOURS))
            ax.hlines(value.mean(), k - 0.4, k + 0.4, color=colours()["ink"], linewidth=1.6)
        ax.set_xticks(range(len(names)), names, rotation=30, ha="right")
        return ax

    def gains(self, over: str = "local", ax: Axes | None = None) -> Axes:
        """What each client gains by the result's method over another one, from the least, the mean over seeds."""
        evidence = self._scored()
        if over not in evidence.runs or over == self.result.method:
            others = [name for name in evidence.runs if name != self.result.method]
            raise CoterieError(f"No gains over '{over}' are known: the other methods are {listed(others)}.")
        gain = np.sort(evidence.gains(self.result.method, over))
        gain = gain[np.isfinite(gain)]
        title = f"{(gain > 0).sum():,} of {len(gain):,} clients gain over {over}"
        ax = _axes(ax, title, "clients, in order", f"gain ({training_figures.unit(evidence.score)})")
        ax.bar(range(len(gain)), gain, width=1.0, color=np.where(gain < 0.0, colours()["loss"], colours()["gain"]))
        ax.axhline(0.0, color=colours()["ink"], linewidth=0.8)
        return ax

    def groups(self, ax: Axes | None = None) -> Axes:
        """Who is with whom: clients in the order of the groups that are known, or were found."""
        found = self.result.group
        if found is None:
            raise CoterieError(f"'{self.result.method}' puts clients into no groups, and none are known.")
        known: npt.NDArray[Any] | None = self.result.evidence.groups[0]
        order = np.lexsort((found, known)) if known is not None else np.argsort(found, kind="stable")
        ax = _axes(ax, f"{len(found):,} clients in {len(np.unique(found)):,} groups", "client", "client", 4.6)
        from matplotlib.colors import ListedColormap

        same = found[order][:, None] == found[order]
        palette = ListedColormap([_group(k) for k in range(COLOURS)])
        ax.imshow(np.where(same, found[order][:, None], np.nan) % COLOURS, cmap=palette, vmin=0, vmax=COLOURS - 1)
        ax.grid(False)
        if len(found) <= NAMED:
            names = [words.short(self.result.labels[i], 14) for i in order]
            ax.set_xticks(range(len(names)), names, rotation=90)
            ax.set_yticks(range(len(names)), names)
        return ax

    def _scored(self) -> Any:
        """The comparison, which has scores."""
        if not self.result.evidence.known:
            raise CoterieError("No rows were held out, so there are no scores to draw: train with test=0.2.")
        return self.result.evidence
