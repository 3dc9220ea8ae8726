"""What main clients heard from each of their collaborators, and the rules that weigh it and put it together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from coterie.methods.collaboration.collaborators import Collaborators
from coterie.numerics.kernels import Bools, Floats, Ints, kernel

State = dict[str, Any]
"""Arrays by name: what a rule remembers from step to step, so that a run can be resumed."""


@dataclass(frozen=True)
class Pairs:
    """One step, pair by pair.

    Attributes
    ----------
    who : Collaborators
        M main clients and P pairs.
    g : (P, d)
        The last gradient that each collaborator sent, always finite; zero where it never sent one.
    known : (P,) bool
        Whether it ever sent one.
    age : (P,) int64
        Steps since then; 0: in this one.
    own : (M, d)
        The main clients' own gradients.
    x : (M, d)
        Where all gradients of age 0 were taken.
    t : int
        Number of the step.
    """

    who: Collaborators
    g: Floats
    known: Bools
    age: Ints
    own: Floats
    x: Floats
    t: int


class Weigh(Protocol):
    """A rule that changes weights from step to step, such as one that drops harmful collaborators."""

    def init(self, who: Collaborators, d: int) -> State:
        """What it remembers before the first step; names must be its own."""

    def __call__(self, pairs: Pairs, weights: Floats, state: State) -> tuple[Floats, State]:
        """New weights (P,), not negative, and what it remembers now.

        Weights need not add up to 1; a main client whose weights are all zero works alone in this step.
        """


class Combine(Protocol):
    """A rule that makes one gradient of many."""

    def init(self, who: Collaborators, d: int) -> State:
        """What it remembers before the first step; names must be its own."""

    def __call__(self, pairs: Pairs, weights: Floats, state: State) -> tuple[Floats, State]:
        """The collaborators' gradient for every main client (M, d), and what it remembers now."""


@kernel
def _mean(g: Floats, weights: Floats, starts: Ints, out: Floats) -> None:
    for i in range(out.shape[0]):
        total = 0.0
        for p in range(starts[i], starts[i + 1]):
            total += weights[p]
        for p in range(starts[i], starts[i + 1]):
            if weights[p] > 0.0:
                for j in range(out.shape[1]):
                    out[i, j] += weights[p] / total * g[p, j]


def weighted_mean(g: Floats, weights: Floats, starts: Ints) -> Floats:
    """Weighted means (M, d) of the rows of g (P, d) within ``starts`` (M + 1,); zero where all weights are."""
    out = np.zeros((len(starts) - 1, g.shape[1]))
    _mean(np.ascontiguousarray(g), np.ascontiguousarray(weights), starts, out)
    return out


class Mean:
    """Algorithm 2's average: ``sum_k tau_k g_k``, over the collaborators whose weight is not zero."""

    def init(self, who: Collaborators, d: int) -> State:
        """Nothing."""
        return {}

    def __call__(self, pairs: Pairs, weights: Floats, state: State) -> tuple[Floats, State]:
        """The weighted mean."""
        return weighted_mean(pairs.g, weights, pairs.who.starts), {}


@dataclass(frozen=True)
class Rules:
    """How gradients that were heard one by one are weighed, in this order, and put together."""

    weigh: Sequence[Weigh] = ()
    combine: Combine = field(default_factory=Mean)

    def init(self, who: Collaborators, d: int) -> State:
        """What all rules remember before the first step."""
        state: State = {}
        for rule in (*self.weigh, self.combine):
            state |= rule.init(who, d)
        return state

    def __call__(self, pairs: Pairs, weights: Floats, state: State) -> tuple[Floats, Bools, State]:
        """The collaborators' gradient (M, d), whether there is any (M,), and what the rules remember now."""
        for rule in self.weigh:
            weights, new = rule(pairs, weights, state)
            state = state | new
        average, new = self.combine(pairs, weights, state)
        helped = np.bincount(pairs.who.of, weights, minlength=len(pairs.who.main)) > 0.0
        return average, helped, state | new
