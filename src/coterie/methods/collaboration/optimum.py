"""Where weighted gradient averaging goes: it is SGD on ``(1 - alpha) f_0 + alpha sum_k tau_k f_k`` (section 4).

Newton's method over exchanges of sums, for all main clients at once: the exact form of the method, and its certificate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.federation import Federation, PerRow, Site, require_all_replies, work
from coterie.methods.collaboration.collaborators import Collaborators
from coterie.methods.collaboration.metric_and_similarity import Metric
from coterie.numerics.arrays import Bools, Floats
from coterie.objectives.mean_loss import OVERFLOW, decode_loss, expand, overflowed, sizes

EXCHANGES = 200  # exchanges at most: halving a step that overshoots a count far too large takes dozens
HALVINGS = 60
ENOUGH = 1e-20
"""Squared length of a Newton step, in the metric and relative to a unit plus u's, at which the optimum is reached."""
LEAST = 1e-8
"""Curvature towards the origin of the metric at least: where rows say nothing of a direction, a model stays there."""


@work
def weighted_expansion(site: Site, theta: Floats, w: Floats) -> dict[str, Any]:
    """Value, gradient and curvature of a client's mean loss, times w; and w squared over the weight of its rows."""
    value, g, A = expand(site.objective, theta)
    if (over := overflowed(value, g, A)).any():
        value[over], g[over], A[over] = OVERFLOW, 0.0, 0.0
    site.count(len(site))
    weight = sizes(site.objective)
    spread = w**2 / np.where(weight > 0.0, weight, np.inf)
    return {"value": w * value, "g": w[:, None] * g, "A": w[:, None] * A, "spread": spread}


@dataclass(frozen=True)
class Optimum:
    """What Newton's method came to."""

    theta: Floats  # (M, d) minimisers
    prior_curvature: Floats  # (M,) by which they are held at the metric's origin
    exchanges: int
    reached: Bools  # (M,) whether the last Newton step was as good as zero


@np.errstate(over="ignore", invalid="ignore")  # a step that overflows is halved
def optimum(
    fed: Federation, pairs: Collaborators, alpha: Floats, metric: Metric, start: Floats | None = None
) -> Optimum:
    """Minimise ``(1 - alpha) f_0 + alpha sum_k tau_k f_k`` for every main client, from ``start`` or the origin.

    ``alpha`` (M,) of those without collaborators counts as 0. Models are held at the metric's origin by ``prior`` rows,
    of as many as the weights make of a main client's and its collaborators' together: ``1 / sum_k w_k^2 / n_k``.
    """
    M = len(pairs.main)
    w = pairs.weights(alpha)
    weighted = np.flatnonzero(w > 0.0)
    clients, mains, w = pairs.request_client[weighted], pairs.request_main[weighted], w[weighted]
    theta = np.tile(metric.at, (M, 1)) if start is None else np.array(start)
    values, g, H, prior_curvature = _ask(fed, clients, mains, w, M, theta, metric)
    exchanges, last = 1, np.full(M, np.inf)
    while True:
        u, step = metric.u(theta), -np.linalg.solve(H, g[:, :, None])[:, :, 0]
        length, nothing = np.sum(step**2, axis=1), 1e-12 * (metric.unit2 + np.abs(values))
        # Where rows say nothing of a direction, steps end in rounding: they lower nothing, and shrink no more.
        rounding = (-np.sum(g * step, axis=1) <= nothing) & (length > 0.25 * last)
        going, last = (length > ENOUGH * (metric.unit2 + np.sum(u**2, axis=1))) & ~rounding, length
        if not going.any() or exchanges >= EXCHANGES:
            return Optimum(theta, prior_curvature, exchanges, ~going)
        size = np.where(going, 1.0, 0.0)
        for _ in range(HALVINGS):
            tried = metric.theta(u + size[:, None] * step)
            new, g_new, H_new, _ = _ask(fed, clients, mains, w, M, tried, metric)
            exchanges += 1
            worse = ~(new <= values + nothing)
            if not worse.any():
                break
            size = np.where(worse, 0.5 * size, size)
        theta, values, g, H = tried, new, g_new, H_new


def _ask(
    fed: Federation, clients: Any, mains: Any, w: Floats, M: int, theta: Floats, metric: Metric
) -> tuple[Floats, Floats, Floats, Floats]:
    """Value (M,), gradient (M, d) and Hessian (M, d, d) in the metric's units; what of it holds models (M,)."""
    message: dict[str, Any] = {"theta": PerRow(theta[mains]), "w": PerRow(w)}
    s = require_all_replies(fed.total(weighted_expansion, to=clients, by=mains, groups=M, **message))
    u = metric.u(theta)
    prior_curvature = np.maximum(metric.prior * s["spread"], LEAST)
    H = metric.hessian(s["A"]) + prior_curvature[:, None, None] * np.eye(theta.shape[1])
    value = decode_loss(s["value"]) + 0.5 * prior_curvature * np.sum(u**2, axis=1)
    return value, metric.gradient(s["g"]) + prior_curvature[:, None] * u, H, prior_curvature
