"""Softmax by plain NumPy, and small problems of digits, for tests of methods over rounds against loops."""

from __future__ import annotations

import numpy as np

from coterie.runs.config import Config
from coterie.runs.training_problem import TrainingProblem


def problem(**sections):
    """Four clients in two groups of rotated digits, softmax."""
    base = {
        "data": {"partition": "rotated", "clients": 4, "rows": 160, "angles": [0, 90]},
        "run": {"rounds": 3},
    }
    return TrainingProblem.of(
        Config.of({name: base.get(name, {}) | sections.get(name, {}) for name in {**base, **sections}}), 0
    )


def gradients(problem):
    """``gradient(i, theta)`` of client i's mean loss, by hand; and the numbers of rows."""
    o = problem.objective
    rows = [(o.X[a:b], o.y[a:b].astype(int)) for a, b in zip(o.starts, o.stops, strict=True)]

    def gradient(i, theta):
        X, y = rows[i]
        z = X @ theta.reshape(X.shape[1], -1)
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(len(y)), y] -= 1.0
        return (X.T @ p / len(y)).ravel()

    return gradient, np.array([float(len(y)) for _, y in rows])
