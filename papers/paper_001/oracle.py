"""Section 5 in Table 1's setting: the least risk there is beside that of every estimator, measured and exact.

Given the rows X, the posterior of (5.1) is normal, so the least risks are traces of covariances: with the network's
centre known (Bayes) and unknown (the best linear unbiased estimator, from the raw rows of all clients).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from coterie.methods import james_stein
from coterie.numerics.arrays import Floats, full
from coterie.report.tables import Table
from papers.outcome import Outcome, Settings
from papers.paper_001 import rounds
from papers.paper_001.simulation import CLIENTS, CLUSTERS, COLUMNS, ESTIMATORS, Simulation, simulate
from papers.pictures import BLUE, GREY, ORANGE, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES = (10, 100)
NOTES = (
    "Risk: squared distance to the truth, averaged over clients. Exact risks are means over the runs' rows X; a "
    "standard error is that of the mean over runs. Excess: over Bayes with a known centre, on the same data.",
    "The best linear unbiased estimator is ours, exact: Theorem 5.1's strengths, and what section 5.1 calls costly. "
    "The two are computed apart here, and the note below the table has the largest difference.",
)


@dataclass(frozen=True)
class Posterior:
    """Means (m, d) of the clients' parameters given all rows and variances of 1, and the traces of covariances (m,)."""

    mean: Floats
    risk: Floats


def posterior(data: Simulation, known: bool) -> Posterior:
    """By generalised least squares, cluster by cluster; ``known``: the network's centre is known to be 0."""
    A, b, _ = data.objective.gram(np.ones(COLUMNS))
    A, eye = full(A), np.eye(COLUMNS)
    V = np.linalg.inv(A + eye)  # of a client given its cluster's centre
    own = np.einsum("mij,mj->mi", V, b)
    members = (CLUSTERS, CLIENTS)
    P = (eye - V).reshape(*members, *eye.shape).sum(axis=1)  # what a cluster's rows say of its centre
    W = np.linalg.inv(P + eye)  # of a cluster's centre given the network's
    said = own.reshape(*members, -1).sum(axis=1)
    at = np.einsum("kij,kj->ki", W, said)
    if not known:
        S = np.linalg.inv((eye - W).sum(axis=0))
        at = at + W @ (S @ at.sum(axis=0))
        W = W + W @ S @ W
    mean = own + np.einsum("mij,mj->mi", V, at[data.clusters])
    spread = np.einsum("mij,mjk,mki->m", V, W[data.clusters], V)
    return Posterior(mean, np.einsum("mii->m", V) + spread)


def local_risk(data: Simulation) -> Floats:
    """Exact risks (m,) of least squares of minimum norm: noise in the rows' span, and all of theta outside it."""
    A, _, _ = data.objective.gram(np.ones(COLUMNS))
    values = np.linalg.eigvalsh(full(A))
    seen = values > 1e-9 * values[:, -1:]
    return np.asarray(np.sum(np.where(seen, 1.0 / np.where(seen, values, 1.0), 2.0), axis=1))


def shrunk(data: Simulation) -> Floats:
    """The tree with its root shrunk by James and Stein's factor."""
    return james_stein.fit(*data.setting(), 1.0, 1.0).client


TITLES: dict[str, str] = {
    "lt": "every client alone",
    "sm": "one model",
    "sc": "one centre",
    "l2gd": "ours, Async-L2GD, paper's step",
    "our": "ours, exact (BLUE)",
    "stein": "ours, root shrunk (James-Stein)",
    "bayes": "Bayes, centre known",
}


@dataclass(frozen=True)
class Risks:
    """At one m: risks of estimators by name (runs,), exact ones by name, and how far BLUE is from ours."""

    seen: dict[str, Floats]
    exact: dict[str, float]
    apart: float

    def excess(self, name: str) -> tuple[float, float]:
        """The mean risk over that of Bayes on the same data, less 1, and its standard error."""
        over, least = self.seen[name] - self.seen["bayes"], self.seen["bayes"].mean()
        return float(over.mean() / least), float(over.std(ddof=min(1, len(over) - 1)) / len(over) ** 0.5 / least)

    def closed(self, name: str) -> float:
        """The share of the way from working alone to Bayes."""
        alone, here, least = (self.seen[n].mean() for n in ("lt", name, "bayes"))
        return float((alone - here) / (alone - least))


