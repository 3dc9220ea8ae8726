"""Section 4's hypothesis on a hard instance: that clusters which communicate each for itself save communications.

The objective is one and the same, with several clusters; what differs is who communicates when: every cluster by a p_j
of its own, all clusters by a common one (Corollaries 3.6 and 4.4), or, as in the single-cluster algorithm, everybody
with everybody (p_j = 0, tau_j = 1). In ``alike`` the five clusters are of one size and curvature. In ``hard`` they have
2 to 20 clients, curvatures that fall from 10 to 0.1 and ties that grow from 0.1 to 10, with columns of condition 100.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.engines.local_engines import InProcess
from coterie.families import GAUSSIAN
from coterie.methods.clustered_l2gd.fit import (
    Plan,
    distance_monitor,
    gap,
    plan_async_al2sgd,
    plan_async_l2gd,
    solve_exactly,
)
from coterie.methods.clustered_l2gd.options import Options
from coterie.methods.clustered_l2gd.strong_convexity import client_constants, mu_F
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.numerics.arrays import Floats, over
from coterie.objectives.glm import GLM
from coterie.relations.clusters import ClusterTies, ClusterTree
from coterie.report.tables import Table
from papers.outcome import Outcome, Settings
from papers.pictures import BLUE, GREEN, GREY, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

D, ROWS, CONDITION, LAM = 8, 16, 100.0, 3.0
SIZES = {"alike": (8, 8, 8, 8, 8), "hard": (2, 3, 5, 10, 20)}
CURVATURES = {"alike": (1.0,) * 5, "hard": (10.0, 3.0, 1.0, 0.3, 0.1)}
GAMMAS = {"alike": (1.0,) * 5, "hard": (0.1, 0.3, 1.0, 3.0, 10.0)}
STEPS = {"al2sgd": 5_000, "l2gd": 200_000}
TARGETS = {"al2sgd": 1e-4, "l2gd": 3e-2}
NAMES = {"al2sgd": "Async-AL2SGD+", "l2gd": "Async-L2GD"}
WAYS = {"own": "p_j of its own", "common": "one p_j for all", "one": "everybody together"}
COLOURS = {"own": BLUE, "common": GREEN, "one": GREY}
PRICES = (0.1, 1.0)
"""What a round within the busiest cluster costs, where a global one costs 1."""
TIES = (0.1, 1.0, 10.0, 100.0)
NOTES = (
    "Global rounds have refreshes of the anchor in them; rounds within are those of the busiest cluster. Messages are "
    "of clients: all for a global round, those of its cluster for one within.",
    "Local steps take all rows. Theory's parameters are those of (3.3) and, for 'everybody together', of (3.3) with "
    "p_j = 0. Tuned: the best multiple of theory's p_0 and p_j, and for Async-L2GD of 1 / (mu t), on a run of its own.",
)


@dataclass(frozen=True)
class Instance:
    """Rows, ties and what theory needs."""

    glm: GLM
    ties: ClusterTies
    mu: float
    L: Floats

    def fed(self, seed: int) -> InProcess:
        """A federation whose clients know the optimum."""
        fed = InProcess(self.glm, self.ties.clusters, seed=seed)
        tree = ClusterTree((np.zeros(len(self.ties.alpha), dtype=np.int64),))
        solve_exactly(fed, GroupedProblem(tree, GAUSSIAN, np.arange(D), None), self.ties)
        return fed

    def together(self) -> dict[str, Any]:
        """(3.3) at its least with p_j = 0: all ties are pulled in global rounds."""
        pull = 2.0 * float(max(self.ties.C1.max(), self.ties.C2.max()))
        return {"p0": float(over(pull, pull + self.L.max())), "p": 0.0}


def instance(name: str, scale: float = 1.0, seed: int = 0) -> Instance:
    """Draw one; ``scale`` multiplies all ties."""
    rng, gammas = np.random.default_rng(seed), np.array(GAMMAS[name])
    k = len(gammas)
    clusters = np.repeat(np.arange(k), SIZES[name])
    m = len(clusters)
    theta = rng.normal(size=(k, D))[clusters] + rng.normal(size=(m, D)) / gammas[clusters, None] ** 0.5
    columns = CONDITION ** (-0.5 * np.linspace(0.0, 1.0, D))
    spread = (np.array(CURVATURES[name])[np.repeat(clusters, ROWS)] / ROWS) ** 0.5
    X = rng.normal(size=(m * ROWS, D)) * columns * spread[:, None]
    y = np.sum(X * np.repeat(theta, ROWS, axis=0), axis=1) + 0.1 * rng.normal(size=m * ROWS)
    at = np.arange(m) * ROWS
    glm = GLM(X, y, np.zeros(len(y)), np.ones(len(y)), at, at + ROWS)
    ties = ClusterTies.of(clusters, k, scale * gammas[clusters], scale * LAM, None)
    fed = InProcess(glm, clusters)
    return Instance(glm, ties, mu_F(fed, ties), ties.most(client_constants(fed).L))


@dataclass(frozen=True)
class Spent:
    """What a run needed until its target: steps, global rounds, rounds of the busiest cluster, messages of clients."""

    steps: float
    globally: float
    within: float
    messages: float
    gap: float  # at the end
    reached: bool

    def cost(self, price: float) -> float:
        """Rounds, one within costing ``price``; those of the whole run and more where the target was not reached."""
        return (self.globally + price * self.within) * (1.0 if self.reached else 1e3 * self.gap)


def spend(here: Instance, algorithm: str, seed: int, how: dict[str, Any], factor: float = 0.0) -> Spent:
    """Run until the target; ``factor`` > 0: Async-L2GD with step ``min(1 / (2 L), factor / (mu t))``."""
    fed, T = here.fed(seed), STEPS[algorithm]
    make = plan_async_al2sgd if algorithm == "al2sgd" else plan_async_l2gd
    plan: Plan = make(fed, here.ties, Options(steps=T, seed=seed, batch=0, **how))
    method: Any = replace(plan.method, monitor=distance_monitor(GAUSSIAN))
    if factor:
        eta = partial(_decreasing, most=plan.about["eta"], rate=factor / here.mu)
        method = replace(method, eta=eta)
    sizes = np.bincount(here.ties.clusters)
    last = Spent(0.0, 0.0, 0.0, 0.0, 1.0, False)
    for s in method.run(fed, np.unique(np.geomspace(10, T, 100).astype(int)).tolist()):
        globally, now = float(s["between"] + s.get("refreshes", 0)), gap(s["observed"])
        messages = float(globally * sizes.sum() + sizes @ s["within"])
        last = Spent(float(s["t"]), globally, float(np.max(s["within"])), messages, now, now <= TARGETS[algorithm])
        if last.reached:
            break
    return last


def _decreasing(t: int, most: float, rate: float) -> float:
    return min(most, rate / max(t, 1))


def by_theory(here: Instance, way: str) -> dict[str, Any]:
    """Options of each way to communicate."""
    if way == "one":
        return here.together()
    return {"probabilities": way}


def tuned(here: Instance, algorithm: str, way: str, seed: int) -> list[tuple[dict[str, Any], float]]:
    """For every price the multiples of theory's probabilities (and the step) that cost least on a run of their own."""
    make = plan_async_al2sgd if algorithm == "al2sgd" else plan_async_l2gd
    method: Any = make(here.fed(seed), here.ties, Options(steps=10, batch=0, **by_theory(here, way))).method
    tried = []
    for first in (0.25, 0.5, 1.0) if way == "one" else (0.5, 1.0, 2.0):
        for second in (1.0,) if way == "one" else (0.5, 1.0):
            p0, p = min(first * method.p0, 0.95), np.minimum(second * method.p, 0.95)
            how: dict[str, Any] = {"p0": float(p0), "p": p.tolist()}
            for factor in (0.0,) if algorithm == "al2sgd" else (0.0, 1.0, 4.0, 16.0):
                tried.append((spend(here, algorithm, seed, how, factor), how, factor))
    best = [min(tried, key=lambda one: one[0].cost(price)) for price in PRICES]
    return [(how, factor) for _, how, factor in best]


