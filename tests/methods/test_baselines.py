"""Local, pooled, own intercept and one model for each cluster, against NumPy's least squares and SciPy's minimisers."""

import numpy as np
import pytest
from scipy.optimize import minimize

from coterie.methods import clusterwise, local, own_intercept, pooled
from tests.methods import dense
from tests.methods.dense import table

FAMILIES = ["binomial", "poisson"]
SCALES = [np.ones(3), np.array([1.0, 1e8, 1e-3])]
TREE = ([0, 0, 1, 1, 2, 2],)


def weighted(t, rows):
    r = np.sqrt(t.w[rows])
    return t.X[rows] * r[:, None], (t.y - t.off)[rows] * r


def check_coefficients(ours, theirs, scale):
    """Coefficients of columns of any size, compared in units of their effect."""
    np.testing.assert_allclose(ours * scale, theirs * scale, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("scale", SCALES, ids=["plain", "1e8-1e-3"])
def test_local_is_least_squares_client_by_client(scale):
    t = table(51, counts=(5, 8, 6, 4, 7, 9), p=3, parents=TREE, weights=True, offset=True, scale=scale, sd=0)
    f = local.fit(*t.setting())
    sse, rank = 0.0, 0
    for i in range(6):
        X, y = weighted(t, t.codes[0] == i)
        theta = np.linalg.lstsq(X / scale, y)[0] / scale
        check_coefficients(f.client[i], theta, scale)
        sse, rank = sse + np.sum((y - X @ theta) ** 2), rank + 3
    assert f.sigma2 == pytest.approx(sse / (len(t.y) - rank), rel=1e-8)
    np.testing.assert_allclose(f.root, pooled.fit(*t.setting()).root, rtol=1e-12)


def test_local_is_of_minimum_norm_in_the_tables_units():
    """Fewer rows than columns, repeated rows, a column that does not vary: NumPy's lstsq on the raw columns."""
    t = table(52, counts=(1, 2, 2, 3, 6, 5), p=4, scale=np.array([1.0, 20.0, 0.1, 3.0]), sd=0)
    X = t.X.copy()
    X[t.codes[0] == 4, 2] = 0.7
    X[t.codes[0] == 5] = X[t.codes[0] == 5][0]
    t = dense.replace(t, X=X, y=t.y + 50.0)
    f = local.fit(*t.setting())
    for i in range(6):
        X, y = weighted(t, t.codes[0] == i)
        np.testing.assert_allclose(f.client[i], np.linalg.lstsq(X, y, rcond=1e-9)[0], rtol=1e-7, atol=1e-8)


def test_local_standard_errors():
    t = table(53, counts=(12, 15, 9), p=2)
    f = local.fit(*t.setting())
    rows, columns = np.tril_indices(2)
    for i in range(3):
        X, _ = weighted(t, t.codes[0] == i)
        np.testing.assert_allclose(f.client_cov[i], (np.linalg.inv(X.T @ X) * f.sigma2)[rows, columns], rtol=1e-9)


@pytest.mark.parametrize("scale", SCALES, ids=["plain", "1e8-1e-3"])
def test_pooled_is_least_squares_with_classical_errors(scale):
    t = table(54, counts=(5, 8, 6, 4, 7, 9), p=3, parents=TREE, weights=True, offset=True, scale=scale, sd=0)
    f = pooled.fit(*t.setting())
    X, y = weighted(t, slice(None))
    theta, rss, *_ = np.linalg.lstsq(X / scale, y)
    check_coefficients(f.root, theta / scale, scale)
    s2 = rss[0] / (len(y) - 3)
    assert f.sigma2 == pytest.approx(s2, rel=1e-9)
    cov = np.linalg.inv((X / scale).T @ (X / scale)) * s2
    np.testing.assert_allclose(f.root_cov * np.outer(scale, scale), cov, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(f.client, np.tile(f.root, (6, 1)), rtol=1e-12)
    ml = -0.5 * (len(y) * np.log(2 * np.pi * rss[0] / len(y)) + len(y) - np.log(t.w).sum())
    assert f.log_likelihood == pytest.approx(ml, abs=1e-8)


def test_pooled_with_collinear_columns_predicts_like_least_squares():
    t = table(55, counts=(20, 30, 25), p=3)
    X = np.c_[t.X, t.X[:, 1] + 2 * t.X[:, 2], t.X[:, 0]]
    f = pooled.fit(*dense.replace(t, X=X, z=[]).setting())
    np.testing.assert_allclose(X @ f.root, t.X @ np.linalg.lstsq(t.X, t.y)[0], rtol=1e-7, atol=1e-7)
    assert np.abs(f.root).max() < 10


@pytest.mark.parametrize("family", FAMILIES)
def test_pooled_glm_is_the_maximum_of_the_likelihood(family):
    t = table(56, family, (25, 30, 28, 33, 20, 24), 3, weights=True, offset=True, sd=0.3)
    f = pooled.fit(*t.setting())

    def loss(b):
        return t.w @ dense.point(family, t.off + t.X @ b, t.y)[0]

    best = minimize(loss, np.zeros(3), method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose(f.root, best.x, rtol=1e-5, atol=1e-6)
    eta = t.off + t.X @ f.root
    _, score, curvature = dense.point(family, eta, t.y)
    assert np.abs(t.X.T @ (t.w * score)).max() < 1e-6
    np.testing.assert_allclose(f.root_cov, np.linalg.inv((t.X * (t.w * curvature)[:, None]).T @ t.X), rtol=1e-6)
    constant = 0.0 if family == "binomial" else t.w @ np.array([np.sum(np.log(np.arange(1, k + 1))) for k in t.y])
    assert f.log_likelihood == pytest.approx(-loss(f.root) - constant, abs=1e-6)


@pytest.mark.parametrize("scale", SCALES, ids=["plain", "1e8-1e-3"])
def test_own_intercept_is_the_within_estimator(scale):
    t = table(57, counts=(5, 8, 6, 4, 7, 9), p=3, parents=TREE, weights=True, offset=True, scale=scale, sd=0)
    f = own_intercept.fit(*t.setting())
    w, y = t.w, t.y - t.off

    def within(v):
        total = np.zeros((6, *v.shape[1:]))
        np.add.at(total, t.codes[0], (v.T * w).T)
        return v - (total.T / np.bincount(t.codes[0], w)).T[t.codes[0]]

    Z = within(t.X[:, 1:] / scale[1:]) * np.sqrt(w)[:, None]
    v = within(y) * np.sqrt(w)
    slopes = np.linalg.lstsq(Z, v)[0]
    np.testing.assert_allclose(f.client[:, 1:] * scale[1:], np.tile(slopes, (6, 1)), rtol=1e-6, atol=1e-7)
    rest = y - t.X[:, 1:] @ (slopes / scale[1:])
    np.testing.assert_allclose(
        f.client[:, 0], np.bincount(t.codes[0], w * rest) / np.bincount(t.codes[0], w), rtol=1e-6
    )
    s2 = np.sum((v - Z @ slopes) ** 2) / (len(y) - 6 - 2)
    assert f.sigma2 == pytest.approx(s2, rel=1e-6)
    cov = np.linalg.inv(Z.T @ Z) * s2
    np.testing.assert_allclose(f.root_cov[1:, 1:] * np.outer(scale[1:], scale[1:]), cov, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("scale", SCALES, ids=["plain", "1e8-1e-3"])
def test_clusterwise_is_least_squares_cluster_by_cluster(scale):
    t = table(58, counts=(5, 8, 6, 4, 7, 9), p=3, parents=TREE, weights=True, offset=True, scale=scale, sd=0)
    f = clusterwise.fit(*t.setting())
    sse = 0.0
    for j in range(3):
        X, y = weighted(t, t.codes[1] == j)
        theta = np.linalg.lstsq(X / scale, y)[0] / scale
        check_coefficients(f.nodes[0][j], theta, scale)
        check_coefficients(f.client[2 * j], theta, scale)
        check_coefficients(f.client[2 * j + 1], theta, scale)
        sse += np.sum((y - X @ theta) ** 2)
    assert f.sigma2 == pytest.approx(sse / (len(t.y) - 9), rel=1e-7)


def test_clusterwise_of_too_few_rows_still_fits_them():
    t = table(59, counts=(1, 1, 6, 7, 8, 9), p=3, parents=TREE)
    f = clusterwise.fit(*t.setting())
    rows = t.codes[1] == 0
    np.testing.assert_allclose(t.X[rows] @ f.nodes[0][0], t.y[rows], rtol=1e-9)
    np.testing.assert_allclose(f.nodes[0][0], np.linalg.lstsq(t.X[rows], t.y[rows])[0], rtol=1e-7)


def test_clusterwise_with_coarser_clusters_answers_with_the_pooled_model():
    t = table(60, counts=(5, 8, 6, 4, 7, 9), p=2, parents=([0, 0, 1, 1, 2, 2], [0, 0, 1]))
    f = clusterwise.fit(*t.setting())
    np.testing.assert_allclose(f.nodes[1], np.tile(f.root, (2, 1)), rtol=1e-12)
    assert [len(n) for n in f.nodes] == [3, 2]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", [local, clusterwise])
def test_glms_alone_are_held_by_a_weak_prior(family, method):
    t = table(61, family, (25, 30, 28, 33, 20, 24), 2, TREE, weights=True, offset=True)
    f = method.fit(*t.setting())
    mean = t.w @ t.X / t.w.sum()
    P = np.diag(np.sqrt(t.w @ t.X**2 / t.w.sum() - mean**2))
    P[0] = mean  # the intercept where columns have their means
    code = t.codes[0] if method is local else t.codes[1]
    ours = f.client if method is local else f.nodes[0]
    for i in range(int(code.max()) + 1):
        r = code == i
        alone = dense.newton(family, t.X[r], t.y[r], t.off[r], t.w[r], P.T @ P / 2.5**2)[0]
        np.testing.assert_allclose(ours[i], alone, rtol=1e-6, atol=1e-8)
