"""Communications of Algorithms 1 and 2 of Lyu, Hanzely, Kolar (2022), counted from their coins."""

from __future__ import annotations

import numpy as np

from coterie.methods.coins import Vote, draw
from coterie.numerics.kernels import Bools, Floats, Ints


def communications(globally: Bools, locally: Bools, free: Bools) -> tuple[int, Ints]:
    """How many communications between clusters, and within each (k,), need an exchange in steps that start settled.

    A round that follows a round at once is free for the clusters ``free``; Proposition 3.2 does not count such either.
    """
    speaks, local = locally & ~globally[:, None], ~locally & ~globally[:, None]
    owes = np.concatenate([np.zeros((1, len(free)), dtype=bool), local[:-1]])
    owes |= ~free & (np.arange(len(globally)) > 0)[:, None]
    return int(np.sum(globally & owes.any(axis=1))), np.sum(speaks & (owes | ~free), axis=0)


def rounds(seed: int, first: int, count: int, vote: Vote, p: Floats) -> dict[str, Floats | int]:
    """Count communications by the coins alone, as Proposition 3.2 does and as they fall.

    Returns
    -------
    dict
        ``global``: rounds between clusters that do not follow one, expected p0 (1 - p0) T; ``cluster`` (k,): rounds
        within clusters that follow a local step, expected (1 - p0)^2 p_j (1 - p_j) T; ``printed`` (k,): rounds that
        follow a local step when global rounds in between are skipped over, expected (1 - p0) p_j (1 - p_j) T.
    """
    k = len(p)
    between, within, printed = 0, np.zeros(k), np.zeros(k)
    was_global, was_local, own_local = False, np.zeros(k, dtype=bool), np.zeros(k, dtype=bool)
    for _, globally, locally in draw(seed, first, count, vote, p):
        between += int(np.sum(globally & ~np.concatenate([[was_global], globally[:-1]])))
        speaks = locally & ~globally[:, None]
        local = ~locally & ~globally[:, None]
        within += np.sum(speaks & np.concatenate([was_local[None], local[:-1]]), axis=0)
        own = np.concatenate([own_local[None], ~locally[~globally]])
        printed += np.sum(locally[~globally] & own[:-1], axis=0)
        was_global, was_local, own_local = bool(globally[-1]), local[-1], own[-1]
    return {"global": between, "cluster": within, "printed": printed}
