"""Section 4's claim: Async-AL2SGD+ against Async-L2GD on an ill-conditioned problem, by communications.

The paper has no such figure. Columns of shrinking size make F's condition number 10,000; clients are tied as in
section 6.1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.engines.local_engines import InProcess
from coterie.families import GAUSSIAN
from coterie.methods.clustered_l2gd.fit import (
    OPTIMUM,
    Plan,
    distance_monitor,
    gap,
    gradients_at_optimum,
    plan_async_al2sgd,
    plan_async_l2gd,
    solve_exactly,
)
from coterie.methods.clustered_l2gd.options import Options
from coterie.methods.clustered_l2gd.strong_convexity import client_constants, mu_F
from coterie.methods.clustered_l2gd.theory import ball
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.numerics.arrays import Floats
from coterie.objectives.glm import GLM
from coterie.relations.clusters import ClusterTies, ClusterTree
from coterie.report.tables import Table
from papers.outcome import Outcome, Settings
from papers.pictures import BLUE, GREEN, GREY, ORANGE, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLUSTERS, EACH, ROWS, D = 5, 8, 20, 10
KAPPA = 1e4
TARGETS = (1e-2, 1e-4, 1e-10)
CONSTANT, ACCELERATED, TUNED = 200_000, 200_000, 4_000_000
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Multiples of 1 / (mu t) that the decreasing step is tuned over."""


@dataclass(frozen=True)
class Setting:
    """The problem: rows, ties and what the theorems need."""

    glm: GLM
    ties: ClusterTies
    kappa: float

    def fed(self, seed: int) -> InProcess:
        """A federation whose clients know the optimum."""
        fed = InProcess(self.glm, self.ties.clusters, seed=seed)
        tree = ClusterTree((np.zeros(CLUSTERS, dtype=np.int64),))
        solve_exactly(fed, GroupedProblem(tree, GAUSSIAN, np.arange(D), None), self.ties)
        return fed


@dataclass(frozen=True)
class Curve:
    """A run: steps, distances, and communications up to each stop; what was chosen."""

    steps: Floats
    gaps: Floats
    communications: Floats
    about: dict[str, Any]

    def first(self, target: float) -> float:
        """Communications when the distance first is ``target``; NaN if never."""
        there = np.flatnonzero(self.gaps <= target)
        return float(self.communications[there[0]]) if len(there) else float("nan")


def setting(seed: int = 0) -> Setting:
    """Draw the rows, and shrink the columns until ``L_F / mu_F`` is ``KAPPA``."""
    from scipy.optimize import brentq

    rng = np.random.default_rng(seed)
    clusters = np.repeat(np.arange(CLUSTERS), EACH)
    m = len(clusters)
    theta = rng.normal(size=(CLUSTERS, D))[clusters] + rng.normal(size=(m, D))
    X, noise = rng.normal(size=(m * ROWS, D)), 0.1 * rng.normal(size=m * ROWS)
    starts, ties = np.arange(m) * ROWS, ClusterTies.of(clusters, CLUSTERS, 1.0, 1.0, None)

    def shrunk(log_size: float) -> Setting:
        columns = X * np.exp(log_size * np.linspace(0.0, 1.0, D))
        y = np.sum(columns * np.repeat(theta, ROWS, axis=0), axis=1) + noise
        glm = GLM(columns, y, np.zeros(len(y)), np.ones(len(y)), starts, starts + ROWS)
        fed = InProcess(glm, clusters)
        return Setting(glm, ties, float(np.max(client_constants(fed).L + ties.gamma)) / mu_F(fed, ties))

    return shrunk(brentq(lambda s: np.log(shrunk(s).kappa / KAPPA), -8.0, 0.0, xtol=1e-6))


