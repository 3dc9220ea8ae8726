"""The coins of Algorithms 1 and 2, and averages over clusters, of a coordinator or of the clusters among themselves.

Coins are a function of (seed, step) and drawn ahead: nobody has to be sent them one by one, and the communications
that they ask for are known.

Lyu, Hanzely, Kolar (2022), the end of section 3: no central server is needed. Among peers the coin is a majority of
FRESH coins of the clusters: reusing their xi_j would make these depend on xi_0. Votes depend on no data, so those of
many steps travel in one message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
from scipy import special

from coterie.numerics import keyed_random
from coterie.numerics.arrays import Bools, Floats, Ints


class Vote(Protocol):
    """How the global coin falls."""

    def draw(self, seed: int, steps: Ints) -> Bools:
        """Whether each step (n,) is a global round."""


@dataclass(frozen=True)
class Coordinated:
    """A coordinator draws the global coin: heads with probability p0."""

    p0: float

    def draw(self, seed: int, steps: Ints) -> Bools:
        """Whether each step (n,) is a global round."""
        return np.asarray(keyed_random.uniform(seed, "global coin", np.zeros(len(steps)), steps, 1)[:, 0] < self.p0)


@dataclass(frozen=True)
class Majority:
    """The global coin as a majority vote of k clusters, with probability p0."""

    p0: float
    k: int
    ties: Literal["tails", "heads"] = "tails"  # how a tie falls, where k is even

    @property
    def needed(self) -> int:
        """Votes that make a global round."""
        return (self.k + 1) // 2 if self.ties == "heads" else self.k // 2 + 1

    @cached_property
    def q(self) -> float:
        """Own probability of heads, at which a majority has p0: ``P(Binomial(k, q) >= needed)`` is a beta function."""
        return float(special.betaincinv(self.needed, self.k - self.needed + 1, self.p0))

    def votes(self, seed: int, steps: Ints) -> Bools:
        """Every cluster's fresh coin at each step, (n, k)."""
        return np.asarray(keyed_random.uniform(seed, "votes", np.zeros(len(steps)), steps, self.k) < self.q)

    def draw(self, seed: int, steps: Ints) -> Bools:
        """Whether each step (n,) is a global round."""
        return np.asarray(self.votes(seed, steps).sum(axis=1) >= self.needed)


AHEAD = 2_000_000  # coins held in memory at a time


def cluster_coins(seed: int, steps: Ints, p: Floats) -> Bools:
    """Whether clusters would speak among themselves at each step, (n, k): heads with probability p_j."""
    return np.asarray(keyed_random.uniform(seed, "cluster coins", np.zeros(len(steps)), steps, len(p)) < p)


def draw(seed: int, first: int, count: int, vote: Vote, p: Floats) -> Iterator[tuple[int, Bools, Bools]]:
    """Coins, as many at a time as may be held: the first step, and which are global (n,) and cluster rounds (n, k)."""
    ahead = max(AHEAD // max(len(p), 1), 1)
    for lo in range(first, first + count, ahead):
        steps = np.arange(lo, min(lo + ahead, first + count), dtype=np.int64)
        yield lo, vote.draw(seed, steps), cluster_coins(seed, steps, p)


def previous(seed: int, t: int, vote: Vote, p: Floats) -> tuple[bool, Bools]:
    """The coins of the step before t; everybody begins at the same point, as after a global round."""
    if t == 0:
        return True, np.ones(len(p), dtype=bool)
    ((_, xi0, xi),) = draw(seed, t - 1, 1, vote, p)
    return bool(xi0[0]), xi[0]


def communications(xi0: Bools, xi: Bools, free: Bools, last: tuple[bool, Bools]) -> tuple[int, Ints]:
    """How many communications steps with coins (n,), (n, k) after the ``last`` need between clusters, and within (k,).

    A round that follows one of its kind at once is free where a pull leaves the averages where they were: in clusters
    that are ``free`` (k,), those of equal gamma (``Ties.equal``) in Algorithm 1, none in Algorithm 2.
    """
    was_global = np.concatenate([[last[0]], xi0[:-1]])
    was_local = ~np.concatenate([last[1][None], xi[:-1]]) & ~was_global[:, None]
    between = xi0 & ~(was_global & free.all())
    within = xi & ~xi0[:, None] & (was_local | ~free)
    return int(between.sum()), within.sum(axis=0)


def expected_communications(p0: float, p: Floats, T: int, free: Bools) -> dict[str, float | Floats]:
    """What ``communications`` is in the mean over T steps: ``between`` and ``within`` (k,).

    ``printed`` (k,) is Proposition 3.2's count within clusters, which skips over the global rounds in between; where
    all rounds that follow one are free, ``between`` is that proposition's too.
    """
    within = (1.0 - p0) * p * T
    printed = within * (1.0 - p)
    between = p0 * (1.0 - p0) * T if free.all() else p0 * T
    return {"between": between, "within": np.where(free, (1.0 - p0) * printed, within), "printed": printed}


NetworkAverage = Callable[[Floats, Floats], Floats]
"""``(weights (k,), averages (k, d)) -> (k, d)``: the network's average as every cluster has it."""


def central(weights: Floats, averages: Floats) -> Floats:
    """A coordinator computes the network's average and tells every cluster; 0 where nothing has a weight."""
    total = float(weights.sum())
    mean = weights @ averages / total if total > 0.0 else np.zeros(averages.shape[1])
    return np.broadcast_to(mean, averages.shape)


def ring(weights: Floats, averages: Floats) -> Floats:
    """The average around a ring, where each cluster sends 2 (k - 1) messages of a k-th of d + 1 numbers."""
    k = len(weights)
    payload = np.c_[weights[:, None] * averages, weights]
    sums = [
        payload[(part + 1 + np.arange(k)) % k][:, columns].sum(axis=0)  # begins at the next cluster, ends at its own
        for part, columns in enumerate(np.array_split(np.arange(payload.shape[1]), k))
    ]
    total = np.concatenate(sums)
    mean = total[:-1] / total[-1] if total[-1] > 0.0 else np.zeros(averages.shape[1])
    return np.broadcast_to(mean, averages.shape)


NETWORKS: dict[str, NetworkAverage] = {"all-to-all": central, "ring": ring}
"""How clusters average among themselves. All to all, each adds up the averages of all as a coordinator would."""


def traffic(network: str, k: int, d: int, rounds: int, steps: int, ahead: int = 1024) -> dict[str, int]:
    """Messages between clusters and their bytes (float64): averages, and votes that travel ``ahead`` at a time."""
    votes = -(-steps // ahead) * k * (k - 1)
    ballots = k * (k - 1) * -(-steps // 8)
    averages, numbers = 2 * k * (k - 1), 2 * (k - 1) * (d + 1)
    if network == "all-to-all":
        averages, numbers = k * (k - 1), k * (k - 1) * (d + 1)
    return {"messages": rounds * averages + votes, "bytes": 8 * rounds * numbers + ballots}
