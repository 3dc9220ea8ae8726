"""A main client and ten honest collaborators among others that send nonsense: what the robust rules make of it.

Quadratics in ten dimensions with noisy gradients, as in section 6; all runs go at once, as main clients of one
federation. Final losses ``f_0(x) - min f_0`` are means over the last quarter of a run and over runs, divided by what is
reached alone; a star marks what is worse than that by more than two standard errors, or in most runs.
"""

from __future__ import annotations

import sys
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.measure import Row
from coterie.engines import InProcess
from coterie.methods.aggregation.rules import Adaptive, Aggregator, Clipped, Trimmed, Trust
from coterie.methods.collaboration.collaborators import Collaborators
from coterie.methods.collaboration.metric_and_similarity import Metric
from coterie.methods.weighted_averaging_and_bias_correction import BiasCorrection, WeightedAveraging
from coterie.objectives.quadratic import NoisyQuadratic

D, HONEST, SIGMA, DELTA, START = 10, 10, 1.0, 0.05, 3.0
ETA, BETA, STEPS, RUNS = 0.02, 0.002, 3000, 8
CELLS = [("none", 0), *((sender, bad) for sender in ("flip", "garbage", "constant", "nan") for bad in (1, 3, 5))]
ZETAS = (0.3, 3.0)


def rules(direction: bool) -> dict[str, Aggregator]:
    """All rules; trust drops by direction only where the bias is not corrected."""
    trust = Trust(direction=direction)
    return {
        "Mean": Aggregator(),
        "Trimmed": Aggregator(combine=Trimmed(0.25)),
        "Clipped": Aggregator(combine=Clipped()),
        "Trust": Aggregator([trust]),
        "Trust+Clipped": Aggregator([trust], Clipped()),
        "Trust+Adaptive": Aggregator([trust, Adaptive()]),
    }


def clients(zeta: float, sender: str, bad: int) -> NoisyQuadratic:
    """For every run the main client, the honest ones, the bad ones: A, b and sigma say what is sent."""
    n = 1 + HONEST + bad
    A = np.tile(np.diag(np.linspace(0.5, 1.0, D)), (RUNS, n, 1, 1))
    b, sigma = np.zeros((RUNS, n, D)), np.full((RUNS, n), SIGMA)
    for run in range(RUNS):
        rng = np.random.default_rng(run)
        E = rng.normal(size=(HONEST, D, D))
        E += E.transpose(0, 2, 1)
        A[run, 1 : 1 + HONEST] += DELTA * E / np.linalg.norm(E, 2, axis=(1, 2))[:, None, None]
        v = rng.normal(size=(HONEST, D))
        b[run, 1 : 1 + HONEST] = zeta * v / np.linalg.norm(v, axis=1, keepdims=True)
    if sender == "flip":
        A[:, 1 + HONEST :] *= -1.0
    elif sender == "garbage":
        sigma[:, 1 + HONEST :] = 1e4
    elif sender == "constant":
        A[:, 1 + HONEST :], b[:, 1 + HONEST :], sigma[:, 1 + HONEST :] = 0.0, -10.0, 0.0
    elif sender == "nan":
        sigma[:, 1 + HONEST :] = np.nan
    return NoisyQuadratic(A.reshape(-1, D, D), b.reshape(-1, D), sigma.ravel())


def final(method: Any, fed: InProcess, A: np.ndarray) -> np.ndarray:
    """Mean losses (RUNS,) over the last quarter; infinite after a divergence."""
    stops, losses = range(STEPS - STEPS // 4, STEPS + 1, 10), []
    for state in method.run(fed, stops, method.init(fed, np.full((RUNS, D), START / np.sqrt(D)))):
        if state["status"] != "running":
            return np.full(RUNS, np.inf)
        losses.append(0.5 * np.einsum("ri,ij,rj->r", state["x"], A, state["x"]))
    return np.asarray(np.mean(losses, axis=0))


def levels(zeta: float, sender: str, bad: int) -> dict[tuple[str, str], np.ndarray]:
    """Final losses (RUNS,) by method and rule."""
    objective, n = clients(zeta, sender, bad), 1 + HONEST + bad
    fed, main, others = InProcess(objective, np.zeros(RUNS * n, dtype=np.int64)), n * np.arange(RUNS), np.arange(1, n)
    of, who = np.repeat(np.arange(RUNS), n - 1), (main[:, None] + others).ravel()
    everyone = Collaborators(main, of, who, np.full(len(of), 1.0 / (n - 1)))
    common: dict[str, Any] = {"alpha": (n - 1) / n, "eta": ETA}
    alone = WeightedAveraging(pairs=everyone, metric=Metric.plain(D), alpha=0.0, eta=ETA)
    found = {("Alone", ""): final(alone, fed, objective.A[0])}
    for name in ("WGA", "BC"):
        for rule, how in rules(direction=name == "WGA").items():
            exchange = {"pairs": everyone, "metric": Metric.plain(D), "aggregator": how}
            method = (
                WeightedAveraging(**exchange, **common)
                if name == "WGA"
                else BiasCorrection(**exchange, beta=BETA, **common)
            )
            found[name, rule] = final(method, fed, objective.A[0])
    return found


def table(zetas: tuple[float, ...] = ZETAS, cells: list[tuple[str, int]] = CELLS) -> dict[Any, dict[Any, np.ndarray]]:
    """Print losses over those of working alone, and return them all."""
    found = {}
    for zeta in zetas:
        for name in ("WGA", "BC"):
            columns = list(rules(direction=False))
            print(f"\n{name}, zeta = {zeta:g}: loss over that of working alone", flush=True)
            print(f"{'senders':<14}" + "".join(f"{c:>14}" for c in columns))
            for sender, bad in cells:
                if (zeta, sender, bad) not in found:
                    found[zeta, sender, bad] = levels(zeta, sender, bad)
                cell = found[zeta, sender, bad]
                alone = cell["Alone", ""]
                print(f"{bad or '':<2} {sender:<11}" + "".join(f"{text(cell[name, c], alone):>14}" for c in columns))
                sys.stdout.flush()
    return found


def worse(losses: np.ndarray, alone: np.ndarray) -> bool:
    """Whether runs are worse than alone by more than two standard errors of their mean difference, or most are."""
    off = losses - alone
    if not np.isfinite(off).all() or np.median(off) > 0.0:
        return True
    return bool(off.mean() > 2.0 * off.std(ddof=1) / np.sqrt(len(off)))


def text(losses: np.ndarray, alone: np.ndarray) -> str:
    """A cell of the table."""
    return f"{losses.mean() / alone.mean():.3g}{'*' if worse(losses, alone) else ' '}"


def run() -> list[Row]:
    """Up to 3 of 13 bad senders: the rule recommended with BC is never worse than working alone."""
    start = perf_counter()
    found = table(ZETAS, [c for c in CELLS if c[1] <= 3])
    bad = [key for key, cell in found.items() if worse(cell["BC", "Trust+Clipped"], cell["Alone", ""])]
    most = max(np.mean(c["BC", "Trust+Clipped"]) / np.mean(c["Alone", ""]) for c in found.values())
    what = f"{len(found)} mixtures of senders, {RUNS} runs of {STEPS} steps, {perf_counter() - start:.0f} s"
    return [Row(what, "BC, trust, clipping", "alone", f"{most:.2f} of its loss at most", "1", not bad)]


if __name__ == "__main__":
    table()
