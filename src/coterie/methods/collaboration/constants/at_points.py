"""What a client says of its gradients at a few points: their means, and how much single ones scatter."""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation, PerRow, Site, work
from coterie.methods.collaboration.constants.sampled import Sampled, sampled
from coterie.methods.collaboration.metric import Metric
from coterie.methods.replies import require_all_replies
from coterie.numerics import keyed
from coterie.numerics.kernels import Floats, Ints, full
from coterie.objectives.glm import GLM
from coterie.objectives.mean_loss import gradient
from coterie.objectives.row_noise import deviations
from coterie.objectives.steps import Draws, full_gradient


@work
def tell(site: Site, theta: Floats, R: Floats, samples: int, batch: int) -> dict[str, Any]:
    """Gradients at points theta (m, P, d), in the metric: 2 d + 3 numbers leave a client for each, and d^2 beside."""
    (m, P, d), draws, keys = theta.shape, max(samples, 1), keyed.starts(site.seed, "constants", site.ids)
    out = {"halves": np.zeros((m, 2, P, d))} | {name: np.zeros((m, P)) for name in ("v", "s", "s_se")}
    covariance = np.zeros((m, d, d))
    site.count(m * P * draws)
    for p in range(P):
        at = np.ascontiguousarray(theta[:, p])
        if samples:
            steps = (np.full(m, p * samples + t, dtype=np.int64) for t in range(samples))
            drawn = np.stack([gradient(site.objective, at, Draws(keys, step, batch)) @ R for step in steps], axis=1)
            found = sampled(drawn[:, None])
            out["halves"][:, :, p], shape = found.halves[:, :, 0], found.shape
            told = {"v": found.v[:, 0], "s": found.s[:, 0], "s_se": found.s_se[:, 0]}
        else:
            g, shape, told = _rows(site.objective, at, R)
            out["halves"][:, :, p] = g[:, None]
        covariance += told["s"][:, None, None] * shape
        for name, value in told.items():
            out[name][:, p] = value
    total = out["s"].sum(axis=1)[:, None, None]
    return out | {"shape": np.where(total > 0.0, covariance / np.where(total > 0.0, total, 1.0), np.eye(d) / d)}


def _rows(objective: Any, theta: Floats, R: Floats) -> tuple[Floats, Floats, dict[str, Floats]]:
    """From all rows at once: the gradient, its noise's covariance of trace 1, and variances."""
    (m, d), nothing = theta.shape, np.zeros(len(theta))
    if not isinstance(objective, GLM):
        none = {"v": nothing, "s": nothing, "s_se": nothing}
        return full_gradient(objective, theta) @ R, np.zeros((m, d, d)), none
    g, A, rows, w, w2 = deviations(objective, theta)
    spare = np.maximum(rows - 1, 0)
    known = (spare > 0) & (w2 > 0.0)
    C = R.T @ full(A) @ R
    size = np.einsum("mii->m", C)
    shape = C / np.where(size > 0.0, size, 1.0)[:, None, None]
    s = size * np.divide(rows, spare * w2, out=nothing.copy(), where=known)
    v = s * np.divide(w2, w**2, out=nothing.copy(), where=known)
    twice = 2.0 * np.einsum("mij,mij->m", shape, shape)
    return g @ R, shape, {"v": v, "s": s, "s_se": s * np.sqrt(np.divide(twice, spare, out=nothing, where=known))}


def at_points(fed: Federation, metric: Metric, to: Ints, u: Floats, samples: int, batch: int) -> Sampled:
    """Ask the clients ``to`` for gradients at u (n, P, d): one exchange; a CoterieError where some are not finite."""
    if samples == 1 or samples < 0:
        raise CoterieError(f"samples is {samples}: noise needs two at a point at least, and 0 takes all rows.")
    told = require_all_replies(
        fed.ask(tell, to=to, theta=PerRow(metric.theta(u)), R=metric.R, samples=samples, batch=batch)
    )
    halves, first = told["halves"], samples // 2 / samples if samples else 0.5
    bad = np.unique(to[~np.isfinite(halves).all(axis=(1, 2, 3))])
    if len(bad):
        names = ", ".join(map(str, bad[:5]))
        raise CoterieError(
            f"Clients at positions {names} have gradients that are not finite: leave them out, or ask nearer to their "
            "optima (reach)."
        )
    g = first * halves[:, 0] + (1.0 - first) * halves[:, 1]
    return Sampled(g, told["v"], told["s"], told["s_se"], told["shape"], halves, together=not samples)
