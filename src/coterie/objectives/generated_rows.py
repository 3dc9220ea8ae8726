"""Clients whose rows are made when they take part, and let go: there may be millions of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.numerics.arrays import Bools, Floats, Ints
from coterie.objectives.gradient_steps import Draws, Walk
from coterie.objectives.mean_loss import value_and_accuracy

Make = Callable[[npt.NDArray[np.uint64], Ints], Any]


@dataclass(frozen=True)
class GeneratedRows:
    """Clients known by ``ids`` (m,) and numbers of rows ``counts`` (m,), whose objective ``make(ids, counts)`` makes.

    It makes that of any of them, over rows of weight 1 with finite gradients, as a function of their ids alone
    (``numerics.keyed_random``): whichever are made together, in any order and again, they have the same rows.
    """

    make: Make
    ids: npt.NDArray[np.uint64]
    counts: Ints
    dim: int  # parameters

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: slice | Ints) -> GeneratedRows:
        """Some clients; nothing is made."""
        return replace(self, ids=self.ids[rows], counts=self.counts[rows])

    def made(self) -> Any:
        """The objective with all rows of these clients."""
        return self.make(self.ids, self.counts)

    def has_finite_gradient(self) -> Bools:
        """As ``make`` promises (m,)."""
        return np.ones(len(self), dtype=bool)

    def sizes(self) -> Floats:
        """The weight of every client's rows (m,)."""
        return self.counts.astype(np.float64)

    def value(self, theta: Floats) -> Floats:
        """Losses (m,)."""
        return np.asarray(self.made().value(theta))

    def accuracy(self, theta: Floats) -> Floats:
        """Share of every client's weight that is classified rightly (m,)."""
        return np.asarray(self.made().accuracy(theta))

    def value_and_accuracy(self, theta: Floats) -> Floats:
        """Both (m, 2), of rows that are made once."""
        return value_and_accuracy(self.made(), theta)

    def gradient(self, theta: Floats) -> Floats:
        """Gradients (m, d) of the losses."""
        return np.asarray(self.made().gradient(theta))

    def mean_gradient(self, theta: Floats, draws: Draws) -> Floats:
        """Gradients (m, d) of the mean losses over the rows drawn."""
        return np.asarray(self.made().mean_gradient(theta, draws))

    def walk(self, theta: Floats, by: Walk) -> Floats:
        """Where local steps lead from theta (m, d)."""
        return np.asarray(self.made().walk(theta, by))
