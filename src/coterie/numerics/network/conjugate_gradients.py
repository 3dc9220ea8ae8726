"""Conjugate gradients for the curvature of clients and of a shared x, with what ties clients along the edges.

The matrix is ``H + sigma B' J B``: H of (Z, x), B the differences over edges, ``J_e = diag(a_e) - b_e b_e'``. It is
preconditioned by itself without what ties one client's z to another's, x eliminated.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coterie.numerics.arrays import Floats, Ints, summing
from coterie.numerics.network.edge_penalty_problem import metric_times

Curvature = tuple[Floats, Floats, Floats]
"""Curvature by z and z (n, q, q), or (n, 1, 1) for masses; by z and x (n, q, d1); by x and x (d1, d1)."""


class EdgeCurvature(NamedTuple):
    """What ties clients together, J on the edges: without a it is the identity, without b diagonal."""

    edges: Ints  # (M, 2)
    sigma: float
    a: Floats
    b: Floats  # (M, q) or (0, q)
    # (n + 1,), (2M,): neighbours by client, which make products with the identity faster; else empty
    starts: Ints
    neighbour: Ints


@summing
def curvature_times(curvature: Curvature, Z: Floats, x: Floats, out_z: Floats, out_x: Floats) -> None:
    """Out becomes the curvature times (Z, x)."""
    Hzz, Hzx, Hxx = curvature
    metric_times(Hzz, Z, out_z)
    for a in range(x.shape[0]):
        out_x[a] = 0.0
        for b in range(x.shape[0]):
            out_x[a] += Hxx[a, b] * x[b]
    if x.shape[0] > 0:
        for i in range(Z.shape[0]):
            for a in range(Z.shape[1]):
                for b in range(x.shape[0]):
                    out_z[i, a] += Hzx[i, a, b] * x[b]
                    out_x[b] += Hzx[i, a, b] * Z[i, a]


@summing
def add_ties(between: EdgeCurvature, Z: Floats, out: Floats) -> None:
    """``out += sigma B' J B Z``."""
    q, sigma = Z.shape[1], between.sigma
    if between.a.shape[0] == 0 and between.starts.shape[0] > 0:
        for i in range(Z.shape[0]):
            first, last = between.starts[i], between.starts[i + 1]
            for k in range(q):
                out[i, k] += sigma * (last - first) * Z[i, k]
            for n in range(first, last):
                j = between.neighbour[n]
                for k in range(q):
                    out[i, k] -= sigma * Z[j, k]
        return
    for e in range(between.a.shape[0]):
        i, j = between.edges[e, 0], between.edges[e, 1]
        if between.b.shape[0] == 0:
            for k in range(q):
                t = sigma * between.a[e, k] * (Z[i, k] - Z[j, k])
                out[i, k] += t
                out[j, k] -= t
            continue
        s = 0.0
        for k in range(q):
            s += between.b[e, k] * (Z[i, k] - Z[j, k])
        for k in range(q):
            t = sigma * (between.a[e, k] * (Z[i, k] - Z[j, k]) - between.b[e, k] * s)
            out[i, k] += t
            out[j, k] -= t


@summing
def _add_blocks(between: EdgeCurvature, out: Floats) -> None:
    """``out_i += sigma sum of J_e`` over the edges of client i, (n, q, q)."""
    for e in range(between.a.shape[0]):
        for end in range(2):
            i = between.edges[e, end]
            for k in range(between.a.shape[1]):
                out[i, k, k] += between.sigma * between.a[e, k]
                if between.b.shape[0] > 0:
                    for m in range(between.a.shape[1]):
                        out[i, k, m] -= between.sigma * between.b[e, k] * between.b[e, m]