def trace(fed: InProcess, plan: Plan, stops: list[int]) -> Curve:
    """Follow a plan; communications are those between clusters, with refreshes, and those of the busiest cluster."""
    rows = []
    for s in replace(plan.method, monitor=distance_monitor(GAUSSIAN)).run(fed, stops):
        spoken = s["between"] + s.get("refreshes", 0) + np.max(s["within"])
        rows.append((s["t"], gap(s["observed"]), spoken))
    t, gaps, spoken = np.array(rows, dtype=np.float64).T
    return Curve(t, gaps, spoken, plan.about)


def stops_of(T: int, count: int = 400) -> list[int]:
    """Stops of a run of T steps, closer at its beginning."""
    return [int(t) for t in np.unique(np.geomspace(1, T, count).astype(np.int64))]


def constant(here: Setting, seed: int, T: int) -> Curve:
    """Algorithm 1 with Theorem 3.5's step size throughout."""
    fed = here.fed(seed)
    plan = plan_async_l2gd(fed, here.ties, Options(steps=T, seed=seed))
    method: Any = replace(plan.method, eta=plan.about["eta"])
    return trace(fed, Plan(method, [], plan.about), stops_of(T))


def tuned(here: Setting, seed: int, T: int) -> Curve:
    """Algorithm 1 with step ``min(1 / (2 L), factor / (mu t))``, by the factor that needs fewest communications."""
    curves = []
    for factor in FACTORS:
        fed = here.fed(seed)
        plan = plan_async_l2gd(fed, here.ties, Options(steps=T, seed=seed))
        eta = partial(_decreasing, most=plan.about["eta"], rate=factor / plan.about["mu"])
        method: Any = replace(plan.method, eta=eta)  # type: ignore[arg-type]
        curve = trace(fed, Plan(method, [], plan.about), stops_of(T, 800))
        curves.append(replace(curve, about=plan.about | {"factor": factor}))
    return min(curves, key=lambda c: (np.nan_to_num(c.first(1e-4), nan=np.inf), c.gaps[-1]))


def _decreasing(t: int, most: float, rate: float) -> float:
    return min(most, rate / max(t, 1))


def accelerated(here: Setting, seed: int, T: int, paper: bool) -> Curve:
    """Algorithm 2, with the steps that Theorem 4.3 prints or those that its proof admits."""
    fed = here.fed(seed)
    return trace(fed, plan_async_al2sgd(fed, here.ties, Options(steps=T, seed=seed, paper=paper)), stops_of(T))


TITLES = {
    "al2sgd": "Async-AL2SGD+",
    "al2sgd paper": "Async-AL2SGD+, steps as printed",
    "l2gd": "Async-L2GD, constant step",
    "l2gd tuned": "Async-L2GD, tuned decreasing step",
}
STYLES = {"al2sgd": (BLUE, "-"), "al2sgd paper": (BLUE, ":"), "l2gd": (GREY, "-"), "l2gd tuned": (ORANGE, "-")}


def run(settings: Settings) -> Outcome:
    """Run all four, and count."""
    share = 0.1 if settings.quick else 1.0
    here = setting()
    curves: dict[str, list[Curve]] = {name: [] for name in TITLES}
    for seed in settings.runs(3, 1):
        settings.tell(f"seed {seed}")
        curves["al2sgd"].append(accelerated(here, seed, int(share * ACCELERATED), paper=False))
        curves["al2sgd paper"].append(accelerated(here, seed, int(share * 2 * ACCELERATED), paper=True))
        curves["l2gd"].append(constant(here, seed, int(share * CONSTANT)))
        curves["l2gd tuned"].append(tuned(here, seed, int(share * TUNED)))
    level = level_of(here)
    chosen = {name: {k: v for k, v in c[0].about.items() if k != "trace"} for name, c in curves.items()}
    about = {"kappa": here.kappa, "clients": CLUSTERS * EACH, "rows": ROWS, "columns": D, "chosen": chosen}
    numbers = {
        name: [{"step": c.steps, "gap": c.gaps, "communications": c.communications} for c in runs]
        for name, runs in curves.items()
    }
    notes = (
        "Distances are relative to that of the start. Communications are global rounds, refreshes, and rounds of "
        "the busiest cluster.",
        f"Async-L2GD's noise ball, by Theorem 3.5 with mu_F, is {level['promised']:.2g}; its distance over the last "
        f"tenth of its steps was {np.mean([np.mean(_late(c)) for c in curves['l2gd']]):.2g}.",
    )
    tables = (table(curves, here),)
    return Outcome(tables, partial(draw, curves, level["promised"]), about, numbers | {"level": level}, notes)


