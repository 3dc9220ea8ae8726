"""Figure 5: the predicted speed-up of weighted gradient averaging over N and the cumulative bias, for m = 0."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from coterie.numerics.arrays import Floats
from coterie.report.tables import Table
from papers.outcome import Outcome, Settings
from papers.paper_004.wga_theory import best_alpha
from papers.pictures import panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOTE = (
    "The axes' ranges are not printed; N from 1 to 1,000 and the ratio from 0.1 to 10,000 are ours. The speed-up is "
    "1 + 1 / (1/N + 1/ratio): 1 plus half the harmonic mean of N and the ratio.",
)


def run(settings: Settings) -> Outcome:
    """The closed form over a grid, checked by bisecting the derivative of Theorem 4.1's bound, with m all but 0."""
    points = 41 if settings.quick else 121
    ratio, N = np.geomspace(0.1, 1e4, points), np.geomspace(1, 1e3, points)
    alpha, bisected = (best_alpha(1.0, 1.0 / N[:, None], 1.0 / ratio[None, :], m) for m in (0.0, 1e-12))
    apart = float(np.abs(bisected - alpha).max())
    numbers = {"ratio": ratio, "N": N, "alpha": alpha, "speedup": 1.0 / (1.0 - alpha), "largest_difference": apart}
    settled = {"m": 0, "ratio": "L sigma_0^2 / (mu T zeta^2)", "points": points}
    return Outcome((table(apart),), partial(draw, ratio, N, 1.0 / (1.0 - alpha)), settled, numbers, NOTE)


def table(apart: float) -> Table:
    """Speed-ups at some points."""
    ratios, sizes = (0.1, 1, 10, 100, 1e3, 1e4), (1, 10, 100, 1000)
    rows = [
        (f"{N:,}", *(f"{1.0 / (1.0 - float(best_alpha(1.0, 1.0 / N, 1.0 / x))):.2f}" for x in ratios), f"{N + 1:,}")
        for N in sizes
    ]
    return Table(
        title="Speed-up 1 / (1 - alpha_opt) for m = 0, by L sigma_0^2 / (mu T zeta^2)",
        columns=("N", *(f"{x:,g}" for x in ratios), "zeta = 0"),
        rows=tuple(rows),
        texts=0,
        note=f"alpha_opt by bisecting the derivative of Theorem 4.1's bound differs by at most {apart:.0e} on the map.",
    )


def draw(ratio: Floats, N: Floats, speedup: Floats) -> Figure:
    """The map, with lines of equal speed-up."""
    from matplotlib.colors import LogNorm

    figure, (ax,) = panels(1, width=6.0, height=4.4)
    norm = LogNorm(1.0, 1e3)
    filled = ax.contourf(ratio, N, speedup, levels=np.geomspace(1.0, 1e3, 61), norm=norm, cmap="viridis")
    marks = [1.5, 2, 5, 10, 20, 50, 100, 200, 500]
    equal = ax.contour(ratio, N, speedup, levels=marks, colors="white", linewidths=0.8)
    ax.clabel(equal, fmt="%g", fontsize=8)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.grid(False)
    ax.set_xlabel("$L \\sigma_0^2 / (\\mu T \\zeta^2)$")
    ax.set_ylabel("collaborators N")
    ax.set_title("Predicted speed-up of WGA, m = 0")
    bar = figure.colorbar(filled, ax=ax, label="$1 / (1 - \\alpha_\\mathrm{opt})$", ticks=[1, 10, 100, 1000])
    bar.ax.set_yticklabels(["1", "10", "100", "1,000"])
    return figure
