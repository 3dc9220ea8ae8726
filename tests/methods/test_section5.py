"""Paper 001, sections 5 and 6.1: what the exact solver returns is every estimator that the paper names there.

Everything on the other side is written out as the paper prints it, or with its slips corrected: dense
covariances, pseudo-inverses, closed forms.
"""

import numpy as np
import pytest

from coterie.data.clients import Clients
from coterie.data.splits import Splits
from coterie.engines.local_engines import InProcess
from coterie.evidence.table_selection import search
from coterie.methods import given_strengths, local, pooled
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.relations.clusters import ClusterTree
from coterie.runs.run_table_method import objective


class World:
    """Model (5.1): clients of known clusters, their designs, and all variances."""

    def __init__(self, seed, designs, clusters, between, within, noise, center=None):
        rng = np.random.default_rng(seed)
        self.X, self.clusters = designs, np.asarray(clusters)
        m, d, k = len(designs), designs[0].shape[1], self.clusters.max() + 1
        self.between, self.within, self.noise = between, np.broadcast_to(within, k), np.broadcast_to(noise, m)
        center = np.zeros(d) if center is None else center
        cluster = center + np.sqrt(between) * rng.normal(size=(k, d))
        self.theta = cluster[self.clusters] + np.sqrt(self.within[self.clusters])[:, None] * rng.normal(size=(m, d))
        self.y = [
            X @ t + np.sqrt(s) * rng.normal(size=len(X))
            for X, t, s in zip(designs, self.theta, self.noise, strict=True)
        ]

    def setting(self, flat=False):
        """A federation and its problem; residual variances are row weights, so that sigma^2 is 1."""
        counts = [len(y) for y in self.y]
        codes = np.repeat(np.arange(len(counts)), counts)
        weights = np.repeat(1.0 / self.noise, counts)
        clusters = None if flat else self.clusters[codes]
        c = Clients.from_arrays(np.concatenate(self.X), np.concatenate(self.y), codes, clusters, weights=weights)
        problem = GroupedProblem(ClusterTree.of(c), "gaussian", np.arange(c.X.shape[1]), None)
        return InProcess(objective(c, "gaussian"), c.clusters, ids=c.ids), problem

    def ours(self):
        """Theorem 5.1's strengths: inverse variances."""
        gamma, lam = 1.0 / self.within[self.clusters], 1.0 / self.between
        return given_strengths.given(*self.setting(), gamma, lam)

    def covariance(self):
        """Of the clients' parameters around the centre, (m, m); times the identity over coordinates."""
        same = self.clusters[:, None] == self.clusters
        return self.between * same + np.diag(self.within[self.clusters])

    def around(self, i):
        """Of everybody's parameters around client i's, as in (A.1): theta_i is what is unknown."""
        K = self.covariance()
        return K - K[[i]] - K[:, [i]] + K[i, i]


def gaussian_designs(seed, counts, d):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(n, d)) for n in counts]


def orthogonal_designs(seed, counts, d, beta):
    """X_i with ``X_i' X_i = beta_i I``."""
    rng = np.random.default_rng(seed)
    return [np.linalg.qr(rng.normal(size=(n, d)))[0] * np.sqrt(b) for n, b in zip(counts, beta, strict=True)]


CLUSTERS = [0, 0, 0, 1, 1, 2, 2, 2]
COUNTS = [7, 2, 1, 5, 9, 4, 3, 6]


@pytest.fixture(scope="module")
def general():
    noise = np.array([1.0, 0.5, 2.0, 1.0, 3.0, 0.7, 1.0, 1.5])
    return World(1, gaussian_designs(2, COUNTS, 4), CLUSTERS, 0.8, [1.0, 0.3, 2.0], noise, np.arange(4.0))


def test_marginalised_estimator_of_every_client(general):
    """Proposition 5.3 (A.11): generalised least squares for theta_i, given all clients' raw data.

    Designs are unequal, and three of eight clients have fewer rows than columns.
    """
    X, y = np.concatenate(general.X), np.concatenate(general.y)
    codes = np.repeat(np.arange(len(COUNTS)), COUNTS)
    ours = general.ours().client
    for i in range(len(COUNTS)):
        V = general.around(i)[np.ix_(codes, codes)] * (X @ X.T) + np.diag(general.noise[codes])
        W = np.linalg.inv(V)
        np.testing.assert_allclose(ours[i], np.linalg.solve(X.T @ W @ X, X.T @ W @ y), rtol=1e-10, atol=1e-10)


