"""``tree_fold`` against dense marginalisation of the joint Gaussian, node by node."""

import numpy as np
import pytest

from coterie.methods.tree.sweep_up_and_down import fold_free, unfold_free
from coterie.numerics import arrays, tree_fold
from coterie.objectives.glm import cholesky

CASES = [(2, []), (1, [0]), (3, [0]), (3, [2, 0]), (3, [0, 1, 2]), (4, [3, 1])]


def literal_full(packed, p):
    A = np.zeros((p, p))
    k = 0
    for i in range(p):
        for j in range(i + 1):
            A[i, j] = A[j, i] = packed[k]
            k += 1
    return A


def literal_pack(A):
    return np.array([A[i, j] for i in range(len(A)) for j in range(i + 1)])


def draw(seed, p, z, m=5, g=1, rank=None, L=None):
    """Random nodes: A of any rank with b in its range, factors (g, q, q) and where each node's is."""
    rng = np.random.default_rng(seed)
    q = len(z)
    A, b = np.zeros((m, p, p)), np.zeros((m, p))
    for i in range(m):
        X = rng.normal(size=(p + 2 if rank is None else rank, p))
        A[i], b[i] = X.T @ X, X.T @ rng.normal(size=len(X))
    L = np.tril(rng.normal(size=(g, q, q))) if L is None else np.broadcast_to(L, (g, q, q)).copy()
    which = rng.integers(0, g, m)
    return np.array([literal_pack(a) for a in A]), A, b, L, which, np.array(z, dtype=np.int64), rng


def marginal(A, b, L, z):
    """Integrate u out of ``(w + ZLu)'A(w + ZLu) - 2 b'(w + ZLu) + u'u``: by the joint matrix of (w, u)."""
    p, q = len(b), len(z)
    T = np.zeros((p, q))
    for k in range(q):
        T[z[k]] = L[k]
    H = np.block([[A, A @ T], [T.T @ A, T.T @ A @ T + np.eye(q)]])
    h = np.concatenate([b, T.T @ b])
    inner = H[p:, p:]
    solve = np.linalg.solve(inner, np.column_stack([H[p:, :p], h[p:]])) if q else np.zeros((0, p + 1))
    A1 = H[:p, :p] - H[:p, p:] @ solve[:, :p]
    b1 = h[:p] - H[:p, p:] @ solve[:, p]
    return A1, b1, h[p:] @ solve[:, p], np.linalg.slogdet(inner)[1] if q else 0.0, T


FACTORS = {"random": None, "zero": 0.0, "full of ones": 1.0, "tiny": 1e-9, "large": 300.0}


@pytest.mark.parametrize("rank", [None, 0, 1, 2])
@pytest.mark.parametrize(("p", "z"), CASES, ids=str)
@pytest.mark.parametrize("factor", FACTORS)
def test_fold(p, z, factor, rank):
    L = None if factor == "random" else np.tril(np.full((len(z), len(z)), FACTORS[factor]))
    packed, A, b, L, which, z, _ = draw(p, p, z, g=2, rank=rank, L=L)
    A1, b1, drop, logdet = tree_fold.fold(packed, b, L, which, z)
    for i in range(len(b)):
        eA, eb, edrop, elog, _ = marginal(A[i], b[i], L[which[i]], z)
        size = max(1.0, np.abs(A[i]).max())
        np.testing.assert_allclose(literal_full(A1[i], p), eA, rtol=1e-9, atol=1e-9 * size)
        np.testing.assert_allclose(b1[i], eb, rtol=1e-9, atol=1e-9 * size)
        assert drop[i] == pytest.approx(edrop, rel=1e-9, abs=1e-9)
        assert logdet[i] == pytest.approx(elog, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("rank", [None, 0, 1])
@pytest.mark.parametrize(("p", "z"), CASES, ids=str)
def test_unfold(p, z, rank):
    packed, A, b, L, which, z, rng = draw(10 + p, p, z, g=3, rank=rank)
    k = 2
    parent = np.sort(rng.integers(0, k, len(b)))
    w, root = rng.normal(size=(k, p)), rng.normal(size=(k, p, p))
    C = root @ root.transpose(0, 2, 1)
    theta, u, S = tree_fold.unfold(packed, b, L, which, z, w, np.array([literal_pack(c) for c in C]), parent)
    for i in range(len(b)):
        *_, T = marginal(A[i], b[i], L[which[i]], z)
        wi, M = w[parent[i]], np.eye(len(z)) + T.T @ A[i] @ T
        eu = np.linalg.solve(M, T.T @ (b[i] - A[i] @ wi))
        Q = np.eye(p) - T @ np.linalg.solve(M, T.T @ A[i])
        eS = T @ np.linalg.solve(M, T.T) + Q @ C[parent[i]] @ Q.T
        np.testing.assert_allclose(u[i], eu, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(theta[i], wi + T @ eu, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(literal_full(S[i], p), eS, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("p", "z"), CASES, ids=str)
@pytest.mark.parametrize("laplace", [False, True])
def test_scores(p, z, laplace):
    packed, A, b, L, which, z, rng = draw(20 + p, p, z, g=2)
    parent = np.sort(rng.integers(0, 2, len(b)))
    w, delta, root = rng.normal(size=(2, p)), rng.normal(size=(2, p)), rng.normal(size=(2, p, p))
    C, s2 = 0.01 * root @ root.transpose(0, 2, 1), 1.7
    a = rng.normal(size=b.shape) if laplace else b[:0]
    expected, observed = tree_fold.scores(
        packed, b, a, L, which, z, w, np.array([literal_pack(c) for c in C]), delta, parent, s2
    )
    for i in range(len(b)):
        A1, b1, *_ = marginal(A[i], b[i], L[which[i]], z)
        g = b1 - A1 @ w[parent[i]]
        t = marginal(A[i], a[i], L[which[i]], z)[1] - A1 @ delta[parent[i]] if laplace else np.zeros(p)
        e = A1 - A1 @ C[parent[i]] @ A1
        o = np.outer(g, g) / s2 - (np.outer(t, g) + np.outer(g, t)) / 2
        np.testing.assert_allclose(literal_full(expected[i], len(z)), e[np.ix_(z, z)], rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(literal_full(observed[i], len(z)), o[np.ix_(z, z)], rtol=1e-9, atol=1e-10)


def test_the_score_is_the_derivative_of_a_dense_likelihood():
    """One client and its rows: d(-2 log-likelihood)/dD of ``N(X w, I + X D X')`` with w known, by differences."""
    rng = np.random.default_rng(5)
    X, y, w = rng.normal(size=(7, 2)), rng.normal(size=7), rng.normal(size=2)
    L = np.tril(rng.normal(size=(2, 2)))

    def deviance(D):
        V = np.eye(7) + X @ D @ X.T
        r = y - X @ w
        return np.linalg.slogdet(V)[1] + r @ np.linalg.solve(V, r)

    one = np.zeros(1, dtype=np.int64)
    packed, nothing = literal_pack(X.T @ X)[None], np.zeros((1, 3))
    arguments = (L[None], one, np.arange(2), w[None], nothing, w[None], one, 1.0)
    e, o = tree_fold.scores(packed, (X.T @ y)[None], np.zeros((0, 2)), *arguments)
    G, D, h = literal_full((e - o)[0], 2), L @ L.T, 1e-5
    for i, j in ((0, 0), (1, 1), (1, 0)):
        E = np.zeros((2, 2))
        E[i, j] = E[j, i] = 1.0
        slope = (deviance(D + h * E) - deviance(D - h * E)) / (2 * h)
        assert np.sum(G * E) == pytest.approx(slope, rel=1e-6)


def test_a_client_without_rows_sends_nothing():
    z, one = np.arange(2), np.zeros(1, dtype=np.int64)
    A1, b1, drop, logdet = tree_fold.fold(np.zeros((1, 3)), np.zeros((1, 2)), np.eye(2)[None], one, z)
    assert not A1.any()
    assert not b1.any()
    assert drop[0] == logdet[0] == 0.0


@pytest.mark.parametrize(("p", "z"), CASES, ids=str)
@pytest.mark.parametrize("rank", [None, 0, 1, 2])
@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_free_nodes_are_the_limit_of_large_factors(p, z, rank, ridge):
    """With a ridge: the prior N(0, 1 / ridge) whose parent is 0. Without: least squares, shortest where open."""
    packed, A, b, _, _, z, rng = draw(30 + p, p, z, rank=rank)
    prior = ridge**0.5 * np.eye(p)[z] if ridge else None
    A1, b1, drop = fold_free(packed, b, z, prior)
    w, root = rng.normal(size=(len(b), p)), rng.normal(size=(len(b), p, p))
    C = root @ root.transpose(0, 2, 1)
    theta, S = unfold_free(packed, b, z, prior, w, np.array([literal_pack(c) for c in C]))
    s = np.setdiff1d(np.arange(p), z)
    for i in range(len(b)):
        block = A[i][np.ix_(z, z)] + ridge * np.eye(len(z))
        inverse = np.linalg.pinv(block, rcond=1e-9)
        full = literal_full(A1[i], p)
        assert not full[z].any()
        assert not b1[i][z].any()
        cross = A[i][np.ix_(s, z)]
        np.testing.assert_allclose(full[np.ix_(s, s)], A[i][np.ix_(s, s)] - cross @ inverse @ cross.T, atol=1e-8)
        np.testing.assert_allclose(b1[i][s], b[i][s] - cross @ inverse @ b[i][z], atol=1e-8)
        assert drop[i] == pytest.approx(b[i][z] @ inverse @ b[i][z], abs=1e-8)
        np.testing.assert_allclose(theta[i][s], w[i][s])
        residual = b[i][z] - cross.T @ w[i][s] - block @ theta[i][z]
        np.testing.assert_allclose(residual, inverse @ np.zeros(len(z)), atol=1e-8)
        if rank is None or ridge > 0:
            np.testing.assert_allclose(theta[i][z], inverse @ (b[i][z] - cross.T @ w[i][s]), rtol=1e-7, atol=1e-8)
            T = np.zeros((p, p))
            T[s, s] = 1.0
            T[np.ix_(z, s)] = -inverse @ cross.T
            E = np.zeros((p, p))
            E[np.ix_(z, z)] = inverse
            np.testing.assert_allclose(literal_full(S[i], p), T @ C[i] @ T.T + E, rtol=1e-7, atol=1e-7)


def test_packed_triangles():
    rng = np.random.default_rng(1)
    for p in (1, 2, 5):
        A = rng.normal(size=(3, p, p))
        A = A + A.transpose(0, 2, 1)
        packed = np.array([literal_pack(a) for a in A])
        np.testing.assert_array_equal(arrays.pack(A), packed)
        np.testing.assert_array_equal(arrays.full(packed), A)


def test_cholesky():
    rng = np.random.default_rng(2)
    for n in (0, 1, 4):
        X = rng.normal(size=(n + 2, n))
        M = X.T @ X
        R = M.copy()
        assert cholesky(R)
        np.testing.assert_allclose(np.tril(R), np.linalg.cholesky(M) if n else M, atol=1e-12)
    for bad in (np.array([[1.0, 2.0], [2.0, 1.0]]), np.zeros((1, 1)), np.full((1, 1), np.nan)):
        assert not cholesky(bad.copy())
