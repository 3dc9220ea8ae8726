"""Figure 2: the bias zeta and bias correction."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from papers.outcome import Outcome, Settings
from papers.paper_004.curves import A1, NOTES, Measured, chosen, lines, measure, quadratic, table
from papers.pictures import BLUE, GREEN, ORANGE, RED, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N, ETA, BETA, STEPS = 10, 1e-4, 1e-4, 300_000
ALPHA = N / (N + 1)
ZETAS = (1.0, 4.0, 16.0, 64.0)
OFFSET = 1.0
NOTE = (
    "What Figure 2 shows depends on what the paper leaves open. From x_1* with c_0 = 0 a larger zeta takes longer to "
    "the same level. With Algorithm 3's c_0 = b_0 and the same offset from x_0*, zeta drops out of the recursion, and "
    "all curves are one. Its values of zeta are not printed; 1, 4, 16, 64 are ours."
)


def run(settings: Settings) -> Outcome:
    """Both readings, for every zeta."""
    by = ETA, ALPHA, BETA, N
    apart = [quadratic(f"zeta = {z:g}, c_0 = 0", *by, start=z / A1, zeta=z) for z in ZETAS]
    same = [quadratic(f"zeta = {z:g}, c_0 = b_0", *by, start=OFFSET, zeta=z, c0=1) for z in ZETAS]
    found = measure([*apart, *same], STEPS, settings)
    numbers = {"curves": [m.numbers() for m in found]}
    settled = chosen(settings, STEPS, a1=A1, eta=ETA, beta=BETA, alpha=ALPHA, N=N, zeta=list(ZETAS))
    note = f"With c_0 = 0, BC starts at x_1*; with c_0 = b_0, at x_0* + {OFFSET:g}. "
    return Outcome((table(found, note),), partial(draw, found), settled, numbers, (*NOTES, NOTE))


def draw(found: tuple[Measured, ...]) -> Figure:
    """The two readings side by side."""
    figure, (left, right) = panels(2, width=5.0, height=3.9)
    colours = (BLUE, GREEN, ORANGE, RED)
    names = [f"$\\zeta$ = {z:g}" for z in ZETAS]
    lines(left, found[: len(ZETAS)], colours, names)
    lines(right, found[len(ZETAS) :], colours, names, widths=(8.0, 6.0, 4.0, 2.0))
    left.set_title("BC from $x_1^*$ with $c_0 = 0$, mean of runs ± 2 SE")
    right.set_title(f"BC from $x_0^*$ + {OFFSET:g} with $c_0 = b_0$: one curve")
    left.legend(loc="lower left")
    left.set_ylim(bottom=1e-4)
    right.set_ylabel("")
    for ax in (left, right):
        ax.set_xlim(left=100)
    return figure
