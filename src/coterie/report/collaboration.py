"""A run of main clients and their collaborators for its reader: weights and steps, and how far it came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.report import words
from coterie.report.tables import Table

if TYPE_CHECKING:
    from coterie.results.result import FitResult


def sentences(result: FitResult) -> list[str]:
    """Who was listened to and how; nothing for other methods."""
    if not (c := result.model.info.get("collaboration")):
        return []
    how = f"alpha = {words.some(c['alpha'])}"
    if not _solved(c):
        how += f", step size {words.some(c['eta'])}"
    if c["corrected"]:
        how += f", beta = {words.some(c['beta'])}, {words.percent(c['keep'])} of the bias kept"
    gain = f"; predicted speed-up {words.some(c['speedup'])}" if c["speedup"] is not None and not c["corrected"] else ""
    return [f"{_count(c['collaborators'])} collaborators for each main client, {how}{gain}."]


def table(result: FitResult) -> Table:
    """What was chosen or given, and how far the run came."""
    c = result.model.info["collaboration"]
    made = "exchanges until solved" if _solved(c) else "steps"
    rows = [(made, f"{c['trace'][-1][0]:,}"), ("distance left, relative to the start's", words.number(c["gap"]))]
    names = {"alpha": "weight of collaborators, alpha"}
    if not _solved(c):
        names |= {"eta": "step size, eta", "beta": "weight of the newest bias, beta"}
    names |= {"keep": "share of the bias kept", "L": "smoothness, L", "delta": "Hessian dissimilarity, delta"}
    names |= {"delta_at_most": "delta at most, which steps go by"}
    names |= {"prior": "prior towards the pooled model, in rows"}
    names |= {"speedup": "predicted speed-up"}
    rows += [(text, words.some(c[name])) for name, text in names.items() if c.get(name) is not None]
    rows.append(("collaborators of a main client", _count(c["collaborators"])))
    note = (
        "Steps and constants are in the metric in which the mean curvature of all rows is one. The distance is from "
        f"{'each own optimum' if c['corrected'] and not c['keep'] else 'the optimum of the weighted losses'}."
    )
    return Table("Main clients and their collaborators", ("", "this run"), tuple(rows), note=note)


def _solved(c: dict[str, Any]) -> bool:
    """Whether the weighted losses were minimised at once, by no run of steps."""
    return c["status"] in ("exact", "not reached")


def _count(value: Any) -> str:
    """Whole numbers: one, a few, or a range."""
    if isinstance(value, dict):
        return f"{value['from']:.0f} to {value['to']:.0f}"
    return ", ".join(f"{float(v):.0f}" for v in np.atleast_1d(value))
