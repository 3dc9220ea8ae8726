"""Marginalise a tree of Gaussian parameters upwards, solve it downwards.

A node holds the quadratic ``theta' A theta - 2 b' theta`` and strays from its parent, ``theta = parent + L u`` with
``u ~ N(0, I)``. Integrating u out gives the same kind of quadratic in the parent, and messages add up there (paper 001
section 5; the fold is Henderson's equations by blocks). The same kernels serve clients (many, at the sites) and
clusters (few, at the coordinator).

Shapes: ``P = p (p + 1) / 2`` (packed lower triangles, row by row), q personal columns ``z`` of p. ``L`` is (g, q, q)
and ``which`` (m,) picks a node's own. Columns that are not personal do not stray. ``L = 0`` needs no special case.

Matrices are small, so the kernels take ``LANES`` nodes at a time: the last axis of every work array is the lane, and
the innermost loops over it become vector instructions. The last group repeats its last node.
"""

from __future__ import annotations

import numpy as np

from coterie.numerics.arrays import Bools, Floats, Ints, part, reading

LANES = 8


@part
def _nodes(first: int, m: int, at: Ints) -> int:
    """The nodes of a group into ``at`` (LANES,); how many of them are new."""
    for i in range(LANES):
        at[i] = min(first + i, m - 1)
    return min(LANES, m - first)


@part
def _load(packed: Floats, at: Ints, A: Floats) -> None:
    """Packed lower triangles of nodes ``at`` into A (p, p, LANES)."""
    c = 0
    for r in range(A.shape[0]):
        for s in range(r + 1):
            for i in range(LANES):
                A[r, s, i] = packed[at[i], c]
                A[s, r, i] = packed[at[i], c]
            c += 1


@part
def _load_rows(b: Floats, at: Ints, v: Floats) -> None:
    """Rows of nodes ``at`` into v (p, LANES)."""
    for r in range(v.shape[0]):
        for i in range(LANES):
            v[r, i] = b[at[i], r]


@part
def _load_factors(L: Floats, which: Ints, at: Ints, F: Floats) -> None:
    """Every node's own factor into F (q, q, LANES)."""
    for r in range(F.shape[0]):
        for s in range(F.shape[0]):
            for i in range(LANES):
                F[r, s, i] = L[which[at[i]], r, s]


@part
def _used(L: Floats, used: Bools) -> None:
    """Mark entries (q, q) that are not zero in all factors: the others are skipped."""
    q = L.shape[1]
    for g in range(L.shape[0]):
        for r in range(q):
            for s in range(q):
                used[r, s] |= L[g, r, s] != 0.0


@part
def _whiten(A: Floats, F: Floats, used: Bools, z: Ints, M: Floats, Y: Floats, logdet: Floats, product: Floats) -> None:
    """M becomes the Cholesky factor R of I + L'AL, Y = R^-1 L'A (q, p), logdet = log|M|; product is scratch."""
    p, q = A.shape[0], z.shape[0]
    for a in range(q):
        for j in range(p):
            for i in range(LANES):
                Y[a, j, i] = 0.0
        for k in range(q):
            if used[k, a]:
                for j in range(p):
                    for i in range(LANES):
                        Y[a, j, i] += F[k, a, i] * A[z[k], j, i]
    for a in range(q):
        for c in range(a + 1):
            for i in range(LANES):
                M[a, c, i] = 1.0 if a == c else 0.0
            for k in range(q):
                if used[k, c]:
                    for i in range(LANES):
                        M[a, c, i] += Y[a, z[k], i] * F[k, c, i]
    for i in range(LANES):
        logdet[i], product[i] = 0.0, 1.0
    for a in range(q):
        for k in range(a):
            for i in range(LANES):
                M[a, a, i] -= M[a, k, i] * M[a, k, i]
        for i in range(LANES):
            M[a, a, i] = np.sqrt(M[a, a, i])
            product[i] *= M[a, a, i]
        for r in range(a + 1, q):
            for k in range(a):
                for i in range(LANES):
                    M[r, a, i] -= M[r, k, i] * M[a, k, i]
            for i in range(LANES):
                M[r, a, i] /= M[a, a, i]
        if a % 8 == 7 or a == q - 1:  # so few factors cannot overflow
            for i in range(LANES):
                logdet[i] += 2.0 * np.log(product[i])
                product[i] = 1.0
    _forward(M, Y)