def run(settings: Settings) -> Outcome:
    """Both instances, both algorithms, theory's parameters and tuned ones; then how rounds grow with the ties."""
    seeds = settings.runs(5)
    found: dict[tuple[str, str, str, str], list[Spent]] = {}
    here = {name: instance(name) for name in (("hard",) if settings.quick else SIZES)}
    algorithms = ("al2sgd",) if settings.quick else tuple(NAMES)
    for name, problem in here.items():
        for algorithm in algorithms:
            for way in WAYS:
                settings.tell(f"{name}, {NAMES[algorithm]}, {WAYS[way]}")
                how = by_theory(problem, way)
                found[name, algorithm, way, "theory"] = [spend(problem, algorithm, s, how) for s in seeds]
                skip = settings.quick or way == "common"
                for price, best in () if skip else zip(PRICES, tuned(problem, algorithm, way, 100), strict=True):
                    key = name, algorithm, way, f"tuned, within costs {price:g}"
                    found[key] = [spend(problem, algorithm, s, *best) for s in seeds]
    grown = growth(seeds[:1] if settings.quick else seeds[:2], TIES[1:2] if settings.quick else TIES, settings.tell)
    numbers = {"; ".join(key): [vars(s) for s in runs] for key, runs in found.items()}
    about = {name: {"mu_F": p.mu, "L": p.L, "C1": p.ties.C1, "C2": p.ties.C2} for name, p in here.items()}
    chosen = {"seeds": list(seeds), "steps": STEPS, "targets": TARGETS, "prices": PRICES, "instances": about}
    shown = tuple(table(found, algorithm) for algorithm in algorithms)
    return Outcome((*shown, grown), partial(draw, found), chosen, numbers, NOTES)


