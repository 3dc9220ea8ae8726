"""Linear speedup in personalized collaborative learning (2022), Algorithm 1: collaborative stochastic optimization.

Every main client asks its collaborators for gradients at its own model, and takes a step along what its variant makes
of them: ``weighted_averaging`` and ``bias_correction``. All main clients go at once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.federation import Federation
from coterie.methods.aggregation.received import State
from coterie.methods.collaboration.exchange import Exchange, Heard
from coterie.methods.collaboration.optimisers import SGD, Optimiser
from coterie.methods.stepwise import Stepwise
from coterie.numerics.kernels import Floats

FAR = 1e100
"""Parameters that are farther away have diverged; gradients there may overflow, and nobody is to blame for that."""

Schedule = Any
"""A number, (M,) numbers, or ``f(t)`` that gives such."""


def at_step(schedule: Schedule, t: int, M: int) -> Floats:
    """A schedule's values (M,) at step t; a CoterieError where there is not one for each main client."""
    value = np.asarray(schedule(t) if isinstance(schedule, Callable) else schedule, dtype=np.float64)  # type: ignore[arg-type]
    if value.shape not in ((), (1,), (M,)):
        raise CoterieError(f"There are {M} main clients and numbers of shape {value.shape}: give one for each, or one.")
    return np.broadcast_to(value, (M,))


def within(name: str, values: npt.ArrayLike, low: float, high: float, open_below: bool = False) -> None:
    """Raise a CoterieError where a parameter lies outside its range."""
    try:
        v = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as e:
        raise CoterieError(f"{name} must be a number, one for each main client, or a function, not {values!r}.") from e
    bad = ~((v > low if open_below else v >= low) & (v <= high))
    if bad.any():
        upper = "" if np.isinf(high) else f" {'and up to' if open_below else 'to'} {high:g}"
        worst = np.atleast_1d(v)[np.atleast_1d(bad)][0]
        raise CoterieError(f"{name} must lie {'above' if open_below else 'from'} {low:g}{upper}, not {worst:g}.")


@dataclass(frozen=True, kw_only=True)
class CollaborativeSGD(Stepwise):
    """Algorithm 1 with the paper's symbols; x, g and c are in the units of ``exchange.metric``.

    Attributes
    ----------
    exchange : Exchange
        Collaborators and their weights tau, and how they are asked.
    alpha : number, (M,) or callable
        Weight of the collaborators, from 0 to 1; alpha_t where it is a function of t.
    eta : number, (M,) or callable
        Step size.
    held : number or (M,), default 0
        Curvature by which main clients are held at the metric's origin: see ``Metric.prior``.
    optimiser : Optimiser
        What makes a direction of the gradient formed.
    """

    exchange: Exchange
    alpha: Schedule
    eta: Schedule
    held: Any = 0.0
    optimiser: Optimiser = field(default_factory=SGD)

    def __post_init__(self) -> None:
        for name, value, low, high in (("alpha", self.alpha, 0.0, 1.0), ("eta", self.eta, 0.0, np.inf)):
            if not callable(value):
                within(name, value, low, high, open_below=name == "eta")

    @property
    def notes(self) -> list[str]:
        """What is well defined here and covered by no theorem, a sentence each."""
        return []

    @abstractmethod
    def form(self, heard: Heard, alpha: Floats, state: State) -> tuple[Floats, State]:
        """Aggregation on user 0: the gradient g(x_t) (M, d) for every main client, and what changes in the state."""

    def correction(self, state: State) -> Floats:
        """What collaborators take off their gradients on local steps (M, d)."""
        return np.zeros_like(state["x"])

    def init(self, fed: Federation, x: Floats | None = None) -> State:
        """The state before the first step, at x (M, d), by default the metric's origin."""
        M, metric = len(self.exchange.who.main), self.exchange.metric
        x = np.zeros((M, len(metric.at))) if x is None else np.array(x, dtype=np.float64)
        state = {"t": 0, "status": "running", "x": x}
        return state | self.exchange.init(fed) | self.optimiser.init(x)

    @np.errstate(over="ignore", invalid="ignore")  # a divergence is found and named
    def step(self, fed: Federation, state: State) -> State:
        """One round of all main clients; one whose own gradient is missing stays where it is.

        A divergence ends the run of all: ``gone`` are the positions in ``main`` that diverged, at the last finite x.
        """
        t, M = state["t"], len(state["x"])
        alpha, eta = at_step(self.alpha, t, M), at_step(self.eta, t, M)
        within("alpha", alpha, 0.0, 1.0)
        within("eta", eta, 0.0, np.inf)
        shift = self.correction(state) if self.exchange.local > 1 else np.zeros_like(state["x"])
        heard = self.exchange.hear(fed, state, shift, eta)
        g, formed = self.form(heard, np.where(heard.helped, alpha, 0.0), state)
        g = g + at_step(self.held, t, M)[:, None] * state["x"]
        direction, moved = self.optimiser(g, state)
        x = state["x"] - (eta * self.exchange.local)[:, None] * direction
        new = {"x": x} | formed | moved
        for name, value in new.items():
            if not heard.spoke.all():
                new[name] = np.where(heard.spoke.reshape(-1, *[1] * (value.ndim - 1)), value, state[name])
        gone = ~(np.abs(new["x"]) < FAR).all(axis=1)
        if gone.any():
            return state | {"status": f"diverged by step {t + 1}", "gone": np.flatnonzero(gone)}
        return state | heard.state | new | {"t": t + 1}
