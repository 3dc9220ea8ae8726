"""Sums of clipped gradients of rows: what a single row adds is bounded, whatever it holds (Abadi et al. 2016).

Gradients are of a row's loss alone, with the ridge that belongs to it and without its weight: rows count alike. A row
of weight 0, or whose gradient is not finite, adds nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.numerics.arrays import Bools, Floats, frozen, kernel
from coterie.objectives.gradient_steps import Draws, WeightedRows
from coterie.objectives.mean_loss import gradient
from coterie.objectives.row_kernels import Data, add_row, owned_rows

_CHUNK = 256  # rows whose gradients are held at a time where there is no kernel


@kernel
def _add_clipped(g: Floats, clip: float, out: Floats) -> None:
    """out += g, shortened to a norm of ``clip`` at most."""
    top = 0.0
    for j in range(g.shape[0]):
        if not np.isfinite(g[j]):
            return
        top = max(top, abs(g[j]))
    if top == 0.0:
        return
    square = 0.0
    for j in range(g.shape[0]):
        square += (g[j] / top) ** 2
    norm = top * np.sqrt(square)
    scale = clip * (1.0 - 1e-9) / norm if norm > clip * (1.0 - 1e-9) else 1.0
    for j in range(g.shape[0]):
        out[j] += scale * g[j]


@kernel
def _clipped(data: Data, classes: int, ridge: float, theta: Floats, clip: float, chosen: Bools) -> Floats:
    _, _, _, _, weights, starts, stops = data
    out, g, z, at = np.zeros(theta.shape), np.empty(theta.shape[1]), np.empty(classes), 0
    for i in range(theta.shape[0]):
        for r in range(starts[i], stops[i]):
            if chosen[at] and weights[r] > 0.0:
                for j in range(g.shape[0]):
                    g[j] = ridge * theta[i, j]
                add_row(data, r, theta[i], 1.0, z, g)
                _add_clipped(g, clip, out[i])
            at += 1
    return out


def clipped_gradients(
    objective: Any, theta: npt.ArrayLike, clip: float = np.inf, chosen: Bools | None = None
) -> Floats:
    """Sums (m, d) over every client's rows of gradients at theta (d,) or (m, d), scaled down to L2 norm ``clip``.

    ``chosen`` (rows,) says which rows are added, client after client; by default all. A CoterieError for an objective
    that has no rows of its own.
    """
    starts, stops = getattr(objective, "starts", None), getattr(objective, "stops", None)
    if starts is None or stops is None:
        raise CoterieError("Gradients of single rows need an objective over rows: a GLM, softmax, or a torch model.")
    m, n = len(objective), int((stops - starts).sum())
    keep = np.ones(n, dtype=bool) if chosen is None else np.ascontiguousarray(chosen, dtype=bool)
    with np.errstate(over="ignore", invalid="ignore"):
        if isinstance(objective, WeightedRows):
            at = np.ascontiguousarray(np.broadcast_to(np.asarray(theta, dtype=np.float64), (m, objective.dim)))
            data, at = frozen(objective.compiled, at)
            return _clipped(data, *objective.step_data[1:], at, float(clip), keep)
        return row_by_row(objective, np.asarray(theta), float(clip), keep)


def row_by_row(objective: Any, theta: Floats, clip: float, chosen: Bools) -> Floats:
    """The same for any objective with ``starts`` and ``stops``: every row is made a client, some at a time."""
    owner, rows = (part[chosen] for part in owned_rows(objective.starts, objective.stops))
    theta = np.broadcast_to(theta, (len(objective), objective.dim))
    out = np.zeros((len(objective), objective.dim))
    for lo in range(0, len(rows), _CHUNK):
        here, who = rows[lo : lo + _CHUNK], owner[lo : lo + _CHUNK]
        alone = replace(objective, starts=here, stops=here + 1)
        each = gradient(alone, np.ascontiguousarray(theta[who]), Draws.of_all(len(here)))
        for i, g in zip(who, np.asarray(each), strict=True):
            _add_clipped(np.asarray(g, dtype=np.float64), clip, out[i])
    return out
