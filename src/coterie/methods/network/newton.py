"""Newton directions of the augmented Lagrangian: preconditioned conjugate gradients over clients, edges and x."""

from __future__ import annotations

import numpy as np

from coterie.numerics.kernels import Floats, Ints, cholesky, kernel

Blocks = tuple[Floats, Floats, Floats]
"""Curvature by z and z (n, q, q), by z and x (n, q, d1), by x and x (d1, d1)."""


@kernel
def times(blocks: Blocks, Z: Floats, x: Floats, out_z: Floats, out_x: Floats) -> None:
    """out becomes the curvature times (Z, x)."""
    Hzz, Hzx, Hxx = blocks
    q, d1 = Z.shape[1], x.shape[0]
    for a in range(d1):
        out_x[a] = 0.0
        for b in range(d1):
            out_x[a] += Hxx[a, b] * x[b]
    for i in range(Z.shape[0]):
        for a in range(q):
            s = 0.0
            for b in range(q):
                s += Hzz[i, a, b] * Z[i, b]
            for b in range(d1):
                s += Hzx[i, a, b] * x[b]
                out_x[b] += Hzx[i, a, b] * Z[i, a]
            out_z[i, a] = s


@kernel
def add_edges(edges: Ints, sigma: float, a: Floats, b: Floats, Z: Floats, out: Floats) -> None:
    """out += sigma times the sum over edges of the duals' derivative times ``z_i - z_j``, with the sign of its end."""
    q = Z.shape[1]
    for e in range(edges.shape[0]):
        i, j = edges[e, 0], edges[e, 1]
        s = 0.0
        for k in range(q):
            s += b[e, k] * (Z[i, k] - Z[j, k])
        for k in range(q):
            t = sigma * (a[e, k] * (Z[i, k] - Z[j, k]) - b[e, k] * s)
            out[i, k] += t
            out[j, k] -= t


@kernel
def solve(L: Floats, y: Floats) -> None:
    """y becomes the solution of ``L L' s = y``; L lower triangular, what stands above it is not read."""
    n = y.shape[0]
    for a in range(n):
        for k in range(a):
            y[a] -= L[a, k] * y[k]
        y[a] /= L[a, a]
    for a in range(n - 1, -1, -1):
        for k in range(a + 1, n):
            y[a] -= L[k, a] * y[k]
        y[a] /= L[a, a]


@kernel
def factor(blocks: Blocks, edges: Ints, sigma: float, a: Floats, b: Floats) -> Blocks:
    """The matrix without what ties one client's z to another's, factored.

    Cholesky factors L of the clients' blocks B_i, ``Y_i = B_i^-1 H_i,zx``, and the factor of what is left for x.
    """
    Hzz, Hzx, Hxx = blocks
    L, Y, S = Hzz.copy(), Hzx.copy(), Hxx.copy()
    n, q, d1 = Hzx.shape
    for e in range(edges.shape[0]):
        for end in range(2):
            B = L[edges[e, end]]
            for k in range(q):
                B[k, k] += sigma * a[e, k]
                for m in range(k + 1):
                    B[k, m] -= sigma * b[e, k] * b[e, m]
    y = np.empty(q)
    for i in range(n):
        cholesky(L[i])
        for c in range(d1):
            y[:] = Hzx[i, :, c]
            solve(L[i], y)
            Y[i, :, c] = y
            for d in range(d1):
                for k in range(q):
                    S[d, c] -= Hzx[i, k, d] * y[k]
    for c in range(d1):
        S[c, c] += 1e-10 * Hxx[c, c]
    if not cholesky(S):
        S[:] = 0.0
        for c in range(d1):
            S[c, c] = np.sqrt(Hxx[c, c])
    return L, Y, S


@kernel
def precondition(factors: Blocks, rz: Floats, rx: Floats, Z: Floats, x: Floats) -> None:
    """(Z, x) becomes the factored matrix's inverse times (rz, rx)."""
    L, Y, S = factors
    x[:] = rx
    for i in range(rz.shape[0]):
        for k in range(rz.shape[1]):
            Z[i, k] = rz[i, k]
            for c in range(x.shape[0]):
                x[c] -= Y[i, k, c] * rz[i, k]
        solve(L[i], Z[i])
    solve(S, x)
    for i in range(rz.shape[0]):
        for k in range(rz.shape[1]):
            for c in range(x.shape[0]):
                Z[i, k] -= Y[i, k, c] * x[c]


@kernel
def direction(
    blocks: Blocks, edges: Ints, sigma: float, a: Floats, b: Floats, Gz: Floats, Gx: Floats, accuracy: float, most: int
) -> tuple[Floats, Floats, int]:
    """Minus the inverse of the curvature with its edges times (Gz, Gx), to a relative accuracy; iterations."""
    factors = factor(blocks, edges, sigma, a, b)
    Z, x, rz, rx = np.zeros(Gz.shape), np.zeros(Gx.shape), -Gz, -Gx
    sz, sx, hz, hx = np.empty(Gz.shape), np.empty(Gx.shape), np.empty(Gz.shape), np.empty(Gx.shape)
    precondition(factors, rz, rx, sz, sx)
    pz, px = sz.copy(), sx.copy()
    rho = np.sum(rz * sz) + np.sum(rx * sx)
    enough = accuracy * accuracy * rho
    for k in range(most):
        times(blocks, pz, px, hz, hx)
        add_edges(edges, sigma, a, b, pz, hz)
        curvature = np.sum(pz * hz) + np.sum(px * hx)
        if not curvature > 0.0:
            return Z, x, k
        t = rho / curvature
        Z += t * pz
        x += t * px
        rz -= t * hz
        rx -= t * hx
        precondition(factors, rz, rx, sz, sx)
        new = np.sum(rz * sz) + np.sum(rx * sx)
        if not new > enough:
            return Z, x, k + 1
        pz = sz + new / rho * pz
        px = sx + new / rho * px
        rho = new
    return Z, x, most
