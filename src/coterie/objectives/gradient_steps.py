"""Runs of local gradient steps.

An objective is anything with ``gradient(theta)`` over a leading client axis (and ``take``). Those over weighted rows
(:class:`WeightedRows`: GLMs and softmax) run compiled; others may bring steps of their own (:class:`Sampled`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.numerics.arrays import Floats, Ints
from coterie.objectives import row_kernels
from coterie.objectives.row_kernels import Data, Keys, totals


@dataclass(frozen=True)
class Draws:
    """Which rows the steps of a run look at: ``size`` of a client's rows, with replacement, in every step."""

    keys: Keys  # (m,) of keyed_random.starts: what the draws of a client are keyed by, beside the step
    first: Ints  # (m,) number of a client's first step
    size: int = 0  # 0 takes all rows once

    @classmethod
    def of_all(cls, m: int) -> Draws:
        """Nothing is drawn: every step of m clients takes all rows."""
        return cls(np.zeros(m, dtype=np.uint64), np.zeros(m, dtype=np.int64))

    def of(self, rows: Ints | slice, later: int = 0) -> Draws:
        """Of some clients, so many steps later."""
        return Draws(self.keys[rows], self.first[rows] + later, self.size)


@dataclass(frozen=True)
class FeatureTerm:
    """What stands beside the loss of a row r: ``strength * counts_r`` times a term of its features z_r and of targets.

    Features (h,) are what the first of the layers that ``head`` names is given; targets (c, h) have nothing to learn.
    "contrast" is ``-log`` of the share of the first target by ``exp(cos(z_r, t) / tau)``, "distance" the mean of the
    squares of ``z_r - t``. Nets have features, as no other objective has.
    """

    kind: Literal["contrast", "distance"]
    head: tuple[str, ...]
    strength: float
    targets: Floats  # (rows, c, h) client after client
    counts: Floats  # (rows,)
    tau: float = 1.0


@dataclass(frozen=True)
class Walk:
    """Gradient steps on ``f_k(theta) + shift' theta + pull |theta - anchor|^2 / 2``, of mean losses f_k."""

    eta: Floats  # (m,) how long they are
    steps: Ints  # (m,) how many
    draws: Draws
    anchor: Floats | None = None  # (m, d); by default there is no pull
    pull: float = 0.0
    shift: Floats | None = None  # (m, d)
    on: npt.NDArray[Any] | None = None  # (d,) 1 for parameters that move, 0 for those that stay; by default all move
    apart: npt.NDArray[Any] | None = None  # (d,) layers whose gradients are clipped by themselves, not with the others
    fresh: bool = True  # whether every step draws its rows; otherwise all look at those of the first
    plain: bool = False  # whether steps go along gradients, whatever optimiser the objective has
    decays: bool = True  # whether weight decay that a torch model has counts
    beside: FeatureTerm | None = None  # of a net's rows, those of all m clients

    def of(self, rows: Ints) -> Walk:
        """Those of some clients."""
        anchor, shift = (None if a is None else a[rows] for a in (self.anchor if self.pull else None, self.shift))
        draws, eta, steps = self.draws.of(rows), self.eta[rows], self.steps[rows]
        return replace(self, eta=eta, steps=steps, draws=draws, anchor=anchor, shift=shift)


@dataclass(frozen=True)
class Second:
    """A second model v of every client, beside the one that walks: both look at the same rows in every step.

    It goes along ``pace`` times the gradient at ``share v + (1 - share) theta``, where theta is as far as v is.
    """

    v: Floats  # (m, d)
    share: Floats  # (m,)
    pace: Floats  # (m,)


@dataclass(frozen=True)
class Ahead:
    """Steps along gradients g at ``theta - alpha grad f(theta)``, or with their Hessian along ``g - alpha H g``.

    H g at theta is the difference of gradients at ``theta + delta g`` and ``theta - delta g``, divided by 2 delta.
    """

    alpha: float
    delta: float  # 0 leaves the Hessian out
    draws: tuple[Draws, Draws]  # the rows of g, and of H


@runtime_checkable
class Sampled(Protocol):
    """An objective over rows that takes local steps itself, as :class:`WeightedRows` and torch models do."""

    def sizes(self) -> Floats:
        """The weight of every client's rows (m,)."""

    def mean_gradient(self, theta: Floats, draws: Draws) -> Floats:
        """Gradients (m, d) of the mean losses over the rows drawn; zero where no row weighs."""

    def walk(self, theta: Floats, by: Walk) -> Floats:
        """Where local steps lead from theta (m, d)."""


