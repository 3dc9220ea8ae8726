"""Clients of several architectures: each has the objective of its own kind, and the models of kinds differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.numerics.arrays import Bools, Floats, Ints
from coterie.objectives import mean_loss, parameters
from coterie.objectives.gradient_steps import Draws, Walk


class Mixed:
    """Clients that belong to one of several objectives: client i is client ``place[i]`` of ``parts[kind[i]]``.

    Parameters are one row for each client, (m, d), where all kinds have as many; otherwise a sequence of m rows of
    unequal length, such as ``federation.Ragged``, or (m, d) with anything after the end of the shorter ones.
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

    def __reduce__(self) -> Any:
        kind, place, parts = np.zeros_like(self.kind), np.zeros_like(self.place), list[Any]()
        for rows, part in self.kinds():  # their own clients, not those of which they are a view
            kind[rows], place[rows] = len(parts), np.arange(len(rows))
            parts.append(part)
        return Mixed, (parts, kind, place)

    def kinds(self) -> Iterator[tuple[Ints, Any]]:
        """The clients of each kind that is here, and their objective."""
        for j in np.unique(self.kind):
            rows = np.flatnonzero(self.kind == j)
            yield rows, self.parts[j].take(self.place[rows])

    @property
    def dim(self) -> int:
        """Number of parameters; a CoterieError where kinds differ."""
        found = sorted({int(self.parts[j].dim) for j in np.unique(self.kind)})
        if len(found) > 1:
            raise CoterieError(
                f"Clients have models of {found[0]} to {found[-1]} parameters: train them with GroupSGD, each kind of "
                "model in clusters of its own."
            )
        return found[0] if found else 0

    def sizes(self) -> Floats:
        """The weight of every client's rows (m,)."""
        return self._gathered([mean_loss.sizes(part) for _, part in self.kinds()])

    def value(self, theta: Any) -> Floats:
        """Losses (m,)."""
        return self._gathered([part.value(_rows(theta, rows, part)) for rows, part in self.kinds()])

    def accuracy(self, theta: Any) -> Floats:
        """Share of every client's weight that is classified rightly (m,)."""
        return self.value_and_accuracy(theta)[:, 1]

    def value_and_accuracy(self, theta: Any) -> Floats:
        """Both (m, 2)."""
        found = (mean_loss.value_and_accuracy(part, _rows(theta, rows, part)) for rows, part in self.kinds())
        return self._gathered(list(found))

    def predict(self, theta: Any) -> npt.NDArray[Any]:
        """What every row's own model says of it, client after client."""
        return self._by_row(lambda which, part: part.predict(_rows(theta, which, part)))

    def outputs(self, theta: Any) -> npt.NDArray[Any]:
        """What every row's own model gives for it, client after client; classes that it does not know are unlikely."""
        found = [part.outputs(_rows(theta, which, part)) for which, part in self.kinds()]
        wide, least = max(one[:1].shape[1:2] for one in found), np.finfo(np.float32).min
        if any(one.shape[1:2] != wide for one in found):
            pads = ([(0, 0), (0, wide[0] - one.shape[1]), *[(0, 0)] * (one.ndim - 2)] for one in found)
            found = [np.pad(one, pad, constant_values=least) for one, pad in zip(found, pads, strict=True)]
        parts = iter(found)
        return self._by_row(lambda *_: next(parts))

    def row_weights(self) -> Floats:
        """The weight of every row, client after client."""
        return self._by_row(lambda _, part: part.row_weights())

    def _by_row(self, found: Callable[[Ints, Any], npt.NDArray[Any]]) -> npt.NDArray[Any]:
        rows: list[Any] = [None] * len(self)
        for which, part in self.kinds():
            for r, own in zip(which, np.split(found(which, part), np.cumsum(part.counts)[:-1]), strict=True):
                rows[r] = own
        if len({own.shape[1:] for own in rows}) > 1:
            raise CoterieError(
                "Groups' nets give outputs of other shapes, which no metric compares: leave metrics out."
            )
        return np.concatenate(rows)

    def gradient(self, theta: Floats) -> Floats:
        """Gradients (m, d) of the losses, where all kinds have as many parameters."""
        return self._gathered([part.gradient(_rows(theta, rows)) for rows, part in self.kinds()])

    def mean_gradient(self, theta: Floats, draws: Draws) -> Floats:
        """Gradients (m, d) of the mean losses over the rows drawn, where all kinds have as many parameters."""
        return self._gathered(
            [mean_loss.gradient(part, _rows(theta, rows), draws.of(rows)) for rows, part in self.kinds()]
        )

    def walk(self, theta: Floats, by: Walk) -> Floats:
        """Where local steps lead from theta (m, d), where all kinds have as many parameters."""
        return self._gathered([mean_loss.walk(part, _rows(theta, rows), by.of(rows)) for rows, part in self.kinds()])

    @property
    def names(self) -> dict[str, int]:
        """Layers and their sizes, where all kinds have the same; a CoterieError where they differ."""
        found = [parameters.layer_sizes(part) for _, part in self.kinds()]
        for other in found[1:]:
            if list(other.items()) != list(found[0].items()):
                raise CoterieError(
                    "Clients have other layers: train them with GroupSGD, each kind in its own clusters."
                )
        return found[0] if found else {}

    @property
    def kept(self) -> tuple[str, ...]:
        """Names of what stays with each client."""
        return tuple(dict.fromkeys(name for _, part in self.kinds() for name in getattr(part, "kept", ())))

    @property
    def normalising(self) -> tuple[str, ...]:
        """Names of layers that normalise."""
        return tuple(dict.fromkeys(name for _, part in self.kinds() for name in parameters.normalising(part)))

    @property
    def notes(self) -> tuple[str, ...]:
        """What kinds say of a run."""
        return tuple(dict.fromkeys(note for _, part in self.kinds() for note in getattr(part, "notes", ())))

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the parameters: that of the most precise kind."""
        return np.result_type(*[np.dtype(parameters.precision(part)) for _, part in self.kinds()], np.float32)

    def start(self, seed: int) -> Floats:
        """The first model (d,), where all kinds have the same layers: that of the first kind."""
        if not self.names:
            return np.zeros(0)
        return parameters.initial_parameters(next(self.kinds())[1], seed)

    def has_finite_gradient(self) -> Bools:
        """Whether every client's data give a gradient (m,)."""
        return self._gathered([parameters.has_finite_gradient(part) for _, part in self.kinds()], np.bool_)

    def _gathered(self, found: Sequence[Any], dtype: Any = None) -> npt.NDArray[Any]:
        """What kinds gave, each client's row at its place."""
        whole = np.zeros((len(self), *(found[0].shape[1:] if found else ())), dtype or np.result_type(*found))
        for (rows, _), value in zip(self.kinds(), found, strict=True):
            whole[rows] = value
        return whole