def _late(curve: Curve) -> Floats:
    return np.asarray(curve.gaps[curve.steps > 0.9 * curve.steps[-1]])


def level_of(here: Setting) -> dict[str, float]:
    """The noise ball that Theorem 3.5 promises of a constant step, as a distance relative to the start's."""
    fed = here.fed(0)
    about = plan_async_l2gd(fed, here.ties, Options()).about
    start = gradients_at_optimum(fed, here.ties, OPTIMUM).start
    return {"promised": float(np.sqrt(ball(about["eta"], about["mu"], about["sigma2"]) / start))}


def orders(here: Setting, target: float, fast: bool) -> float:
    """Communications by Corollary 4.4 (or 3.6), which gives orders only: constants and refreshes are left out."""
    c = client_constants(here.fed(0))
    c1, c2 = float(here.ties.C1.max()), float(here.ties.C2.max())
    L, mu = float((c.L_row if fast else c.L).max()), mu_F(here.fed(0), here.ties)
    rate = np.sqrt((c1 + c2 + L) * mu) if fast else mu
    between = c1 * (c2 - c1 + L) / ((c1 + c2 + L) * rate)
    within = L * (c2 - c1) / ((c2 - c1 + L) * rate)
    return float((between + within) * np.log(1.0 / target**2))


def table(curves: dict[str, list[Curve]], here: Setting) -> Table:
    """Communications until each target."""
    rows = []
    for name, runs in curves.items():
        fast = name.startswith("al2sgd")
        cells = []
        for target in TARGETS:
            first = np.array([c.first(target) for c in runs])
            spent = np.mean([c.communications[-1] for c in runs])
            seen = f"> {spent:,.0f}" if np.isnan(first).any() else f"{np.mean(first):,.0f}"
            cells += [seen, f"{orders(here, target, fast):,.0f}"]
        last = np.mean([c.gaps[-1] for c in runs])
        rows.append((TITLES[name], *cells, f"{last:.1e}"))
    heads = [head for t in TARGETS for head in (f"to {t:g}", "order")]
    return Table(
        title=f"Communications until a distance is reached, condition number {here.kappa:,.0f}, "
        f"mean of runs ({len(next(iter(curves.values())))})",
        columns=("method", *heads, "at the end"),
        rows=tuple(rows),
        texts=1,
        note="order: the expressions of Corollary 4.4 (3.6 for Async-L2GD), without constants and refreshes. "
        "> n: not reached with n.",
    )


def draw(curves: dict[str, list[Curve]], promised: float) -> Figure:
    """Distance against communications, and against steps."""
    figure, (left, right) = panels(2, width=5.2, height=4.0)
    for name, runs in curves.items():
        color, line = STYLES[name]
        for i, c in enumerate(runs):
            label = TITLES[name] if i == 0 else None
            left.plot(np.maximum(c.communications, 1.0), c.gaps, line, color=color, alpha=0.8, label=label)
            right.plot(c.steps, c.gaps, line, color=color, alpha=0.8)
    for ax, title in ((left, "communications"), (right, "iterations")):
        ax.axhline(promised, color=GREEN, lw=1.0, ls="--", label="noise ball of a constant step")
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlabel(title)
        ax.set_title(f"Distance against {title}")
    left.set_ylabel("distance from the optimum, relative to the start's")
    left.legend(loc="lower left")
    return figure