@part
def _forward(M: Floats, Y: Floats) -> None:
    """Y <- R^-1 Y in place, R in the lower triangle of M, Y (q, columns, LANES)."""
    for a in range(Y.shape[0]):
        for k in range(a):
            for j in range(Y.shape[1]):
                for i in range(LANES):
                    Y[a, j, i] -= M[a, k, i] * Y[k, j, i]
        for j in range(Y.shape[1]):
            for i in range(LANES):
                Y[a, j, i] /= M[a, a, i]


@part
def _whiten_rhs(b: Floats, F: Floats, used: Bools, z: Ints, M: Floats, v: Floats) -> None:
    """v = R^-1 L'b for b (p, LANES); v (q, 1, LANES)."""
    q = z.shape[0]
    for a in range(q):
        for i in range(LANES):
            v[a, 0, i] = 0.0
        for k in range(q):
            if used[k, a]:
                for i in range(LANES):
                    v[a, 0, i] += F[k, a, i] * b[z[k], i]
    _forward(M, v)


@part
def _drop(A: Floats, Y: Floats) -> None:
    """A <- A - Y'Y, both triangles."""
    for r in range(A.shape[0]):
        for s in range(r + 1):
            for a in range(Y.shape[0]):
                for i in range(LANES):
                    A[r, s, i] -= Y[a, r, i] * Y[a, s, i]
            for i in range(LANES):
                A[s, r, i] = A[r, s, i]


@part
def _drop_rhs(b: Floats, Y: Floats, v: Floats) -> None:
    """b <- b - Y'v."""
    for r in range(b.shape[0]):
        for a in range(Y.shape[0]):
            for i in range(LANES):
                b[r, i] -= Y[a, r, i] * v[a, 0, i]


@part
def _posterior(Y: Floats, F: Floats, z: Ints, M: Floats, C: Floats, W: Floats, Q: Floats, S: Floats, T: Floats) -> None:
    """S = L M^-1 L' + Q C Q' with Q = I - L M^-1 L'A: covariance given the parent's, C (p, p, LANES); T is scratch."""
    p, q = C.shape[0], z.shape[0]
    for a in range(q):
        for j in range(p):
            for i in range(LANES):
                W[a, j, i] = 0.0
    for k in range(q):
        for a in range(q):
            for i in range(LANES):
                W[a, z[k], i] = F[k, a, i]
    _forward(M, W)
    for r in range(p):
        for s in range(p):
            for i in range(LANES):
                Q[r, s, i] = 1.0 if r == s else 0.0
            for a in range(q):
                for i in range(LANES):
                    Q[r, s, i] -= W[a, r, i] * Y[a, s, i]
    for r in range(p):
        for s in range(p):
            for i in range(LANES):
                T[s, i] = 0.0
        for k in range(p):
            for s in range(p):
                for i in range(LANES):
                    T[s, i] += Q[r, k, i] * C[k, s, i]
        for s in range(r + 1):
            for i in range(LANES):
                S[r, s, i] = 0.0
            for a in range(q):
                for i in range(LANES):
                    S[r, s, i] += W[a, r, i] * W[a, s, i]
            for k in range(p):
                for i in range(LANES):
                    S[r, s, i] += T[k, i] * Q[s, k, i]