def table(found: dict[tuple[str, str, str, str], list[Spent]], algorithm: str) -> Table:
    """Means over runs with standard deviations of global rounds."""
    rows = []
    for (name, which, way, parameters), runs in found.items():
        if which != algorithm:
            continue
        mark = "" if all(r.reached for r in runs) else "> "
        means = [
            float(np.mean([getattr(r, what) for r in runs])) for what in ("globally", "within", "messages", "steps")
        ]
        spread = np.std([r.globally for r in runs])
        cells = (f"{mark}{means[0]:,.0f} ({spread:,.0f})", *(f"{mark}{v:,.0f}" for v in means[1:]))
        rows.append((name, WAYS[way], parameters, *cells))
    return Table(
        title=f"{NAMES[algorithm]}: until a distance of {TARGETS[algorithm]:g}, relative to the start's",
        columns=("instance", "who communicates", "parameters", "global (SD)", "within", "messages", "steps"),
        rows=tuple(rows),
        texts=3,
        note="> : not reached in all runs; what was spent.",
    )


def growth(seeds: Sequence[int], scales: Sequence[float], tell: Callable[[str], None]) -> Table:
    """Rounds of Async-AL2SGD+ over ``sqrt(min(gamma, L) / mu) log(1 / accuracy)``, the single cluster's lower bound."""
    rows = []
    for name in SIZES:
        for scale in scales:
            tell(f"{name}, ties times {scale:g}")
            here = instance(name, scale)
            runs = [spend(here, "al2sgd", seed, {}) for seed in seeds]
            order = (min(here.ties.strongest.max(), here.L.max()) / here.mu) ** 0.5 * np.log(1.0 / TARGETS["al2sgd"])
            both = float(np.mean([r.globally + r.within for r in runs]))
            mark = "" if all(r.reached for r in runs) else "> "
            globally = np.mean([r.globally for r in runs])
            cells = (f"{here.mu:.2g}", f"{order:,.0f}", f"{mark}{globally:,.0f}", f"{mark}{both:,.0f}")
            rows.append((name, f"{scale:g}", *cells, f"{mark}{both / order:.2f}"))
    return Table(
        title="Async-AL2SGD+ with p_j of their own as ties grow, against the order of the single cluster's lower bound",
        columns=("instance", "ties times", "mu_F", "order", "global", "global and within", "over the order"),
        rows=tuple(rows),
    )


def draw(found: dict[tuple[str, str, str, str], list[Spent]]) -> Figure:
    """Global rounds and rounds within, by way, with theory's parameters."""
    cases = list(dict.fromkeys((name, algorithm) for name, algorithm, *_ in found))
    figure, axes = panels(len(cases), width=3.0, height=3.2)
    for ax, (name, algorithm) in zip(axes, cases, strict=True):
        for at, way in enumerate(WAYS):
            runs = found[name, algorithm, way, "theory"]
            globally, within = (np.mean([getattr(r, what) for r in runs]) for what in ("globally", "within"))
            ax.bar(at, globally, color=COLOURS[way], label="global" if at == 0 else None)
            ax.bar(
                at,
                within,
                bottom=globally,
                color=COLOURS[way],
                alpha=0.45,
                hatch="//",
                label="within" if at == 0 else None,
            )
        ax.set_xticks(range(len(WAYS)), ["own", "common", "together"])
        ax.set_title(f"{name}, {NAMES[algorithm]}")
    axes[0].set_ylabel("rounds until the target, theory's parameters")
    axes[0].legend()
    return figure
