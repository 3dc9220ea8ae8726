"""Figure 1: average distance to the true parameters against the rows of a client."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from coterie.numerics.arrays import Floats
from coterie.report.tables import Table
from papers.outcome import Outcome, Settings
from papers.paper_001.distances import NOTES, PRINTED, TITLES, Distances, measure, rounds_table
from papers.pictures import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZES = (1, 5, 10, 25, 50, 100, 200)
BASELINES = {"sm": (GREY, "s"), "lt": (ORANGE, "^"), "sc": (GREEN, "v"), "our": (BLUE, "o")}
OTHERS = {"learned": (RED, "x"), "one coin": (PURPLE, "D"), "auto": (SKY, ".")}
"""Drawn only relative to the exact minimiser, from which they can hardly be told otherwise."""


def run(settings: Settings) -> Outcome:
    """Measure over all numbers of rows."""
    found = measure((1, 10, 100) if settings.quick else SIZES, settings)
    notes = (*NOTES, "The paper gives Figure 1 as a picture only; its printed numbers are those of Table 1.")
    return Outcome((table(found), rounds_table(found)), partial(draw, found), found.settings(), found.numbers(), notes)


def table(found: Distances) -> Table:
    """Averages, a row for each m."""
    names = list(next(iter(found.values.values())))
    rows = []
    for m, by in found.values.items():
        printed = PRINTED["our"].get(m)
        rows.append((f"{m}", *(f"{by[n].mean():.3f}" for n in names), f"{printed[0]:.3f}" if printed else "–"))
    return Table(
        title=f"Average distance |estimate - truth|, {found.runs}",
        columns=("m", *names, "our, paper"),
        rows=tuple(rows),
        texts=0,
        note=f"{'; '.join(f'{n}: {TITLES[n]}' for n in names)}.",
    )


def draw(found: Distances) -> Figure:
    """Distances, and beside them how many times that of ours, where lines lie too close to be told apart."""
    figure, (left, right) = panels(2, width=5.2, height=4.0)
    sizes = np.array(list(found.values))
    averages = {name: np.array([by[name].mean(axis=1) for by in found.values.values()]) for name in TITLES}
    for name, style in BASELINES.items():
        _line(left, sizes, averages[name], style, TITLES[name])
        for m, printed in PRINTED[name].items():
            left.plot(m, printed[0], "D", color=style[0], mfc="none", ms=9, mew=1.1)
    relative = {name: style for name, style in (BASELINES | OTHERS).items() if name != "sm"}
    for name, style in relative.items():
        _line(right, sizes, averages[name] / averages["our"], style, TITLES[name])
    left.plot([], [], "D", color="black", mfc="none", ms=9, mew=1.1, label="printed in Table 1")
    left.set_yscale("log")
    left.set_ylabel("average distance to the true parameters")
    left.set_title("Average distance")
    left.legend(loc="lower left")
    right.set_ylabel("distance / distance of ours, exact")
    right.set_title("The same, relative to ours, exact (one model is far above)")
    right.set_ylim(top=1.5)
    right.legend(loc="upper left", ncols=2)
    for ax in (left, right):
        ax.set_xscale("log")
        ax.set_xticks(sizes, [f"{m}" for m in sizes])
        ax.minorticks_off()
        ax.set_xlabel("rows of a client, m")
    left.set_yticks([0.3, 0.5, 1, 2, 3, 5, 7], ["0.3", "0.5", "1", "2", "3", "5", "7"])
    return figure


def _line(ax: Axes, x: Floats, y: Floats, style: tuple[str, str], label: str) -> None:
    """The mean over runs (columns of y), with the range of the runs behind it."""
    colour, marker = style
    ax.fill_between(x, y.min(axis=1), y.max(axis=1), color=colour, alpha=0.18, lw=0)
    ax.plot(x, y.mean(axis=1), marker=marker, color=colour, label=label)
