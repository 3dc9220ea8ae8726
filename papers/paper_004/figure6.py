"""Figure 6: m, by how much collaborators' gradients are scaled, and the speed-up of weighted gradient averaging."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from coterie.numerics.arrays import Floats, Ints
from coterie.report.tables import Table
from papers.outcome import Outcome, Settings
from papers.paper_004.wga_theory import best_alpha, bound
from papers.pictures import BLUE, GREEN, ORANGE, PURPLE, RED, SKY, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCALES = (0.0, 0.1, 0.5, 1.0, 2.0, 10.0)
NOTES = (
    "The paper's values of m are not printed; these are ours. Speed-up: the bound of Theorem 4.1 (mu-PL, zeta = 0) at "
    "alpha = 0 over its minimum for alpha below min(1, 1 / sqrt(m)).",
    "Where m < 1, the speed-up is about (1 - m)^2 (N + 1) for large N; for m >= 1 it has a limit, 4 at m = 1 and less "
    "above, because alpha = 1 is out of reach.",
)


def run(settings: Settings) -> Outcome:
    """Minimise the bound for every N and m."""
    total = np.unique(np.geomspace(2, 1001, 31 if settings.quick else 101).round().astype(np.int64))
    average = np.asarray(1.0 / (total - 1.0), dtype=np.float64)
    alpha = {m: best_alpha(1.0, average, 0.0, m) for m in SCALES}
    speedup = {m: 1.0 / bound(alpha[m], 1.0, average, 0.0, m) for m in SCALES}
    numbers = {
        "N + 1": total,
        "m": list(SCALES),
        "alpha": np.array(list(alpha.values())),
        "speedup": np.array(list(speedup.values())),
    }
    settled = {"zeta": 0, "m": list(SCALES), "relative_to": "alpha = 0"}
    return Outcome((table(),), partial(draw, total, speedup), settled, numbers, NOTES)


def table() -> Table:
    """Speed-ups and the best alpha at some N."""
    sizes, rows = np.array([1.0, 10.0, 100.0, 1000.0]), []
    for m in SCALES:
        alpha = best_alpha(1.0, 1.0 / sizes, 0.0, m)
        gains = 1.0 / bound(alpha, 1.0, 1.0 / sizes, 0.0, m)
        rows.append((f"{m:g}", *(f"{g:,.2f} at {a:.3f}" for g, a in zip(gains, alpha, strict=True))))
    return Table(
        title="Speed-up at the best alpha for zeta = 0, by N + 1",
        columns=("m", *(f"{int(N) + 1:,}" for N in sizes)),
        rows=tuple(rows),
        texts=0,
    )


def draw(total: Ints, speedup: dict[float, Floats]) -> Figure:
    """Speed-up against all agents; the dashed line is linear."""
    figure, (ax,) = panels(1, width=5.4, height=4.2)
    ax.plot(total, total, color="black", ls="--", lw=1.2, label="linear, N + 1")
    for (m, values), colour in zip(speedup.items(), (BLUE, SKY, GREEN, ORANGE, RED, PURPLE), strict=True):
        ax.plot(total, values, color=colour, label=f"m = {m:g}", lw=1.6 if m else 3.2, zorder=1)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("agents N + 1")
    ax.set_ylabel("speed-up over $\\alpha = 0$")
    ax.set_title("Predicted speed-up of WGA, $\\zeta = 0$")
    ax.legend(loc="upper left")
    return figure
