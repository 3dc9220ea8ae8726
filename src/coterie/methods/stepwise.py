"""Methods that go step by step: a run is a generator of states, so whoever loops over it may stop, save or look."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from coterie.federation import Federation

State = dict[str, Any]

FAR = 1e100
"""Parameters that are farther away have diverged; gradients there may overflow, and nobody is to blame for that."""
LARGEST = 1e150  # numbers from here on are in no gradient: their squares overflow
TRACE_STEPS = 20  # points of a run's trace


class Stepwise(ABC):
    """A method with ``init(fed) -> state`` and ``step(fed, state) -> state``; states have ``t`` and ``status``."""

    @abstractmethod
    def init(self, fed: Federation) -> State:
        """The state before the first step."""

    @abstractmethod
    def step(self, fed: Federation, state: State) -> State:
        """One step; a status other than "running" ends the run."""

    def advance(self, fed: Federation, state: State, n: int) -> State:
        """n steps, or those up to a change of status; overridden where many steps cost less together than apart."""
        stop = state["t"] + n
        while state["t"] < stop and state["status"] == "running":
            state = self.step(fed, state)
        return state

    def run(self, fed: Federation, stops: Sequence[int], state: State | None = None) -> Iterator[State]:
        """The states after ``stops`` (rising) steps, from ``state`` on; none after a divergence but the one found."""
        state = state or self.init(fed)
        for stop in stops:
            if state["status"] == "running" and stop > state["t"]:
                state = self.advance(fed, state, stop - state["t"])
                yield state


class AlgorithmFromState(Stepwise):
    """A method whose first state holds all that its algorithm is made of: the algorithm then goes its steps."""

    @abstractmethod
    def algorithm(self, state: State) -> Stepwise:
        """The algorithm, made once for a run."""

    def step(self, fed: Federation, state: State) -> State:
        """One step."""
        return self.algorithm(state).step(fed, state)

    def run(self, fed: Federation, stops: Sequence[int], state: State | None = None) -> Iterator[State]:
        """The states after ``stops`` (rising) steps, from ``state`` on."""
        state = state or self.init(fed)
        yield from self.algorithm(state).run(fed, stops, state)


def trace_steps(T: int, n: int = TRACE_STEPS) -> list[int]:
    """Steps of a run of T at which its trace has a point: n of them evenly, and as many closer at the beginning."""
    even, early = np.linspace(0, T, n + 1), np.geomspace(1, T, n)
    return [int(t) for t in np.unique(np.ceil(np.concatenate([even, early])))[1:]]
