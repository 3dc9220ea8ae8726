"""Monitoring a run over groups: gradients of groups, variances, and the M of the strong growth condition.

All of it comes from sums over the clients of a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.federation import Federation, Site, work
from coterie.methods.group_sgd import GroupSGD
from coterie.methods.groups.group_models import address, client_weights, group_models
from coterie.methods.local_training.client_work import ModelTransport, Reply, finite, personal_mask
from coterie.methods.local_training.rounds import State
from coterie.numerics import keyed_random
from coterie.numerics.arrays import Floats
from coterie.objectives.gradient_steps import Draws
from coterie.objectives.mean_loss import gradient
from coterie.relations.parameter_layout import GroupLayout

STREAM = "look"


@work
def observe(
    site: Site, w: Floats, clusters: bool, uncompressed: ModelTransport, weigh: str, B: int, R: int, t: int
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


def monitored(
    fed: Federation, method: GroupSGD, rounds: int, every: int = 1, replicates: int = 2
) -> tuple[State, dict[str, Any]]:
    """Run a method: its last state, and the trace of an observation before each of ``every`` rounds.

    ``replicates`` are independent batches of every client at an observation.
    """
    state, trace = method.init(fed), dict[str, Any]()
    while state["t"] < rounds and state["status"] == "running":
        if state["t"] % every == 0:
            free, layout = np.flatnonzero(state["quarantined"] == 0), GroupLayout(**state["layout"])
            to = address(fed, method.groups(fed), layout.models(state["w"]), free)
            over = {"weigh": method.weigh, "B": method.B, "R": replicates, "t": state["t"]}
            sums = fed.total(observe, to=free, **to, uncompressed=method.transport, **over)
            trace = append_row(trace, trace_row(sums, layout, state["t"]))
        state = method.step(fed, state)
    return state, trace


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
    grad = gathered(layout, f, share)
    shared = np.stack([shared_part(layout, g, part) for g, part in enumerate(f)])
    norm, shared_norm = float(grad @ grad), float(grad[: layout.shared] @ grad[: layout.shared])
    away = shared - grad[: layout.shared]
    off = np.sum(away**2, axis=1)
    one = np.ones(layout.k)
    draws = gathered(layout, sums["drawn"], one / total)
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
