"""Empirical Bayes: how much points that are seen with noise truly differ, and what is then expected of each."""

from __future__ import annotations

import numpy as np

from coterie.numerics.kernels import Floats, Ints

LIKE = 10.0
"""Rows of all clients that a client's own variance is averaged with: few rows tell little of it."""
WILD = 10.0
"""How far above their median variances may be."""
ROUNDS = 5
"""Rounds in which S and the weights of points in it settle."""


def rows_variance(s: Floats, dof: Ints) -> Floats:
    """Variances (n,) of clients' rows from estimates s with so many degrees of freedom, averaged with ``LIKE`` of all.

    Estimates are cut off at ``WILD`` times their median: far from its optimum a client looks noisier than it is.
    """
    order = np.argsort(s)
    half = np.searchsorted(np.cumsum(dof[order]), 0.5 * dof.sum())
    s = np.minimum(s, WILD * s[order[half]])
    typical = float(s @ dof) / float(dof.sum())
    return np.asarray((dof * s + LIKE * typical) / (dof + LIKE))


def between(p: Floats, noise: Floats, C: Floats, groups: Ints) -> tuple[Floats, Floats]:
    """Means (groups, d) and covariance S (d, d) of true points, by moments, with weights ``1 / (tr S + v_k)``.

    What is left of the scatter after noise, without its negative part, averaged with d clients that vary alike in all
    directions, because few clients say nothing of most directions. S may also be too small by chance: James and Stein's
    factor ``(nu - 2) / nu``, nu the degrees of freedom, is how much less one should trust that clients are alike, and
    ``2 / (nu - 2)`` of the scatter is added for it.
    """
    n, d = p.shape
    S = np.zeros((d, d))
    for _ in range(ROUNDS):
        w = 1.0 / np.maximum(np.trace(S) + noise, np.finfo(np.float64).tiny)
        share = w / np.bincount(groups, w)[groups]
        mean: Floats = np.stack([np.bincount(groups, share * p[:, j]) for j in range(d)], axis=1).astype(np.float64)
        D, free = p - mean[groups], w * (1.0 - share)
        if not free.sum() > 0.0:
            break
        left = (np.einsum("n,ni,nj->ij", w, D, D) - float(free @ noise) * C) / free.sum()
        values, vectors = np.linalg.eigh(left)
        S = (vectors * np.maximum(values, 0.0)) @ vectors.T
        S = ((n - len(mean)) * S + np.trace(S) * np.eye(d)) / (n - len(mean) + d)
    nu = d * (n - len(mean))
    return mean, S + 2.0 / max(nu - 2, 1) * (S + float(w @ noise) / float(w.sum()) * C)


def posterior(p: Floats, noise: Floats, C: Floats, mean: Floats, S: Floats) -> tuple[Floats, Floats]:
    """Posterior means (n, d) of true points around ``mean`` (n, d), and traces (n,) of their covariances."""
    values, vectors = np.linalg.eigh(C)
    half = vectors * np.sqrt(values)
    white = vectors / np.sqrt(values)
    size, axes = np.linalg.eigh(white.T @ S @ white)
    size, to, back = np.maximum(size, 0.0), white @ axes, half @ axes
    kept = size / np.maximum(size + noise[:, None], np.finfo(np.float64).tiny)
    b = mean + (kept * ((p - mean) @ to)) @ back.T
    return b, (kept * noise[:, None]) @ np.sum(back**2, axis=0)
