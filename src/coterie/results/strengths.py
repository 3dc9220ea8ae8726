"""Given strengths: numbers, one for each client or cluster, or a grid from which held-out rows choose."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np

from coterie.data.clients import Clients, Level
from coterie.data.labels import find_labels
from coterie.errors import CoterieError
from coterie.methods.fitted import Problem
from coterie.results.compare import Splits, evaluate, run


def aligned(clients: Clients, strengths: dict[str, Any]) -> dict[str, list[Any]]:
    """Every strength as a list of candidates, each a number or an array in the order of clients or clusters.

    Parameters
    ----------
    strengths : dict
        ``gamma``, ``lam`` and ``alpha``: a number; a mapping from labels (of clients for gamma, of the finest clusters
        for the others); or a sequence of numbers, a grid. None leaves one out.
    """
    levels = {"gamma": Level(clients.name, clients.labels, clients.clusters)}
    if clients.levels:
        levels |= dict.fromkeys(("lam", "alpha"), clients.levels[0])
    out = {}
    for name, value in strengths.items():
        if value is None:
            continue
        if name not in levels:
            raise CoterieError(f"{name} ties clusters: name a cluster column, or leave it out.")
        if isinstance(value, Mapping) or hasattr(value, "items"):
            out[name] = [_by_label(name, dict(value), levels[name])]
        elif np.ndim(value) == 0:
            out[name] = [_strength(name, value)]
        else:
            out[name] = [_strength(name, v) for v in value]
            if not out[name]:
                raise CoterieError(f"The grid of {name} is empty.")
    if out and "gamma" not in out:
        raise CoterieError(f"{' and '.join(out)} needs gamma too: how strongly clients are tied to their cluster.")
    if "lam" in out and "alpha" in out:
        raise CoterieError("Give lam (form 2.3) or alpha (form 2.1), not both.")
    return out


def _strength(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not number >= 0.0:
        given = f"{value:g}" if isinstance(value, (int, float)) else repr(value)
        raise CoterieError(f"{name} must be one number that is not negative, or a grid of such numbers, not {given}.")
    return number


def _by_label(name: str, values: dict[Any, Any], level: Level) -> Any:
    at = find_labels(level.labels, np.array(list(values), dtype=object))
    unknown = [k for k, j in zip(values, at, strict=True) if j < 0]
    missing = sorted(set(range(len(level.labels))) - set(at.tolist()))
    if unknown:
        raise CoterieError(f"{name} names {level.name} {unknown[0]!r}, which is not in the table.")
    if missing:
        raise CoterieError(f"{name} has no entry for {level.name} {level.labels[missing[0]]!r}.")
    out = np.empty(len(level.labels))
    out[at] = [_strength(name, v) for v in values.values()]
    return out


def select(clients: Clients, problem: Problem, grid: dict[str, list[Any]], splits: Splits) -> dict[str, Any]:
    """The strengths with the lowest held-out loss over rows, by splits of these clients' own rows."""
    names = list(grid)
    candidates = [dict(zip(names, values, strict=True)) for values in product(*grid.values())]
    if len(candidates) == 1:
        return candidates[0]
    if splits.count == 0:
        raise CoterieError("A grid of strengths is chosen from by held-out rows: ask for at least one split.")
    fits = {
        str(i): lambda train, chosen=chosen: run("given-strengths", train, problem, chosen)[0]
        for i, chosen in enumerate(candidates)
    }
    inner = Splits(splits.count, splits.fraction, splits.seed + 1)
    return candidates[int(evaluate(clients, problem.family, fits, inner).best())]