class RowRanges:
    """A dataclass of rows sorted by client: client i has the rows ``starts[i]:stops[i]``, and their weights."""

    weights: Floats
    starts: Ints
    stops: Ints

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def counts(self) -> Ints:
        """Rows of every client."""
        return self.stops - self.starts

    def take(self, rows: slice | Ints) -> Self:
        """The same rows seen as other clients: any order, repeats allowed, nothing copied but the row ranges."""
        return replace(self, starts=self.starts[rows], stops=self.stops[rows])  # type: ignore[type-var]

    @property
    def own_ranges(self) -> tuple[Ints, Ints]:
        """The starts and stops of clients among their own rows alone."""
        stops = np.cumsum(self.counts)
        return stops - self.counts, stops

    def subset(self, rows: Ints, starts: Ints, stops: Ints) -> Self:
        """The clients of some rows alone, in this order."""
        by_row = ("X", "y", "offset", "rows", "weights")
        own = {name: values[rows] for name, values in vars(self).items() if name in by_row}
        return replace(self, **own, starts=starts, stops=stops)  # type: ignore[type-var]

    def sizes(self) -> Floats:
        """The weight of every client's rows (m,)."""
        return row_kernels.weighted_sums(self, 1.0)

    def row_weights(self) -> Floats:
        """The weight of every row, client after client (sum of counts,)."""
        return self.weights[row_kernels.owned_rows(self.starts, self.stops)[1]]


class WeightedRows(RowRanges):
    """Rows of columns X (n, p) and outcomes y (n,), whose losses are sums over them; its steps run compiled."""

    X: Floats
    y: Floats

    def __getstate__(self) -> dict[str, Any]:
        """What travels of it: the rows of its own clients, not those of which it is a view."""
        at, ranges = row_kernels.owned_rows(self.starts, self.stops)[1], self.own_ranges
        rows = slice(at[0], at[-1] + 1) if len(at) and np.all(at[1:] == at[:-1] + 1) else at
        each = {name: vars(self)[name][rows] for name in ("X", "y", "offset", "weights") if name in vars(self)}
        return vars(self) | each | {"starts": ranges[0], "stops": ranges[1]}

    def sizes(self) -> Floats:
        """The weight of every client's rows (m,)."""
        return totals(self.weights, self.starts, self.stops)

    @property
    def compiled(self) -> Data:
        """What kernels over rows take first."""
        raise NotImplementedError

    @property
    def step_data(self) -> tuple[Data, int, float]:
        """What kernels of steps take first: the rows, the number of classes, and the ridge."""
        return self.compiled, 1, 0.0

    @property
    def dim(self) -> int:
        """Number of parameters: one for each column and class."""
        return int(self.X.shape[1]) * self.step_data[1]

    def _each(self, theta: npt.ArrayLike) -> Floats:
        """One theta (d,), or one for each client, as (m, d)."""
        return np.ascontiguousarray(np.broadcast_to(np.asarray(theta, dtype=np.float64), (len(self), self.dim)))

    def _share(self) -> Floats:
        """What a unit of weight counts in every client's mean loss (m,); 0 where no row weighs."""
        size = self.sizes()
        return np.where(size > 0.0, 1.0 / np.where(size > 0.0, size, 1.0), 0.0)

    def gradient(self, theta: npt.ArrayLike) -> Floats:
        """Gradients (m, d) of the losses at one theta (d,) or at one for each client (m, d)."""
        m, now = len(self), Draws.of_all(len(self))
        return row_kernels.gradients(*self.step_data, np.ones(m), self._each(theta), now.keys, now.first, 0)

    def mean_gradient(self, theta: Floats, draws: Draws) -> Floats:
        """Gradients (m, d) of the mean losses over the rows drawn; zero where no row weighs."""
        drawn = draws.keys, draws.first, draws.size
        return row_kernels.gradients(*self.step_data, self._share(), self._each(theta), *drawn)

    def walk(self, theta: Floats, by: Walk) -> Floats:
        """Where local steps lead from theta (m, d)."""
        return self._walked(self._share(), theta, by)

    def descend(self, theta: Floats, eta: Floats, steps: Ints, draws: Draws, on: Any = None) -> Floats:
        """``steps`` (m,) steps by ``eta`` (m,) along the gradients of the losses, not of their means."""
        return self._walked(np.ones(len(self)), theta, Walk(eta, steps, draws, on=on))

    def _walked(self, scale: Floats, theta: Floats, by: Walk) -> Floats:
        """Local steps on scale (m,) times the losses."""
        start, draws = self._each(theta), by.draws
        to = start if by.anchor is None else self._each(by.anchor)
        shift = np.empty((0, 0)) if by.shift is None else np.ascontiguousarray(by.shift, dtype=np.float64)
        on = np.empty(0) if by.on is None else np.ascontiguousarray(by.on, dtype=np.float64)
        drawn, pull = (draws.keys, draws.first, draws.size), float(by.pull)
        return row_kernels.walk(*self.step_data, scale, start, to, by.eta, pull, by.steps, *drawn, by.fresh, shift, on)

    def path(self, theta: Floats, shift: Floats, P: Floats, eta: Floats, steps: int, draws: Draws) -> Floats:
        """The mean gradient met on local steps: see ``mean_loss.path``."""
        drawn, shift, P = (draws.keys, draws.first, draws.size), np.ascontiguousarray(shift), np.ascontiguousarray(P)
        share, theta = self._share(), self._each(theta)
        return row_kernels.path(*self.step_data, share, theta, shift, P, eta, steps, *drawn) / steps