@dataclass(frozen=True)
class Padded:
    """Clients, perhaps of several architectures, whose models are rows of one length, with zeros at the end."""

    of: Any
    dim: int

    def __len__(self) -> int:
        return len(self.of)

    def take(self, rows: slice | Ints) -> Padded:
        """Some clients."""
        return Padded(self.of.take(rows), self.dim)

    @property
    def counts(self) -> Ints:
        """Rows of every client."""
        return np.asarray(self._gathered(np.zeros(len(self), dtype=np.int64), lambda rows, part: part.counts))

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the parameters."""
        return parameters.precision(self.of)

    def sizes(self) -> Floats:
        """The weight of every client's rows (m,)."""
        return mean_loss.sizes(self.of)

    def has_finite_gradient(self) -> Bools:
        """Whether every client's data give a gradient (m,)."""
        return parameters.has_finite_gradient(self.of)

    def mean_gradient(self, theta: Floats, draws: Draws) -> Floats:
        """Gradients (m, d) of the mean losses over the rows drawn."""
        return self._gathered(
            np.zeros_like(theta),
            lambda rows, part: mean_loss.gradient(part, theta[rows, : part.dim], draws.of(rows)),
        )

    def walk(self, theta: Floats, by: Walk) -> Floats:
        """Where local steps, which nothing pulls, lead from theta (m, d)."""
        return self._gathered(
            np.array(theta), lambda rows, part: mean_loss.walk(part, theta[rows, : part.dim], by.of(rows))
        )

    def _gathered(self, out: npt.NDArray[Any], found: Callable[[Ints, Any], Any]) -> npt.NDArray[Any]:
        for rows, part in kinds(self.of):
            value = found(rows, part)
            out[(rows, slice(value.shape[1])) if value.ndim == 2 else rows] = value
        return out


def padded(models: Any) -> npt.NDArray[Any]:
    """Models (m, d) of unequal lengths, ``federation.Ragged``, each with zeros after its end."""
    sizes = np.diff(models.offsets)
    out = np.zeros((len(models), sizes.max(initial=0)), models.values.dtype)
    out[np.arange(out.shape[1]) < sizes[:, None]] = models.values
    return out


def kinds(objective: Any) -> Iterator[tuple[Ints, Any]]:
    """The clients of each architecture at a site, and their objective: all of them, where it is not mixed."""
    if hasattr(objective, "kinds"):
        yield from objective.kinds()
    else:
        yield np.arange(len(objective)), objective


def _rows(theta: Any, rows: Ints, part: Any = None) -> Floats:
    """The parameters of some clients of one kind: (m, d) of all, one (d,) for everyone, or rows of unequal length."""
    if isinstance(theta, np.ndarray):
        end = None if part is None else part.dim
        return theta[rows, :end] if theta.ndim == 2 else np.broadcast_to(theta, (len(rows), len(theta)))
    return np.stack([np.asarray(theta[r]) for r in rows])
