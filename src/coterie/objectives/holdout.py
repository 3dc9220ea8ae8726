"""Rows that are kept back from training, beside those that clients train on, and halves of rows: what choices need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.numerics import keyed_random
from coterie.numerics.arrays import Bools, Floats, Ints
from coterie.objectives.gradient_steps import Draws, Walk
from coterie.objectives.row_kernels import owned_rows
from coterie.options import Option, checked


@dataclass(frozen=True)
class HeldOut:
    """An objective of the rows to train on, which is all that methods see, with ``held`` back rows of the same clients.

    Both are of as many clients, with the same parameters; see :func:`hold_out`.
    """

    train: Any
    held: Any

    def __post_init__(self) -> None:
        if len(self.train) != len(self.held) or self.train.dim != self.held.dim:
            raise CoterieError("Rows to train on and rows kept back must be those of the same clients.")

    def __len__(self) -> int:
        return len(self.train)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("train", "held"):
            raise AttributeError(name)
        return getattr(self.train, name)

    @property
    def covers(self) -> Ints:
        """Rows of every client that a sum tells of: the difference from the sum of all rows tells of those held out."""
        return np.asarray(np.minimum(self.train.counts, self.held.counts))

    def take(self, rows: slice | Ints) -> HeldOut:
        """The same rows seen as other clients, on both sides."""
        return HeldOut(self.train.take(rows), self.held.take(rows))

    def sizes(self) -> Floats:
        """Weights (m,) of the rows to train on."""
        return np.asarray(self.train.sizes())

    def mean_gradient(self, theta: Floats, draws: Draws) -> Floats:
        """Of the rows to train on."""
        return np.asarray(self.train.mean_gradient(theta, draws))

    def walk(self, theta: Floats, by: Walk) -> Floats:
        """Over the rows to train on."""
        return np.asarray(self.train.walk(theta, by))


def _shuffled(seed: int, stream: str, ids: npt.ArrayLike, starts: Ints, stops: Ints) -> tuple[Ints, Ints]:
    """Every client's rows in an order drawn by key, client after client, and their ranks among its own."""
    owner, rows = owned_rows(starts, stops)
    n = stops - starts
    order = np.lexsort((keyed_random.uniform_rows(seed, stream, ids, 0, n), owner))
    return rows[order], np.arange(len(rows)) - np.repeat(np.cumsum(n) - n, n)


def halves(objective: Any, ids: npt.ArrayLike, seed: int = 0, share: float = 0.5) -> list[Any]:
    """The same clients twice, each time with weight on one half of their rows, drawn by keys; nothing is copied.

    The first half may be another ``share`` of them: one row at least where there are two, and never all. Draws depend
    on the ids (m,) of clients and the seed alone. The list is empty where an objective's losses are not sums over
    weighted rows of its own. Of an odd number of rows the second half has one more; a client with one row has none in
    the first.
    """
    whole = getattr(objective, "train", objective)
    if not all(hasattr(whole, name) for name in ("weights", "starts", "stops")):
        return []
    n = whole.stops - whole.starts
    rows, rank = _shuffled(seed, "halves", ids, whole.starts, whole.stops)
    first = np.clip((share * n).astype(np.int64), np.minimum(n - 1, 1), n - 1)
    half = np.repeat(first, n)
    out = []
    for taken in (rows[rank < half], rows[rank >= half]):
        weights = np.zeros_like(whole.weights)
        weights[taken] = whole.weights[taken]
        out.append(replace(whole, weights=weights))
    return out


def weighted_rows(objective: Any) -> Any:
    """The same clients without the rows that have no weight, which are passed through a net for nothing."""
    owner, rows = owned_rows(objective.starts, objective.stops)
    some = objective.weights[rows] > 0.0
    stops = np.cumsum(np.bincount(owner[some], minlength=len(objective)))
    return objective.subset(rows[some], np.append(0, stops[:-1]), stops)


def set_aside(objective: Any, train: Bools, test: Bools) -> HeldOut:
    """The rows ``train`` (sum of counts,), client after client, with those of ``test``, whose losses have no ridge.

    A CoterieError for an objective that has no rows.
    """
    if not hasattr(objective, "subset"):
        raise CoterieError(
            f"Of {type(objective).__name__} no rows can be held out: make it of rows, such as Softmax or Deep, or hold "
            "them out yourself (objectives.holdout.HeldOut)."
        )
    owner, rows = owned_rows(objective.starts, objective.stops)
    sides = []
    for side in (train, test):
        stops = np.cumsum(np.bincount(owner[side], minlength=len(objective)))
        sides.append(objective.subset(rows[side], np.append(0, stops[:-1]), stops))
    return HeldOut(sides[0], _without_ridge(sides[1]))


def _without_ridge(objective: Any) -> Any:
    if hasattr(objective, "training"):
        return replace(objective, training=replace(objective.training, ridge=0.0))
    return replace(objective, ridge=0.0) if hasattr(objective, "ridge") else objective


@checked
def hold_out(
    make: Callable[[Any, Any, Ints, Ints], Any],
    X: npt.ArrayLike,
    y: npt.ArrayLike,
    starts: npt.ArrayLike,
    stops: npt.ArrayLike,
    fraction: Annotated[float, Option("Share of a client's rows that is kept back.", above=0.0, below=1.0)] = 0.25,
    seed: int = 0,
    ids: npt.ArrayLike | None = None,
) -> HeldOut:
    """Keep some of every client's rows back, drawn by keys: an objective of the others, with that of these beside it.

    ``make(X, y, starts, stops)`` makes an objective, such as ``partial(Softmax.of, classes=10)``; X and y (n, ...) are
    sorted by client. The share is rounded: one row at least where there are two, and never all. Draws depend on the
    seed and on the ids (m,) of clients alone, which are by default their numbers.
    """
    lo, hi = np.asarray(starts, dtype=np.int64), np.asarray(stops, dtype=np.int64)
    n = hi - lo
    order, _ = _shuffled(seed, "kept back", np.arange(len(lo)) if ids is None else ids, lo, hi)
    first = np.cumsum(n) - n
    kept = np.clip(np.rint(fraction * n).astype(np.int64), np.minimum(n - 1, 1), n - 1).clip(0)
    cut = first + n - kept
    rows = np.asarray(X)[order], np.asarray(y)[order]
    return HeldOut(make(*rows, first, cut), make(*rows, cut, first + n))
