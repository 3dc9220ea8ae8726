"""Water filling, slowly: the level is bisected until the weights add up to 1."""

from __future__ import annotations

import numpy as np


def fill(d: np.ndarray, q: np.ndarray) -> np.ndarray:
    """tau of one problem; weights with d = 0 share what the others leave at the smallest of their q."""
    flat = d == 0.0

    def at(level: float) -> np.ndarray:
        return np.where(flat, 0.0, np.maximum(level - q, 0.0) / np.where(flat, 1.0, 2.0 * d))

    low, high = q.min(), q.min() + 2.0 * d.max() + 1.0
    if flat.any() and at(q[flat].min()).sum() <= 1.0:
        tau = at(q[flat].min())
        ties = flat & (q == q[flat].min())
        tau[ties] = (1.0 - tau.sum()) / ties.sum()
        return tau
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if at(middle).sum() > 1.0 else (middle, high)
    return at(high)
