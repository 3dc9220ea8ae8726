"""Theorem 5.1 and Proposition 5.3: the solution with known variances is the marginalised estimator, for any design.

The marginalised estimator for client i integrates everyone else's parameters out: with ``y ~ N(X w, V)`` the root is
fitted by generalised least squares, and client i is predicted by its covariance with all raw data.
"""

import numpy as np
import pytest

from coterie.methods import given_strengths, hierarchical
from tests.methods import dense
from tests.methods.dense import table

TREES = [(), ([0, 0, 1, 1, 2, 2],), ([0, 0, 1, 1, 2, 2], [0, 0, 1])]


def marginalised(t, sds):
    """BLUP of every client by n x n matrices, with residual variance 1 and ``sds`` of each level, clients first."""
    V = np.diag(1.0 / t.w)
    for code, sd in zip(t.codes, sds, strict=True):
        V += sd**2 * (code[:, None] == code) * (t.X[:, t.personal] @ t.X[:, t.personal].T)
    W = np.linalg.inv(V)
    y = t.y - t.off
    w = np.linalg.solve(t.X.T @ W @ t.X, t.X.T @ W @ y)
    r = W @ (y - t.X @ w)
    client = np.tile(w, (int(t.codes[0].max()) + 1, 1))
    for i in range(len(client)):
        first = np.flatnonzero(t.codes[0] == i)[0]
        for code, sd in zip(t.codes, sds, strict=True):
            client[i, t.personal] += sd**2 * (t.X[:, t.personal] * (code == code[first])[:, None]).T @ r
    return client, w, np.linalg.inv(t.X.T @ W @ t.X)


@pytest.mark.parametrize("parents", TREES, ids=["0", "1", "2"])
@pytest.mark.parametrize("counts", [(5, 3, 6, 4, 7, 2), (1, 1, 2, 1, 9, 3)], ids=str)
@pytest.mark.parametrize("z", [(), (0,), (1, 2)], ids=str)
def test_the_solution_is_the_marginalised_estimator(parents, counts, z):
    t = table(41, counts=counts, p=3, parents=parents, z=z, weights=True, offset=True)
    sds = [0.8, 0.5, 1.7][: len(t.codes)]
    f = given_strengths.given(*t.setting(), sds[0] ** -2, [sd**-2 for sd in sds[1:]])
    client, root, _ = marginalised(t, sds)
    np.testing.assert_allclose(f.client, client, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(f.root, root, rtol=1e-10, atol=1e-10)


def test_learned_variances_give_the_same_estimator():
    t = table(42, counts=(8, 3, 6, 9, 7, 5, 4, 8), p=2, parents=([0, 0, 0, 1, 1, 1, 2, 2],))
    fed, problem = t.setting()
    f = hierarchical.fit(fed, problem, "isotropic")
    V = np.eye(len(t.y))
    for code, D in zip(t.codes, [f.D_client[0], f.D_levels[0]], strict=True):
        V += (code[:, None] == code) * (t.X @ D @ t.X.T) / f.sigma2
    W = np.linalg.inv(V)
    cov = np.linalg.inv(t.X.T @ W @ t.X)
    w = cov @ t.X.T @ W @ t.y
    r = W @ (t.y - t.X @ w)
    np.testing.assert_allclose(f.root, w, rtol=1e-10)
    np.testing.assert_allclose(f.root_cov, cov * f.sigma2, rtol=1e-8)
    total = np.zeros((8, 2, 2))
    for i in range(8):
        here = t.codes[0] == i
        parent = t.codes[1] == t.codes[1][here][0]
        K = f.D_client[0] @ (t.X * here[:, None]).T + f.D_levels[0] @ (t.X * parent[:, None]).T
        np.testing.assert_allclose(f.client[i], w + K @ r / f.sigma2, rtol=1e-9, atol=1e-10)
        # prediction error variance: theta_i - its estimate, with w estimated
        G = np.eye(2) - K @ W @ t.X / f.sigma2
        total[i] = f.D_client[0] + f.D_levels[0] - K @ W @ K.T / f.sigma2 + G @ cov @ G.T * f.sigma2
    rows, columns = np.tril_indices(2)
    np.testing.assert_allclose(f.client_cov, total[:, rows, columns], rtol=1e-8, atol=1e-10)


def test_theorem_51_among_orthogonal_designs():
    """With ``X_i'X_i = beta_i I`` the formula of one cluster: shrink own least squares to the weighted mean."""
    rng = np.random.default_rng(43)
    Q = [np.linalg.qr(rng.normal(size=(n, 3)))[0] * b for n, b in ((5, 2.0), (8, 0.7), (4, 1.3), (9, 3.0))]
    X, code = np.concatenate(Q), np.repeat(np.arange(4), [len(q) for q in Q])
    y = rng.normal(size=len(X))
    gamma = 1.7
    t = dense.Table(X, y, [code], intercept=None)
    f = given_strengths.given(*t.setting(), gamma)
    beta = np.array([4.0, 0.49, 1.69, 9.0])
    own = np.array([X[code == i].T @ y[code == i] / beta[i] for i in range(4)])
    weight = beta * gamma / (beta + gamma)
    w = weight @ own / weight.sum()
    np.testing.assert_allclose(f.root, w, rtol=1e-10)
    np.testing.assert_allclose(f.client, (beta[:, None] * own + gamma * w) / (beta + gamma)[:, None], rtol=1e-10)


def test_marginalised_beats_pooled_and_local_in_expectation():
    """Corollary 5.2 by exact risk: estimators are linear, so their mean squared error needs no simulation."""
    t = table(44, counts=(4, 4, 4, 4, 4, 4), p=2, parents=([0, 0, 1, 1, 2, 2],))
    sds = (0.8, 0.6)
    n = len(t.y)
    truth = [np.eye(n)]
    linear = {"blup": [], "local": [], "pooled": []}
    for r in range(n):
        unit = dense.replace(t, y=truth[0][r])
        linear["blup"].append(marginalised(unit, sds)[0].ravel())
        own = [np.linalg.lstsq(t.X[t.codes[0] == i], unit.y[t.codes[0] == i])[0] for i in range(6)]
        linear["local"].append(np.ravel(own))
        linear["pooled"].append(np.tile(np.linalg.lstsq(t.X, unit.y)[0], 6))
    # theta_i = w + a_j + e_i, y = X theta + noise; every estimator is unbiased for theta_i given w
    Z = np.zeros((n, 12))
    for r, i in enumerate(t.codes[0]):
        Z[r, 2 * i : 2 * i + 2] = t.X[r]
    same = np.kron(np.repeat(np.arange(3), 2)[:, None] == np.repeat(np.arange(3), 2), np.eye(2))
    S = sds[0] ** 2 * np.eye(12) + sds[1] ** 2 * same
    risk = {}
    for name, rows in linear.items():
        B = np.array(rows).T
        E = B @ Z - np.eye(12)
        risk[name] = np.trace(E @ S @ E.T + B @ B.T)
    assert risk["blup"] < 0.9 * min(risk["local"], risk["pooled"])
