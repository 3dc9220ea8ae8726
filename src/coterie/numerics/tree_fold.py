"""Marginalise a tree of Gaussian parameters upwards, solve it downwards.

A node holds the quadratic ``theta' A theta - 2 b' theta`` and strays from its parent, ``theta = parent + L u`` with
``u ~ N(0, I)``. Integrating u out gives the same kind of quadratic in the parent, and messages add up there (seed 001
section 5; the fold is Henderson's equations by blocks). The same kernels serve clients (many, at the sites) and
clusters (few, at the coordinator).

Shapes: ``P = p (p + 1) / 2`` (packed lower triangles, row by row), q personal columns ``z`` of p. ``L`` is (g, q, q)
and ``which`` (m,) picks a node's own. Columns that are not personal do not stray. ``L = 0`` needs no special case.
"""

from __future__ import annotations

import numpy as np

from coterie.numerics.kernels import Floats, Ints, cholesky, kernel, unpack


@kernel
def _whiten(A: Floats, L: Floats, z: Ints, M: Floats, Y: Floats) -> float:
    """For one node: M becomes the Cholesky factor R of I + L'AL, Y = R^-1 L'A (q, p). Returns log|M|."""
    p, q = A.shape[0], z.shape[0]
    for a in range(q):
        for j in range(p):
            Y[a, j] = 0.0
        for k in range(q):
            v = L[k, a]
            if v != 0.0:
                for j in range(p):
                    Y[a, j] += v * A[z[k], j]
    for a in range(q):
        for c in range(a + 1):
            s = 1.0 if a == c else 0.0
            for k in range(q):
                s += Y[a, z[k]] * L[k, c]
            M[a, c] = s
    cholesky(M)
    logdet = 0.0
    for a in range(q):
        for k in range(a):
            v = M[a, k]
            for j in range(p):
                Y[a, j] -= v * Y[k, j]
        d = 1.0 / M[a, a]
        logdet -= 2.0 * np.log(d)
        for j in range(p):
            Y[a, j] *= d
    return logdet


@kernel
def _whiten_rhs(b: Floats, L: Floats, z: Ints, M: Floats, v: Floats) -> None:
    """v = R^-1 L'b, with R in the lower triangle of M."""
    q = z.shape[0]
    for a in range(q):
        s = 0.0
        for k in range(q):
            s += L[k, a] * b[z[k]]
        for k in range(a):
            s -= M[a, k] * v[k]
        v[a] = s / M[a, a]


@kernel
def _back(M: Floats, v: Floats) -> None:
    """v <- R^-T v in place."""
    q = v.shape[0]
    for a in range(q - 1, -1, -1):
        s = v[a]
        for k in range(a + 1, q):
            s -= M[k, a] * v[k]
        v[a] = s / M[a, a]


@kernel
def fold(A: Floats, b: Floats, L: Floats, which: Ints, z: Ints) -> tuple[Floats, Floats, Floats, Floats]:
    """Integrate out every node's own deviation.

    Parameters
    ----------
    A : (m, P); b : (m, p); L : (g, q, q); which : (m,); z : (q,)
        The nodes' quadratics and how far they may stray from their parents.

    Returns
    -------
    A1 : (m, P), b1 : (m, p)
        The quadratics in the parents: ``A - A L M^-1 L'A``, ``b - A L M^-1 L'b``.
    drop : (m,)
        ``b'L M^-1 L'b``, which leaves the constant term.
    logdet : (m,)
        ``log |I + L'AL|``.
    """
    m, p = b.shape
    q = z.shape[0]
    A1, b1 = np.empty_like(A), np.empty_like(b)
    drop, logdet = np.empty(m), np.empty(m)
    full, M, Y, v = np.empty((p, p)), np.empty((q, q)), np.empty((q, p)), np.empty(q)
    for i in range(m):
        unpack(A[i], full)
        Li = L[which[i]]
        logdet[i] = _whiten(full, Li, z, M, Y)
        _whiten_rhs(b[i], Li, z, M, v)
        c = 0
        for r in range(p):
            for s in range(r + 1):
                t = A[i, c]
                for a in range(q):
                    t -= Y[a, r] * Y[a, s]
                A1[i, c] = t
                c += 1
            t = b[i, r]
            for a in range(q):
                t -= Y[a, r] * v[a]
            b1[i, r] = t
        t = 0.0
        for a in range(q):
            t += v[a] * v[a]
        drop[i] = t
    return A1, b1, drop, logdet


@kernel
def _posterior(Y: Floats, M: Floats, L: Floats, z: Ints, C: Floats, S: Floats, Q: Floats, T: Floats) -> None:
    """S = L M^-1 L' + Q C Q' with Q = I - L M^-1 L'A: covariance of a node given its parent's, C (p, p)."""
    p, q = C.shape[0], z.shape[0]
    W = np.zeros((q, p))
    for k in range(q):
        for a in range(q):
            W[a, z[k]] = L[k, a]
    for a in range(q):
        for k in range(a):
            v = M[a, k]
            for j in range(p):
                W[a, j] -= v * W[k, j]
        for j in range(p):
            W[a, j] /= M[a, a]
    for r in range(p):
        for s in range(p):
            t = 1.0 if r == s else 0.0
            for a in range(q):
                t -= W[a, r] * Y[a, s]
            Q[r, s] = t
    for r in range(p):
        for s in range(p):
            t = 0.0
            for k in range(p):
                t += Q[r, k] * C[k, s]
            T[r, s] = t
    for r in range(p):
        for s in range(r + 1):
            t = 0.0
            for a in range(q):
                t += W[a, r] * W[a, s]
            for k in range(p):
                t += T[r, k] * Q[s, k]
            S[r, s] = t
            S[s, r] = t


