"""Algorithm 2 of Lyu, Hanzely, Kolar (2022) with the corrected (4.1) literally: a step at a time, in NumPy."""

from __future__ import annotations

import numpy as np


def async_al2sgd(whole, change, d, ties, m, p0, p, tau, xi0, xi, moves):
    """y after coins xi0 (T,), xi (T, k), moves (T,).

    ``whole(x)`` are the gradients of f_i; ``change(theta, x, t)`` those of step t's rows, theta's less x's.
    """
    clusters, gamma, alpha = ties.clusters, ties.gamma[:, None], ties.alpha[ties.clusters][:, None]
    t_, k = tau[clusters][:, None], len(p)
    x = np.zeros((len(clusters), d))
    y, z = x.copy(), x.copy()

    def averages(v):
        sums = np.zeros((k, d))
        np.add.at(sums, clusters, gamma * v)
        Gamma = ties.Gamma[:, None]
        own = np.where(Gamma > 0, sums / np.where(Gamma > 0, Gamma, 1), 0)
        total = ties.alpha @ ties.Gamma
        return own[clusters], (ties.alpha @ sums / total if total > 0 else np.zeros(d))

    for t in range(len(xi0)):
        theta = m.a1 * z + m.a2 * x + (1 - m.a1 - m.a2) * y
        (own, network), (own_x, network_x) = averages(theta), averages(x)
        g = whole(x) + alpha * gamma * (x - network_x) + (1 - alpha) * gamma * (x - own_x)
        far, near = (theta - network) - (x - network_x), (theta - own) - (x - own_x)
        if xi0[t]:
            g = g + gamma * alpha / p0 * far + gamma * t_ * (1 - alpha) / p0 * near
        else:
            speaks, pj = xi[t][clusters][:, None], p[clusters][:, None]
            pull = gamma * (1 - t_) * (1 - alpha) / ((1 - p0) * np.where(speaks, pj, 1)) * near
            g = g + np.where(speaks, pull, change(theta, x, t) / ((1 - p0) * (1 - pj)))
        y = theta - m.eta * g
        z = m.b1 * z + (1 - m.b1) * theta + m.pace / m.eta * (y - theta)
        if moves[t]:
            x = y.copy()
    return y
