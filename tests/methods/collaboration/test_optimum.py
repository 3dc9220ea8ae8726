"""Weighted averaging, bias correction, their optimum and covariances against independent computations."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.engines import InProcess
from coterie.methods.collaboration.collaborators import Collaborators
from coterie.methods.collaboration.fit import coefficient_covariance
from coterie.methods.collaboration.metric_and_similarity import Metric
from coterie.methods.collaboration.optimisers import SGD, Adam, Momentum
from coterie.methods.collaboration.optimum import optimum
from coterie.methods.weighted_averaging_and_bias_correction import BiasCorrection
from coterie.numerics import keyed_random
from coterie.numerics.arrays import full
from coterie.objectives.glm import GLM
from coterie.objectives.quadratic import Quadratic
from tests.methods.aggregation.test_quarantine_and_memory import M, correcting, last, quadratics, weights


def table(family, seed=0, counts=(6, 9, 4, 12), d=3):
    rng = np.random.default_rng(seed)
    stops, n = np.cumsum(counts), sum(counts)
    X = np.column_stack([np.ones(n), rng.normal(size=(n, d - 1)) * [1.0, 3.0][: d - 1]])
    theta, offset = rng.normal(size=d) * 0.3, 0.2 * rng.normal(size=n)
    eta = X @ theta + offset
    y = {
        "gaussian": lambda: eta + rng.normal(size=n),
        "binomial": lambda: rng.random(n) < 1 / (1 + np.exp(-eta)),
        "poisson": lambda: rng.poisson(np.exp(eta)),
    }[family]()
    return GLM(X, y.astype(float), offset, rng.uniform(0.3, 2.0, n), stops - np.array(counts), stops, family)


LINK = {"gaussian": lambda e: e, "binomial": lambda e: 1 / (1 + np.exp(-e)), "poisson": np.exp}


def gradient_of(o, k, theta, at=None):
    """The mean loss's gradient of client k, or of the rows ``at`` drawn of it."""
    rows = np.arange(o.starts[k], o.stops[k])
    W, n = o.weights[rows].sum(), len(rows)
    rows, scale = (rows, 1.0) if at is None else (rows[at], n / len(at))
    mean = LINK[o.family.name](o.X[rows] @ theta + o.offset[rows])
    return scale * (o.weights[rows] * (mean - o.y[rows])) @ o.X[rows] / W


