"""Figure 1: working alone, weighted gradient averaging and bias correction on the noisy quadratic."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import minimize_scalar

from papers.outcome import Outcome, Settings
from papers.paper_004 import exact
from papers.paper_004.curves import ALONE, BC, NOTES, WGA, Measured, chosen, lines, measure, quadratic, table
from papers.pictures import BLUE, GREEN, GREY, ORANGE, RED, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N, ETA, BETA, START, STEPS = 10, 5e-4, 1e-4, 1.0, 200_000
ALPHA = N / (N + 1)
NOTE = (
    "Figure 1 names no step size, weight or start: eta = 5e-4 and beta = 1e-4 are those of Figure 4, N = 10, "
    "alpha = N / (N + 1) for WGA and BC, and x starts halfway between the minimisers. Both readings of c_0 are drawn: "
    "c_0 = 0, and Algorithm 3's c_0 = b_0, whose noise (standard deviation 10.5) is larger than the bias (4) and makes "
    "the first rise higher."
)


def run(settings: Settings) -> Outcome:
    """Simulate all four curves with the same noise in every run."""
    curves = (
        quadratic(ALONE, ETA, 0.0, 0.0, N, start=START),
        quadratic(WGA, ETA, ALPHA, 0.0, N, start=START),
        quadratic(f"{BC}, c_0 = 0", ETA, ALPHA, BETA, N, start=START),
        quadratic(f"{BC}, c_0 = b_0", ETA, ALPHA, BETA, N, start=START, c0=1),
    )
    found = measure(curves, STEPS, settings)
    alpha, best = best_average()
    notes = (
        *NOTES,
        NOTE,
        f"The best constant alpha of WGA is {alpha:.2g}, with a final level of {best:.5f}: all but alone.",
    )
    numbers = {"curves": [m.numbers() for m in found], "best_wga": {"alpha": alpha, "level": best}}
    settled = chosen(settings, STEPS, eta=ETA, beta=BETA, alpha=ALPHA, N=N, start=START)
    return Outcome((table(found),), partial(draw, found), settled, numbers, notes)


def best_average() -> tuple[float, float]:
    """The constant alpha of WGA with the lowest final level, and that level."""
    made = minimize_scalar(
        lambda alpha: exact.level(quadratic(WGA, ETA, alpha, 0.0, N, start=START)).loss, bounds=(0, 1), method="bounded"
    )
    return float(made.x), float(made.fun)


def draw(found: tuple[Measured, ...]) -> Figure:
    """Curves, and beside them how far the simulation is from the expectation."""
    figure, (left, right) = panels(2, width=5.0, height=3.9)
    colours = (BLUE, GREEN, ORANGE, RED)
    names = ("Alone", "WGA", "BC, $c_0 = 0$", "BC, $c_0 = b_0$")
    lines(left, found, colours, names)
    left.set_title("Three methods, mean of runs ± 2 SE")
    left.legend(loc="lower left")
    for m, colour in zip(found, colours, strict=True):
        right.plot(m.t[1:], m.scores[1:], color=colour, lw=1.2)
    for bound in (-3.0, 3.0):
        right.axhline(bound, color=GREY, ls=":")
    right.set_xscale("log")
    right.set_xlim(10, found[0].t[-1])
    right.set_ylim(*(np.array([-1.0, 1.0]) * max(4.0, *(np.nanmax(np.abs([0.0, *m.scores])) for m in found))))
    right.set_xlabel("step t")
    right.set_ylabel("(simulated mean − exact) / SE")
    right.set_title("Simulation against exact expectation")
    return figure
