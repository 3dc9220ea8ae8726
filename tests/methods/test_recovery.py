"""Known truths: variances recovered over seeds, coverage, closed forms of REML, and quadrature for Laplace."""

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize
from scipy.special import roots_hermite

from coterie.methods import hierarchical
from coterie.methods.tree import marginal_likelihood
from coterie.methods.tree.penalised_tree import prepare
from tests.methods import dense
from tests.methods.dense import table

PARENT = (np.repeat(np.arange(12), 6),)
SEEDS = range(40)


def variances(f):
    return np.concatenate([np.diag(f.D_client[0]), *(np.diag(D) for D in f.D_levels), [f.sigma2]])


def test_reml_recovers_variances():
    """Mean over seeds within three standard errors of .49 (clients), .09 (clusters) and 1 (rows)."""
    found = []
    for seed in SEEDS:
        t = table(1000 + seed, counts=(8,) * 72, p=2, parents=PARENT, sd=0.7, sd_up=0.3)
        found.append(variances(hierarchical.fit(*t.setting(), "diagonal")))
    error = np.std(found, axis=0) / np.sqrt(len(found))
    truth = np.array([0.49, 0.49, 0.09, 0.09, 1.0])
    assert np.all(np.abs(np.mean(found, axis=0) - truth) < 3 * error + 0.005)


def test_full_covariances_are_recovered():
    """A correlation of -.6 between intercept and slope."""
    L = np.array([[0.9, 0.0], [-0.6 * 0.6, 0.6 * 0.8]])
    found = []
    for seed in range(20):
        rng = np.random.default_rng(2000 + seed)
        t = table(2000 + seed, counts=(7,) * 80, p=2, sd=0.0)
        u = rng.normal(size=(80, 2)) @ L.T
        f = hierarchical.fit(*dense.replace(t, y=t.y + np.sum(t.X * u[t.codes[0]], axis=1)).setting(), "full")
        found.append(f.D_client[0][np.tril_indices(2)])
    error = np.std(found, axis=0) / np.sqrt(len(found))
    assert np.all(np.abs(np.mean(found, axis=0) - (L @ L.T)[np.tril_indices(2)]) < 3 * error + 0.003)


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_laplace_recovers_variances_of_large_clients(family):
    """Laplace's bias falls with the rows of a client; with 60 it is below 5% of the s.d. here."""
    found = []
    for seed in range(20):
        t = table(3000 + seed, family, counts=(60,) * 40, p=2, z=(0,), sd=0.6, root=[0.2, 0.5])
        found.append(hierarchical.fit(*t.setting()).D_client[0][0, 0] ** 0.5)
    error = np.std(found) / np.sqrt(len(found))
    assert abs(np.mean(found) - 0.6) < 3 * error + 0.03


@pytest.mark.parametrize(
    ("family", "counts"), [("gaussian", (6,) * 60), ("binomial", (40,) * 40), ("poisson", (15,) * 40)]
)
def test_posterior_intervals_cover(family, counts):
    """95% intervals of every client's coefficients hold the truth about 95 times in 100."""
    inside, total = 0, 0
    for seed in range(15):
        t = table(4000 + seed, family, counts=counts, p=2, sd=0.6, root=[0.3, -0.4])
        f = hierarchical.fit(*t.setting(), "diagonal")
        sd = np.sqrt(f.client_cov[:, [0, 2]])
        inside += np.count_nonzero(np.abs(f.client - t.theta) <= 1.96 * sd)
        total += f.client.size
    assert abs(inside / total - 0.95) < 0.025


def test_global_intervals_cover():
    inside = 0
    for seed in range(100):
        t = table(5000 + seed, counts=(5,) * 40, p=2, sd=0.6, root=[0.3, -0.4])
        f = hierarchical.fit(*t.setting(), "diagonal")
        inside += np.count_nonzero(np.abs(f.root - [0.3, -0.4]) <= 1.96 * np.sqrt(np.diag(f.root_cov)))
    assert abs(inside / 200 - 0.95) < 0.05


def anova(m, n, seed, sd=1.0):
    rng = np.random.default_rng(seed)
    code = np.repeat(np.arange(m), n)
    y = 3.0 + sd * rng.normal(size=m)[code] + rng.normal(size=m * n)
    means = y.reshape(m, n).mean(axis=1)
    between = n * np.sum((means - y.mean()) ** 2)
    within = np.sum((y - means[code]) ** 2)
    return dense.Table(np.ones((m * n, 1)), y, [code]), between, within, means


