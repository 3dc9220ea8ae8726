"""What main clients received from each of their collaborators, and how that is weighed and made one gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from coterie.numerics.arrays import Bools, Floats, Ints, kernel

State = dict[str, Any]  # arrays by name: what a rule remembers from step to step, so that a run can be resumed


@dataclass(frozen=True)
class Received:
    """The gradients of one step: M main clients' own, and those of P clients that were asked at their models."""

    main: Ints  # (P,) at whose model a client was asked: numbers of main clients, rising
    g: Floats  # (P, d) the last gradient that each client sent, always finite; zero where it never sent one
    known: Bools  # (P,) whether it ever sent one
    age: Ints  # (P,) steps since then; 0: in this one
    own: Floats  # (M, d) the main clients' own gradients
    t: int  # number of the step

    @cached_property
    def starts(self) -> Ints:
        """Where the clients of every main client begin, and where the last ones end, (M + 1,)."""
        return np.searchsorted(self.main, np.arange(len(self.own) + 1)).astype(np.int64)


class Rule(Protocol):
    """A rule that changes weights from step to step, or one that makes one gradient of many."""

    def init(self, M: int, P: int, d: int) -> State:
        """What it remembers before the first step, by default nothing; names must be its own."""
        return {}

    def __call__(self, received: Received, weights: Floats, state: State) -> tuple[Floats, State]:
        """New weights (P,), or the collaborators' gradient for every main client (M, d); what it remembers now.

        Weights are not negative and need not add up to 1; a main client whose weights are all zero works alone.
        """


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


class Mean(Rule):
    """Algorithm 2's average: ``sum_k tau_k g_k``, over the collaborators whose weight is not zero."""

    def __call__(self, received: Received, weights: Floats, state: State) -> tuple[Floats, State]:
        """The weighted mean."""
        return weighted_mean(received.g, weights, received.starts), {}


@dataclass(frozen=True)
class Aggregator:
    """How gradients that were received one by one are weighed, in this order, and combined."""

    weigh: Sequence[Rule] = ()
    combine: Rule = field(default_factory=Mean)

    def init(self, M: int, P: int, d: int) -> State:
        """What all rules remember before the first step."""
        state: State = {}
        for rule in (*self.weigh, self.combine):
            state |= rule.init(M, P, d)
        return state

    def __call__(self, received: Received, weights: Floats, state: State) -> tuple[Floats, Bools, State]:
        """The collaborators' gradient (M, d), whether there is any (M,), and what the rules remember now."""
        for rule in self.weigh:
            weights, new = rule(received, weights, state)
            state = state | new
        average, new = self.combine(received, weights, state)
        helped = np.bincount(received.main, weights, minlength=len(received.own)) > 0.0
        return average, helped, state | new
