"""Theorem 3.5 on section 6.1's data: the mean squared distance of many runs under its bound, with mu_F for mu."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from coterie.errors import joined
from coterie.families import GAUSSIAN
from coterie.methods.async_l2gd import AsyncL2GD
from coterie.methods.clustered_l2gd import theory as rates
from coterie.methods.clustered_l2gd.fit import OPTIMUM, distance_monitor, gap, gradients_at_optimum, solve_exactly
from coterie.methods.clustered_l2gd.strong_convexity import client_constants, mu_F
from coterie.methods.clustered_l2gd.theory import Choice, choose
from coterie.numerics.arrays import Floats, Ints
from coterie.relations.clusters import ClusterTies
from coterie.report.tables import Table
from papers.outcome import Outcome, Settings
from papers.paper_001.rounds import P
from papers.paper_001.simulation import simulate
from papers.pictures import BLUE, GREY, ORANGE, RED, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS, RUNS = 10, 200
STEPS, STOPS = 6_000, 60
NOTES = (
    "Every client has fewer rows (10) than columns (20), so that no f_i is strongly convex and the mu of Theorem 3.5 "
    "is 0; mu_F, the smallest eigenvalue of F's Hessian, takes its place, which is all that the proof needs.",
    "The paper prints no such figure; its bound stands where its numbers stand elsewhere.",
)


@dataclass(frozen=True)
class Bounded:
    """Runs of one choice of parameters against what is promised.

    Attributes
    ----------
    title : str
    chosen : Choice
    mu, sigma2, ball : float
        mu_F, the noise (3.4), and ``2 eta sigma^2 / mu_F``.
    t : (s,)
        Recorded steps.
    squares : (runs, s)
        ``|theta^t - optimum|^2`` over ``|optimum|^2``, the start being 0.
    bound, sharper : (s,)
        Theorem 3.5's, and the one with the exact noise, on the same scale.
    """

    title: str
    chosen: Choice
    mu: float
    sigma2: float
    ball: float
    t: Ints
    squares: Floats
    bound: Floats
    sharper: Floats

    @property
    def low(self) -> Floats:
        """Means less three standard errors, (s,)."""
        spread = self.squares.std(axis=0, ddof=min(1, len(self.squares) - 1))
        return np.asarray(self.squares.mean(axis=0) - 3.0 * spread / len(self.squares) ** 0.5)


def run(settings: Settings) -> Outcome:
    """Two choices of parameters: by theory, and p_0 = p_j = 0.05 as in Table 1's runs."""
    seeds = settings.runs(RUNS, quick=20)
    steps, stops = (STEPS // 3, STOPS // 3) if settings.quick else (STEPS, STOPS)
    t = np.unique(np.linspace(0, steps, stops + 1).astype(np.int64))
    found = tuple(measure(title, p, seeds, t, settings) for title, p in (("p by theory", None), ("p = 0.05", P)))
    numbers = {
        b.title: {
            "t": b.t,
            "mean_square": b.squares.mean(axis=0),
            "mean_less_three_standard_errors": b.low,
            "bound": b.bound,
            "sharper_bound": b.sharper,
            "noise_ball": b.ball,
            "mu_F": b.mu,
            "sigma2": b.sigma2,
            "eta": b.chosen.eta,
            "p0": b.chosen.p0,
            "p": b.chosen.p,
            "under_the_bound_everywhere": bool(np.all(b.low <= b.bound)),
        }
        for b in found
    }
    chosen = {"m": ROWS, "steps": steps, "stops": stops, "seeds": list(seeds), "data_seed": 0}
    below = [f"{b.ball / b.squares[:, -1].mean():,.0f} ({b.title})" for b in found]
    notes = (
        *NOTES,
        f"The last mean is below the noise ball by a factor of {joined(below)}: the bound is far from tight.",
    )
    return Outcome((table(found),), partial(draw, found), chosen, numbers, notes)


def measure(title: str, p: float | None, seeds: range, t: Ints, settings: Settings) -> Bounded:
    """Run with Theorem 3.5's step size; every seed has its own coins, on the same data."""
    data = simulate(0, ROWS)
    fed, problem = data.setting()
    ties = ClusterTies.of(fed.clients.clusters, fed.clients.k, 1.0, 1.0, None)
    solve_exactly(fed, problem, ties)
    chosen, mu, at = (
        choose(ties, ties.most(client_constants(fed).L), p0=p, p=p),
        mu_F(fed, ties),
        gradients_at_optimum(fed, ties, OPTIMUM),
    )
    here = chosen.p0, chosen.p, at.phi, at.psi, at.loss
    sigma2, exact = rates.noise(*here), rates.noise(*here, exact=True)
    bound = rates.bound(t, chosen.eta, mu, sigma2, at.start) / at.start
    sharper = rates.bound(t, chosen.eta, mu, exact, at.start, chosen.smoothness) / at.start
    squares = np.ones((len(seeds), len(t)))
    for seed in seeds:
        settings.tell(f"{title}: run {seed + 1} of {len(seeds)}")
        method = AsyncL2GD(
            ties, chosen.p0, chosen.p, chosen.tau, chosen.eta, seed=seed, monitor=distance_monitor(GAUSSIAN)
        )
        for i, state in enumerate(method.run(fed, t[1:].tolist())):
            squares[seed, i + 1] = gap(state["observed"]) ** 2
    ball = rates.ball(chosen.eta, mu, sigma2) / at.start
    return Bounded(title, chosen, mu, sigma2, ball, t, squares, bound, sharper)


def table(found: tuple[Bounded, ...]) -> Table:
    """What was measured against the bound, at some steps."""
    rows = []
    for b in found:
        for i in np.unique(np.linspace(0, len(b.t) - 1, 5).astype(np.int64)).tolist():
            mean, error = b.squares[:, i].mean(), (b.squares[:, i].mean() - b.low[i]) / 3.0
            here = f"{mean:.4f} ({error:.4f})" if len(b.squares) > 1 else f"{mean:.4f} (-)"
            numbers = f"{b.bound[i]:.4f}", f"{b.sharper[i]:.4f}", here, f"{b.ball:.4f}"
            rows.append((b.title, f"{b.t[i]:,}", *numbers))
    over = sum(int(np.sum(b.low > b.bound)) for b in found)
    of = sum(len(b.t) for b in found)
    return Table(
        title=f"Mean squared distance from the optimum, relative to the start, runs: {len(found[0].squares)}",
        columns=("parameters", "step", "Theorem 3.5", "sharper bound", "here, mean (SE)", "noise ball"),
        rows=tuple(rows),
        note=f"Mean less three standard errors is above Theorem 3.5's bound at {over} of {of} recorded steps.",
    )


def draw(found: tuple[Bounded, ...]) -> Figure:
    """Means with three standard errors, the bounds, and the noise ball."""
    figure, axes = panels(len(found), width=4.8, height=3.8)
    for ax, b in zip(axes, found, strict=True):
        mean = b.squares.mean(axis=0)
        ax.plot(b.t, b.bound, color=RED, label="Theorem 3.5 with $\\mu_F$")
        ax.plot(b.t, b.sharper, color=ORANGE, ls="-.", label="sharper: exact noise at the optimum")
        ax.axhline(b.ball, color=GREY, ls=":", label="noise ball $2 \\eta \\sigma^2 / \\mu_F$")
        ax.fill_between(b.t, b.low, 2.0 * mean - b.low, color=BLUE, alpha=0.3, lw=0)
        ax.plot(b.t, mean, color=BLUE, label=f"mean of runs ({len(b.squares)}), ± 3 SE")
        ax.set_yscale("log")
        ax.set_xlabel("iteration")
        ax.set_title(f"{b.title}: $\\eta$ = {b.chosen.eta:.2g}, $\\mu_F$ = {b.mu:.3f}")
    low = min(b.squares.mean(axis=0).min() for b in found)
    for ax in axes:
        ax.set_ylim(0.5 * low, 3.0)
    axes[0].set_ylabel("squared distance from the optimum / at the start")
    axes[0].legend(loc="upper right", bbox_to_anchor=(1.0, 0.86))
    return figure