@dataclass(frozen=True)
class Momentum:
    """Coefficients of Algorithm 2 (Theorem 4.3): ``pace`` is b_2, so that z moves by -b_2 g."""

    a1: float
    a2: float
    b1: float
    pace: float
    eta: float

    def mix(self, x: Floats, y: Floats, z: Floats) -> Floats:
        """``theta = a_1 z + a_2 x + (1 - a_1 - a_2) y``."""
        return self.a1 * z + self.a2 * x + (1.0 - self.a1 - self.a2) * y

    def step(self, theta: Floats, z: Floats, g: Floats) -> tuple[Floats, Floats]:
        """The new y and z."""
        return theta - self.eta * g, self.b1 * z + (1.0 - self.b1) * theta - self.pace * g


def descend(objective: Any, theta: Floats, step: Floats, steps: Ints, draws: Draws, on: Any = None) -> Floats:
    """Where ``steps`` (m,) gradient steps of size ``step`` (m,) on clients' own losses lead from theta (m, d).

    ``on`` (d,) is 1 for parameters that move, 0 for those that stay.
    """
    if isinstance(objective, WeightedRows):
        return objective.descend(theta, step, steps, draws, on)
    if isinstance(objective, Sampled):
        return objective.walk(theta, Walk(step * objective.sizes(), steps, draws, on=on, plain=True))
    theta = np.array(theta)
    for s in range(int(steps.max(initial=0))):
        go = np.flatnonzero(steps > s)
        move = step[go, None] * full_gradient(objective.take(go), theta[go], draws)
        theta[go] -= move if on is None else on * move
    return theta


def katyusha(
    objective: Any,
    x: Floats,
    y: Floats,
    z: Floats,
    h: Floats,
    by: Momentum,
    scale: Floats,
    steps: Ints,
    draws: Draws,
    on: Any = None,
) -> tuple[Floats, Floats]:
    """The new y and z (m, d) after steps of L-Katyusha with the gradient ``h + scale (grad f~(theta) - grad f~(x))``.

    x, y, z and h (m, d) are the anchor, the two sequences, and the whole gradient at the anchor; ``scale`` and
    ``steps`` are (m,). Where ``on`` (d,) is 0, the gradient is h alone.
    """
    if isinstance(objective, WeightedRows):
        x, y, z, h = (np.ascontiguousarray(a) for a in (x, y, z, h))
        coefficients, drawn = (by.a1, by.a2, by.b1, by.pace, by.eta), (draws.keys, draws.first, draws.size)
        mask = np.empty(0) if on is None else np.ascontiguousarray(on, dtype=np.float64)
        return row_kernels.katyusha(*objective.step_data, x, y, z, h, coefficients, scale, steps, *drawn, mask)
    y, z = np.array(y), np.array(z)
    for s in range(int(steps.max(initial=0))):
        go = np.flatnonzero(steps > s)
        here, now = objective.take(go), draws.of(go, s)
        theta = by.mix(x[go], y[go], z[go])
        change = full_gradient(here, theta, now) - full_gradient(here, x[go], now)
        g = h[go] + scale[go, None] * (change if on is None else on * change)
        y[go], z[go] = by.step(theta, z[go], g)
    return y, z


def full_gradient(objective: Any, theta: Floats, draws: Draws | None = None) -> Floats:
    """Gradients (m, d) of all clients at their theta; a CoterieError where rows were to be drawn and there are none."""
    if draws is not None and draws.size:
        if isinstance(objective, Sampled):
            return objective.sizes()[:, None] * objective.mean_gradient(theta, draws)
        raise CoterieError(f"{type(objective).__name__} has no rows to draw from: leave batch out.")
    return np.asarray(objective.gradient(theta))
