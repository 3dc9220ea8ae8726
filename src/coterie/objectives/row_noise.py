"""How much a client's gradient would change with other rows: deviations of its rows' gradients from their mean."""

from __future__ import annotations

import numpy as np

from coterie.numerics.kernels import Floats, Ints, kernel
from coterie.objectives.glm import GLM, Data, point


@kernel
def _deviations(data: Data, theta: Floats, g: Floats, A: Floats, rows: Ints, w: Floats, w2: Floats) -> None:
    family, X, y, offset, weights, starts, stops = data
    m, d = theta.shape
    for i in range(m):
        for r in range(starts[i], stops[i]):
            eta = offset[r]
            for j in range(d):
                eta += X[r, j] * theta[i, j]
            s = -weights[r] * point(family, eta, y[r])[1]
            rows[i] += weights[r] > 0.0
            w[i] += weights[r]
            w2[i] += weights[r] * weights[r]
            for j in range(d):
                g[i, j] += s * X[r, j]
        if not w[i] > 0.0:
            continue
        for j in range(d):
            g[i, j] /= w[i]
        for r in range(starts[i], stops[i]):
            eta = offset[r]
            for j in range(d):
                eta += X[r, j] * theta[i, j]
            s = -weights[r] * point(family, eta, y[r])[1]
            at = 0
            for j in range(d):
                t = s * X[r, j] - weights[r] * g[i, j]
                for k in range(j + 1):
                    A[i, at] += t * (s * X[r, k] - weights[r] * g[i, k])
                    at += 1


def deviations(objective: GLM, theta: Floats) -> tuple[Floats, Floats, Ints, Floats, Floats]:
    """Gradients of mean losses, and how their rows' gradients scatter.

    Parameters
    ----------
    objective : GLM
        Of m clients.
    theta : (m, d)

    Returns
    -------
    g : (m, d)
        Mean gradients; zero where there are no rows.
    A : (m, P)
        Packed ``sum_r w_r^2 (g_r - g) (g_r - g)'``, with g_r the gradient of a row's loss and w_r its weight.
    rows : (m,) int64
        Rows that weigh.
    w, w2 : (m,)
        Sums of weights and of their squares.
    """
    m, d = theta.shape
    g, A = np.zeros((m, d)), np.zeros((m, d * (d + 1) // 2))
    rows, w, w2 = np.zeros(m, dtype=np.int64), np.zeros(m), np.zeros(m)
    _deviations(objective.compiled, np.ascontiguousarray(theta), g, A, rows, w, w2)
    return g, A, rows, w, w2