def test_best_linear_unbiased_prediction(general):
    """Henderson: w by generalised least squares, theta_i by its covariance with everything."""
    X, y = np.concatenate(general.X), np.concatenate(general.y)
    codes = np.repeat(np.arange(len(COUNTS)), COUNTS)
    K = general.covariance()
    W = np.linalg.inv(K[np.ix_(codes, codes)] * (X @ X.T) + np.diag(general.noise[codes]))
    w = np.linalg.solve(X.T @ W @ X, X.T @ W @ y)
    f = general.ours()
    np.testing.assert_allclose(f.root, w, rtol=1e-10)
    blup = w + (K[:, codes] * (W @ (y - X @ w))) @ X
    np.testing.assert_allclose(f.client, blup, rtol=1e-10, atol=1e-10)


@pytest.fixture(scope="module")
def orthogonal():
    beta = np.array([3.0, 1.0, 0.4, 2.0, 5.0, 1.0, 8.0, 0.7])
    noise = np.array([1.0, 0.5, 2.0, 1.0, 3.0, 0.7, 1.0, 1.5])
    X = orthogonal_designs(3, [6, 5, 7, 5, 9, 8, 6, 5], 5, beta)
    return World(4, X, CLUSTERS, 0.8, [1.0, 0.3, 2.0], noise, np.arange(5.0)), beta


