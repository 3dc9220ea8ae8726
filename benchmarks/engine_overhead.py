"""What the in-process engine costs: an empty exchange at 400 clients, and sums over 1,000,000 against plain NumPy.

Run with ``python -m benchmarks.engine_overhead``. Medians of five after one warm-up.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from coterie.engines import InProcess
from coterie.federation import PerCluster, work


class Rows:
    """An objective that is one array with a row for each client."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: Any) -> Rows:
        return Rows(self.values[rows])


@work
def nothing(site):
    return {}


@work
def show(site):
    return {"x": site.objective.values}


@work
def cluster_shift(site, w):
    return {"x": site.objective.values - w[site.clusters]}


@work
def keep(site):
    site.state["x"] = site.objective.values
    return {}


def seconds(call: Callable[[], Any], repeats: int = 1) -> float:
    """Median of five, each the mean of ``repeats`` calls."""
    call()
    times = []
    for _ in range(5):
        start = perf_counter()
        for _ in range(repeats):
            call()
        times.append((perf_counter() - start) / repeats)
    return statistics.median(times)


def main() -> None:
    rng = np.random.default_rng(0)
    small = InProcess(Rows(rng.normal(size=(400, 3))), np.sort(rng.integers(0, 20, 400)))
    w = np.zeros((20, 3))
    to = rng.integers(0, 400, 100)
    print("400 clients, one block                     microseconds")
    for name, call in {
        "empty ask": lambda: small.ask(nothing),
        "empty ask of 100 rows": lambda: small.ask(nothing, to=to),
        "empty total": lambda: small.total(nothing),
        "empty total by cluster": lambda: small.total(nothing, by="cluster"),
        "total by cluster, PerCluster message": lambda: small.total(cluster_shift, by="cluster", w=PerCluster(w)),
    }.items():
        print(f"  {name:40s} {seconds(call, 2000) * 1e6:8.1f}")

    values = rng.normal(size=(1_000_000, 10))
    clusters = np.sort(rng.integers(0, 2_000, len(values)))
    starts = np.flatnonzero(np.diff(clusters, prepend=-1))
    large = InProcess(Rows(values), clusters)
    plain = seconds(lambda: values.sum(axis=0))
    runs = seconds(lambda: np.add.reduceat(values, starts, axis=0))
    copied = seconds(lambda: values.copy())
    print("1,000,000 clients x 10 numbers             milliseconds    against")
    for name, call, base, what in [
        ("total", lambda: large.total(show), plain, "numpy sum"),
        ("total by 2,000 clusters", lambda: large.total(show, by="cluster"), runs, "numpy add.reduceat"),
        ("ask", lambda: large.ask(show), copied, "numpy copy"),
        ("state written", lambda: large.ask(keep), copied, "numpy copy"),
    ]:
        took = seconds(call)
        print(f"  {name:40s} {took * 1e3:8.1f}        {took / base:.1f} x {what} ({base * 1e3:.1f})")


if __name__ == "__main__":
    main()
