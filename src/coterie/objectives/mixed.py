"""Clients of several architectures: each has the objective of its own kind, and the models of kinds differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.numerics.kernels import Bools, Floats, Ints
from coterie.objectives import mean_loss, parameters


class Mixed:
    """Clients that belong to one of several objectives, for methods that work on one kind after another (GroupSGD).

    Attributes
    ----------
    parts : tuple of objectives
        One for each kind.
    kind, place : (m,) int64
        Client i is client ``place[i]`` of ``parts[kind[i]]``.
    """

    def __init__(self, objectives: Sequence[Any], kind: npt.ArrayLike, place: npt.ArrayLike) -> None:
        self.parts = tuple(objectives)
        self.kind: Ints = np.asarray(kind, dtype=np.int64)
        self.place: Ints = np.asarray(place, dtype=np.int64)

    @classmethod
    def of(cls, objectives: Sequence[Any]) -> Any:
        """The clients of some objectives, one objective after another; of a single one, that one."""
        if not len(objectives):
            raise CoterieError("Mixed needs one objective at least.")
        if len(objectives) == 1:
            return objectives[0]
        sizes = [len(one) for one in objectives]
        return cls(objectives, np.repeat(np.arange(len(sizes)), sizes), np.concatenate([np.arange(n) for n in sizes]))

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, rows: slice | Ints) -> Any:
        """Some clients; where all are of one kind, a view of that kind's objective."""
        kind, place = self.kind[rows], self.place[rows]
        if len(kind) and (kind == kind[0]).all():
            return self.parts[kind[0]].take(place)
        return Mixed(self.parts, kind, place)

    def kinds(self) -> Iterator[tuple[Ints, Any]]:
        """The clients of each kind that is here, and their objective."""
        for j in np.unique(self.kind):
            rows = np.flatnonzero(self.kind == j)
            yield rows, self.parts[j].take(self.place[rows])

    @property
    def dim(self) -> int:
        """Number of parameters; a CoterieError where there are several kinds of model."""
        found = sorted(int(self.parts[j].dim) for j in np.unique(self.kind))
        if len(found) > 1:
            raise CoterieError(
                f"Clients have several kinds of model, of {found[0]} to {found[-1]} parameters: train them with "
                "GroupSGD, each kind of model in clusters of its own."
            )
        return found[0] if found else 0

    def sizes(self) -> Floats:
        """The weight of every client's rows (m,)."""
        return self._gathered([mean_loss.sizes(part) for _, part in self.kinds()], np.float64)

    def has_finite_gradient(self) -> Bools:
        """Whether every client's data give a gradient (m,)."""
        return self._gathered([parameters.has_finite_gradient(part) for _, part in self.kinds()], np.bool_)

    def _gathered(self, found: Sequence[Any], dtype: Any) -> npt.NDArray[Any]:
        """What kinds gave, each client's number at its place."""
        whole = np.zeros(len(self), dtype)
        for (rows, _), value in zip(self.kinds(), found, strict=True):
            whole[rows] = value
        return whole


def kinds(objective: Any) -> Iterator[tuple[Ints, Any]]:
    """The clients of each architecture at a site, and their objective: all of them, where it is not mixed."""
    if hasattr(objective, "kinds"):
        yield from objective.kinds()
    else:
        yield np.arange(len(objective)), objective
