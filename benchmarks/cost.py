"""What a round costs as rows, clients, columns, clusters, edges and sites grow: CPU seconds, and the fitted exponents.

One thread; the least CPU seconds of three rounds, after one that is not counted. The exponent is the slope of a line
through all four points on logarithmic scales, then that of the last decade, where what does not grow counts least.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.measure import Row

SIZES = {
    "rows": (2_000, 20_000, 200_000, 2_000_000),
    "clients": (300, 3_000, 30_000, 300_000),
    "columns": (1, 10, 100, 1_000),
    "clusters": (10, 100, 1_000, 10_000),
    "edges": (406, 4_060, 40_600, 406_000),  # about
    "sites": (1, 10, 100, 1_000),
}
WORK = {
    "rows": "FedAvg, logistic, 100 clients, 8 columns",
    "clients": "FedAvg, logistic, 10 rows a client, 8 columns",
    "columns": "exact sums of squares, 5 clients of 400 rows",
    "clusters": "GroupSGD, logistic, 20,000 clients of 10 rows, 8 columns",
    "edges": "network prox, the first turn of both solvers, five neighbours a client, q = 5, p = 2",
    "sites": "FedAvg over the loop-back wire, logistic, 10,000 clients of 10 rows, 8 columns",
}
GOALS = {"rows": 1.05, "clients": 1.05, "edges": 1.05, "columns": 2.1}


def _rows(m: int, n: int, p: int) -> Any:
    from coterie.objectives.glm import GLM

    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(m * n, p)), rng.integers(0, 2, m * n).astype(float)
    starts = np.arange(m) * n
    return GLM(X, y, np.zeros(m * n), np.ones(m * n), starts, starts + n, "binomial")


def _stepped(method: Any, fed: Any) -> Callable[[], Any]:
    state = method.init(fed)
    return lambda: method.step(fed, state)


def _round(axis: str, size: int) -> Callable[[], Any]:
    """One round of the work on this axis."""
    from coterie.engines import InProcess, Loopback
    from coterie.methods.fedavg import FedAvg
    from coterie.methods.group_sgd import GroupSGD

    if axis == "rows":
        return _stepped(FedAvg(eta=0.1), InProcess(_rows(100, size // 100, 8), threads=1))
    if axis == "clients":
        return _stepped(FedAvg(eta=0.1), InProcess(_rows(size, 10, 8), threads=1))
    if axis == "columns":
        objective = _rows(5, 400, size)
        return lambda: objective.gram(np.ones(size))
    if axis == "clusters":
        clusters = np.arange(20_000) * size // 20_000
        return _stepped(GroupSGD(eta=0.1), InProcess(_rows(20_000, 10, 8), clusters, threads=1))
    if axis == "sites":
        return _stepped(FedAvg(eta=0.1), Loopback(_rows(10_000, 10, 8), sites=size))
    from benchmarks.network_prox import network
    from coterie.numerics.network.prox import network_prox

    V, edges = network(int(size / 3.25), q=5, k=5)  # neighbours are often mutual
    return lambda: network_prox(V, edges, 0.1, 2, gap=0.0, iterations=10)


def seconds(axis: str, size: int) -> float:
    """The least CPU seconds of a round."""
    once, found = _round(axis, size), []
    once()
    for _ in range(3):
        start = time.process_time()
        once()
        found.append(time.process_time() - start)
    return min(found)


def measured(axis: str) -> tuple[list[float], float, float]:
    """CPU seconds at each size, the exponent, and that of the last decade."""
    sizes, took = np.log(SIZES[axis]), [seconds(axis, size) for size in SIZES[axis]]
    logs = np.log(took)
    last = (logs[-1] - logs[-2]) / (sizes[-1] - sizes[-2])
    return took, float(np.polyfit(sizes, logs, 1)[0]), float(last)


def run(axes: Any = tuple(SIZES)) -> list[Row]:
    """A row for each axis."""
    out = []
    for axis in axes:
        took, exponent, last = measured(axis)
        goal = GOALS.get(axis)
        ours = ", ".join(f"{t:.2g}" for t in took) + " s of CPU"
        sizes = ", ".join(f"{size:,}" for size in SIZES[axis])
        reached = f"exponent {exponent:.2f}, last decade {last:.2f}"
        met = None if goal is None else max(exponent, last) <= goal
        out.append(Row(f"{WORK[axis]}: {axis} {sizes}", ours, "-", reached, "-" if goal is None else f"{goal}", met))
    return out
