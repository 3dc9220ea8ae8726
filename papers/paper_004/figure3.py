"""Figure 3: the bias zeta and weighted gradient averaging."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from coterie.numerics.arrays import Floats
from papers.outcome import Outcome, Settings
from papers.paper_004 import exact
from papers.paper_004.curves import A1, NOTES, WGA, Measured, chosen, lines, measure, quadratic, table
from papers.pictures import BLUE, GREEN, GREY, ORANGE, RED, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from papers.paper_004.noisy_quadratic import Curve

N, ETA, ALPHA, START, STEPS = 10, 5e-4, 1e-3, 3.0, 30_000
ZETAS = (4.0, 64.0, 256.0, 1024.0)
NOTE = (
    "The values of zeta are not printed; 4, 64, 256, 1024 are ours. With alpha = 1e-3, sigma = 10 and this step size "
    "the bias passes the noise near zeta = 160, so that smaller values cannot be told apart. x starts at x_0* + 3."
)


def run(settings: Settings) -> Outcome:
    """A curve for each zeta, and final levels between them."""
    found = measure([_wga(z) for z in ZETAS], STEPS, settings)
    zetas = np.geomspace(ZETAS[0], 4.0 * ZETAS[-1], 41)
    levels = [exact.level(_wga(z)) for z in zetas]
    bias, noise = np.array([v.bias for v in levels]), np.array([v.noise for v in levels])
    numbers = {"curves": [m.numbers() for m in found], "levels": {"zeta": zetas, "bias": bias, "noise": noise}}
    settled = chosen(settings, STEPS, a1=A1, eta=ETA, alpha=ALPHA, N=N, start=START, zeta=list(ZETAS))
    note = f"alpha^2 zeta^2 / (2 a_0) at zeta = {ZETAS[-1]:g}: {0.5 * (ALPHA * ZETAS[-1]) ** 2:.5f}. "
    return Outcome((table(found, note),), partial(draw, found, zetas, bias, noise), settled, numbers, (*NOTES, NOTE))


def _wga(zeta: float) -> Curve:
    return quadratic(f"{WGA}, zeta = {zeta:g}", ETA, ALPHA, 0.0, N, start=START, zeta=zeta)


def draw(found: tuple[Measured, ...], zetas: Floats, bias: Floats, noise: Floats) -> Figure:
    """Curves, and final levels against zeta."""
    figure, (left, right) = panels(2, width=5.0, height=3.9)
    colours = (BLUE, GREEN, ORANGE, RED)
    lines(left, found, colours, [f"$\\zeta$ = {z:g}" for z in ZETAS])
    left.set_title("WGA with $\\alpha$ = 0.001, mean of runs ± 2 SE")
    left.legend(loc="lower left")
    right.plot(zetas, bias + noise, color="black", lw=1.2, label="final level, exact")
    right.plot(zetas, bias, color=GREY, ls="--", lw=1.2, label="its bias, of slope 2")
    right.plot(zetas, noise, color=GREY, ls=":", label="its noise")
    for m, colour in zip(found, colours, strict=True):
        right.errorbar(m.curve.zeta, m.mean[-1], 2.0 * m.se[-1], fmt="o", color=colour, capsize=3)
    right.plot([], [], "o", color="white", mec="black", label=f"simulated at t = {STEPS:,}")
    right.set_xscale("log")
    right.set_yscale("log")
    right.set_ylim(bottom=1e-3)
    right.set_xlabel("bias $\\zeta$")
    right.set_ylabel("test loss")
    right.set_title("Final level against $\\zeta$")
    right.legend(loc="upper left")
    return figure
