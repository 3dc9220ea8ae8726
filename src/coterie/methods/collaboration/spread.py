"""Variances of what main clients found: of all they listened to, with the weights as given, and no bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.federation import Federation, PerRow, Site, work
from coterie.methods.collaboration.collaborators import Collaborators
from coterie.methods.collaboration.metric import Metric
from coterie.methods.replies import require_all_replies
from coterie.numerics.kernels import Floats, full, pack
from coterie.objectives.mean_loss import expand, sizes

CUT = 1e-10
"""Curvature, relative to the largest, below which a direction is not seen and has no variance."""


@work
def meat(site: Site, theta: Floats, w: Floats, own: Floats) -> dict[str, Any]:
    """Curvature times w; times w squared over the weight of rows, as variances are; and what its own rows say."""
    value, _, A = expand(site.objective, theta)
    value, A = (np.where(np.isfinite(each), each, np.nan) for each in (value, A))  # of models that diverged
    weight = sizes(site.objective)
    weight = np.where(weight > 0.0, weight, 1.0)
    square = (w**2 / weight)[:, None] * A
    return {
        "A": w[:, None] * A,
        "V": square,
        "own": (own * w)[:, None] * A,
        "all": (own * weight)[:, None] * A,
        "sse": 2.0 * own * weight * value,
        "n": own * site.objective.moments()["rows"],
    }


@dataclass(frozen=True)
class Spread:
    """Packed covariances (M, P) of main clients' coefficients, and the residual variance of a Gaussian outcome."""

    covariance: Floats
    sigma2: float | None


def spread(fed: Federation, who: Collaborators, alpha: Floats, metric: Metric, theta: Floats, gaussian: bool) -> Spread:
    """``H^-1 V H^-1`` with ``H = sum_k w_k H_k`` and ``V = sum_k w_k^2 H_k / n_k``, times the residual variance.

    That is the main clients' own: their squared residuals at theta over what these expect per unit of it where nobody
    is biased, ``n_0 - 2 tr(H^-1 w_0 H_0) + tr(H^-1 V H^-1 n_0 H_0)``; n - d where a client works alone.
    """
    M = len(who.main)
    alpha = np.where(np.diff(who.starts) > 0, alpha, 0.0)
    w, own = np.concatenate([1.0 - alpha, alpha[who.of] * who.tau]), np.concatenate([np.ones(M), np.zeros(len(who.of))])
    message: dict[str, Any] = {"theta": PerRow(theta[who.places]), "w": PerRow(w), "own": PerRow(own)}
    s = require_all_replies(fed.total(meat, to=who.requests, by=who.places, groups=M, **message))
    names = ("A", "V", "own", "all")
    H, V, part, whole = (np.einsum("ji,mjk,kl->mil", metric.R, full(s[name]), metric.R) for name in names)
    wild = ~np.isfinite(H + V + part + whole).all(axis=(1, 2))  # a run that diverged: nothing is known of these models
    H, V, part, whole = (np.where(wild[:, None, None], np.eye(H.shape[-1]), S) for S in (H, V, part, whole))
    values, vectors = np.linalg.eigh(H)
    seen = values > CUT * np.maximum(values[:, -1:], 1.0)
    inverse = np.einsum("mik,mk,mjk->mij", vectors, np.where(seen, 1.0 / np.where(seen, values, 1.0), 0.0), vectors)
    cov = np.einsum("mij,mjk,mkl->mil", inverse, V, inverse)
    dof = float(np.sum(s["n"]) - 2.0 * np.sum(inverse * part) + np.sum(cov * whole))
    sigma2 = float(s["sse"].sum()) / max(dof, 1.0) if gaussian else None
    cov = np.where(wild[:, None, None], np.nan, cov * (1.0 if sigma2 is None else sigma2))
    return Spread(pack(np.einsum("ij,mjk,lk->mil", metric.R, cov, metric.R)), sigma2)
