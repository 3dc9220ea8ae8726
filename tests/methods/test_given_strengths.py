"""Given strengths: against one dense Newton solve of (2.3) over everything at once, and the gradient of (2.1)."""

import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.methods import given_strengths, local
from tests.methods import dense
from tests.methods.dense import table

FAMILIES = ["gaussian", "binomial", "poisson"]
COUNTS = (9, 12, 8, 10, 14, 7)
ONE, TWO = ([0, 0, 1, 1, 2, 2],), ([0, 0, 1, 1, 2, 2], [0, 0, 1])


def dense_23(t, gamma, lam):
    """Minimise (2.3) over shared columns, clients, every level's nodes and the root; all strengths finite.

    ``lam`` has one array for each level of clusters. Returns (m, p) clients, the levels' (k, p), the root (p,).
    """
    p, z = t.X.shape[1], t.personal
    shared = [j for j in range(p) if j not in z]
    q, sizes = len(z), [int(c.max()) + 1 for c in t.codes] + [1]
    at = np.cumsum([len(shared), *(k * q for k in sizes)])
    B = np.zeros((len(t.y), at[-1]))
    B[:, : len(shared)] = t.X[:, shared]
    for r, i in enumerate(t.codes[0]):
        B[r, at[0] + i * q : at[0] + (i + 1) * q] = t.X[r, z]
    P = np.zeros((at[-1], at[-1]))
    uppers = [*t.codes[1:], np.zeros(len(t.y), dtype=int)]
    for level, (code, upper, tie) in enumerate(zip(t.codes, uppers, [gamma, *lam], strict=True)):
        for node in range(sizes[level]):
            parent = upper[code == node][0]
            for j in range(q):
                a, b = at[level] + node * q + j, at[level + 1] + parent * q + j
                P[[a, b, a, b], [a, b, b, a]] += tie[node] * np.array([1, 1, -1, -1])
    v, f, _ = dense.newton(t.family, B, t.y, t.off, t.w, P)
    nodes = []
    for level, k in enumerate(sizes):
        theta = np.empty((k, p))
        theta[:, shared] = v[: len(shared)]
        theta[:, z] = v[at[level] : at[level + 1]].reshape(k, q)
        nodes.append(theta)
    return nodes[0], nodes[1:-1], nodes[-1][0], f


def gradient_21(t, theta, gamma, alpha):
    """Gradient of (2.1) by every client's parameters; averages move along, which by (2.2) adds nothing."""
    m = len(theta)
    cluster = np.array([t.codes[1][t.codes[0] == i][0] for i in range(m)])
    eta = t.off + np.sum(t.X * theta[t.codes[0]], axis=1)
    score = dense.point(t.family, eta, t.y)[1]
    f = np.array([-(t.w * score)[t.codes[0] == i] @ t.X[t.codes[0] == i] for i in range(m)])
    k = int(cluster.max()) + 1
    Gamma = np.array([gamma[cluster == j].sum() for j in range(k)])
    mean = np.array([gamma[cluster == j] @ theta[cluster == j] for j in range(k)]) / np.maximum(Gamma, 1e-300)[:, None]
    total = (alpha * Gamma) @ mean / max((alpha * Gamma).sum(), 1e-300)
    a, g = alpha[cluster][:, None], gamma[:, None]
    return f + (1 - a) * g * (theta - mean[cluster]) + a * g * (theta - total), np.abs(f).max() + 1


