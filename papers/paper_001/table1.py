"""Table 1: distance between estimates and true parameters at 10 and 100 rows of a client."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from coterie.report.tables import Table
from papers.outcome import Outcome, Settings
from papers.paper_001.distances import NOTES, PRINTED, TITLES, Distances, measure, rounds_table
from papers.pictures import BLUE, RED, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES = (10, 100)


def run(settings: Settings) -> Outcome:
    """Measure and compare with Table 1."""
    found = measure(SIZES, settings)
    tables = (*(table(found, m) for m in found.values), rounds_table(found))
    return Outcome(tables, partial(draw, found), found.settings(), found.numbers(), NOTES)


def table(found: Distances, m: int) -> Table:
    """Paper against ours at one m."""
    rows = []
    for name, distances in found.values[m].items():
        printed = PRINTED.get(name, {}).get(m)
        paper = (f"{printed[0]:.3f} ({printed[1]:.3f})", f"{printed[2]:.3f}") if printed else ("–", "–")
        here = f"{distances.mean():.3f} ({distances.std():.3f})", f"{distances.max(axis=1).mean():.3f}"
        rows.append((TITLES[name], paper[0], here[0], paper[1], here[1]))
    return Table(
        title=f"Distance |estimate - truth| at m = {m} rows of a client, {found.runs}",
        columns=("estimator", "average (SD), paper", "here", "maximum, paper", "here"),
        rows=tuple(rows),
        marked=list(found.values[m]).index("our"),
    )


def draw(found: Distances) -> Figure:
    """Averages with one standard deviation over clients, and what the paper printed."""
    figure, axes = panels(len(found.values), width=5.2, height=3.6)
    for ax, (m, by) in zip(axes, found.values.items(), strict=True):
        at = np.arange(len(by))[::-1]
        average, spread = [d.mean() for d in by.values()], [d.std() for d in by.values()]
        ax.errorbar(average, at, xerr=spread, fmt="o", color=BLUE, capsize=3, label="here, ± 1 SD over clients")
        known = [(PRINTED[name][m][0], y) for name, y in zip(by, at, strict=True) if name in PRINTED]
        ax.plot(*zip(*known, strict=True), "D", color=RED, mfc="none", ms=9, label="printed in Table 1")
        for mean, y in zip(average, at, strict=True):
            ax.annotate(f"{mean:.3f}", (1.02, y), xycoords=("axes fraction", "data"), va="center")
        ax.set_yticks(at, [TITLES[name] for name in by] if ax is axes[0] else [""] * len(by))
        ax.set_ylim(-0.6, len(by) - 0.4)
        ax.set_xscale("log")
        ax.set_xlim(0.3, 9.0)
        ax.set_xticks([0.3, 0.5, 1, 2, 3, 5, 8], ["0.3", "0.5", "1", "2", "3", "5", "8"])
        ax.minorticks_off()
        ax.set_xlabel("distance to the true parameters")
        ax.set_title(f"m = {m} rows of a client")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure
