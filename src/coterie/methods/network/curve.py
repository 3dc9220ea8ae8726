"""What a client computes for the exact solvers: value, gradient and curvature of its summed loss, and their scale."""

from __future__ import annotations

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Site, work
from coterie.numerics.kernels import Floats, reading
from coterie.numerics.overflow import OVERFLOW, encode_loss, overflowed
from coterie.objectives.glm import GLM, Data, point
from coterie.objectives.mean_loss import sizes

Reply = dict[str, Floats]


@reading
def _curve(data: Data, unit: Floats, theta: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Per client loss (m,), gradient (m, d), packed Hessian (m, P), and rows times their squared gradients (m,)."""
    family, X, y, offset, weights, starts, stops = data
    m, d = theta.shape
    value, g, A = np.zeros(m), np.zeros((m, d)), np.zeros((m, d * (d + 1) // 2))
    square, x = np.zeros(m), np.empty(d)
    for i in range(m):
        for r in range(starts[i], stops[i]):
            eta, length = offset[r], 0.0
            for j in range(d):
                x[j] = X[r, j] * unit[j]
                eta += x[j] * theta[i, j]
                length += x[j] * x[j]
            loss, s, v, _ = point(family, eta, y[r])
            value[i] += weights[r] * loss
            s *= weights[r]
            v *= weights[r]
            square[i] += s * s * length
            at = 0
            for j in range(d):
                g[i, j] -= s * x[j]
                t = v * x[j]
                for k in range(j + 1):
                    A[i, at] += t * x[k]
                    at += 1
        square[i] *= stops[i] - starts[i]
    return value, g, A, square


@work
def curve(site: Site, unit: Floats, theta: Floats, curved: bool = True) -> Reply:
    """A client's loss, summed over its rows, at its theta (m, d), whose columns are in units ``unit`` (d,).

    ``square`` is ``n sum_r |grad_r|^2`` over its n rows: what the squared gradient would be if no rows cancelled. The
    Hessian is left out where it is not ``curved``. Where numbers overflow, the loss is ``OVERFLOW``, and the rest 0.
    """
    _check(site)
    site.count(len(site))
    value, g, A, square = _curve(site.objective.compiled, unit, np.ascontiguousarray(theta))
    A = A if curved else A[:, :0]
    if (over := overflowed(value, g, A, square)).any():
        value[over], g[over], A[over], square[over] = OVERFLOW, 0.0, 0.0, 0.0
    return {"value": value, "g": g, "A": A, "square": square, "weight": sizes(site.objective)}


@work
def loss(site: Site, unit: Floats, theta: Floats) -> Reply:
    """A client's loss at its theta (m, d), and the weight of its rows."""
    _check(site)
    theta = np.ascontiguousarray(theta)
    return {"value": encode_loss(site.objective.losses(unit, theta)), "weight": sizes(site.objective)}


def _check(site: Site) -> None:
    if not isinstance(site.objective, GLM):
        raise CoterieError(
            f"The exact solver over a network needs rows and a family, not {type(site.objective).__name__}: use rounds."
        )