def objective_21(t, theta, gamma, alpha):
    """(2.1) itself, averages by (2.2) as MATH-checked: weighted by alpha_j Gamma_j."""
    m = len(theta)
    cluster = np.array([t.codes[1][t.codes[0] == i][0] for i in range(m)])
    eta = t.off + np.sum(t.X * theta[t.codes[0]], axis=1)
    k = int(cluster.max()) + 1
    Gamma = np.array([gamma[cluster == j].sum() for j in range(k)])
    mean = np.array([gamma[cluster == j] @ theta[cluster == j] / Gamma[j] for j in range(k)])
    total = (alpha * Gamma) @ mean / (alpha * Gamma).sum()
    own = ((theta - mean[cluster]) ** 2).sum(axis=1)
    far = ((theta - total) ** 2).sum(axis=1)
    a = alpha[cluster]
    return t.w @ dense.point(t.family, eta, t.y)[0] + gamma @ ((1 - a) * own + a * far) / 2


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("parents", [(), ONE, TWO], ids=["0", "1", "2"])
@pytest.mark.parametrize("z", [(), (0,), (2, 1)], ids=str)
def test_23_against_a_dense_solve(parents, family, z):
    t = table(21, family, COUNTS, 3, parents, z, weights=True, offset=True, scale=np.array([1.0, 3.0, 0.2]))
    rng = np.random.default_rng(3)
    gamma = rng.uniform(0.3, 5.0, 6)
    lam = [rng.uniform(0.3, 5.0, c.max() + 1) for c in t.codes[1:]]
    f = given_strengths.given(*t.setting(), gamma, lam)
    client, nodes, root, _ = dense_23(t, gamma, lam)
    np.testing.assert_allclose(f.client, client, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(f.root, root, rtol=1e-6, atol=1e-7)
    for ours, theirs in zip(f.nodes, nodes, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_number_is_the_same_for_all(family):
    t = table(22, family, COUNTS, 2, TWO)
    one = given_strengths.given(*t.setting(), 2.0, 0.7)
    many = given_strengths.given(*t.setting(), np.full(6, 2.0), [np.full(3, 0.7), 0.7])
    np.testing.assert_allclose(one.client, many.client, rtol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "alpha", [np.array([0.2, 0.5, 0.9]), np.zeros(3), np.ones(3), np.array([0.0, 1.0, 0.4])], ids=str
)
def test_21_has_no_gradient_at_the_solution(family, alpha):
    t = table(23, family, COUNTS, 2, ONE, weights=True, offset=True)
    gamma = np.random.default_rng(4).uniform(0.2, 4.0, 6)
    f = given_strengths.given(*t.setting(), gamma, alpha=alpha)
    gradient, size = gradient_21(t, f.client, gamma, alpha)
    assert np.abs(gradient).max() <= 1e-8 * size


@pytest.mark.parametrize("family", FAMILIES)
def test_21_is_lowest_at_the_solution(family):
    t = table(24, family, COUNTS, 2, ONE)
    rng = np.random.default_rng(5)
    gamma, alpha = rng.uniform(0.2, 4.0, 6), rng.uniform(0.1, 0.9, 3)
    theta = given_strengths.given(*t.setting(), gamma, alpha=alpha).client
    lowest = objective_21(t, theta, gamma, alpha)
    for size in (1e-3, 0.1, 1.0):
        assert objective_21(t, theta + size * rng.normal(size=theta.shape), gamma, alpha) > lowest


def test_alpha_is_lambda_of_proposition_22():
    t = table(25, "gaussian", COUNTS, 2, ONE)
    rng = np.random.default_rng(6)
    gamma, lam = rng.uniform(0.2, 4.0, 6), rng.uniform(0.2, 4.0, 3)
    total = np.array([gamma[:2].sum(), gamma[2:4].sum(), gamma[4:].sum()])
    one = given_strengths.given(*t.setting(), gamma, lam)
    other = given_strengths.given(*t.setting(), gamma, alpha=lam / (lam + total))
    np.testing.assert_allclose(one.client, other.client, rtol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_clusters_where_lambda_is_not_given(family):
    t = table(26, family, COUNTS, 2, ONE)
    one = given_strengths.given(*t.setting(), 1.5)
    flat = given_strengths.given(*dense.replace(t, codes=t.codes[:1]).setting(), 1.5)
    np.testing.assert_allclose(one.client, flat.client, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(one.nodes[0], np.tile(one.root, (3, 1)), rtol=1e-12)


def test_a_client_of_gamma_zero_is_alone():
    """It equals its own least squares, and the others are what they would be without it."""
    t = table(27, "gaussian", COUNTS, 3, ONE)
    gamma = np.array([1.0, 0.0, 2.0, 0.5, 0.0, 3.0])
    f = given_strengths.given(*t.setting(), gamma, 1.3)
    for i in (1, 4):
        rows = t.codes[0] == i
        np.testing.assert_allclose(f.client[i], np.linalg.lstsq(t.X[rows], t.y[rows])[0], rtol=1e-9)
    kept = ~np.isin(t.codes[0], [1, 4])
    rest = dense.replace(t, X=t.X[kept], y=t.y[kept], codes=[c[kept] for c in t.codes])
    g = given_strengths.given(*rest.setting(), gamma[[0, 2, 3, 5]], 1.3)
    np.testing.assert_allclose(f.client[[0, 2, 3, 5]], g.client, rtol=1e-9)
    np.testing.assert_allclose(f.root, g.root, rtol=1e-9)


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_a_glm_client_of_gamma_zero_is_held_at_the_means_of_columns(family):
    t = table(28, family, COUNTS, 2, ONE)
    gamma = np.array([1.0, 0.0, 2.0, 0.5, 0.0, 3.0])
    fed, problem = t.setting()
    f = given_strengths.given(fed, problem, gamma, 1.3)
    P = np.diag(t.X.std(axis=0))
    P[0] = t.X.mean(axis=0)
    for i in (1, 4):
        rows = t.codes[0] == i
        prior = P.T @ P / 2.5**2
        alone = dense.newton(family, t.X[rows], t.y[rows], t.off[rows], t.w[rows], prior)[0]
        np.testing.assert_allclose(f.client[i], alone, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(f.client[[1, 4]], local.fit(*t.setting()).client[[1, 4]], rtol=1e-7, atol=1e-9)
    kept = ~np.isin(t.codes[0], [1, 4])
    rest = dense.replace(t, X=t.X[kept], y=t.y[kept], codes=[c[kept] for c in t.codes])
    client, _, root, _ = dense_23(t=_renumbered(rest), gamma=gamma[[0, 2, 3, 5]], lam=[np.full(3, 1.3)])
    np.testing.assert_allclose(f.client[[0, 2, 3, 5]], client, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(f.root, root, rtol=1e-6, atol=1e-7)


def _renumbered(t):
    return dense.replace(t, codes=[np.unique(c, return_inverse=True)[1] for c in t.codes])


@pytest.mark.parametrize("family", FAMILIES)
def test_all_clients_of_gamma_zero_share_only_the_shared_columns(family):
    """Personal columns are free, shared ones are fitted together: the dense solve with vanishing strengths."""
    t = table(29, family, COUNTS, 3, ONE, z=(0, 1))
    f = given_strengths.given(*t.setting(), 0.0, 1.0)
    p, mean, sd = 3, t.X.mean(axis=0), t.X.std(axis=0)
    B = np.zeros((len(t.y), 1 + 2 * 6))
    B[:, 0] = t.X[:, 2]
    for r, i in enumerate(t.codes[0]):
        B[r, 1 + 2 * i : 3 + 2 * i] = t.X[r, :2]
    prior = np.zeros((12, 13))  # of intercepts where columns have their means, the shared one too, and of slopes
    for i in range(6 if family != "gaussian" else 0):
        prior[2 * i, [0, 1 + 2 * i, 2 + 2 * i]] = mean[[2, 0, 1]] / 2.5
        prior[2 * i + 1, 2 + 2 * i] = sd[1] / 2.5
    v = dense.newton(family, B, t.y, t.off, t.w, prior.T @ prior)[0]
    np.testing.assert_allclose(f.client[:, :2], v[1:].reshape(6, 2), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(f.client[:, p - 1], v[0], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("family", FAMILIES)
def test_clusters_apart_are_as_good_as_fitted_one_by_one(family):
    """lambda_j = 0, also with a shared column; a GLM's cluster alone is held by the weak prior only."""
    t = table(30, family, (20, 25, 18, 22, 24, 21), 2, ONE)
    f = given_strengths.given(*t.setting(), 2.0, 0.0)
    for j in range(3):
        rows = t.codes[1] == j
        one = _renumbered(dense.replace(t, X=t.X[rows], y=t.y[rows], codes=[c[rows] for c in t.codes[:1]]))
        alone = given_strengths.given(*one.setting(), 2.0)
        tolerance = 1e-8 if family == "gaussian" else 0.2
        np.testing.assert_allclose(f.client[2 * j : 2 * j + 2], alone.client, rtol=tolerance, atol=tolerance)


def test_clusters_apart_share_the_shared_columns():
    t = table(31, "gaussian", COUNTS, 3, ONE, z=(0, 1))
    f = given_strengths.given(*t.setting(), 2.0, 0.0)
    near = dense_23(t, np.full(6, 2.0), [np.full(3, 1e-9)])
    np.testing.assert_allclose(f.client, near[0], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("family", FAMILIES)
def test_infinite_strength_is_one_model(family):
    t = table(32, family, COUNTS, 2, ONE)
    f = given_strengths.given(*t.setting(), np.inf, np.inf)
    one = dense.newton(family, t.X, t.y, t.off, t.w, np.zeros((2, 2)))[0]
    np.testing.assert_allclose(f.client, np.tile(one, (6, 1)), rtol=1e-7)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cluster_whose_clients_are_all_alone(family):
    t = table(33, family, COUNTS, 2, ONE)
    gamma = np.array([0.0, 0.0, 1.0, 2.0, 1.0, 1.0])
    for alpha in (np.array([1.0, 0.5, 0.5]), np.array([0.0, 0.5, 0.5])):
        f = given_strengths.given(*t.setting(), gamma, alpha=alpha)
        assert np.all(np.isfinite(f.client))
        assert np.all(np.isfinite(f.nodes[0]))


def test_separated_clusters_apart_stay_finite():
    X = np.c_[np.ones(24), np.tile([-1.0, 1.0], 12)]
    t = dense.Table(X, (X[:, 1] > 0).astype(float), [np.repeat(np.arange(4), 6), np.repeat([0, 1], 12)], "binomial")
    for lam in (0.0, 1.0):
        for gamma in (1e-3, np.array([0.0, 1.0, 1.0, 0.0])):
            f = given_strengths.given(*t.setting(), gamma, lam)
            assert np.all(np.isfinite(f.client))
            assert np.abs(f.client).max() < 100


@pytest.mark.parametrize(
    ("strengths", "words"),
    [
        ({"gamma": -1.0}, "gamma"),
        ({"gamma": np.ones(5)}, "6 of them"),
        ({"gamma": 1.0, "lam": -1.0}, "lam"),
        ({"gamma": 1.0, "lam": [1.0, 2.0]}, "1 level:"),
        ({"gamma": 1.0, "alpha": 1.5}, "between 0"),
        ({"gamma": np.array([1, 1, 1, np.nan, 1, 1])}, "gamma"),
    ],
)
def test_strengths_that_do_not_fit(strengths, words):
    t = table(34, "gaussian", COUNTS, 2, ONE)
    with pytest.raises(CoterieError, match=words):
        given_strengths.given(*t.setting(), **strengths)
