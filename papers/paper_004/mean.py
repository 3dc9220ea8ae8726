"""Section 4's application: collaborative mean estimation, alone, averaged, and with its bias corrected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.numerics.arrays import Floats
from coterie.report.tables import Table
from papers.outcome import Outcome, Settings
from papers.paper_004.mean_estimation import Setting, averaging, decreasing, errors, estimates, measured
from papers.paper_004.wga_theory import Descent, best_weights, descent
from papers.pictures import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

N, GAPS, RUNS, QUICK, SEED = 10, (0.0, 0.1, 0.3, 1.0), 1_000, 100, 0
TIMES, SHORT, TOLD = (1, 3, 10, 30, 100, 300, 1_000), (1, 3, 10, 30, 100), (10, 100, 1_000)
ALPHAS, AT = np.linspace(0.0, 1.0, 11), 100
COLOURS = (BLUE, GREEN, ORANGE, RED)
SEVERAL = Setting(
    np.array([0.1, -0.2, 0.3, -0.4, 0.6, 1.5]),
    np.array([2.0, 1.0, 1.0, 1.0, 0.5, 0.5]),
    6.0 / 7.0,
    np.full(6, 1.0 / 6.0),
)
SEVERAL_AT = 30
NOTES = (
    "sigma_0 = 1. In the figure there are N = 10 collaborators with sigma_k = 1 and one gap mu_k - mu_0; the main "
    "client and each collaborator bring one sample a step, and every run has its own.",
    "Bias correction has no gain here, with any alpha and beta: given c_0 = b_0 it is an unbiased linear estimate of "
    "mu_0 from samples whose other means are unknown, and the average of T own samples has the least variance of all "
    "such (Gauss and Markov). From c_0 = 0 it is an average with weights that change over time, and a constant alpha "
    "with the same mean weight has no more bias and less variance.",
)


@dataclass(frozen=True)
class Curve:
    """Errors over T: exact, simulated, and the standard error of that, (s,) each, for some settings of one kind."""

    settings: tuple[Setting, ...]
    times: tuple[int, ...]
    exact: Floats
    mean: Floats
    se: Floats

    def numbers(self) -> list[dict[str, Any]]:
        """Settings and arrays, to be written."""
        rows = zip(self.settings, self.exact, self.mean, self.se, strict=True)
        return [
            {"gap": s.gap, "alpha": s.alpha, "T": list(self.times), "exact": exact, "mean": mean, "se": se}
            for s, exact, mean, se in rows
        ]


def curve(settings: Sequence[Setting], times: Sequence[int], runs: int) -> Curve:
    """Run the library's method and set the exact errors beside it."""
    mean, se = measured(estimates(settings, times, runs, SEED))
    return Curve(tuple(settings), tuple(times), np.array([errors(s, times) for s in settings]), mean, se)


@dataclass(frozen=True)
class Found:
    """All that is drawn.

    Attributes
    ----------
    alike, corrected, c2 : Curve
        Weights for which all samples count the same: weighted averaging, bias correction, and averaging with C.2's
        decreasing step.
    best : tuple of Curve
        The best alpha for each T, at that T.
    alphas : Curve
        At one T, for every gap in turn, alpha from 0 to 1.
    several : Curve
        Unequal collaborators: see ``choices``.
    """

    alike: Curve
    corrected: Curve
    c2: Curve
    best: tuple[Curve, ...]
    alphas: Curve
    several: tuple[Curve, ...]


def run(settings: Settings) -> Outcome:
    """Simulate every panel; each problem is a main client with collaborators of its own."""
    runs = len(settings.runs(RUNS, QUICK))
    times = SHORT if settings.quick else TIMES
    settings.tell(f"{runs:,} runs of {times[-1]:,} samples for each of {len(GAPS)} gaps, {N} collaborators")
    alike = [Setting.equal(gap, N) for gap in GAPS]
    found = Found(
        curve(alike, times, runs),
        curve([replace(s, beta=averaging) for s in alike], times, runs),
        curve([replace(s, step=decreasing) for s in alike], times, runs),
        tuple(curve([s.best(T) for s in alike], [T], runs) for T in times),
        curve([Setting.equal(gap, N, alpha) for gap in GAPS for alpha in ALPHAS], [AT], runs),
        tuple(curve([s], [SEVERAL_AT], runs) for _, s in choices()),
    )
    numbers = {
        "alike": found.alike.numbers(),
        "bias_corrected": found.corrected.numbers(),
        "decreasing_step": [
            {**n, "bound": bound(s, times)} for n, s in zip(found.c2.numbers(), found.c2.settings, strict=True)
        ],
        "best": [n for at in found.best for n in at.numbers()],
        "over_alpha": found.alphas.numbers(),
        "several": {
            name: {**at.numbers()[0], "tau": s.tau} for (name, s), at in zip(choices(), found.several, strict=True)
        },
    }
    chosen = {"N": N, "gaps": GAPS, "sigma": 1, "runs": runs, "seed": SEED, "T": times, "T_over_alpha": AT}
    several = {"gaps": SEVERAL.gaps, "sigmas": SEVERAL.sigmas, "T": SEVERAL_AT}
    tables = gains(found), bounds(found), several_table(found)
    return Outcome(tables, partial(draw, found), {**chosen, "several": several}, numbers, NOTES)


