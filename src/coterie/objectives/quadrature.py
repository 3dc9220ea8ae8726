"""Adaptive Gauss-Hermite quadrature over a client's one deviation (Liu and Pierce 1994; Pinheiro and Bates 1995).

The rows' linear predictors are ``x'theta + (x'l) (v - u)``, with u the mode of a standard normal v. Points lie around
the mode, as far apart as the curvature M there says, so few of them do; one point is Laplace's approximation.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from coterie.numerics.arrays import Floats, kernel, reading
from coterie.objectives.glm import GLM
from coterie.objectives.row_kernels import Data, row_derivatives


@cache
def hermite(points: int) -> tuple[Floats, Floats]:
    """Points (K,) of a standard normal variable, and logarithms (K,) of their weights over its density."""
    at, weights = np.polynomial.hermite_e.hermegauss(points)
    with np.errstate(divide="ignore"):  # the outermost of hundreds count for nothing
        return at, np.log(weights / weights.sum()) + 0.5 * np.square(at)


def integrals(glm: GLM, unit: Floats, ell: Floats, theta: Floats, u: Floats, points: int) -> tuple[Floats, Floats]:
    """What the integral over each client's deviation adds to Laplace's deviance (m,), and slopes of the whole.

    ``theta`` (m, p) and ``u`` (m,) are the modes, ``ell`` (p,) is what a deviation of one standard deviation adds to
    theta. Slopes (m, 1 + p) are the derivatives of ``-2 log`` of the integral by the logarithm of ell's length, and by
    what theta strays from.
    """
    return _integrals(glm.compiled, unit, ell, theta, u, *hermite(points))


@kernel
def _at_mode(
    data: Data, i: int, unit: Floats, ell: Floats, theta: Floats, eta: Floats, xi: Floats, one: Floats, two: Floats
) -> tuple[float, float, float, float]:
    """Client i's loss at its mode, score and less 1 the curvature by its deviation v, and the derivative of that.

    Rows have linear predictors eta and what v adds to them, xi; ``one`` and ``two`` (p,) become derivatives of score
    and curvature by theta.
    """
    family, X, y, offset, weights, starts, stops = data
    loss, score, curvature, third = 0.0, 0.0, 0.0, 0.0
    one[:] = 0.0
    two[:] = 0.0
    for r in range(stops[i] - starts[i]):
        row = starts[i] + r
        eta[r], xi[r] = offset[row], 0.0
        for j in range(theta.shape[0]):
            eta[r] += X[row, j] * unit[j] * theta[j]
            xi[r] += X[row, j] * unit[j] * ell[j]
        f, s, v, dv = row_derivatives(family, eta[r], y[row])
        t = weights[row] * xi[r]
        loss += weights[row] * f
        score += t * s
        curvature += t * v * xi[r]
        third += t * dv * xi[r] * xi[r]
        for j in range(theta.shape[0]):
            one[j] += t * v * X[row, j] * unit[j]
            two[j] += t * dv * xi[r] * X[row, j] * unit[j]
    return loss, score, curvature, third


@kernel
def _at_points(
    data: Data, i: int, eta: Floats, xi: Floats, u: float, step: float, at: Floats, share: Floats, score: Floats
) -> float:
    """The logarithm of a client's integral, from weights' ``share`` (K,), which becomes each point's of the whole.

    Rows' scores (n, K) become those at the points.
    """
    family, _, y, _, weights, starts, stops = data
    top = -np.inf
    for k in range(at.shape[0]):
        v = u + step * at[k]
        share[k] -= 0.5 * v * v
        for r in range(stops[i] - starts[i]):
            row = starts[i] + r
            f, s, _, _ = row_derivatives(family, eta[r] + xi[r] * step * at[k], y[row])
            share[k] -= weights[row] * f
            score[r, k] = weights[row] * s
        top = max(top, share[k])
    total = 0.0
    for k in range(at.shape[0]):
        share[k] = np.exp(share[k] - top)
        total += share[k]
    for k in range(at.shape[0]):
        share[k] /= total
    return top + float(np.log(total))


@reading
def _integrals(
    data: Data, unit: Floats, ell: Floats, theta: Floats, u: Floats, at: Floats, logs: Floats
) -> tuple[Floats, Floats]:
    _, X, _, _, _, starts, stops = data
    m, p, K, most = theta.shape[0], theta.shape[1], at.shape[0], 1
    for i in range(m):
        most = max(most, stops[i] - starts[i])
    value, slopes, share, score = np.empty(m), np.zeros((m, 1 + p)), np.empty(K), np.empty((most, K))
    one, two, eta, xi = np.empty(p), np.empty(p), np.empty(most), np.empty(most)
    for i in range(m):
        loss, pull, curvature, third = _at_mode(data, i, unit, ell, theta[i], eta, xi, one, two)
        M = 1.0 + curvature
        step = 1.0 / np.sqrt(M)
        share[:] = logs
        total = _at_points(data, i, eta, xi, u[i], step, at, share, score)
        value[i] = -2.0 * (total + loss + 0.5 * u[i] * u[i])
        size, level, tilt = 0.0, 0.0, 0.0  # means over the points: the slope by ell's length, F', and at F'
        for k in range(K):
            if share[k] > 0.0:  # elsewhere a count may overflow
                v = u[i] + step * at[k]
                level += share[k] * v
                tilt += share[k] * v * at[k]
                for r in range(stops[i] - starts[i]):
                    t = share[k] * score[r, k]
                    level -= t * xi[r]
                    tilt -= t * xi[r] * at[k]
                    size += t * xi[r] * v
                    for j in range(p):
                        slopes[i, 1 + j] += t * X[starts[i] + r, j] * unit[j]
        # the mode moves, and with it and by itself the curvature, so that points move
        slopes[i, 0] = size
        for c in range(1 + p):
            moved = (pull - curvature * u[i] if c == 0 else -one[c - 1]) / M
            spread = third * moved + (2.0 * curvature + third * u[i] if c == 0 else two[c - 1])
            slopes[i, c] -= moved * level - 0.5 * spread * (step * step * step * tilt - 1.0 / M)
            slopes[i, c] *= -2.0
    return value, slopes
