"""Group SGD on losses that are smooth and not convex, under the rate promised; and groups that agree, or do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.engines import InProcess
from coterie.methods.group_sgd import GroupSGD
from coterie.numerics.arrays import Floats, Ints
from coterie.report.tables import Table
from papers.outcome import Outcome, Settings
from papers.paper_000 import theory
from papers.paper_000.growth import Growth, growth
from papers.paper_000.monitor import monitored
from papers.paper_000.robust import BODY, made
from papers.pictures import BLUE, GREEN, GREY, ORANGE, RED, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUNS, QUICK, STEPS, QUICK_STEPS, FAR = 5, 2, 1_000, 100, 1_500
BATCH, ROWS, LAYER = 4, 20, 5
COUNTS = (4, 16, 64, 256)
PAIRS = {"bodies alike": 0.0, "bodies apart": 1.0}
NOTES = (
    f"Robust linear regression, {ROWS} rows a client, {LAYER} shared parameters and {LAYER} of each group's own, two "
    "groups of as many clients; x starts at 0, where f is below 1, and f is never below 0.",
    "Promised from what is known before any step: L and sigma^2 are bounds that hold everywhere, the gap is f(x_0), "
    "and the step is the one for T steps. Nothing is fitted.",
    "Agreement: all rows, step 1 / L; outcomes without noise, so that a group whose body is the shared one can fit.",
)


@dataclass(frozen=True)
class Descent:
    """Mean of ``||grad f||^2`` over steps and runs, beside what is promised.

    Attributes
    ----------
    n : int
    eta, L, sigma2, gap : float
    norm : (runs, T)
    promised : (T,)
        Of the mean over the steps up to each.
    """

    n: int
    eta: float
    L: float
    sigma2: float
    gap: float
    norm: Floats
    promised: Floats

    @property
    def mean(self) -> Floats:
        """Mean over steps so far and runs (T,)."""
        each = np.cumsum(self.norm, axis=1) / np.arange(1, self.norm.shape[1] + 1)
        return np.asarray(each.mean(axis=0))

    @property
    def error(self) -> float:
        """Standard error of the last mean."""
        each = self.norm.mean(axis=1)
        return float(each.std(ddof=1) / np.sqrt(len(each))) if len(each) > 1 else float("nan")


def run(settings: Settings) -> Outcome:
    """Both parts."""
    seeds, T = settings.runs(RUNS, QUICK), QUICK_STEPS if settings.quick else STEPS
    descents = []
    for n in COUNTS:
        settings.tell(f"{n} clients, {len(seeds)} runs of {T:,} steps")
        descents.append(descend(n, T, seeds))
    pairs = {name: agree(apart, FAR) for name, apart in PAIRS.items()}
    numbers = {
        "descents": [{**vars(d), "norm": d.mean, "error": d.error, "under": under(d)} for d in descents],
        "pairs": {name: vars(g) for name, g in pairs.items()},
    }
    settled = {"seeds": list(seeds), "steps": T, "far": FAR, "batch": BATCH, "rows": ROWS, "layer": LAYER}
    return Outcome((rates(descents), groups(pairs)), partial(draw, descents, pairs), settled, numbers, NOTES)


def halves(n: int) -> Ints:
    """Two groups of as many clients."""
    return np.repeat(np.arange(2), n // 2)


def descend(n: int, T: int, seeds: Sequence[int]) -> Descent:
    """Runs at the step for T steps; all see the same rows, and draw others."""
    group = halves(n)
    objective = made(group, LAYER, LAYER, ROWS, apart=0.5, seed=1)
    weight = np.ones(n)
    L = theory.smoothness(objective.smoothness(), weight)
    sigma2 = float(objective.noise(BATCH).sum() / n**2)
    gap = float(objective.value(np.zeros(objective.dim)).mean() / ROWS)
    eta = theory.step_size(L, sigma2, gap, T)
    norm = [trace(objective, group, GroupSGD(eta=eta, shared=(BODY,), B=BATCH), T, seed=s)["norm"] for s in seeds]
    return Descent(n, eta, L, sigma2, gap, np.array(norm), theory.rate(L, sigma2, gap, np.arange(1, T + 1), eta))


def trace(objective: Any, group: Ints, method: GroupSGD, T: int, every: int = 1, seed: int = 0) -> dict[str, Any]:
    """The trace of T steps."""
    return monitored(InProcess(objective, group, seed=seed), method, T, every)[1]


def under(d: Descent) -> bool:
    """Whether the mean is below what is promised at the last step, the one that eta is made for."""
    return bool(d.mean[-1] <= d.promised[-1])


def agree(apart: float, T: int) -> Growth:
    """Full gradients of two groups that could share a body, or could not."""
    group = halves(8)
    objective = made(group, LAYER, LAYER, ROWS, apart, seed=2, noise=0.0)
    eta = 1.0 / theory.smoothness(objective.smoothness(), np.ones(len(group)))
    return growth(trace(objective, group, GroupSGD(eta=eta, shared=(BODY,)), T, max(T // 100, 1)))


def rates(descents: Sequence[Descent]) -> Table:
    """Means and promises after all steps."""
    rows = []
    for d in descents:
        error = "-" if np.isnan(d.error) else f"{d.error:.1g}"
        known = f"{d.n}", f"{d.eta:.4f}", f"{d.sigma2:.4f}"
        last, promised = d.mean[-1], d.promised[-1]
        rows.append((*known, f"{last:.5f} ({error})", f"{promised:.5f}", f"{promised / last:.1f}"))
    return Table(
        title=f"Mean of ||grad f||^2 over {descents[0].norm.shape[1]:,} steps",
        columns=("n", "step", "sigma^2 at most", "found (SE)", "promised", "over found"),
        rows=tuple(rows),
        note="sigma^2 falls like 1 / n, so that more clients may take longer steps.",
    )


def groups(pairs: dict[str, Growth]) -> Table:
    """Where gradients end, and M."""
    rows = []
    for name, g in pairs.items():
        own = ", ".join(f"{v:.2g}" for v in g.group_norm[-1])
        rows.append(
            (name, f"{g.norm[-1]:.2g}", own, f"{g.pair[0]:.2g}", f"{g.pair[-1]:.2g}", f"{g.stalled.sum()} of 2")
        )
    return Table(
        title="Two groups at a stationary point of the sum",
        columns=("case", "||grad f||^2", "the groups' own", "M at first", "M so far", "stalled"),
        rows=tuple(rows),
        note="M: the largest ||d_s f_1 - d_s f_2||^2 / ||grad f||^2 seen. stalled: groups whose gradient has stayed.",
    )


def draw(descents: Sequence[Descent], pairs: dict[str, Growth]) -> Figure:
    """Means under promises, and the groups' own gradients."""
    figure, (left, *right) = panels(1 + len(pairs), width=4.2)
    for d, colour in zip(descents, (BLUE, ORANGE, GREEN, RED), strict=False):
        t = np.arange(1, len(d.mean) + 1)
        left.plot(t, d.mean, color=colour, label=f"n = {d.n}")
        left.plot(t, d.promised, color=colour, ls=":")
    left.plot([], [], color="black", ls=":", label="promised of the mean")
    left.set_title("Mean of ||grad f||² over the steps so far")
    for ax, (name, g) in zip(right, pairs.items(), strict=True):
        t = g.t
        ax.plot(t, g.norm, color=GREY, label="the sum's")
        for j, colour in enumerate((BLUE, ORANGE)):
            ax.plot(t, g.group_norm[:, j], color=colour, label=f"group {j}'s")
            ax.plot(t, g.bound[:, j], color=colour, ls=":")
        ax.plot([], [], color="black", ls=":", label="bound of it")
        ax.set_title(f"||grad||², {name}")
        ax.set_xlabel("step")
    for ax in (left, *right):
        ax.set_yscale("log")
        ax.legend()
    left.set_xscale("log")
    left.set_xlabel("step")
    return figure