def bound(setting: Setting, times: Sequence[int]) -> Floats:
    """C.2's bound for its decreasing step on ``E(x_T - mu_0)^2 = 2 F_T``, with ``F_0 = mu_0^2 / 2``."""
    return 2.0 * theory(setting).decreasing_bound(np.array(times, dtype=np.float64), 0.5)


def repeated(setting: Setting, times: Sequence[int]) -> Floats:
    """Recursion (5) repeated for ``1 / (t + 1)``: ``alpha^2 zeta^2 + sigma~^2(alpha) (1 + 1/2 + ... + 1/T) / T``."""
    steps = np.array([averaging(t) for t in range(max(times))])
    return 2.0 * theory(setting).scheduled_bound(steps, 0.5)[list(times)]


def theory(setting: Setting) -> Descent:
    """Theorem 4.1 with L = mu = 1, m = 0 and ``zeta_k^2 = (mu_k - mu_0)^2``."""
    bias = float(setting.tau @ setting.gaps**2)
    return descent(1.0, 1.0, setting.alpha, setting.sigma**2, setting.average, bias)


def choices() -> tuple[tuple[str, Setting], ...]:
    """What may be done with unequal collaborators."""
    s, T = SEVERAL, SEVERAL_AT
    by = best_weights(s.sigma**2, s.sigmas**2, s.gaps**2, [0, len(s.gaps)], 1.0 / T)
    steady = s.sigmas**-2 / np.sum(s.sigmas**-2)
    most = s.sigma**2 / (s.sigma**2 + float(steady**2 @ s.sigmas**2))
    return (
        ("alone", replace(s, alpha=0.0)),
        ("all samples alike", s),
        ("C.2's alpha and tau", replace(s, alpha=float(by.alpha[0]), tau=by.tau)),
        ("the best alpha and tau", s.best(T)),
        ("bias correction", replace(s, alpha=most, tau=steady, beta=averaging)),
    )


def told(found: Found) -> list[tuple[int, int]]:
    """Which T the tables have, with their places."""
    return [(j, T) for j, T in enumerate(found.alike.times) if T in TOLD]


def shown(at: Curve, row: int, column: int, scale: float = 1.0) -> tuple[str, str]:
    """Exact and simulated, the latter with its standard error."""
    se = at.se[row, column]
    error = "-" if np.isnan(se) else f"{scale * se:.3f}"
    return f"{scale * at.exact[row, column]:.3f}", f"{scale * at.mean[row, column]:.3f} ({error})"


def gains(found: Found) -> Table:
    """Errors relative to working alone."""
    rows = []
    for i, gap in enumerate(GAPS):
        for j, T in told(found):
            best = found.best[j]
            parts = shown(found.alike, i, j, T), shown(best, i, 0, T), shown(found.corrected, i, j, T)
            alpha = f"{best.settings[i].alpha:.3f}"
            rows.append((f"{gap:g}", f"{T:,}", *parts[0], alpha, *parts[1], *parts[2]))
    return Table(
        title="Mean squared error relative to working alone, sigma_0^2 / T",
        columns=("gap", "T", "all alike", "simulated (SE)", "best alpha", "exact", "simulated (SE)", "BC", "sim. (SE)"),
        rows=tuple(rows),
        note=f"All alike: alpha = N / (N + 1), N = {N}. BC: the same, c_0 = b_0, beta_t = 1 / (t + 1).",
    )


def bounds(found: Found) -> Table:
    """Errors of both steps under their bounds."""
    rows = []
    for i, gap in enumerate(GAPS):
        for j, T in told(found):
            plain, late = found.alike.settings[i], found.c2.settings[i]
            first = found.alike.exact[i, j], repeated(plain, [T])[0]
            second = found.c2.exact[i, j], found.c2.mean[i, j], bound(late, [T])[0]
            rows.append((f"{gap:g}", f"{T:,}", *(f"{T * v:.3f}" for v in (*first, *second))))
    return Table(
        title="The same under the bounds of Theorem 4.1, all samples alike",
        columns=("gap", "T", "step 1/(t+1)", "(5) repeated", "C.2's step", "simulated", "C.2's bound"),
        rows=tuple(rows),
        note="C.2's step is (2 t + 1) / (t + 1)^2. Its bound has the bias exactly and 3 times the noise for large T.",
    )


