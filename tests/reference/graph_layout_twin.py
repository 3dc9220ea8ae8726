"""Forces between drawn clients, one pair at a time."""

from __future__ import annotations

import numpy as np


def repel(place, side):
    """Each client's push: from clients of cells next to its own one by one, from others' cells at their centre."""
    n = len(place)
    low = place.min(axis=0)
    wide = np.ptp(place, axis=0).max() * (1 + 1e-9) / side
    cell = np.minimum(((place - low) / wide).astype(int), side - 1)
    force = np.zeros((n, 2))
    for i in range(n):
        for a in range(side):
            for b in range(side):
                members = np.flatnonzero((cell == (a, b)).all(axis=1))
                if not len(members):
                    continue
                if max(abs(cell[i] - (a, b))) <= 1:
                    for j in members:
                        d = place[i] - place[j]
                        force[i] += d / max(d @ d, 1e-4)
                else:
                    d = place[i] - place[members].mean(axis=0)
                    force[i] += len(members) * d / (d @ d)
    return force


def relax(place, edges, pull, side, steps):
    place = place.copy()
    for step in range(steps):
        most = 0.1 * np.sqrt(len(place)) * (1 - step / steps) ** 2 + 0.02
        force = repel(place, side) - 0.3 * place
        for (i, j), w in zip(edges, pull, strict=True):
            d = place[i] - place[j]
            force[i] -= w * np.linalg.norm(d) * d
            force[j] += w * np.linalg.norm(d) * d
        size = np.linalg.norm(force, axis=1, keepdims=True)
        place += force * np.minimum(size, most) / np.maximum(size, 1e-12)
    return place
