"""Moments, radii and random features of clients' rows, written out with NumPy."""

from __future__ import annotations

import numpy as np


def rows_of(glm, i, columns, centre, unit):
    """A client's rows in standard units, and their weights; the column after the last is the response."""
    rows = slice(glm.starts[i], glm.stops[i])
    table = np.column_stack([glm.X[rows], glm.y[rows]])[:, columns]
    return (table - centre) * unit, glm.weights[rows]


def moments(glm, i, columns, centre, unit):
    v, w = rows_of(glm, i, columns, centre, unit)
    mean = np.average(v, axis=0, weights=w) if w.sum() > 0 else np.zeros(len(columns))
    scatter = (v - mean).T @ np.diag(w) @ (v - mean)
    return np.sum(w > 0), w.sum(), mean, scatter[np.tril_indices(len(columns))]


def radius(glm, i, columns, centre, unit):
    v, w = rows_of(glm, i, columns, centre, unit)
    return np.median(np.sum(v[w > 0] ** 2, axis=1)) if np.any(w > 0) else 0.0


def features(glm, i, columns, centre, unit, omega):
    v, w = rows_of(glm, i, columns, centre, unit)
    if not w.sum() > 0:
        return np.zeros(2 * len(omega))
    each = np.stack([np.cos(v @ omega.T), np.sin(v @ omega.T)], axis=2).reshape(len(v), -1)
    return np.average(each, axis=0, weights=w) / np.sqrt(len(omega))