@part
def _follow(F: Floats, z: Ints, M: Floats, Y: Floats, v: Floats, here: Floats) -> None:
    """v becomes ``u = M^-1 L'(b - A w)`` of R^-1 L'b, and ``here``, w (p, LANES), the nodes' ``w + L u``."""
    q = z.shape[0]
    for a in range(q):
        for j in range(here.shape[0]):
            for i in range(LANES):
                v[a, 0, i] -= Y[a, j, i] * here[j, i]
    for a in range(q - 1, -1, -1):
        for k in range(a + 1, q):
            for i in range(LANES):
                v[a, 0, i] -= M[k, a, i] * v[k, 0, i]
        for i in range(LANES):
            v[a, 0, i] /= M[a, a, i]
    for k in range(q):
        for a in range(q):
            for i in range(LANES):
                here[z[k], i] += F[k, a, i] * v[a, 0, i]


@part
def _store(node: int, i: int, v: Floats, A: Floats, rows: Floats, packed: Floats) -> None:
    """A lane's v (p, LANES) and A (p, p, LANES) into a node's row and packed triangle."""
    c = 0
    for r in range(v.shape[0]):
        rows[node, r] = v[r, i]
        for s in range(r + 1):
            packed[node, c] = A[r, s, i]
            c += 1


@part
def _subtract(A: Floats, x: Floats, g: Floats) -> None:
    """g <- g - A x."""
    for r in range(g.shape[0]):
        for k in range(g.shape[0]):
            for i in range(LANES):
                g[r, i] -= A[r, k, i] * x[k, i]


@part
def _score(
    first: int,
    new: int,
    full: Floats,
    C: Floats,
    g: Floats,
    t: Floats,
    z: Ints,
    sigma2: float,
    T: Floats,
    e: Floats,
    expected: Floats,
    observed: Floats,
) -> None:
    """Scores of a group, from A1, C (p, p, LANES), g and t (p, LANES); T and e are scratch."""
    p = full.shape[0]
    c = 0
    for r in range(z.shape[0]):
        T[:] = 0.0
        for k in range(p):
            for s in range(p):
                for i in range(LANES):
                    T[s, i] += full[z[r], k, i] * C[k, s, i]
        for s in range(r + 1):
            for i in range(LANES):
                e[i] = full[z[r], z[s], i]
            for k in range(p):
                for i in range(LANES):
                    e[i] -= T[k, i] * full[k, z[s], i]
            for i in range(new):
                gr, gs, tr, ts = g[z[r], i], g[z[s], i], t[z[r], i], t[z[s], i]
                expected[first + i, c] = e[i]
                observed[first + i, c] = gr * gs / sigma2 - 0.5 * (tr * gs + gr * ts)
            c += 1


def fold(A: Floats, b: Floats, L: Floats, which: Ints, z: Ints) -> tuple[Floats, Floats, Floats, Floats]:
    """Integrate out every node's own deviation from quadratics A (m, P), b (m, p).

    Returns the quadratics in the parents, ``A - A L M^-1 L'A`` and ``b - A L M^-1 L'b``; ``b'L M^-1 L'b`` (m,), which
    leaves the constant term; and ``log |M|`` (m,) of ``M = I + L'AL``.
    """
    return _swept(FOLD, A, b, b[:0], L, which, z, (b[:0], A[:0], b[:0], which[:0]), 1.0)[:4]


