"""What Figures 1 to 4 share: section 6's defaults, a set of curves simulated and exact, their table and lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.numerics.arrays import Floats, Ints
from coterie.report.tables import Table
from papers.outcome import Settings
from papers.paper_004 import exact
from papers.paper_004.exact import Level
from papers.paper_004.noisy_quadratic import Curve, average, simulate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

A0, A1, ZETA, SIGMA = 1.0, 2.0, 4.0, 10.0
"""Section 6's defaults delta = 1, zeta = 4, sigma = 10; a_0 and a_1 are ours."""

RUNS, QUICK, SEED, STOPS = 1_000, 100, 0, 80
ALONE, WGA, BC = "Alone", "WGA", "BC"

NOTES = (
    "The paper gives delta = |a_1 - a_0| = 1 but neither a_0 nor a_1: a_0 = 1 and a_1 = 2 here. x_0* = 0 and "
    "x_1* = zeta / a_1, which loses nothing. Where x starts and what c_0 is, the paper does not say either; both are "
    "in the settings of every curve.",
    "The exact expectation propagates second moments, and the final level solves a Lyapunov equation; neither uses the "
    "simulation.",
)


def quadratic(
    name: str,
    eta: float,
    alpha: float,
    beta: float,
    N: int,
    *,
    start: float,
    zeta: float = ZETA,
    c0: int = 0,
    a1: float = A1,
) -> Curve:
    """A curve of the one-dimensional model with x_0* = 0 and ``x_1* = zeta / a_1``."""
    return Curve(A0, a1, 0.0, zeta / a1, SIGMA, N, eta, alpha, beta, start, c0, name)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Measured:
    """A curve, simulated and exact.

    Attributes
    ----------
    curve : Curve
    t : (s,)
        Steps.
    mean, se : (s,)
        Mean test loss over the runs, and its standard error.
    exact : (s,)
        Expected test loss.
    level : Level
        Where it settles.
    """

    curve: Curve
    t: Ints
    mean: Floats
    se: Floats
    exact: Floats
    level: Level

    @property
    def scores(self) -> Floats:
        """Mean less expectation in standard errors, (s,); 0 where nothing has been random yet."""
        return np.divide(self.mean - self.exact, self.se, out=np.zeros_like(self.mean), where=self.t > 0)

    def numbers(self) -> dict[str, Any]:
        """Settings and arrays, to be written."""
        arrays = {"t": self.t, "mean": self.mean, "se": self.se, "exact": self.exact}
        return {**self.curve.settings(), **arrays, "level": {"bias": self.level.bias, "noise": self.level.noise}}


def measure(curves: Sequence[Curve], last: int, settings: Settings) -> tuple[Measured, ...]:
    """Simulate curves up to a step and set the expectations beside them."""
    runs = len(settings.runs(RUNS, QUICK))
    t = np.unique(np.concatenate([[0], np.geomspace(1, last, STOPS).round()]).astype(np.int64))
    settings.tell(f"{runs:,} runs of {last:,} steps, curves: {len(curves)}")
    means, errors = average(simulate(curves, t, runs, SEED))
    rows = zip(curves, means, errors, strict=True)
    return tuple(Measured(c, t, mean, se, exact.loss(c, t), exact.level(c)) for c, mean, se in rows)


def chosen(settings: Settings, last: int, **more: Any) -> dict[str, Any]:
    """Settings that all curves of a figure share."""
    shared = {"a0": A0, "sigma": SIGMA, "steps": last, "runs": len(settings.runs(RUNS, QUICK)), "seed": SEED}
    return {**shared, **more}


def table(found: Sequence[Measured], note: str = "") -> Table:
    """Where every curve is at the last step, and where it will settle."""
    rows = []
    for m in found:
        error = "-" if np.isnan(m.se[-1]) else f"{m.se[-1]:.2g}"
        worst = "-" if np.isnan(m.se[-1]) else f"{np.abs(m.scores).max():.2f}"
        here = f"{m.mean[-1]:.5f} ({error})", f"{m.exact[-1]:.5f}"
        rows.append((m.curve.name, *here, f"{m.level.loss:.5f}", f"{m.level.bias:.5f}", f"{m.level.noise:.5f}", worst))
    return Table(
        title=f"Test loss of the noisy quadratic at step {found[0].t[-1]:,}, and its final level",
        columns=("curve", "simulated (SE)", "exact", "final level", "bias", "noise", "largest z"),
        rows=tuple(rows),
        note=f"{note}z: simulated less exact in standard errors, the largest of {len(found[0].t) - 1} recorded steps.",
    )


def lines(
    ax: Axes, found: Sequence[Measured], colours: Sequence[str], labels: Sequence[str], widths: Sequence[float] = ()
) -> None:
    """Means with two standard errors, expectations as dashes above them, and final levels at the right edge."""
    for m, colour, label, width in zip(found, colours, labels, widths or [2.4] * len(found), strict=True):
        t, on = m.t[1:], slice(1, None)
        low = np.maximum(m.mean - 2.0 * m.se, 0.05 * m.mean)[on]
        ax.fill_between(t, low, (m.mean + 2.0 * m.se)[on], color=colour, alpha=0.3, lw=0)
        ax.plot(t, m.mean[on], color=colour, lw=width, label=label)
        ax.plot(t, m.exact[on], color="black", lw=0.9, ls=(0, (4, 3)))
        ax.plot(1.35 * t[-1], m.level.loss, "<", color=colour, mec="black", mew=0.5, ms=6, clip_on=False)
    ax.plot([], [], color="black", lw=0.9, ls=(0, (4, 3)), label="exact expectation")
    ax.plot([], [], "<", color="white", mec="black", mew=0.7, label="final level (Lyapunov)")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(10, 1.35 * found[0].t[-1])
    ax.set_xlabel("step t")
    ax.set_ylabel("test loss")
