"""Medians after a warm-up, and the table that all benchmarks print."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of the table: what was done, both sides, and whether the goal is met."""

    work: str
    ours: str
    reference: str
    reached: str
    goal: str
    met: bool | None


def median_seconds(function: Callable[[], object], repeats: int = 5) -> float:
    """Median wall time of ``repeats`` calls after one that is not counted."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def skipped(work: str, why: str) -> Row:
    """A row whose peer is missing here."""
    return Row(work, "-", why, "-", "-", None)


def show(rows: list[Row]) -> None:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="coterie against its references, medians of 5 after a warm-up")
    for column in ("work", "coterie", "reference", "reached", "goal", "met"):
        table.add_column(column, overflow="fold")
    for r in rows:
        met = {True: "yes", False: "NO", None: "skipped"}[r.met]
        table.add_row(r.work, r.ours, r.reference, r.reached, r.goal, met)
    Console(width=150).print(table)