def factor(curvature: Curvature, between: EdgeCurvature) -> Curvature:
    """The preconditioner: inverses of the clients' blocks B_i, ``Y_i = B_i^-1 H_i,zx``, and that of what is left for x.

    J must be given, not the identity.
    """
    Hzz, Hzx, Hxx = curvature
    blocks = Hzz * np.eye(Hzx.shape[1]) if Hzz.shape[1] == 1 else Hzz.copy()
    _add_blocks(between, blocks)
    near = np.ascontiguousarray(np.linalg.inv(blocks))
    if not len(Hxx):
        return near, Hzx, Hxx
    Y = near @ Hzx
    left = Hxx - np.tensordot(Hzx, Y, axes=((0, 1), (0, 1)))
    left = 0.5 * (left + left.T) + 1e-10 * np.diag(np.diag(Hxx))
    try:
        np.linalg.cholesky(left)
    except np.linalg.LinAlgError:  # rounding left nothing for x
        left = np.diag(np.diag(Hxx))
    return near, np.ascontiguousarray(Y), np.ascontiguousarray(np.linalg.inv(left))


@summing
def precondition(factors: Curvature, rz: Floats, rx: Floats, Z: Floats, x: Floats) -> None:
    """(Z, x) becomes the inverse of the preconditioner's matrix times (rz, rx)."""
    near, Y, left = factors
    d1 = rx.shape[0]
    metric_times(near, rz, Z)
    if d1 == 0:
        return
    s = rx.copy()
    for i in range(rz.shape[0]):
        for k in range(rz.shape[1]):
            for c in range(d1):
                s[c] -= Y[i, k, c] * rz[i, k]
    for c in range(d1):
        x[c] = 0.0
        for b in range(d1):
            x[c] += left[c, b] * s[b]
    for i in range(rz.shape[0]):
        for k in range(rz.shape[1]):
            for c in range(d1):
                Z[i, k] -= Y[i, k, c] * x[c]


@summing
def _dot(Az: Floats, Ax: Floats, Bz: Floats, Bx: Floats) -> float:
    s = 0.0
    for i in range(Az.shape[0]):
        for k in range(Az.shape[1]):
            s += Az[i, k] * Bz[i, k]
    for c in range(Ax.shape[0]):
        s += Ax[c] * Bx[c]
    return s


@summing
def _add(t: float, Az: Floats, Ax: Floats, Bz: Floats, Bx: Floats) -> None:
    """B += t A."""
    for i in range(Az.shape[0]):
        for k in range(Az.shape[1]):
            Bz[i, k] += t * Az[i, k]
    for c in range(Ax.shape[0]):
        Bx[c] += t * Ax[c]


@summing
def conjugate(
    curvature: Curvature,
    between: EdgeCurvature,
    factors: Curvature,
    Z: Floats,
    x: Floats,
    rz: Floats,
    rx: Floats,
    tolerance: float,
    steps: int,
    work: Floats,
) -> int:
    """Improve (Z, x), whose residual is (rz, rx), both in place, to a relative tolerance; how many steps it took.

    ``work`` (3, n, q) is scratch memory.
    """
    Sz, Dz, Az = work[0], work[1], work[2]
    Sx, Dx, Ax = np.zeros(x.shape), np.zeros(x.shape), np.zeros(x.shape)
    precondition(factors, rz, rx, Dz, Dx)
    before = _dot(rz, rx, Dz, Dx)
    least = tolerance * tolerance * before
    for step in range(steps):
        curvature_times(curvature, Dz, Dx, Az, Ax)
        add_ties(between, Dz, Az)
        bend = _dot(Dz, Dx, Az, Ax)
        if not bend > 0.0:
            return step
        _add(before / bend, Dz, Dx, Z, x)
        _add(-before / bend, Az, Ax, rz, rx)
        if step == steps - 1:
            return steps
        precondition(factors, rz, rx, Sz, Sx)
        after = _dot(rz, rx, Sz, Sx)
        if not after > least:
            return step + 1
        ratio = after / before
        for i in range(Dz.shape[0]):
            for k in range(Dz.shape[1]):
                Dz[i, k] = Sz[i, k] + ratio * Dz[i, k]
        for c in range(x.shape[0]):
            Dx[c] = Sx[c] + ratio * Dx[c]
        before = after
    return steps
