"""Kernels over edges: norms, projections on dual balls, differences and their adjoint."""

from __future__ import annotations

import numpy as np

from coterie.numerics.kernels import Floats, Ints, kernel


@kernel
def norm(x: Floats, p: float) -> float:
    """``||x||_p`` for p = 1, 2 or inf."""
    s = 0.0
    for a in range(x.shape[0]):
        if p == 1.0:
            s += abs(x[a])
        elif p == 2.0:
            s += x[a] * x[a]
        else:
            s = max(s, abs(x[a]))
    return np.sqrt(s) if p == 2.0 else s


@kernel
def l1_level(x: Floats, radius: float) -> float:
    """The threshold that takes ``||x||_1 > radius`` down to it (Michelot's iteration; it ends after q steps)."""
    level, kept = 0.0, -1
    while True:
        s, count = 0.0, 0
        for a in range(x.shape[0]):
            if abs(x[a]) > level:
                s += abs(x[a])
                count += 1
        if count == kept or count == 0:
            return level
        kept = count
        level = (s - radius) / count


@kernel
def project(x: Floats, p: float, radius: float) -> None:
    """The nearest point of the ball of the dual norm, in place: linf for p = 1, l2 for 2, l1 for inf."""
    if p == 1.0:
        for a in range(x.shape[0]):
            x[a] = min(max(x[a], -radius), radius)
    elif p == 2.0:
        size = norm(x, 2.0)
        if size > radius:
            for a in range(x.shape[0]):
                x[a] *= radius / size
    elif norm(x, 1.0) > radius:
        if radius == 0.0:
            x[:] = 0.0
            return
        level = l1_level(x, radius)
        for a in range(x.shape[0]):
            x[a] = np.sign(x[a]) * max(abs(x[a]) - level, 0.0)


@kernel
def project_all(U: Floats, p: float, weight: Floats) -> None:
    """Every U_e into its ball, in place."""
    for e in range(U.shape[0]):
        project(U[e], p, weight[e])


@kernel
def gather(U: Floats, starts: Ints, edge: Ints, sign: Floats, out: Floats) -> None:
    """``out_i = sum of U_e`` over the edges of client i, with the sign of its end: the adjoint of the differences."""
    for i in range(starts.shape[0] - 1):
        for a in range(U.shape[1]):
            out[i, a] = 0.0
        for k in range(starts[i], starts[i + 1]):
            for a in range(U.shape[1]):
                out[i, a] += sign[k] * U[edge[k], a]


@kernel
def solve_metric(inverse: Floats, G: Floats, out: Floats) -> None:
    """``out_i = H_i^-1 g_i``."""
    for i in range(G.shape[0]):
        if inverse.shape[1] == 1:
            for a in range(G.shape[1]):
                out[i, a] = inverse[i, 0, 0] * G[i, a]
        else:
            for a in range(G.shape[1]):
                s = 0.0
                for b in range(G.shape[1]):
                    s += inverse[i, a, b] * G[i, b]
                out[i, a] = s


@kernel
def quadratic(H: Floats, D: Floats) -> float:
    """``1/2 sum_i d_i' H_i d_i``."""
    total = 0.0
    for i in range(D.shape[0]):
        for a in range(D.shape[1]):
            if H.shape[1] == 1:
                total += H[i, 0, 0] * D[i, a] * D[i, a]
            else:
                s = 0.0
                for b in range(D.shape[1]):
                    s += H[i, a, b] * D[i, b]
                total += D[i, a] * s
    return 0.5 * total


@kernel
def penalty_and_slack(Z: Floats, U: Floats, edges: Ints, weight: Floats, p: float) -> tuple[float, float]:
    """``sum_e weight_e ||z_i - z_j||_p``, and how much larger that is than ``<U, differences>``: never negative."""
    total, slack = 0.0, 0.0
    d = np.empty(Z.shape[1])
    for e in range(edges.shape[0]):
        i, j = edges[e, 0], edges[e, 1]
        inner = 0.0
        for a in range(Z.shape[1]):
            d[a] = Z[i, a] - Z[j, a]
            inner += U[e, a] * d[a]
        size = weight[e] * norm(d, p)
        total += size
        slack += max(size - inner, 0.0)
    return total, slack
