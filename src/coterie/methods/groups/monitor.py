"""Monitoring a run over groups: gradients of groups, variances, and the generalised strong growth condition.

All of it comes from sums over the clients of a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.federation import Site, work
from coterie.methods.groups.group_models import client_weights, group_models
from coterie.methods.local_training.client_work import Reply, finite
from coterie.methods.local_training.personal_layers import Transport, personal_mask
from coterie.numerics import keyed_random
from coterie.numerics.kernels import Bools, Floats, Ints
from coterie.objectives.gradient_steps import Draws
from coterie.objectives.mean_loss import gradient
from coterie.relations.group_layout import GroupLayout

STREAM = "look"


@work
def observe(
    site: Site, w: Floats, clusters: bool, uncompressed: Transport, weigh: str, B: int, R: int, t: int
) -> Reply:
    """A client's gradient, R stochastic ones from independent batches, and the variance of one by coordinate.

    All times its weight (the variance times its square), to be added up in groups; nothing where one is not finite. No
    codec is used: ``uncompressed`` is what other work calls ``transport``, of the layers that stay.
    """
    theta, travels = group_models(site, w, clusters, uncompressed), ~personal_mask(site, uncompressed)
    m, keys = len(site), keyed_random.starts(site.seed, STREAM, site.ids)
    every = gradient(site.objective, theta, Draws(keys, np.zeros(m, dtype=np.int64)))
    first = np.full(m, t * R, dtype=np.int64)
    drawn = [gradient(site.objective, theta, Draws(keys, first + r, B)) for r in range(R)]
    site.count(gradients=m * (R + 1))
    g, replicates = (np.asarray(a, dtype=np.float64)[..., travels] for a in (every, drawn))
    good = finite(g, *replicates)
    scale = np.where(good, client_weights(site, weigh), 0.0)
    g, replicates = np.where(good[:, None], g, 0.0), np.where(good[:, None], replicates, 0.0)
    return {
        "g": scale[:, None] * g,
        "drawn": scale[:, None, None] * replicates.transpose(1, 0, 2),
        "square": scale[:, None] ** 2 * replicates.var(axis=0, ddof=1),
        "each": scale[:, None] * replicates.var(axis=0, ddof=1),
        "w": scale,
    }


def trace_row(sums: Any, layout: GroupLayout, t: int) -> dict[str, Any] | None:
    """What sums say at round t, to be appended to a trace; None where some group is missing.

    Attributes of a trace, one row for each observation:

    t : round.
    share : (k,) |G| / n, or shares of the weights.
    norm, shared_norm : ``||grad f||^2`` and ``||d_s f||^2``.
    group_norm : (k,) ``||grad f_g||^2`` of the groups' own mean losses.
    M : (k,) ``||d_s f_g - d_s f||^2 / ||grad f||^2``: the generalised strong growth condition.
    pair : the largest ``||d_s f_g - d_s f_h||^2 / ||grad f||^2``; with two groups the notes' ratio.
    M_shared : (k,) ``||d_s f_g - d_s f||^2 / ||d_s f||^2``: the condition on x_s alone.
    empirical : (1 + k,) variance of the assembled stochastic gradient over replicates, by block: x_s, each group's.
    formula : (1 + k,) the notes' sigma^2 by block, from variances of clients' own gradients.
    client : (1 + k,) mean variance of one client's gradient, by block, times its group's share: n times smaller where
        clients count alike.
    """
    weight = np.asarray([float(w) for w in sums["w"]]) if sums else np.zeros(1)
    if not (weight > 0.0).all():
        return None
    total = weight.sum()
    share = weight / total
    f = [g / w for g, w in zip(sums["g"], weight, strict=True)]
    grad = layout.gather(f, share)
    shared = np.stack([layout.shared_part(g, part) for g, part in enumerate(f)])
    norm, shared_norm = float(grad @ grad), float(grad[: layout.shared] @ grad[: layout.shared])
    away = shared - grad[: layout.shared]
    off = np.sum(away**2, axis=1)
    one = np.ones(layout.k)
    draws = layout.gather(sums["drawn"], one / total)
    return {
        "t": t,
        "share": share,
        "norm": norm,
        "shared_norm": shared_norm,
        "group_norm": np.array([part @ part for part in f]),
        "M": ratio(off, norm),
        "pair": float(ratio(widest(away), norm)),
        "M_shared": ratio(off, shared_norm),
        "empirical": by_block(layout, draws.var(axis=0, ddof=1)),
        "formula": by_block(layout, layout.gather(sums["square"], one / total**2)),
        "client": by_block(layout, layout.gather(sums["each"], one / total)),
    }


def by_block(layout: GroupLayout, values: Floats) -> Floats:
    """Sums (1 + k,) of the coordinates of every block."""
    return np.bincount(layout.blocks, values, layout.k + 1).astype(np.float64)


def ratio(a: Any, b: float) -> Any:
    """a / b, where nothing of nothing is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.asarray(a) > 0.0, np.asarray(a) / b, 0.0)


def widest(points: Floats) -> float:
    """The largest squared distance between two of the rows."""
    square = np.sum(points**2, axis=1)
    return float(np.max(square[:, None] + square - 2.0 * points @ points.T, initial=0.0))


def append_row(trace: dict[str, Any] | None, row: dict[str, Any] | None) -> dict[str, Any]:
    """A trace with one more row: arrays, the first axis of which is observations."""
    if row is None:
        return trace or {}
    new = {name: np.asarray(value)[None] for name, value in row.items()}
    return {name: np.concatenate([trace[name], value]) for name, value in new.items()} if trace else new


STALLED = 100.0
"""A group has not followed where ``||d_s f_g - d_s f||^2`` is so many times ``||grad f||^2``."""


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
        """Groups (k,) whose gradient in x_s is still there when that of the sum is nearly gone.

        A group's own block is n / |G| times that of f, so it vanishes with it, however small the group.
        """
        gone = self.norm[-1] < 1e-2 * self.norm[0]
        return np.asarray(gone & (self.now[-1] > STALLED))

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
    """From ``state["trace"]`` of a run; a CoterieError where nothing was observed."""
    if not trace:
        raise CoterieError("Nothing was observed: give monitor, the rounds between two observations.")
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
        raise CoterieError("Nothing was observed: give monitor, the rounds between two observations.")
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
