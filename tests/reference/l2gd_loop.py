"""Algorithm 1 of Lyu, Hanzely, Kolar (2022) literally: a step at a time, all clients at once in NumPy."""

from __future__ import annotations

import numpy as np


def async_l2gd(gradient, d, clusters, gamma, alpha, eta, p0, p, tau, xi0, xi, theta=None):
    """The iterates' end for coins xi0 (T,) and xi (T, k); ``gradient(theta, t)`` for theta (m, d)."""
    k, m = len(p), len(clusters)
    theta = np.zeros((m, d)) if theta is None else theta.copy()
    g, a, tt = gamma[:, None], alpha[clusters][:, None], tau[clusters][:, None]
    pj = p[clusters][:, None]
    Gamma = np.bincount(clusters, gamma, minlength=k)
    at = np.flatnonzero(np.r_[True, clusters[1:] != clusters[:-1]])
    for t in range(len(xi0)):
        if xi0[t]:
            sums = np.add.reduceat(g * theta, at)
            mean = (sums / Gamma[:, None])[clusters]
            network = alpha @ sums / (alpha @ Gamma)
            theta = (1 - eta * g * (a + tt * (1 - a)) / p0) * theta + eta * g / p0 * (a * network + tt * (1 - a) * mean)
        else:
            speaks = xi[t][clusters][:, None]
            step = eta / ((1 - p0) * (1 - pj)) * gradient(theta, t)
            if xi[t].any():
                mean = (np.add.reduceat(g * theta, at) / Gamma[:, None])[clusters]
                s = eta * g * (1 - tt) * (1 - a) / ((1 - p0) * np.where(speaks, pj, 1.0))
                theta = np.where(speaks, (1 - s) * theta + s * mean, theta - step)
            else:
                theta = theta - step
    return theta
