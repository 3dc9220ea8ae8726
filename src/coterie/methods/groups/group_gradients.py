"""Gradients of groups' own losses: how stationary, how noisy, and how far from the shared one (paper 000).

``||d_s f_g - d_s f||^2 <= M_g ||grad f||^2`` is the generalised strong growth condition: with it a stationary point of
the sum is one of every group. All of it comes from sums over the clients of a group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.federation import Federation, Site, work
from coterie.methods.groups.group_models import address, client_weights, round_of_groups
from coterie.methods.local_training.client_work import ModelTransport, Reply, finite
from coterie.numerics import keyed_random
from coterie.numerics.arrays import Bools, Floats, over
from coterie.objectives.gradient_steps import Draws
from coterie.objectives.mean_loss import gradient, sizes
from coterie.relations.parameter_layout import GroupLayout

STREAM = "look"
ROWS = 1024
"""A look during training takes the gradient of so many rows of a client at most: drawn ones, the same at every look."""
STALLED = 100.0
"""A group has not followed where ``||d_s f_g - d_s f||^2`` is so many times ``||grad f||^2``."""
GONE = 1e-2
"""A gradient is nearly gone where its square is so many times what it was at first."""


def bounded_gradient(objective: Any, theta: Floats, keys: Any, rows: int) -> Floats:
    """Gradients (m, d) of mean losses, over ``rows`` that are drawn at clients with more; 0: over all."""
    first, many = np.zeros(len(objective), dtype=np.int64), (sizes(objective) > rows) & (rows > 0)
    if many.all() or not many.any():
        return gradient(objective, theta, Draws(keys, first, rows if many.any() else 0))
    out = np.zeros(theta.shape)
    for some, size in ((np.flatnonzero(~many), 0), (np.flatnonzero(many), rows)):
        out[some] = gradient(objective.take(some), theta[some], Draws(keys[some], first[some], size))
    return out


@work
def observe(
    site: Site, w: Floats, clusters: bool, uncompressed: ModelTransport, weigh: str, B: int, R: int, t: int, rows: int
) -> Reply:
    """A client's gradient, R stochastic ones from independent batches, and the variance of one by coordinate.

    All times its weight (the variance times its square), to be added up in groups; nothing where one is not finite. No
    codec is used: ``uncompressed`` is what other work calls ``transport``, of the layers that stay.
    """
    here = round_of_groups(site, clusters, w, transport=uncompressed)
    theta, travels = here.start, ~here.own
    m, keys = len(site), keyed_random.starts(site.seed, STREAM, site.ids)
    every = bounded_gradient(site.objective, theta, keys, rows)
    first = np.full(m, t * R, dtype=np.int64)
    drawn = [gradient(site.objective, theta, Draws(keys, first + r, B)) for r in range(R)]
    site.count(gradients=m * (R + 1))
    g = np.asarray(every, dtype=np.float64)[:, travels]
    replicates = np.array(drawn, dtype=np.float64).reshape(R, *theta.shape)[..., travels]
    good = finite(g, *replicates)
    scale = np.where(good, client_weights(site, weigh), 0.0)
    g, replicates = np.where(good[:, None], g, 0.0), np.where(good[:, None], replicates, 0.0)
    each = spread(replicates)
    return {
        "g": scale[:, None] * g,
        "drawn": scale[:, None, None] * replicates.transpose(1, 0, 2),
        "square": scale[:, None] ** 2 * each,
        "each": scale[:, None] * each,
        "w": scale,
    }


def spread(replicates: Floats) -> Floats:
    """The variance over replicates (R, ...); 0 where nothing was drawn."""
    return replicates.var(axis=0, ddof=1) if len(replicates) > 1 else np.zeros(replicates.shape[1:])


def look(fed: Federation, method: Any, state: Mapping[str, Any], R: int = 2, rows: int = ROWS) -> dict[str, Any] | None:
    """What the groups' gradients are at a state of GroupSGD; None where some group is missing.

    R are independent batches of every client, none where steps take all rows. The answer has

    t : round.
    share : (k,) |G| / n, or shares of the weights.
    norm, shared_norm : ``||grad f||^2`` and ``||d_s f||^2``.
    group_norm : (k,) ``||grad f_g||^2`` of the groups' own mean losses.
    group_noise : (k,) variance of the groups' own stochastic gradients.
    M : (k,) ``||d_s f_g - d_s f||^2 / ||grad f||^2``: the generalised strong growth condition.
    pair : the largest ``||d_s f_g - d_s f_h||^2 / ||grad f||^2``; with two groups the notes' ratio.
    M_shared : (k,) ``||d_s f_g - d_s f||^2 / ||d_s f||^2``: the condition on x_s alone.
    empirical : (1 + k,) variance of the assembled stochastic gradient over replicates, by block: x_s, each group's.
    formula : (1 + k,) the notes' sigma^2 by block, from variances of clients' own gradients.
    client : (1 + k,) mean variance of one client's gradient, by block, times its group's share: n times smaller where
        clients count alike.
    """
    free, layout = np.flatnonzero(state["quarantined"] == 0), GroupLayout(**state["layout"])
    to = address(fed, method.groups(fed, state), layout.models(state["w"]), free)
    how = {"weigh": method.weigh, "B": method.B, "R": R, "t": state["t"], "rows": rows}
    sums = fed.total(observe, to=free, **to, uncompressed=method.transport, **how)
    weight = np.asarray([float(w) for w in sums["w"]]) if sums else np.zeros(1)
    if not (weight > 0.0).all():
        return None
    total = weight.sum()
    share = weight / total
    f = [g / w for g, w in zip(sums["g"], weight, strict=True)]
    grad = gathered(layout, f, share)
    shared = np.stack([shared_part(layout, g, part) for g, part in enumerate(f)])
    norm, shared_norm = float(grad @ grad), float(grad[: layout.shared] @ grad[: layout.shared])
    away = shared - grad[: layout.shared]
    off = np.sum(away**2, axis=1)
    one = np.ones(layout.k)
    draws = gathered(layout, sums["drawn"], one / total)
    return {
        "t": state["t"],
        "share": share,
        "norm": norm,
        "shared_norm": shared_norm,
        "group_norm": np.array([part @ part for part in f]),
        "group_noise": np.array([np.sum(s) for s in sums["square"]]) / weight**2,
        "M": over(off, norm),
        "pair": float(over(widest(away), norm)),
        "M_shared": over(off, shared_norm),
        "empirical": by_block(layout, spread(draws)),
        "formula": by_block(layout, gathered(layout, sums["square"], one / total**2)),
        "client": by_block(layout, gathered(layout, sums["each"], one / total)),
    }


def by_block(layout: GroupLayout, values: Floats) -> Floats:
    """Sums (1 + k,) of the coordinates of every block: x_s, then what is each group's own."""
    block = np.zeros(layout.dim, dtype=np.int64)
    for g in range(layout.k):
        of = layout.of_group(g)
        block[of[of >= layout.shared]] = g + 1
    return np.bincount(block, values, layout.k + 1).astype(np.float64)


