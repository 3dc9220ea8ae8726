"""A run over rounds for its reader: what was chosen and why, what was sent, and how the distance fell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.report import words
from coterie.report.figures import Axes, Figure
from coterie.report.tables import Table

if TYPE_CHECKING:
    from coterie.results.result import FitResult


def sentences(result: FitResult) -> list[str]:
    """Why these parameters, and communications against what was expected; nothing for exact methods."""
    if not (r := result.model.info.get("rounds")):
        return []
    chosen = [f"p0 = {words.some(r['p0'])}", f"p = {words.some(r['p'])}", f"step size {words.some(r['eta'])}"]
    chosen += [f"rho = {words.some(r['rho'])}"] if "rho" in r else []
    counts = [f"{counted} {name} ({expected} expected)" for name, counted, expected in _counts(r)]
    return [f"Over rounds with {', '.join(chosen)}: {r['why']}.", f"Communications: {words.joined(counts)}."]


def table(result: FitResult) -> Table:
    """Steps, the distance left and communications, counted beside what theory expects."""
    r = result.model.info["rounds"]
    rows = [("steps", _count(r["trace"][-1][0]), _count(r["steps"]))]
    at_most = f"at most {words.number(r['promised'])}" if r["promised"] < 1.0 else "nothing promised"
    rows.append(("distance from the optimum, relative to the start's", words.number(r["gap"]), at_most))
    rows += [(f"communications {name}", counted, expected) for name, counted, expected in _counts(r)]
    note = "Expected: steps as planned, the distance that the theorem promises, and communications in the mean"
    skipped = _count(r["communications"]["within_printed"])
    note += f" ({skipped} within each cluster as Proposition 3.2 prints it)."
    if sent := r["communications"].get("peers"):
        size = words.amount(sent["bytes"])
        note += f" Without a coordinator, clusters sent each other {sent['messages']:,} messages of {size} in all."
    return Table("The run", ("", "this run", "expected"), tuple(rows), note=note)


def figure(result: FitResult) -> Figure:
    """The logarithm of the distance left against communications."""
    r = result.model.info["rounds"]
    k = len(result.model.levels[0].labels) if result.model.levels else 1
    trace = np.array([(between + within / k, gap) for _, gap, between, within in r["trace"] if gap > 0.0])
    sent, left = (trace[:, 0], np.log10(trace[:, 1])) if len(trace) else (np.zeros(1), np.zeros(1))
    low, high = min(float(left.min()), -1.0), max(float(left.max()), 0.0)
    axes = Axes((0.0, max(float(sent.max()), 1.0)), (low - 0.1, high + 0.1))
    x, y = axes.across(sent), axes.down(left)
    path = "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True))
    parts = [f'<path class="bar thin" d="M{path}"/>']
    label = f"Distance from the exact optimum over {len(left)} looks, to {words.number(r['gap'])} of that of the start."
    return Figure(
        "Distance left against communications",
        axes.draw(parts, label, "communications of a cluster", "distance left, power of ten"),
        "Distance from the exact optimum relative to that of the start, all coefficients of all clients together.",
    )


def _counts(r: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Each kind of communication: its name, how many there were, and how many were to be expected."""
    sent = r["communications"]
    kinds = {"between": "between clusters", "within": "within each cluster", "refreshes": "to refresh the anchor"}
    return [
        (name, _count(sent[kind]), _count(sent[f"{kind}_expected"])) for kind, name in kinds.items() if kind in sent
    ]


def _count(value: float) -> str:
    """A count, or the mean of some, with a decimal where that says something."""
    return words.fixed(value, 0 if value >= 100.0 or value == round(value) else 1)
