"""Figure 1: average distance to the true parameters against the rows of a client."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from coterie.numerics.kernels import Floats
from coterie.report.tables import Table
from coterie.reproduce.outcome import Outcome, Settings
from coterie.reproduce.paper_001.distances import NOTES, PRINTED, Distances, measure
from coterie.reproduce.paper_001.simulation import ESTIMATORS
from coterie.reproduce.pictures import BLUE, GREEN, GREY, ORANGE, RED, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZES = (1, 5, 10, 25, 50, 100, 200)
LINES = {"sm": (GREY, "s"), "lt": (ORANGE, "^"), "sc": (GREEN, "v"), "our": (BLUE, "o"), "learned": (RED, "x")}


def run(settings: Settings) -> Outcome:
    """Measure over all numbers of rows."""
    found = measure((1, 10, 100) if settings.quick else SIZES, settings.runs(5), settings)
    notes = (*NOTES, "The paper gives Figure 1 as a picture only; its printed numbers are those of Table 1.")
    return Outcome((table(found),), partial(draw, found), found.settings(), found.numbers(), notes)


def table(found: Distances) -> Table:
    """Averages, a row for each m."""
    names = list(next(iter(found.values.values())))
    rows = []
    for m, by in found.values.items():
        printed = PRINTED["our"].get(m)
        rows.append((f"{m}", *(f"{by[n].mean():.3f}" for n in names), f"{printed[0]:.3f}" if printed else "–"))
    runs = len(found.seeds)
    return Table(
        title=f"Average distance |estimate - truth|, {runs} run{'s' * (runs > 1)}",
        columns=("m", *names, "our, paper"),
        rows=tuple(rows),
        texts=0,
        note=f"{'; '.join(f'{n}: {ESTIMATORS[n][0]}' for n in names)}.",
    )


def draw(found: Distances) -> Figure:
    """Distances, and beside them how many times that of ours, where lines lie too close to be told apart."""
    figure, (left, right) = panels(2, width=4.8, height=4.0)
    sizes = np.array(list(found.values))
    averages = {name: np.array([by[name].mean(axis=1) for by in found.values.values()]) for name in LINES}
    for name, (colour, marker) in LINES.items():
        label = ESTIMATORS[name][0]
        _line(left, sizes, averages[name], colour, marker, label)
        if name != "sm":
            _line(right, sizes, averages[name] / averages["our"], colour, marker, label)
        for m, printed in PRINTED.get(name, {}).items():
            left.plot(m, printed[0], "D", color=colour, mfc="none", ms=9, mew=1.1)
    left.plot([], [], "D", color="black", mfc="none", ms=9, mew=1.1, label="printed in Table 1")
    left.set_yscale("log")
    left.set_ylabel("average distance to the true parameters")
    left.set_title("Average distance")
    left.legend(loc="lower left")
    right.set_ylabel("distance / distance of ours, exact")
    right.set_title("The same, relative to ours")
    for ax in (left, right):
        ax.set_xscale("log")
        ax.set_xticks(sizes, [f"{m}" for m in sizes])
        ax.minorticks_off()
        ax.set_xlabel("rows of a client, m")
    left.set_yticks([0.3, 0.5, 1, 2, 3, 5, 7], ["0.3", "0.5", "1", "2", "3", "5", "7"])
    return figure


def _line(ax: Axes, x: Floats, y: Floats, colour: str, marker: str, label: str) -> None:
    """The mean over runs (columns of y), with the range of the runs behind it."""
    ax.fill_between(x, y.min(axis=1), y.max(axis=1), color=colour, alpha=0.18, lw=0)
    ax.plot(x, y.mean(axis=1), marker=marker, color=colour, label=label)