@kernel
def unfold(
    A: Floats, b: Floats, L: Floats, which: Ints, z: Ints, w: Floats, C: Floats, parent: Ints
) -> tuple[Floats, Floats, Floats]:
    """Solve every node given its parent's value and covariance.

    Parameters
    ----------
    w : (k, p); C : (k, P); parent : (m,)
        The parents' values, their covariances, and each node's parent.

    Returns
    -------
    theta : (m, p), u : (m, q)
        ``u = M^-1 L'(b - A w)`` and ``theta = w + L u``.
    S : (m, P)
        Covariances of theta (in the same units as C).
    """
    m, p = b.shape
    q = z.shape[0]
    theta, u, S = np.empty((m, p)), np.empty((m, q)), np.empty((m, A.shape[1]))
    full, M, Y = np.empty((p, p)), np.empty((q, q)), np.empty((q, p))
    Cj, Si, Q, T = np.empty((p, p)), np.empty((p, p)), np.empty((p, p)), np.empty((p, p))
    v = np.empty(q)
    for i in range(m):
        unpack(A[i], full)
        Li, wi = L[which[i]], w[parent[i]]
        _whiten(full, Li, z, M, Y)
        _whiten_rhs(b[i], Li, z, M, v)
        for a in range(q):
            for j in range(p):
                v[a] -= Y[a, j] * wi[j]
        _back(M, v)
        for j in range(p):
            theta[i, j] = wi[j]
        for a in range(q):
            u[i, a] = v[a]
            for k in range(q):
                theta[i, z[k]] += Li[k, a] * v[a]
        unpack(C[parent[i]], Cj)
        _posterior(Y, M, Li, z, Cj, Si, Q, T)
        c = 0
        for r in range(p):
            for s in range(r + 1):
                S[i, c] = Si[r, s]
                c += 1
    return theta, u, S


@kernel
def scores(
    A: Floats,
    b: Floats,
    a: Floats,
    L: Floats,
    which: Ints,
    z: Ints,
    w: Floats,
    C: Floats,
    delta: Floats,
    parent: Ints,
    sigma2: float,
) -> tuple[Floats, Floats]:
    """Each node's score for the covariance ``D = LL'`` of its deviation: the deviance's derivative, in two parts.

    With (A1, b1) and (A1, a1) what ``fold`` sends up for b and for a: ``g = b1 - A1 w`` is the residual sum below the
    node, ``t = a1 - A1 delta`` Laplace's correction.

    Parameters
    ----------
    a : (m, p) or (0, p)
        Gradient of log|H| by the node's parameters; empty for a Gaussian outcome.
    w, delta : (k, p); C : (k, P)
        The parents' values, their shifts that a causes, and their covariances.

    Returns
    -------
    expected : (m, Q)
        ``A1 - A1 C A1`` on the personal columns, packed.
    observed : (m, Q)
        ``g g' / sigma2 - (t g' + g t') / 2`` likewise. The derivative by D is ``expected - observed``.
    """
    m, p = b.shape
    q = z.shape[0]
    expected, observed = np.empty((m, q * (q + 1) // 2)), np.empty((m, q * (q + 1) // 2))
    full, M, Y, Cj, T = np.empty((p, p)), np.empty((q, q)), np.empty((q, p)), np.empty((p, p)), np.empty((q, p))
    v, g, t = np.empty(q), np.empty(p), np.zeros(p)
    last = -1
    for i in range(m):
        Li, j = L[which[i]], parent[i]
        if j != last:
            unpack(C[j], Cj)
            last = j
        unpack(A[i], full)
        _whiten(full, Li, z, M, Y)
        for r in range(p):
            for s in range(r + 1):
                x = full[r, s]
                for k in range(q):
                    x -= Y[k, r] * Y[k, s]
                full[r, s] = x
                full[s, r] = x
        _residual(full, b[i], w[j], Li, z, M, Y, v, g)
        if len(a):
            _residual(full, a[i], delta[j], Li, z, M, Y, v, t)
        for r in range(q):
            for s in range(p):
                x = 0.0
                for k in range(p):
                    x += full[z[r], k] * Cj[k, s]
                T[r, s] = x
        c = 0
        for r in range(q):
            for s in range(r + 1):
                x = full[z[r], z[s]]
                for k in range(p):
                    x -= T[r, k] * full[k, z[s]]
                expected[i, c] = x
                observed[i, c] = g[z[r]] * g[z[s]] / sigma2 - 0.5 * (t[z[r]] * g[z[s]] + g[z[r]] * t[z[s]])
                c += 1
    return expected, observed


@kernel
def _residual(A1: Floats, b: Floats, w: Floats, L: Floats, z: Ints, M: Floats, Y: Floats, v: Floats, g: Floats) -> None:
    """g = b1 - A1 w, where b1 is what b becomes on the way up."""
    _whiten_rhs(b, L, z, M, v)
    for r in range(b.shape[0]):
        x = b[r]
        for k in range(z.shape[0]):
            x -= Y[k, r] * v[k]
        for k in range(b.shape[0]):
            x -= A1[r, k] * w[k]
        g[r] = x