def several_table(found: Found) -> Table:
    """Unequal collaborators."""
    rows = []
    for (name, s), at in zip(choices(), found.several, strict=True):
        tau = " ".join(f"{v:.2f}" for v in s.tau) if s.alpha > 0.0 else ""
        rows.append((name, f"{s.alpha:.3f}", tau, *shown(at, 0, 0, SEVERAL_AT)))
    gaps, sigmas = (" ".join(f"{v:g}" for v in values) for values in (SEVERAL.gaps, SEVERAL.sigmas))
    return Table(
        title=f"Unequal collaborators, T = {SEVERAL_AT}: mean squared error relative to working alone",
        columns=("weights", "alpha", "tau", "exact", "simulated (SE)"),
        rows=tuple(rows),
        note=f"gaps {gaps}; sigma_k {sigmas}. C.2 bounds the bias by sum tau_k zeta_k^2, and does not see that biases "
        "of opposite sign cancel.",
    )


def draw(found: Found) -> Figure:
    """Error over T, gain of the best alpha over T, error over alpha."""
    figure, (left, middle, right) = panels(3, width=4.4, height=3.9)
    over_samples(left, found)
    best_gain(middle, found)
    over_alpha(right, found)
    return figure


def _dots(ax: Axes, x: Any, mean: Any, se: Any, colour: str, marker: str = "o") -> None:
    ax.errorbar(x, mean, 2.0 * np.nan_to_num(se), fmt=marker, color=colour, ms=4.0, lw=1.0)


def over_samples(ax: Axes, found: Found) -> None:
    """All samples alike, the bounds, and bias correction."""
    times = found.alike.times
    T = np.unique(np.geomspace(1, times[-1], 60).round().astype(np.int64))
    ax.plot(T, 1.0 / T, color=GREY, ls="--", label="alone")
    for i, (gap, colour) in enumerate(zip(GAPS, COLOURS, strict=True)):
        ax.plot(T, found.alike.settings[i].error(T), color=colour, label=f"gap {gap:g} $\\sigma_0$")
        ax.plot(T, repeated(found.alike.settings[i], T.tolist()), color=colour, lw=0.9, ls=":")
        _dots(ax, times, found.alike.mean[i], found.alike.se[i], colour)
    ax.plot([], [], color="black", lw=0.9, ls=":", label="bound: (5) repeated")
    ax.plot(T, errors(found.corrected.settings[0], T.tolist()), color=PURPLE, ls="-.", label="bias corrected, any gap")
    _dots(ax, times, found.corrected.mean[0], found.corrected.se[0], PURPLE, "s")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("samples T of each client")
    ax.set_ylabel("$E\\,(x_T - \\mu_0)^2\\,/\\,\\sigma_0^2$")
    ax.set_title(f"All samples alike: $\\alpha$ = {N}/{N + 1}")
    ax.legend(loc="lower left")


def best_gain(ax: Axes, found: Found) -> None:
    """How much less error the best alpha has."""
    times = found.alike.times
    T = np.geomspace(1, times[-1], 60)
    for i, (gap, colour) in enumerate(zip(GAPS, COLOURS, strict=True)):
        ax.plot(T, 1.0 + 1.0 / (1.0 / N + T * gap**2), color=colour)
        gain = np.array([1.0 / (at.mean[i, 0] * at.times[0]) for at in found.best])
        _dots(ax, times, gain, gain * [at.se[i, 0] / at.mean[i, 0] for at in found.best], colour)
    ax.set_xscale("log")
    ax.set_ylim(0.0, N + 4.0)
    ax.set_xlabel("samples T of each client")
    ax.set_ylabel("speed-up over alone")
    ax.set_title("The best $\\alpha$ for each T")


def over_alpha(ax: Axes, found: Found) -> None:
    """At one T, with the best alpha marked."""
    fine = np.linspace(0.0, 1.0, 201)
    for i, (gap, colour) in enumerate(zip(GAPS, COLOURS, strict=True)):
        here = slice(i * len(ALPHAS), (i + 1) * len(ALPHAS))
        ax.plot(fine, [AT * Setting.equal(gap, N, a).error(AT) for a in fine], color=colour)
        _dots(ax, ALPHAS, AT * found.alphas.mean[here, 0], AT * found.alphas.se[here, 0], colour)
        best = Setting.equal(gap, N).best(AT)
        ax.plot(best.alpha, AT * best.error(AT), "*", color=colour, mec="black", mew=0.6, ms=12, zorder=5)
    ax.plot([], [], "*", color="white", mec="black", mew=0.7, ms=11, label="best $\\alpha$")
    ax.plot([], [], "o", color=GREY, ms=4.0, label="mean of runs ± 2 SE; lines are exact")
    ax.set_yscale("log")
    ax.set_ylim(0.05, 1_000.0)
    ax.set_xlabel("$\\alpha$")
    ax.set_ylabel("error relative to alone")
    ax.set_title(f"T = {AT}")
    ax.legend(loc="upper left")
