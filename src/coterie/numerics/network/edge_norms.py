"""Kernels over edges and clients: norms, projections on dual balls, the adjoint of the differences, the metric."""

from __future__ import annotations

import numpy as np

from coterie.numerics.arrays import Floats, Ints, kernel, summing

DUAL = {1: np.inf, 2: 2, np.inf: 1}  # the dual norm of each p


@summing
def norm(x: Floats, p: float) -> float:
    """``||x||_p`` for p = 1, 2 or inf."""
    s = 0.0
    if p == 1.0:
        for a in range(x.shape[0]):
            s += abs(x[a])
    elif p == 2.0:
        for a in range(x.shape[0]):
            s += x[a] * x[a]
        s = np.sqrt(s)
    else:
        for a in range(x.shape[0]):
            s = max(s, abs(x[a]))
    return s


@summing
def l1_level(x: Floats, radius: float, level: float) -> float:
    """The threshold that takes ``||x||_1 > radius > 0`` down to it, by Newton's method from any level.

    ``sum_a max(|x_a| - t, 0) - radius`` is convex and piecewise linear in t, so the root is met as soon as a step keeps
    the entries above t; from the level of a similar x that takes one or two. Where rounding keeps ties in doubt, the
    loop ends all the same.
    """
    before = -1.0
    for _ in range(2 * x.shape[0] + 20):
        s, count = 0.0, 0.0
        for a in range(x.shape[0]):
            above = abs(x[a]) - level
            s += max(above, 0.0)
            count += 1.0 if above > 0.0 else 0.0
        if count == before:
            return level
        if count == 0.0:
            level, before = 0.0, -1.0
        else:
            level += (s - radius) / count
            before = count
    return level


@summing
def project(x: Floats, p: float, radius: float, level: float) -> float:
    """The nearest point of the dual norm's ball, in place: linf for p = 1, l2 for 2, l1 for inf.

    ``level`` is where to begin for p = inf; returns where it ended.
    """
    q = x.shape[0]
    if radius == 0.0:
        x[:] = 0.0
    elif p == 1.0:
        for a in range(q):
            x[a] = min(max(x[a], -radius), radius)
    elif p == 2.0:
        size = norm(x, 2.0)
        if size > radius:
            shrink = radius / size
            for a in range(q):
                x[a] *= shrink
    elif norm(x, 1.0) > radius:
        level = l1_level(x, radius, level)
        for a in range(q):
            x[a] = np.copysign(max(abs(x[a]) - level, 0.0), x[a])
    return level


@kernel
def project_all(U: Floats, p: float, weight: Floats) -> None:
    """Every U_e into its ball, in place."""
    for e in range(U.shape[0]):
        project(U[e], p, weight[e], 0.0)


@summing
def adjoint(U: Floats, edges: Ints, out: Floats) -> None:
    """``out = B'U``: over the edges of a client, the sum of U_e with the sign of its end."""
    out[:] = 0.0
    for e in range(edges.shape[0]):
        i, j = edges[e, 0], edges[e, 1]
        for a in range(U.shape[1]):
            out[i, a] += U[e, a]
            out[j, a] -= U[e, a]


@summing
def metric_times(H: Floats, X: Floats, out: Floats) -> None:
    """``out_i = H_i x_i`` for H (n, 1, 1) or (n, q, q)."""
    for i in range(X.shape[0]):
        if H.shape[1] == 1:
            for a in range(X.shape[1]):
                out[i, a] = H[i, 0, 0] * X[i, a]
        else:
            for a in range(X.shape[1]):
                s = 0.0
                for b in range(X.shape[1]):
                    s += H[i, a, b] * X[i, b]
                out[i, a] = s


@summing
def penalty_and_slack(Z: Floats, U: Floats, edges: Ints, weight: Floats, p: float) -> tuple[float, float]:
    """``sum_e weight_e ||d_e||_p``, ``d_e = z_i - z_j``, and its excess over ``sum_e <U_e, d_e>``, never negative."""
    total, excess = 0.0, 0.0
    d = np.empty(Z.shape[1])
    for e in range(edges.shape[0]):
        i, j = edges[e, 0], edges[e, 1]
        inner = 0.0
        for a in range(Z.shape[1]):
            d[a] = Z[i, a] - Z[j, a]
            inner += U[e, a] * d[a]
        size = weight[e] * norm(d, p)
        total += size
        excess += max(size - inner, 0.0)
    return total, excess
