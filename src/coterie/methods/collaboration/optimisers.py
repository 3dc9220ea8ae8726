"""What makes a direction of a gradient: SGD, momentum or Adam, on the corrected gradient (section 7)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.methods.aggregation.rules import State
from coterie.numerics.arrays import Floats


class Optimiser:
    """A rule from gradients (M, d) to directions, with a memory of M rows; by default the gradient itself."""

    def init(self, x: Floats) -> State:
        """What it remembers before the first step at x (M, d)."""
        return {}

    def __call__(self, g: Floats, state: State) -> tuple[Floats, State]:
        """The direction (M, d), and what it remembers now."""
        return g, {}


class SGD(Optimiser):
    """The gradient itself."""


@dataclass(frozen=True)
class Momentum(Optimiser):
    """``v <- decay v + g``, and the direction is ``(1 - decay) v``, so that a step size means what it does for SGD."""

    decay: float = 0.9

    def init(self, x: Floats) -> State:
        """No velocity."""
        return {"velocity": np.zeros_like(x)}

    def __call__(self, g: Floats, state: State) -> tuple[Floats, State]:
        """The average of past gradients."""
        v = self.decay * state["velocity"] + g
        return (1.0 - self.decay) * v, {"velocity": v}


@dataclass(frozen=True)
class Adam(Optimiser):
    """Kingma, Ba (2015), Algorithm 1, coordinate by coordinate."""

    first: float = 0.9
    second: float = 0.999
    epsilon: float = 1e-8

    def init(self, x: Floats) -> State:
        """Both moments zero."""
        return {"moment1": np.zeros_like(x), "moment2": np.zeros_like(x), "moves": np.zeros(len(x))}

    def __call__(self, g: Floats, state: State) -> tuple[Floats, State]:
        """The first moment over the root of the second, both without their bias towards zero."""
        n = state["moves"] + 1.0
        m1 = self.first * state["moment1"] + (1.0 - self.first) * g
        m2 = self.second * state["moment2"] + (1.0 - self.second) * g**2
        up, down = m1 / (1.0 - self.first**n)[:, None], m2 / (1.0 - self.second**n)[:, None]
        return up / (np.sqrt(down) + self.epsilon), {"moment1": m1, "moment2": m2, "moves": n}


OPTIMISERS = {"sgd": SGD, "momentum": Momentum, "adam": Adam}
