"""The coins of Lyu, Hanzely, Kolar (2022), Algorithms 1 and 2, drawn ahead, and the communications they ask for.

Coins are a function of (seed, step), so that nobody has to be told of them one by one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from coterie.methods.clustered_l2gd.coordinator import Vote
from coterie.numerics import keyed_random
from coterie.numerics.kernels import Bools, Floats, Ints

AHEAD = 2_000_000
"""Coins held in memory at a time."""


def cluster_coins(seed: int, steps: Ints, p: Floats) -> Bools:
    """Whether clusters would speak among themselves at each step, (n, k): heads with probability p_j."""
    return np.asarray(keyed_random.uniform(seed, "cluster coins", np.zeros(len(steps)), steps, len(p)) < p)


def draw(seed: int, first: int, count: int, vote: Vote, p: Floats) -> Iterator[tuple[int, Bools, Bools]]:
    """Coins of steps ``first`` to ``first + count - 1``, as many at a time as may be held.

    Yields
    ------
    first : int
        The first step of these.
    xi0 : (n,) bool
        Whether a step is a global round.
    xi : (n, k) bool
        Whether it is a cluster's round, where it is no global one.
    """
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
    """How many communications steps need between clusters, and within each (k,).

    A round that follows one of its kind at once is free where a pull leaves the averages where they were.

    Parameters
    ----------
    xi0 : (n,) bool, xi : (n, k) bool
        The coins.
    free : (k,) bool
        Clusters where a pull does so: those of equal gamma (``Ties.equal``) in Algorithm 1, none in Algorithm 2.
    last
        The coins of the step before.
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
