"""Averages that a few bad clients cannot move far: trimmed means coordinate by coordinate, centred clipping.

References
----------
Yin, Chen, Ramchandran, Bartlett (2018), Byzantine-robust distributed learning, ICML, Definition 2.
Karimireddy, He, Jaggi (2021), Learning from history for Byzantine robust optimization, ICML, Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from coterie.methods.aggregation.aggregator import Aggregator, Received, State
from coterie.methods.aggregation.trust import Adaptive, Trust
from coterie.numerics.kernels import Floats, Ints, kernel
from coterie.options import Option, check


@kernel
def _trimmed(g: Floats, weights: Floats, starts: Ints, fraction: float, out: Floats) -> None:
    for i in range(out.shape[0]):
        members = starts[i] + np.flatnonzero(weights[starts[i] : starts[i + 1]] > 0.0)
        n = members.shape[0]
        cut = min(int(np.ceil(fraction * n - 1e-9)), (n - 1) // 2)
        column = np.empty(n)
        for j in range(out.shape[1]):
            for a in range(n):
                column[a] = g[members[a], j]
            kept = np.argsort(column, kind="mergesort")[cut : n - cut]
            total = 0.0
            for a in kept:
                total += weights[members[a]]
            for a in kept:
                out[i, j] += weights[members[a]] / total * column[a]


def trimmed_mean(g: Floats, weights: Floats, starts: Ints, fraction: float) -> Floats:
    """Weighted means (M, d) of the rows of g (P, d) within ``starts`` (M + 1,), without the ends of each coordinate.

    Of n rows whose weight is not zero, ``fraction * n``, rounded up, are left out at either end, and never all; zero
    where there are none. With a fraction of 0.5 and equal weights these are medians.
    """
    out = np.zeros((len(starts) - 1, g.shape[1]))
    _trimmed(np.ascontiguousarray(g), np.ascontiguousarray(weights), starts, fraction, out)
    return out


@kernel
def _clip(g: Floats, weights: Floats, starts: Ints, radius: float, steps: int, v: Floats) -> None:
    for i in range(v.shape[0]):
        members = starts[i] + np.flatnonzero(weights[starts[i] : starts[i + 1]] > 0.0)
        n, total, far, move = members.shape[0], 0.0, np.empty(members.shape[0]), np.empty(v.shape[1])
        for p in members:
            total += weights[p]
        for _ in range(steps if n else 0):
            for a in range(n):
                square = 0.0
                for j in range(v.shape[1]):
                    square += (g[members[a], j] - v[i, j]) ** 2
                far[a] = np.sqrt(square)
            r = radius if radius > 0.0 else np.sort(far)[(n - 1) // 2]
            move[:] = 0.0
            for a in range(n):
                if far[a] < np.inf:
                    share = weights[members[a]] / total * (1.0 if far[a] <= r else r / far[a])
                    for j in range(v.shape[1]):
                        move[j] += share * (g[members[a], j] - v[i, j])
            v[i] += move


@dataclass(frozen=True)
class Trimmed:
    """The mean without the largest and the smallest values of each coordinate.

    The share is of those whose weight is not zero, rounded up, so that as many bad ones cannot leave the range of the
    good ones. One or two collaborators are kept as they are: of two nobody can say which is bad. The others keep the
    ratios of their weights.
    """

    fraction: Annotated[float, Option("Share of the collaborators left out at either end.", low=0.0, high=0.5)] = 0.2

    def __post_init__(self) -> None:
        check(self)

    def init(self, M: int, P: int, d: int) -> State:
        """Nothing."""
        return {}

    def __call__(self, received: Received, weights: Floats, state: State) -> tuple[Floats, State]:
        """The trimmed means."""
        return trimmed_mean(received.g, weights, received.starts, self.fraction), {}


@dataclass(frozen=True)
class Clipped:
    """Centred clipping: ``v <- v + sum_k tau_k min(1, r / |g_k - v|) (g_k - v)``, from the v of the step before.

    The first v is the median, coordinate by coordinate, of a main client's first collaborators.

    By default the radius r is the median of ``|g_k - v|`` within the group (the lower one of two).
    """

    radius: Annotated[float | None, Option("r, in the units of gradients; by default the median.", above=0.0)] = None
    steps: Annotated[int, Option("How often that is done in a step; the paper takes 1 to 3.", low=1)] = 1

    def __post_init__(self) -> None:
        check(self)

    def init(self, M: int, P: int, d: int) -> State:
        """No v yet."""
        return {"clipped around": np.zeros((M, d)), "clipped before": np.zeros(M, dtype=bool)}

    def __call__(self, received: Received, weights: Floats, state: State) -> tuple[Floats, State]:
        """v, for those that hear anybody; it is remembered."""
        starts, M = received.starts, len(received.own)
        weights, g = np.ascontiguousarray(weights), np.ascontiguousarray(received.g)
        helped = np.bincount(received.main, weights, minlength=M) > 0.0
        first = trimmed_mean(g, (weights > 0.0).astype(np.float64), starts, 0.5)
        v = np.where(state["clipped before"][:, None], state["clipped around"], first)
        _clip(g, weights, starts, self.radius or 0.0, self.steps, v)
        return np.where(helped[:, None], v, 0.0), {
            "clipped around": v,
            "clipped before": state["clipped before"] | helped,
        }


AGGREGATORS: dict[str, Callable[[bool], Aggregator | None]] = {
    "mean": lambda corrected: None,
    "trimmed": lambda corrected: Aggregator(combine=Trimmed(0.2)),
    "clipped": lambda corrected: Aggregator(combine=Clipped()),
    "trust": lambda corrected: Aggregator([Trust(direction=not corrected)], Clipped()),
    "adaptive": lambda corrected: Aggregator([Trust(direction=True), Adaptive()]),
}
"""By name, given whether biases are corrected: None adds gradients up at the sites. "trust" drops harmful collaborators
and clips the others; "adaptive" drops them and weighs the others by their bias and noise so far.
"""