def test_closed_form_of_theorem_51(orthogonal):
    """A.10: theta_i, w_j and w where ``X_i' X_i = beta_i I``."""
    world, beta = orthogonal
    d = np.array([X.T @ y / b for X, y, b in zip(world.X, world.y, beta, strict=True)])
    gamma, lam, precision = 1.0 / world.within[world.clusters], 1.0 / world.between, beta / world.noise
    C = gamma * precision / (precision + gamma)
    Cj = np.bincount(world.clusters, C)
    mean = np.array([C[world.clusters == j] @ d[world.clusters == j] for j in range(3)]) / Cj[:, None]
    D = lam * Cj / (lam + Cj)
    w = D @ mean / D.sum()
    wj = (Cj[:, None] * mean + lam * w) / (Cj + lam)[:, None]
    theta = (precision[:, None] * d + gamma[:, None] * wj[world.clusters]) / (precision + gamma)[:, None]
    f = world.ours()
    np.testing.assert_allclose(f.root, w, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(f.nodes[0], wj, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(f.client, theta, rtol=1e-10, atol=1e-12)


def test_best_given_own_rows_and_the_estimates_of_others(orthogonal):
    """Theorem 5.1 (A.1): generalised least squares given ``(X_i, y_i)`` and everybody else's own estimates."""
    world, beta = orthogonal
    ours = world.ours().client
    for i in range(len(beta)):
        around, rows, d = world.around(i), world.X[i], world.X[i].shape[1]
        others = [j for j in range(len(beta)) if j != i]
        own = [world.X[j].T @ world.y[j] / beta[j] for j in others]
        A = np.concatenate([rows, *[np.eye(d)] * len(others)])
        Omega = around[np.ix_(others, others)] + np.diag(world.noise[others] / beta[others])
        n = len(rows)
        V = np.zeros((len(A), len(A)))
        V[:n, :n], V[n:, n:] = world.noise[i] * np.eye(n), np.kron(Omega, np.eye(d))
        W = np.linalg.inv(V)
        gls = np.linalg.solve(A.T @ W @ A, A.T @ W @ np.concatenate([world.y[i], *own]))
        np.testing.assert_allclose(ours[i], gls, rtol=1e-10, atol=1e-10)


def test_no_worse_than_alone_or_all_together():
    """Corollary 5.2 by simulation: paired differences of the mean squared errors, 3 standard errors."""
    beta = np.array([3.0, 1.0, 0.4, 2.0, 5.0, 1.0, 8.0, 0.7])
    errors = []
    for seed in range(200):
        X = orthogonal_designs(seed, [8] * 8, 5, beta)
        world = World(1000 + seed, X, CLUSTERS, 0.5, [0.5, 0.2, 1.0], 1.0, np.ones(5))
        fits = [world.ours(), local.fit(*world.setting()), pooled.fit(*world.setting())]
        errors.append([np.sum((f.client - world.theta) ** 2, axis=1) for f in fits])
    ours, alone, together = np.array(errors).transpose(1, 0, 2)  # (runs, clients) each
    for other in (alone, together):
        gain = other - ours
        error = gain.std(axis=0, ddof=1) / np.sqrt(len(gain))
        assert np.all(gain.mean(axis=0) > -3 * error)
        assert gain.mean() > 3 * gain.mean(axis=1).std(ddof=1) / np.sqrt(len(gain))


@pytest.mark.parametrize("n", [3, 10])
def test_weights_of_appendix_a12(n):
    """Unit variances, one cluster: ``(n + 1) / 2n`` of the own observation. As printed, the weights are swapped."""
    d = 4
    world = World(n, [np.eye(d)] * n, [0] * n, 1.0, 1.0, 1.0)
    f = given_strengths.given(*world.setting(flat=True), 1.0)
    y = np.array(world.y)
    rest = np.array([np.delete(y, i, axis=0).mean(axis=0) for i in range(n)])
    np.testing.assert_allclose(f.client, (n + 1) / (2 * n) * y + (n - 1) / (2 * n) * rest, rtol=1e-12)
    assert np.abs(f.client - ((n - 1) / (2 * n) * y + (n + 1) / (2 * n) * rest)).max() > 0.01


def single_cluster(X, y, lam):
    """Section 6.1's closed form of the single-cluster estimator."""
    n, d = len(X), X[0].shape[1]
    grams = [x.T @ x for x in X]
    alone = [np.linalg.pinv(G) @ x.T @ v for G, x, v in zip(grams, X, y, strict=True)]
    inverses = [np.linalg.inv(G + lam * np.eye(d)) for G in grams]
    right = sum(H @ G @ t for H, G, t in zip(inverses, grams, alone, strict=True)) / n
    center = np.linalg.solve(np.eye(d) - lam / n * sum(inverses), right)
    return np.array([H @ (G @ t + lam * center) for H, G, t in zip(inverses, grams, alone, strict=True)])


@pytest.mark.parametrize("rows", [1, 5, 25])
@pytest.mark.parametrize("lam", [0.01, 0.5, 2.0])
def test_single_cluster(rows, lam):
    world = World(rows, gaussian_designs(5, [rows] * 12, 8), np.arange(12) // 4, 1.0, 1.0, 1.0)
    f = given_strengths.given(*world.setting(flat=True), lam)
    np.testing.assert_allclose(f.client, single_cluster(world.X, world.y, lam), rtol=1e-7, atol=1e-9)


def test_cross_validation_of_the_single_cluster():
    """20 evenly spaced points in [0.01, 2], on the same held-out rows as the closed form."""
    world = World(7, gaussian_designs(6, [10] * 30, 8), np.arange(30) // 6, 1.0, 1.0, 1.0)
    codes = np.repeat(np.arange(30), 10)
    c = Clients.from_arrays(np.concatenate(world.X), np.concatenate(world.y), codes)
    problem = GroupedProblem(ClusterTree(), "gaussian", np.arange(8), None)
    grid, splits = np.linspace(0.01, 2.0, 20), Splits(3, 0.2, seed=4)
    surface = search(c, problem, {"gamma": list(grid)}, splits)
    twin, rows = np.zeros(20), 0
    for test in splits.masks(c):
        parts = [codes == i for i in range(30)]
        X, y = [c.X[~test & p] for p in parts], [c.y[~test & p] for p in parts]
        for g, lam in enumerate(grid):
            theta = single_cluster(X, y, lam)
            twin[g] += np.sum((c.y - np.sum(c.X * theta[codes], axis=1))[test] ** 2)
        rows += test.sum()
    np.testing.assert_allclose(surface.loss[:, 0], twin / rows, rtol=1e-8)
    assert surface.chosen == {"gamma": grid[np.argmin(twin)]}


@pytest.mark.parametrize("rows", [1, 5, 8, 25])
def test_baselines_by_pseudo_inverse(rows):
    """Section 6.1's single model and locally trained models, rows fewer than columns too."""
    world = World(rows, gaussian_designs(8, [rows] * 12, 8), np.arange(12) // 4, 1.0, 1.0, 1.0)
    X, y = np.concatenate(world.X), np.concatenate(world.y)
    together = np.linalg.pinv(X.T @ X) @ (X.T @ y)
    np.testing.assert_allclose(pooled.fit(*world.setting()).client, np.tile(together, (12, 1)), rtol=1e-8, atol=1e-10)
    alone = [np.linalg.pinv(x.T @ x, rcond=1e-12) @ (x.T @ v) for x, v in zip(world.X, world.y, strict=True)]
    np.testing.assert_allclose(local.fit(*world.setting()).client, alone, rtol=1e-6, atol=1e-8)