def unfold(
    A: Floats, b: Floats, L: Floats, which: Ints, z: Ints, w: Floats, C: Floats, parent: Ints
) -> tuple[Floats, Floats, Floats]:
    """Solve every node given the values w (k, p) and covariances C (k, P) of parents, and which is its own (m,).

    Returns ``theta = w + L u`` (m, p), ``u = M^-1 L'(b - A w)`` (m, q), and theta's covariances (m, P), in C's units.
    """
    return _swept(UNFOLD, A, b, b[:0], L, which, z, (w, C, b[:0], parent), 1.0)[4:7]


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
    node, ``t = a1 - A1 delta`` Laplace's correction. ``a`` (m, p) is the gradient of log|H| by the node's parameters,
    (0, p) for a Gaussian outcome; w and delta (k, p) are the parents' values and the shifts of them that a causes.

    Returns ``A1 - A1 C A1`` on the personal columns, packed (m, Q), and ``g g' / sigma2 - (t g' + g t') / 2`` likewise:
    expected and observed. The derivative by D is ``expected - observed``.
    """
    return _swept(SCORES, A, b, a, L, which, z, (w, C, delta, parent), sigma2)[7:]


FOLD, UNFOLD, SCORES = 0, 1, 2
Parents = tuple[Floats, Floats, Floats, Ints]  # w, C, delta, and which is a node's own


@reading
def _swept(
    what: int, A: Floats, b: Floats, a: Floats, L: Floats, which: Ints, z: Ints, parents: Parents, sigma2: float
) -> tuple[Floats, Floats, Floats, Floats, Floats, Floats, Floats, Floats, Floats]:
    """What the three give, of which one is asked for: what they share is most of what a first fit compiles."""
    w, C, delta, parent = parents
    m, p = b.shape
    q, P = z.shape[0], A.shape[1]
    up, down, scored = m * (what == FOLD), m * (what == UNFOLD), m * (what == SCORES)
    A1, b1, drop, logdet = np.empty((up, P)), np.empty((up, p)), np.empty(up), np.empty(up)
    theta, u, S = np.empty((down, p)), np.empty((down, q)), np.empty((down, P))
    expected, observed = np.empty((scored, q * (q + 1) // 2)), np.empty((scored, q * (q + 1) // 2))
    at, above, used = np.empty(LANES, dtype=np.int64), np.empty(LANES, dtype=np.int64), np.zeros((q, q), dtype=np.bool_)
    full, g, t, F = np.empty((p, p, LANES)), np.empty((p, LANES)), np.zeros((p, LANES)), np.empty((q, q, LANES))
    M, Y, v, logs = np.empty((q, q, LANES)), np.empty((q, p, LANES)), np.empty((q, 1, LANES)), np.empty(LANES)
    Cj, here, Sj = np.empty((p, p, LANES)), np.empty((p, LANES)), np.empty((p, p, LANES))
    W, Q, e = np.empty((q, p, LANES)), np.empty((p, p, LANES)), np.empty(LANES)
    _used(L, used)
    for first in range(0, m, LANES):
        new = _nodes(first, m, at)
        _load(A, at, full)
        _load_rows(b, at, g)
        _load_factors(L, which, at, F)
        _whiten(full, F, used, z, M, Y, logs, e)
        _whiten_rhs(g, F, used, z, M, v)
        if what != FOLD:
            for i in range(LANES):  # arrays set to others take numba's texts about shapes along, seconds to compile
                above[i] = parent[at[i]]
            _load(C, above, Cj)
            _load_rows(w, above, here)
        if what == UNFOLD:
            _follow(F, z, M, Y, v, here)
            _posterior(Y, F, z, M, Cj, W, Q, Sj, g)
            for i in range(new):
                _store(first + i, i, here, Sj, theta, S)
                for k in range(q):
                    u[first + i, k] = v[k, 0, i]
            continue
        _drop(full, Y)
        _drop_rhs(g, Y, v)
        if what == FOLD:
            for i in range(new):
                _store(first + i, i, g, full, b1, A1)
                drop[first + i], logdet[first + i] = 0.0, logs[i]
                for k in range(q):
                    drop[first + i] += v[k, 0, i] * v[k, 0, i]
            continue
        _subtract(full, here, g)
        if len(a):
            _load_rows(a, at, t)
            _load_rows(delta, above, here)
            _whiten_rhs(t, F, used, z, M, v)
            _drop_rhs(t, Y, v)
            _subtract(full, here, t)
        _score(first, new, full, Cj, g, t, z, sigma2, here, e, expected, observed)
    return A1, b1, drop, logdet, theta, u, S, expected, observed
