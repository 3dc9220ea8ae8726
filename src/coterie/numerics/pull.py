"""Steps of clients towards what their cluster's head sends."""

from __future__ import annotations

import numpy as np

from coterie.numerics.kernels import Floats, Ints, kernel


@kernel
def pull(theta: Floats, gamma: Floats, c: Floats, u: Floats, clusters: Ints) -> Floats:
    """``theta_i + gamma_i (u_j - c_j theta_i)`` for theta (m, d), c (k,), u (k, d) and client i of cluster j."""
    out = np.empty(theta.shape)
    for i in range(theta.shape[0]):
        j = clusters[i]
        keep, take = 1.0 - gamma[i] * c[j], gamma[i]
        for a in range(theta.shape[1]):
            out[i, a] = keep * theta[i, a] + take * u[j, a]
    return out


@kernel
def weigh(theta: Floats, gamma: Floats) -> Floats:
    """``gamma_i theta_i`` (m, d)."""
    out = np.empty(theta.shape)
    for i in range(theta.shape[0]):
        for a in range(theta.shape[1]):
            out[i, a] = gamma[i] * theta[i, a]
    return out