def run(settings: Settings) -> Outcome:
    """Measure on the data of Table 1."""
    seeds = settings.runs(10)
    sizes, steps = (SIZES[1:2], 5_000) if settings.quick else (SIZES, rounds.STEPS)
    found = {m: measure(m, seeds, steps, settings.tell) for m in sizes}
    numbers = {f"m={m}": {"risk": r.seen, "exact": r.exact, "blue_less_ours": r.apart} for m, r in found.items()}
    chosen = {"m": list(sizes), "steps": steps, "seeds": list(seeds)}
    return Outcome(tuple(table(m, r) for m, r in found.items()), partial(draw, found), chosen, numbers, NOTES)


def measure(m: int, seeds: range, steps: int, tell: Callable[[str], None]) -> Risks:
    """Every estimator on the same data of every run."""
    seen: dict[str, list[float]] = {name: [] for name in TITLES}
    exact: dict[str, list[float]] = {"bayes": [], "our": [], "lt": []}
    apart = 0.0
    for seed in seeds:
        tell(f"m = {m}, run {seed + 1} of {len(seeds)}")
        data = simulate(seed, m)
        bayes, blue = posterior(data, known=True), posterior(data, known=False)
        thetas = {name: ESTIMATORS[name][1](data) for name in ("lt", "sm", "sc", "our")}
        thetas |= {"l2gd": rounds.papers(data, seed, steps).theta, "stein": shrunk(data), "bayes": bayes.mean}
        for name, theta in thetas.items():
            seen[name].append(float(np.mean(data.distances(theta) ** 2)))
        for name, risk in (("bayes", bayes.risk), ("our", blue.risk), ("lt", local_risk(data))):
            exact[name].append(float(risk.mean()))
        apart = max(apart, float(np.max(np.abs(blue.mean - thetas["our"]))))
    return Risks({n: np.array(r) for n, r in seen.items()}, {n: float(np.mean(r)) for n, r in exact.items()}, apart)


def table(m: int, found: Risks) -> Table:
    """Risks and what is left to the least."""
    rows = []
    for name, title in TITLES.items():
        risk = found.seen[name]
        error = risk.std(ddof=min(1, len(risk) - 1)) / len(risk) ** 0.5
        exact = f"{found.exact[name]:.4f}" if name in found.exact else "–"
        more, spread = found.excess(name)
        closed = found.closed(name)
        left = f"{more:.2%} ({spread:.2%})", f"{closed:.1%}" if closed >= 0.0 else "none"
        left = ("–", "–") if name == "bayes" else left
        rows.append((title, f"{risk.mean():.4f} ({error:.4f})", exact, *left))
    return Table(
        title=f"Risk at m = {m} rows of a client, runs: {len(found.seen['our'])}",
        columns=("estimator", "measured (SE)", "exact", "excess over Bayes (SE)", "gap closed"),
        rows=tuple(rows),
        marked=list(TITLES).index("our"),
        mark="ours",
        note=f"Gap closed: from working alone to Bayes. BLUE and ours differ by {found.apart:.1e} at most.",
    )


def draw(found: dict[int, Risks]) -> Figure:
    """The excess of every estimator over the least risk."""
    figure, axes = panels(len(found), width=4.2, height=3.2)
    names = [name for name in TITLES if name != "bayes"]
    for ax, (m, risks) in zip(axes, found.items(), strict=True):
        at = np.arange(len(names))[::-1]
        more = np.array([max(risks.excess(name)[0], 1e-5) for name in names])
        colours = [BLUE if TITLES[name].startswith("ours") else GREY for name in names]
        ax.barh(at, more, color=colours, left=1e-5)
        if ax is axes[0]:
            ax.set_yticks(at, [TITLES[name] for name in names])
        else:
            ax.set_yticks(at, [""] * len(at))
        ax.axvline(risks.exact["our"] / risks.exact["bayes"] - 1.0, color=ORANGE, ls="--", label="BLUE, exact")
        ax.set_xscale("log")
        ax.set_xlabel("risk over that of Bayes, less 1")
        ax.set_title(f"m = {m} rows of a client")
    axes[0].legend(loc="lower right")
    return figure