@pytest.mark.parametrize(("m", "n"), [(5, 4), (30, 2), (8, 25)])
def test_balanced_one_way_anova(m, n):
    """REML is (MSB - MSW) / n and MSW; ML has MSB's m - 1 replaced by m. Means shrink by 1 - MSW / MSB."""
    t, between, within, means = anova(m, n, m)
    msb, msw = between / (m - 1), within / (m * (n - 1))
    f = hierarchical.fit(*t.setting())
    assert f.sigma2 == pytest.approx(msw, rel=1e-5)
    assert f.D_client[0, 0, 0] == pytest.approx((msb - msw) / n, rel=1e-4)
    assert f.root[0] == pytest.approx(t.y.mean(), rel=1e-12)
    assert f.root_cov[0, 0] == pytest.approx(msb / (m * n), rel=1e-4)
    np.testing.assert_allclose(f.client[:, 0], t.y.mean() + (1 - msw / msb) * (means - t.y.mean()), rtol=1e-4)
    g = hierarchical.fit(*t.setting(), reml=False)
    assert g.sigma2 == pytest.approx(msw, rel=1e-5)
    assert g.D_client[0, 0, 0] == pytest.approx((between / m - msw) / n, rel=1e-4)


def test_anova_below_the_boundary_is_zero():
    """Where MSB < MSW, REML is 0 and the total mean square."""
    seed = next(s for s in range(100) if (a := anova(6, 4, s, 0.0))[1] / 5 < a[2] / 18)
    t, between, within, _ = anova(6, 4, seed, 0.0)
    f = hierarchical.fit(*t.setting())
    assert f.D_client[0, 0, 0] == 0.0
    assert f.sigma2 == pytest.approx((between + within) / 23, rel=1e-9)


def test_reml_does_not_see_the_fixed_part():
    """Adding X b to y changes neither variances nor the restricted likelihood; ML's residual variance is smaller."""
    t = table(91, counts=(6, 5, 7, 4, 8, 6, 5, 9), p=3, z=(0,))
    f = hierarchical.fit(*t.setting())
    g = hierarchical.fit(*dense.replace(t, y=t.y + t.X @ np.array([5.0, -3.0, 2.0])).setting())
    np.testing.assert_allclose(variances(f), variances(g), rtol=1e-6)
    assert f.log_likelihood == pytest.approx(g.log_likelihood, abs=1e-8)
    np.testing.assert_allclose(g.root - f.root, [5.0, -3.0, 2.0], rtol=1e-6)
    assert hierarchical.fit(*t.setting(), reml=False).sigma2 < f.sigma2


def test_log_likelihood_is_a_normal_density():
    t = table(92, counts=(6, 5, 7, 4, 8, 6), p=2, parents=([0, 0, 1, 1, 2, 2],), weights=True, offset=True)
    f = hierarchical.fit(*t.setting(), "diagonal", reml=False)
    V = np.diag(1 / t.w) * f.sigma2
    for code, D in zip(t.codes, [f.D_client[0], f.D_levels[0]], strict=True):
        V += (code[:, None] == code) * (t.X @ D @ t.X.T)
    density = stats.multivariate_normal.logpdf(t.y, t.off + t.X @ f.root, V)
    assert f.log_likelihood == pytest.approx(density, abs=1e-8)


def adaptive_quadrature(t, sd, root, nodes=40):
    """-2 log-likelihood of a scalar random intercept: Gauss-Hermite around each client's own mode."""
    x, weight = roots_hermite(nodes)
    total = 0.0
    for i in range(int(t.codes[0].max()) + 1):
        r = t.codes[0] == i
        eta = t.off[r] + t.X[r] @ root

        def logf(u, eta=eta, r=r):
            values = dense.point(t.family, eta[:, None] + sd * np.atleast_1d(u), t.y[r][:, None])[0]
            return -t.w[r] @ values - np.atleast_1d(u) ** 2 / 2 - np.log(2 * np.pi) / 2

        u = minimize(lambda v: -logf(v)[0], np.zeros(1), method="BFGS").x[0]
        curvature = sd**2 * (t.w[r] @ dense.point(t.family, eta + sd * u, t.y[r])[2]) + 1
        s = np.sqrt(2 / curvature)
        total += np.log(np.sum(weight * np.exp(logf(u + s * x) + x**2)) * s)
    return -2 * total


@pytest.mark.parametrize(("family", "rows", "tolerance"), [("binomial", 80, 0.02), ("poisson", 40, 0.005)])
def test_laplace_is_close_to_quadrature(family, rows, tolerance):
    """Deviance per client within ``tolerance`` for moderately large clients, and its error falls with their size."""
    errors = []
    for n in (rows // 8, rows):
        t = table(93, family, counts=(n,) * 8, p=2, z=(0,), sd=0.7, root=[0.3, 0.4], weights=True, offset=True)
        fed, problem = t.setting()
        setup = prepare(fed, problem.tree, family, problem.personal, 0)
        root, sd = np.array([0.2, 0.5]), 0.8
        deviance = marginal_likelihood.laplace(fed, setup, [np.full((1, 1, 1), sd)], root / setup.unit, [])[0]
        errors.append(abs(deviance - adaptive_quadrature(t, sd, root)) / 8)
    assert errors[1] < tolerance
    assert errors[1] < errors[0]
