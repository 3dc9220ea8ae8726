"""What Lyu, Hanzely, Kolar (2022) must show here: Table 1, Theorem 3.5, acceleration, the donor table's grid."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from benchmarks.measure import Row
from coterie.data.prepare_table import prepare
from coterie.data.splits import Splits
from coterie.evidence.table_selection import search
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.relations.clusters import ClusterTree
from coterie.runs.run_table_method import client_losses
from coterie.runs.run_table_method import run as fit
from papers.outcome import Settings
from papers.paper_001 import acceleration, bound
from papers.paper_001.distances import ESTIMATORS
from papers.paper_001.simulation import simulate
from papers.simulate import donor_response

GRID = [float(v) for v in np.logspace(-2, 2, 33)]


def table1() -> list[Row]:
    """The mean distance over 50 seeds, and whether ours is below every baseline in each."""
    rows = []
    for m, goal, within in ((10, 3.389, 0.02), (100, 0.4914, 0.002)):
        means = {name: [] for name in ("our", "sm", "lt", "sc")}
        for seed in range(50):
            data = simulate(seed, m)
            for name, values in means.items():
                values.append(data.distances(ESTIMATORS[name][1](data)).mean())
        ours = np.array(means["our"])
        below = sum(all(ours[s] < means[n][s] for n in ("sm", "lt", "sc")) for s in range(50))
        reached = f"mean {ours.mean():.4f}, below every baseline in {below} of 50"
        met = abs(ours.mean() - goal) <= within and (m != 10 or below == 50)
        rows.append(Row(f"Table 1, ours, m = {m}, 50 seeds", "-", "-", reached, f"{goal} ± {within}", met))
    return rows


def under_the_bound() -> Row:
    """200 runs: the mean less three standard errors under Theorem 3.5 at every recorded step."""
    out = bound.run(Settings())
    fine = all(b["under_the_bound_everywhere"] for b in out.numbers.values())
    last = ", ".join(f"{b['mean_square'][-1]:.4f} (ball {b['noise_ball']:.3f})" for b in out.numbers.values())
    return Row("200 runs of Async-L2GD against Theorem 3.5 with mu_F", "-", "-", f"last {last}", "under it", fine)


def accelerate() -> Row:
    """Communications to a distance of 1e-10, condition number 10,000."""
    here = acceleration.setting()
    fast = acceleration.accelerated(here, 0, acceleration.ACCELERATED, paper=False)
    slow = acceleration.constant(here, 0, acceleration.CONSTANT)
    tuned = acceleration.tuned(here, 0, acceleration.TUNED)
    return Row(
        "Async-AL2SGD+, condition number 10,000: communications to 1e-2, 1e-4, 1e-10",
        ", ".join(f"{fast.first(target):,.0f}" for target in (1e-2, 1e-4, 1e-10)),
        f"Async-L2GD: constant step stays at {np.median(slow.gaps[-40:]):.1e}; tuned step {tuned.first(1e-2):,.0f} to "
        f"1e-2, at {tuned.gaps[-1]:.0e} after {tuned.communications[-1]:,.0f}",
        f"{fast.gaps[-1]:.0e}",
        "1e-10",
        bool(fast.gaps[-1] <= 1e-10),
    )


def grid() -> list[Row]:
    """1,089 strengths on the donor table's shape, one 80/20 split; learned variances against the best of them."""
    frame, truth = donor_response()
    names = truth["formula"], truth["client"], tuple(truth["cluster"])
    clients, _ = prepare(frame, *names, "binomial", None, None, "error")
    problem = GroupedProblem(ClusterTree.of(clients), "binomial", np.arange(clients.X.shape[1]), 0)
    splits = Splits(1, 0.2, 0)
    start = perf_counter()
    surface = search(clients, problem, {"gamma": GRID, "lam": GRID}, splits)
    seconds = perf_counter() - start
    (mask,) = splits.masks(clients)
    train, held = clients.subset(~mask), clients.subset(mask)
    fitted, _ = fit("hierarchical", train, problem, {})
    learned = client_losses(held, "binomial", fitted.client).sum() / held.weights.sum()
    behind = float(learned - surface.loss.min())
    what = f"{len(frame):,} rows of {len(clients):,} clients, 33 x 33 strengths, one 80/20 split"
    return [
        Row(
            what, f"{seconds:.1f} s", "-", f"{1e3 * seconds / surface.loss.size:.0f} ms a point", "180 s", seconds < 180
        ),
        Row(
            "the same rows, learned variances against the grid's best: held-out log loss",
            f"{learned:.5f}",
            f"grid {surface.loss.min():.5f} at {surface.chosen}",
            f"{behind:+.5f}",
            "no worse by .001",
            behind <= 1e-3,
        ),
    ]


def run() -> list[Row]:
    return [*table1(), under_the_bound(), accelerate(), *grid()]
