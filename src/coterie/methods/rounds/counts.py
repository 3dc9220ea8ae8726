"""Communications of Algorithms 1 and 2 of Lyu, Hanzely, Kolar (2022): counted from their coins, and expected."""

from __future__ import annotations

import numpy as np

from coterie.methods.rounds.coins import Vote, draw
from coterie.numerics.kernels import Bools, Floats, Ints


def before(seed: int, t: int, vote: Vote, p: Floats) -> tuple[bool, Bools]:
    """The coins of the step before t; everybody begins at the same point, as after a global round."""
    if t == 0:
        return True, np.ones(len(p), dtype=bool)
    ((_, globally, locally),) = draw(seed, t - 1, 1, vote, p)
    return bool(globally[0]), locally[0]


def communications(globally: Bools, locally: Bools, free: Bools, last: tuple[bool, Bools]) -> tuple[int, Ints]:
    """How many communications steps need between clusters, and within each (k,).

    A round that follows one of its kind at once is free where a pull leaves the averages where they were.

    Parameters
    ----------
    globally : (n,) bool, locally : (n, k) bool
        The coins.
    free : (k,) bool
        Clusters where a pull does so: those of equal gamma (``Ties.equal``) in Algorithm 1, none in Algorithm 2.
    last
        The coins of the step before.
    """
    was_global = np.concatenate([[last[0]], globally[:-1]])
    was_local = ~np.concatenate([last[1][None], locally[:-1]]) & ~was_global[:, None]
    between = globally & ~(was_global & free.all())
    within = locally & ~globally[:, None] & (was_local | ~free)
    return int(between.sum()), within.sum(axis=0)


def expected(p0: float, p: Floats, T: int, free: Bools) -> dict[str, float | Floats]:
    """What ``communications`` is in the mean over T steps: ``between`` and ``within`` (k,).

    ``printed`` (k,) is Proposition 3.2's count within clusters, which skips over the global rounds in between; where
    all rounds that follow one are free, ``between`` is that proposition's too.
    """
    within = (1.0 - p0) * p * T
    printed = within * (1.0 - p)
    between = p0 * (1.0 - p0) * T if free.all() else p0 * T
    return {"between": between, "within": np.where(free, (1.0 - p0) * printed, within), "printed": printed}