def gathered(layout: GroupLayout, parts: Sequence[Floats], share: Floats) -> Floats:
    """``sum_g share_g parts_g`` (..., dim), every coordinate at its place, of parts (..., d_g) and shares (k,).

    With the gradients of the groups' mean losses and |G| / n, it is the gradient of the augmented objective.
    """
    out = np.zeros((*np.shape(parts[0])[:-1], layout.dim))
    for g, part in enumerate(parts):
        out[..., layout.of_group(g)] += share[g] * part
    return out


def shared_part(layout: GroupLayout, g: int, part: Floats) -> Floats:
    """Those of group g's numbers (d_g,) that belong to x_s, (shared,)."""
    of = layout.of_group(g)
    out = np.zeros(layout.shared, dtype=part.dtype)
    out[of[of < layout.shared]] = part[of < layout.shared]
    return out


def widest(points: Floats) -> float:
    """The largest squared distance between two of the rows."""
    square = np.sum(points**2, axis=1)
    return float(np.max(square[:, None] + square - 2.0 * points @ points.T, initial=0.0))


def point(found: Mapping[str, Any] | None) -> dict[str, float]:
    """A look as a point of a curve holds it: squared gradients, of the sum and of each group, noise and growth."""
    if found is None:
        return {}
    of = {"gradient": found["group_norm"], "noise": found["group_noise"], "growth": found["M"]}
    each = {f"{name}_{g + 1}": float(v) for name, values in of.items() for g, v in enumerate(values)}
    return {"gradient": float(found["norm"]), **each}


@dataclass(frozen=True)
class Growth:
    """What a curve says of the groups' own gradients, for P looks and k groups."""

    rounds: Floats  # (P,)
    norm: Floats  # (P,) ||grad f||^2
    gradient: Floats  # (P, k) ||grad f_g||^2: how far each group is from a stationary point of its own
    noise: Floats  # (P, k) variance of the groups' stochastic gradients
    now: Floats  # (P, k) ||d_s f_g - d_s f||^2 / ||grad f||^2

    @classmethod
    def of(cls, curve: Sequence[Mapping[str, float]]) -> Growth | None:
        """What was looked at; None where nothing was."""
        seen = [p for p in curve if "gradient_1" in p]
        if not seen:
            return None
        k = sum(name.startswith("gradient_") for name in seen[0])
        each = [[[p[f"{name}_{g + 1}"] for g in range(k)] for p in seen] for name in ("gradient", "noise", "growth")]
        return cls(*(np.array([p[name] for p in seen]) for name in ("round", "gradient")), *map(np.array, each))

    @property
    def constant(self) -> Floats:
        """The least constants (k,) with which the growth condition holds at every look."""
        return np.asarray(self.now.max(axis=0))

    @property
    def stalled(self) -> Bools:
        """Groups (k,) whose gradient in x_s is still there when that of the sum is nearly gone."""
        return stalled(self.norm, self.now[-1])

    def sentences(self) -> list[str]:
        """What a user should know, groups numbered from 1."""
        worst, to = int(np.argmax(self.constant)), f"went from {self.norm[0]:.3g} to" if len(self.norm) > 1 else "is"
        need = "nothing that they share pulls groups apart"
        if self.constant[worst] > 0.0:
            need = f"the growth condition holds with M = {self.constant[worst]:.3g}, which group {worst + 1} needs"
        out = [f"The squared gradient of the sum {to} {self.norm[-1]:.3g}; {need}."]
        return out + [
            f"Group {g + 1}'s own gradient has not followed: its square is {self.gradient[-1, g]:.3g}, so this is no "
            "stationary point of it. Share fewer layers with it, or leave it out."
            for g in np.flatnonzero(self.stalled)
        ]


def stalled(norm: Floats, now: Floats) -> Bools:
    """Groups (k,) with a gradient of their own, ratios ``now``, where that of the sum (T,) is nearly gone.

    A group's own block is n / |G| times that of f, so it vanishes with it, however small the group.
    """
    return np.asarray((norm[-1] < GONE * norm[0]) & (now > STALLED))
