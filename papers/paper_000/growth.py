"""The generalised strong growth condition along a run of group SGD, and how noisy its steps were, from its trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.methods.groups.group_gradients import stalled
from coterie.numerics.arrays import Bools, Floats, Ints


@dataclass(frozen=True)
class Growth:
    """The generalised strong growth condition along a run; (T, k) unless said otherwise.

    Attributes
    ----------
    now : ``||d_s f_g - d_s f||^2 / ||grad f||^2`` at each observation.
    M : the largest of them up to each observation: the least M_g that holds so far.
    bound : ``c_g ||grad f||^2`` with that M, above ``||grad f_g||^2``.
    M_shared, bound_shared : the same for the condition on x_s alone.
    pair : (T,) largest ratio of the notes' kind, between two groups, up to each observation.
    group_norm : ``||grad f_g||^2``.
    norm : (T,) ``||grad f||^2``.
    t : (T,) rounds.
    """

    now: Floats
    M: Floats
    bound: Floats
    M_shared: Floats
    bound_shared: Floats
    pair: Floats
    group_norm: Floats
    norm: Floats
    t: Ints

    @property
    def stalled(self) -> Bools:
        """Groups (k,) whose gradient in x_s is still there when that of the sum is nearly gone."""
        return stalled(self.norm, self.now[-1])

    def sentences(self) -> list[str]:
        """What a user should know."""
        largest = int(np.argmax(self.M[-1]))
        out = [
            f"||grad f||^2 went from {self.norm[0]:.3g} to {self.norm[-1]:.3g}; the largest M is "
            f"{self.M[-1].max():.3g} (group {largest})."
        ]
        for g in np.flatnonzero(self.stalled):
            out.append(
                f"Group {g}'s own gradient has not followed: ||grad f_{g}||^2 is {self.group_norm[-1, g]:.3g}, so this "
                "is no stationary point of it. Share fewer layers with it, or leave it out."
            )
        return out


def growth(trace: Mapping[str, Any]) -> Growth:
    """From the trace of a run (``monitor.monitored``); a CoterieError where nothing was observed."""
    if not trace:
        raise CoterieError("Nothing was observed.")
    M, M_shared, pair = (np.maximum.accumulate(trace[name], axis=0) for name in ("M", "M_shared", "pair"))
    norm, share = np.asarray(trace["norm"]), trace["share"]
    bound, tighter = group_bound(M, share) * norm[:, None], shared_bound(M_shared, share) * norm[:, None]
    now, group_norm, t = (np.asarray(trace[name]) for name in ("M", "group_norm", "t"))
    return Growth(now, M, bound, M_shared, tighter, pair, group_norm, norm, t)


def noise(trace: Mapping[str, Any]) -> dict[str, Floats]:
    """Mean variances over the observations of a trace, (1 + k,) each: ``empirical``, ``formula``, and ``clients``.

    ``clients`` is how many clients' worth of averaging a block has had: the variance of one client's gradient over that
    of the assembled one, n where all count alike.
    """
    if not trace:
        raise CoterieError("Nothing was observed.")
    mean = {name: np.asarray(trace[name]).mean(axis=0) for name in ("empirical", "formula", "client")}
    with np.errstate(divide="ignore", invalid="ignore"):
        clients = np.where(mean["formula"] > 0.0, mean["client"] / mean["formula"], 0.0)
    return {"empirical": mean["empirical"], "formula": mean["formula"], "clients": clients}


def group_bound(M: npt.ArrayLike, share: npt.ArrayLike) -> Floats:
    """c_g with ``||grad f_g||^2 <= c_g ||grad f||^2`` where ``||d_s f_g - d_s f||^2 <= M_g ||grad f||^2``.

    ``||d_s f_g||^2 <= 2 ||d_s f||^2 + 2 M_g ||grad f||^2``, and f_g's own block is n / |G| times that of f; so
    ``c_g = 2 + 2 M_g + (n / |G|)^2``. With two groups, M_1 is ``(|G_2| / n)^2`` times the notes' M.
    """
    return 2.0 + 2.0 * np.asarray(M) + 1.0 / np.asarray(share) ** 2


def shared_bound(M: npt.ArrayLike, share: npt.ArrayLike) -> Floats:
    """c_g under the stronger condition on x_s alone, ``||d_s f_g - d_s f||^2 <= M_g ||d_s f||^2``.

    ``||d_s f_g||^2 <= (2 + 2 M_g) ||d_s f||^2``; both blocks are parts of ``||grad f||^2``, so the larger factor
    counts: ``c_g = max(2 + 2 M_g, (n / |G|)^2)``.
    """
    return np.maximum(2.0 + 2.0 * np.asarray(M), 1.0 / np.asarray(share) ** 2)
