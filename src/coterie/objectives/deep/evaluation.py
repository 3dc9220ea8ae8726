"""What models say of rows, without gradients: several clients at once, one after another, or one model on all rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.numerics.kernels import Ints
from coterie.objectives.deep.batched import blocks
from coterie.objectives.deep.checks import explained
from coterie.objectives.deep.draws import padded
from coterie.objectives.deep.generators import Seed

if TYPE_CHECKING:
    from coterie.objectives.deep.objective import Deep

LOOK = 2048
"""Rows of one forward pass where no gradient is needed."""

What = Callable[[Tensor, Tensor], Tensor]
"""``what(outputs, targets) -> (rows, ...)``."""


def per_row(objective: Deep, theta: npt.ArrayLike, what: What) -> Any:
    """What ``what`` says of every row, client after client (sum of counts, ...).

    Where something draws random numbers in evaluation, or rows depend on the others of their batch, every client is
    evaluated by itself; what is drawn then depends on its own rows alone, and is the same whenever it is asked for.
    """
    at, models, of, counts = objective._theta(theta), np.asarray(theta), objective.architecture, objective.counts
    stops = np.cumsum(counts)
    if not stops[-1:].sum():
        return np.zeros(0)
    one = len(objective) == 1 or ((models.ndim == 1 or models.strides[0] == 0) and not of.mixes)
    rows = np.arange(stops[-1]) - np.repeat(stops - counts - objective.starts, counts)
    found: list[tuple[Any, Any]] = []

    def together() -> None:
        found[:] = _together(objective, at, what, stops)

    def alone() -> None:
        found[:] = _alone(objective, at, what, rows, np.array([0, len(rows)]) if one else np.append(0, stops))

    done = objective.batched and not one and objective.together.done(together)
    if not done and (of.random_in_evaluation or not of.common.quiet(alone)):
        of.random_in_evaluation = True
        with objective.alone.bench.generators.kept() as seed:
            found[:] = _alone(objective, at, what, rows, np.append(0, stops), seed)
    out = np.empty((len(rows), *found[0][1].shape[1:]), found[0][1].dtype)
    for where, values in found:
        out[where] = values
    return out


def _together(objective: Deep, theta: Tensor, what: What, stops: Ints) -> Iterator[tuple[Any, Any]]:
    """Where in the answer some rows stand, and what is said of them, several clients at once."""
    counts = objective.counts
    for some in blocks(counts, objective.dim):
        index = padded(objective.starts[some], objective.stops[some])
        x, y = objective.rows.gather(index)
        outputs = objective.together.outputs(theta[torch.from_numpy(some)], x)
        there = np.arange(index.shape[1]) < counts[some][:, None]
        at = (stops - counts)[some][:, None] + np.arange(index.shape[1])
        mask = torch.from_numpy(there).to(outputs.device)
        yield at[there], what(outputs[mask], y[mask]).cpu().numpy()


def _alone(
    objective: Deep, theta: Tensor, what: What, rows: Ints, edges: Ints, seed: Seed | None = None
) -> Iterator[tuple[Any, Any]]:
    """The same one client after another, rows ``edges[i]`` to ``edges[i + 1]`` with the model i."""
    of = objective.architecture
    for i in range(len(edges) - 1):
        lo, stop = int(edges[i]), int(edges[i + 1])
        size = max(stop - lo, 1) if of.mixes else LOOK
        for part, at in enumerate(range(lo, stop, size)):
            hi = min(at + size, stop)
            if seed is not None:
                seed(0, part)
            x, y = objective.rows.gather(rows[at:hi])
            with explained(objective.rows, "Evaluating the model of", rows[at : at + 1]):
                said = what(objective.alone.outputs(theta[i], x).to(of.dtype), y).cpu().numpy()
            yield slice(at, hi), said