@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("local", [1, 3])
@pytest.mark.parametrize("optimiser", [SGD(), Momentum(0.8), Adam()], ids=["sgd", "momentum", "adam"])
@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_bias_correction_on_tables_is_the_loop_in_the_metric_s_parameters(family, optimiser, local, batch):
    """Row weights, offsets, keyed minibatches, local steps on f_0 and f_k - <c, .>, in u with theta = at + R u."""
    o, n, d, T = table(family), 4, 3, 7
    rng = np.random.default_rng(2)
    W, at, R = (
        weights(m=n),
        0.1 * rng.normal(size=d),
        np.linalg.inv(np.diag([1.0, 1.0, 3.0]) + 0.2 * rng.normal(size=(d, d))),
    )
    alpha, beta, held, keep = np.array([0.0, 0.4, 0.7, 1.0]), lambda t: 1 / (2 + t), 0.05, 0.3
    eta = lambda t: np.array([0.05, 0.04, 0.03, 0.02]) / (1 + 0.1 * t)  # noqa: E731
    exchange = {"pairs": Collaborators.of_all(W), "metric": Metric(at, R), "batch": batch, "local": local}
    exchange |= {"prior_curvature": held, "optimiser": optimiser}
    method = BiasCorrection(**exchange, alpha=alpha, eta=eta, beta=beta, keep=keep)
    state = last(method, InProcess(o, seed=9), T)

    def path(k, u, t, size, shift):
        u, total = u.copy(), np.zeros(d)
        for s in range(local):
            v = keyed_random.uniform(9, "rows", [k], t * local + s, max(batch, 1))[0]
            rows = (v * (o.stops[k] - o.starts[k])).astype(int) if batch else None
            g = R.T @ gradient_of(o, k, at + R @ u, rows)
            total += g / local
            u -= size * (g - shift)
        return total

    u, c = np.zeros((n, d)), np.zeros((n, d))
    m1, m2 = np.zeros((n, d)), np.zeros((n, d))
    for t in range(T):
        for i in range(n):
            size = eta(t)[i]
            shift = (1 - keep) * c[i]  # still 0 in the first step
            own = path(i, u[i], t, size, 0.0)
            average = sum(W[i, k] * path(k, u[i], t, size, shift) for k in range(n))
            b = average - own
            c[i] = b if t == 0 else c[i]
            g = (1 - alpha[i]) * own + alpha[i] * (average - (1 - keep) * c[i]) + held * u[i]
            c[i] = (1 - beta(t)) * c[i] + beta(t) * b
            if isinstance(optimiser, Momentum):
                m1[i] = 0.8 * m1[i] + 0.2 * g
                g = m1[i]
            elif isinstance(optimiser, Adam):
                m1[i], m2[i] = 0.9 * m1[i] + 0.1 * g, 0.999 * m2[i] + 0.001 * g**2
                g = m1[i] / (1 - 0.9 ** (t + 1)) / (np.sqrt(m2[i] / (1 - 0.999 ** (t + 1))) + 1e-8)
            u[i] = u[i] - size * local * g
    np.testing.assert_allclose(state["x"], u, rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose(state["c"], c, rtol=1e-7, atol=1e-10)


@pytest.mark.soak
def test_an_oracle_also_corrects_local_steps_up_to_their_drift_and_is_asked_once_a_step_without_them():
    A, b = quadratics()
    calls = []

    def oracle(t, x):
        calls.append(t)
        g = np.einsum("kij,mj->mki", A, x) - b
        return np.einsum("mk,mki->mi", weights(), g) - g[np.arange(M), np.arange(M)]

    fed, who, alone = InProcess(Quadratic(A, b)), Collaborators.of_all(weights()), np.linalg.solve(A, b[:, :, None])
    last(correcting(who, oracle=oracle), fed, 3)
    assert calls == [0, 1, 2]
    off = [
        np.abs(last(correcting(who, listening={"local": 3}, oracle=oracle, eta=eta), fed, 1500)["x"] - alone[:, :, 0])
        for eta in (0.02, 0.01)
    ]
    assert off[0].max() < 0.02
    np.testing.assert_allclose(off[0].max() / off[1].max(), 2.0, rtol=0.1)


def test_newton_comes_back_from_steps_that_overflow():
    """Counts a million times the start's mean: the first Newton step is a million long."""
    rng = np.random.default_rng(0)
    y = np.concatenate([rng.poisson(1e6, 10), rng.poisson(2, 10), np.zeros(10)]).astype(float)
    X, starts = np.column_stack([np.ones(30), rng.normal(size=30)]), np.array([0, 10, 20])
    fed = InProcess(GLM(X, y, np.zeros(30), np.ones(30), starts, starts + 10, "poisson"))
    who, metric = Collaborators.of_all(weights(m=3)), Metric(np.zeros(2), np.eye(2), 1.0)
    for alpha in (np.zeros(3), np.array([0.1, 0.5, 1.0])):
        found = optimum(fed, who, alpha, metric)
        assert found.reached.all()
        V = (1 - alpha)[:, None] * np.eye(3) + alpha[:, None] * weights(m=3)
        np.testing.assert_allclose(found.prior_curvature, (V**2 / 10).sum(axis=1))
        for i, theta in enumerate(found.theta):
            g = V[i] @ [X[s : s + 10].T @ (np.exp(X[s : s + 10] @ theta) - y[s : s + 10]) / 10 for s in starts]
            scale = V[i] @ [np.abs(X[s : s + 10]).T @ y[s : s + 10] / 10 for s in starts]
            assert (np.abs(g + found.prior_curvature[i] * theta) <= 1e-9 * (1.0 + scale)).all()


@pytest.mark.soak("alpha2")
@pytest.mark.parametrize(
    "alpha", [pytest.param([0.0] * 4, marks=pytest.mark.soak), [0.3, 0.6, 0.9, 0.5], [0.95, 0.99, 1.0, 0.9]]
)
def test_spread_is_that_of_refits_where_nobody_is_biased(alpha):
    """600 outcomes with row weights, some of them 0, for the same columns: no more than noise off."""
    rng, o, runs = np.random.default_rng(0), table("gaussian"), 600
    n, alpha, w = len(o.y), np.array(alpha), o.weights.copy()
    w[[1, 8]] = 0.0
    who, metric, mean = Collaborators.of_all(weights(m=4)), Metric.plain(3), o.X @ [1.0, -0.5, 0.2] + o.offset
    theta, sigma2 = [], []
    for _ in range(runs):
        y = mean + 1.7 * rng.normal(size=n) / np.sqrt(np.where(w > 0.0, w, 1.0))
        fed = InProcess(GLM(o.X, y, o.offset, w, o.starts, o.stops, "gaussian"))
        theta.append(optimum(fed, who, alpha, metric).theta)
        covariance, residual = coefficient_covariance(fed, who, alpha, metric, theta[-1], lambda: 0.0)
        sigma2.append(residual)
    assert abs(np.mean(sigma2) - 1.7**2) < 4.0 * np.std(sigma2) / np.sqrt(runs)
    expected, theta = full(covariance) / residual * 1.7**2, np.array(theta)
    for i in range(4):
        ratio = np.linalg.eigvals(np.linalg.solve(expected[i], np.cov(theta[:, i].T))).real
        np.testing.assert_allclose(ratio, 1.0, atol=0.25)


def test_a_run_that_diverges_on_counts_is_no_error_of_linear_algebra():
    rng = np.random.default_rng(6)
    client, x, z = np.repeat(np.arange(15), 8), rng.normal(size=120), rng.normal(size=120)
    b = rng.normal(0, 0.5, (15, 3)) + rng.normal(0, 0.4, (3, 3))[np.arange(15) % 3] + [0.5, 0.6, -0.3]
    y = rng.poisson(np.exp(np.minimum(b[client, 0] + b[client, 1] * x + b[client, 2] * z, 4.0)))
    df = pd.DataFrame({"y": y, "x": x, "z": z, "g": client})
    fit = coterie.fit(df, "y ~ x + z", "g", family="poisson", method="bias-correction", splits=2)
    assert fit.recommended != "bias-correction" and np.isfinite(fit.comparison.loc[fit.recommended, "loss_rows"])


def test_newton_ends_where_rows_say_nothing_of_a_direction():
    """20 levels of which two clients lack some: steps along those end in rounding, and took 65 exchanges."""
    rng, n = np.random.default_rng(0), 180
    level, starts = rng.integers(0, 20, n), np.array([0, 60, 120])
    level[:60] %= 10
    X = np.column_stack([np.ones(n), level[:, None] == np.arange(1, 20)]).astype(np.float64)
    y = 300.0 * (rng.normal(size=n) + level % 3)
    fed = InProcess(GLM(X, y, np.zeros(n), np.ones(n), starts, starts + 60, "gaussian"))
    metric = Metric(np.linalg.lstsq(X, y, rcond=None)[0], np.linalg.cholesky(np.linalg.inv(X.T @ X / n)))
    found = optimum(fed, Collaborators.of_all(weights(m=3)), np.array([0.0, 0.0, 0.5]), metric)
    assert found.exchanges <= 5 and found.reached.all()
    for k in (0, 1):
        rows = slice(starts[k], starts[k] + 60)
        alone = X[rows] @ np.linalg.lstsq(X[rows], y[rows], rcond=None)[0]
        np.testing.assert_allclose(X[rows] @ found.theta[k], alone, atol=1e-4)
