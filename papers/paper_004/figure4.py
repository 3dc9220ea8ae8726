"""Figure 4: the number of collaborators and bias correction."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from coterie.numerics.arrays import Floats, Ints
from papers.outcome import Outcome, Settings
from papers.paper_004 import exact
from papers.paper_004.curves import A0, A1, BC, NOTES, Measured, chosen, lines, measure, quadratic, table
from papers.pictures import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from papers.paper_004.noisy_quadratic import Curve

ETA, BETA, START, STEPS = 5e-4, 1e-4, 1.0, 200_000
SIZES = (1, 10, 100, 1000)
NOTE = (
    "The values of N are not all printed; 1, 10, 100, 1000 are ours. x starts at x_0* + 1 with c_0 = 0. The benefit "
    "saturates because the moving average is too short, not only because delta = 1: at delta = 0 and for small steps "
    "the level is 1 + N beta / (beta + eta a_0) times alone / (N + 1). Linear gain at N = 100 needs beta near 1e-3 eta."
)


def run(settings: Settings) -> Outcome:
    """A curve for each N, and exact final levels for other delta and beta."""
    found = measure([_bc(N) for N in SIZES], STEPS, settings)
    sizes = np.unique(np.geomspace(1, SIZES[-1], 31).round().astype(np.int64))
    alone = exact.level(quadratic("", ETA, 0.0, 0.0, 1, start=START)).loss
    levels = {
        "alone": np.full(len(sizes), alone),
        "alone / (N + 1)": alone / (sizes + 1.0),
        "delta = 1, beta = 1e-4": np.array([exact.level(_bc(N)).loss for N in sizes]),
        "delta = 0, beta = 1e-4": np.array([exact.level(_bc(N, a1=A0)).loss for N in sizes]),
        "delta = 0, beta = 1e-3 eta / N": np.array([exact.level(_bc(N, 1e-3 * ETA / N, A0)).loss for N in sizes]),
    }
    numbers = {"curves": [m.numbers() for m in found], "levels": {"N": sizes, **levels}}
    settled = chosen(settings, STEPS, a1=A1, eta=ETA, beta=BETA, alpha="N / (N + 1)", N=list(SIZES), start=START)
    note = f"Alone settles at {alone:.5f}. "
    return Outcome((table(found, note),), partial(draw, found, sizes, levels), settled, numbers, (*NOTES, NOTE))


def _bc(N: int, beta: float = BETA, a1: float = A1) -> Curve:
    return quadratic(f"{BC}, N = {N:,}", ETA, N / (N + 1), beta, int(N), start=START, a1=a1)


def draw(found: tuple[Measured, ...], sizes: Ints, levels: dict[str, Floats]) -> Figure:
    """Curves, and final levels against N."""
    figure, (left, right) = panels(2, width=5.0, height=3.9)
    colours = (BLUE, GREEN, ORANGE, RED)
    lines(left, found, colours, [f"N = {N:,}" for N in SIZES])
    left.set_title("BC with $\\beta$ = 1e-4, $\\delta$ = 1, mean of runs ± 2 SE")
    left.legend(loc="lower left")
    styles = ((GREY, "-"), ("black", "--"), ("black", "-"), (PURPLE, "-"), (SKY, "-"))
    labels = ("alone", "alone / (N + 1)", "$\\delta$ = 1, $\\beta$ = 1e-4", "$\\delta$ = 0, $\\beta$ = 1e-4")
    for values, (colour, ls), label in zip(
        levels.values(), styles, (*labels, "$\\delta$ = 0, $\\beta = 10^{-3} \\eta / N$"), strict=True
    ):
        right.plot(sizes, values, color=colour, ls=ls, label=label, zorder=3 if ls == "--" else 2)
    for m, colour in zip(found, colours, strict=True):
        right.errorbar(m.curve.N, m.mean[-1], 2.0 * m.se[-1], fmt="o", color=colour, capsize=3)
    right.plot([], [], "o", color="white", mec="black", label=f"simulated at t = {STEPS:,}")
    right.set_xscale("log")
    right.set_yscale("log")
    right.set_xlabel("collaborators N")
    right.set_ylabel("test loss")
    right.set_title("Final level of BC, exact")
    right.legend(loc="lower left")
    return figure
