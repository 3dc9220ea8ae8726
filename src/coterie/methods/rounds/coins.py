"""The coins of Lyu, Hanzely, Kolar (2022), Algorithms 1 and 2, drawn ahead and put together as exchanges.

Coins are a function of (seed, step), so that nobody has to be told of them one by one: a coordinator that knows the
next coins sends a cluster as many local steps as lie before its next communication, in one message. Clusters with
schedules of their own are aligned by ordinal: exchange e of a segment between two global rounds carries every
cluster's e-th communication.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from coterie.numerics import keyed
from coterie.numerics.kernels import Bools, Floats, Ints

AHEAD = 2_000_000
"""Coins held in memory at a time."""


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
        return np.asarray(keyed.uniform(seed, "global coin", np.zeros(len(steps)), steps, 1)[:, 0] < self.p0)


def cluster_coins(seed: int, steps: Ints, p: Floats) -> Bools:
    """Whether clusters would speak among themselves at each step, (n, k): heads with probability p_j."""
    return np.asarray(keyed.uniform(seed, "cluster coins", np.zeros(len(steps)), steps, len(p)) < p)


@dataclass(frozen=True)
class Segment:
    """Steps up to, and with, the next global round; E is the largest number of exchanges of a cluster in it.

    Attributes
    ----------
    first : int
        Number of its first step.
    before : (k,) int64
        Cluster rounds that follow the last exchange at once, with no local step between, where these are free.
    steps : (E, k) int64
        Local steps that a cluster takes before its e-th communication; -1 where it has no such communication.
    start : (E, k) int64
        Number of the first of these steps.
    pulls : (E, k) int64
        Cluster rounds in that communication: more than one where rounds follow at once and are free.
    rest : (k,) int64
        Local steps after the last communication.
    restart : (k,) int64
        Number of the first of these.
    last : int
        Number of the step that ends it.
    ends : bool
        Whether that is a global round; otherwise the coins drawn so far ended here.
    """

    first: int
    before: Ints
    steps: Ints
    start: Ints
    pulls: Ints
    rest: Ints
    restart: Ints
    last: int
    ends: bool


def segments(globally: Bools, locally: Bools, first: int, free: Bools) -> Iterator[Segment]:
    """The exchanges of the steps from ``first`` on, in order; the last segment ends with no global round.

    Parameters
    ----------
    globally : (n,) bool, locally : (n, k) bool
        The coins.
    free : (k,) bool
        Clusters for which a round that follows a round needs no exchange: a pull leaves their average where it was.
    """
    at = 0
    for g in np.flatnonzero(globally):
        yield segment(first + at, locally[at:g], free, True)
        at = int(g) + 1
    yield segment(first + at, locally[at:], free, False)


def segment(first: int, coins: Bools, free: Bools, ends: bool) -> Segment:
    """Put the cluster coins (n, k) of one segment together; ``ends``: a global round follows."""
    n, k = coins.shape
    j, t = np.nonzero(coins.T)  # by cluster, then by time
    new = np.concatenate([[True], j[1:] != j[:-1]])[: len(j)]
    since = np.where(new, -1, np.concatenate([[0], t[:-1]])[: len(t)])
    gap = t - since - 1
    speaks = (gap > 0) | ~free[j]
    count = np.cumsum(speaks)
    ordinal = count - 1 - np.repeat((count - speaks)[new], np.diff(np.append(np.flatnonzero(new), len(j))))
    E = int(ordinal.max(initial=-1)) + 1
    before = np.bincount(j[ordinal < 0], minlength=k)
    steps, start = np.full((E, k), -1, dtype=np.int64), np.zeros((E, k), dtype=np.int64)
    pulls = np.zeros((E, k), dtype=np.int64)
    steps[ordinal[speaks], j[speaks]] = gap[speaks]
    start[ordinal[speaks], j[speaks]] = first + since[speaks] + 1
    np.add.at(pulls, (ordinal[ordinal >= 0], j[ordinal >= 0]), 1)
    latest = np.full(k, -1, dtype=np.int64)
    latest[j] = t  # the last assignment stays
    return Segment(first, before, steps, start, pulls, n - latest - 1, first + latest + 1, first + n, ends)


def draw(seed: int, first: int, count: int, vote: Vote, p: Floats) -> Iterator[tuple[int, Bools, Bools]]:
    """Coins of steps ``first`` to ``first + count - 1``, as many at a time as may be held: (first, (n,), (n, k))."""
    ahead = max(AHEAD // max(len(p), 1), 1)
    for lo in range(first, first + count, ahead):
        steps = np.arange(lo, min(lo + ahead, first + count), dtype=np.int64)
        yield lo, vote.draw(seed, steps), cluster_coins(seed, steps, p)
