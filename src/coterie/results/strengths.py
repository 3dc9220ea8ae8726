"""Given strengths: numbers, one for each client or cluster, or a grid from which held-out rows choose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import xlogy

from coterie.data.clients import Clients, Level
from coterie.data.labels import find_labels
from coterie.engines.blocks import BLOCK
from coterie.engines.inprocess import InProcess
from coterie.errors import CoterieError
from coterie.methods.fitted import Problem
from coterie.methods.tree.strength_path import path
from coterie.numerics.kernels import Floats
from coterie.objectives.held_out import HeldOut
from coterie.results.compare import ROWS_PER_BLOCK, Splits
from coterie.results.metrics import objective


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
            raise CoterieError(
                f"{name} ties clusters, and there are none to tie: name a cluster column of two values or more, fewer "
                "than clients, or leave it out."
            )
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


@dataclass(frozen=True)
class Surface:
    """Held-out losses over a grid of strengths.

    Attributes
    ----------
    grid : dict of list
        The candidates of ``gamma`` and, if there is another axis, of ``lam`` or ``alpha``.
    loss : (gammas, others) float64
        Mean loss over the held-out rows of all splits, in the units of ``metrics.LOSSES``.
    """

    grid: dict[str, list[Any]]
    loss: Floats

    @property
    def chosen(self) -> dict[str, Any]:
        """The strengths with the lowest loss; of equals, the first."""
        at = np.unravel_index(int(np.argmin(np.nan_to_num(self.loss, nan=np.inf))), self.loss.shape)
        return {name: values[k] for (name, values), k in zip(self.grid.items(), at, strict=False)}


def search(clients: Clients, problem: Problem, grid: dict[str, list[Any]], splits: Splits) -> Surface:
    """The held-out loss at every point of a grid, on splits of these clients' own rows."""
    lams, alphas = grid.get("lam"), grid.get("alpha")
    loss = np.zeros((len(grid["gamma"]), len(lams or alphas or [None])))
    weight = 0.0
    for mask in splits.masks(clients):
        train, held = clients.split(mask)
        rows = HeldOut.of(objective(train, problem.family), objective(held, problem.family))
        block = int(np.clip(len(clients) * 4 * ROWS_PER_BLOCK // max(len(clients.y), 1), 64, BLOCK))
        fed = InProcess(rows, clients.clusters, ids=clients.ids, block=block)
        for point in path(fed, problem, grid["gamma"], lams, alphas):
            loss[point.at] += point.held_out()
        loss += _rest(held, problem.family)
        weight += float(held.weights.sum())
    scale = 1.0 if problem.family == "binomial" else 2.0
    return Surface(grid, scale * loss / weight if weight > 0.0 else loss)


def _rest(held: Clients, family: str) -> float:
    """What the held-out loss holds beside the likelihood of the parameters: a Poisson deviance's terms in y alone."""
    if family != "poisson":
        return 0.0
    return float(held.weights @ (xlogy(held.y, held.y) - held.y))


def select(clients: Clients, problem: Problem, grid: dict[str, list[Any]], splits: Splits) -> dict[str, Any]:
    """The strengths with the lowest held-out loss over rows, by splits of these clients' own rows."""
    if all(len(values) == 1 for values in grid.values()):
        return {name: values[0] for name, values in grid.items()}
    if splits.count == 0:
        raise CoterieError("A grid of strengths is chosen from by held-out rows: ask for at least one split.")
    return search(clients, problem, grid, Splits(splits.count, splits.fraction, splits.seed + 1)).chosen
