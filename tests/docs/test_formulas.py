"""The formulas of docs/model.md and docs/rounds.md, minimised as they are written there, against `coterie.fit`."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize

import coterie
from coterie.relations.clusters import ClusterTies

M, K, D = 7, 3, 2
CLUSTER = np.array([0, 0, 0, 1, 1, 2, 2])  # j(i)
ROWS = np.array([5, 9, 14, 6, 8, 30, 4])
GAMMA = np.array([0.5, 2.0, 1.0, 4.0, 0.3, 6.0, 1.5])
LAM = np.array([0.7, 2.0, 5.0])


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(4)
    client = np.repeat(np.arange(M), ROWS)
    x = rng.normal(size=len(client))
    mean = 0.5 + CLUSTER[client] + (1.0 - 0.4 * client) * x
    frame = pd.DataFrame({"client": [f"c{i}" for i in client], "cluster": [f"j{j}" for j in CLUSTER[client]], "x": x})
    frame["y"] = mean + rng.normal(size=len(client))
    frame["z"] = (mean + rng.logistic(size=len(client)) > 0.5).astype(float)
    frame["w"] = rng.integers(1, 4, len(client)).astype(float)
    frame["o"] = rng.normal(size=len(client))
    return frame


def losses(table, family, theta):
    """``f_i(theta_i)`` (m,): sums over rows."""
    client = np.repeat(np.arange(M), ROWS)
    linear = table["o"] + theta[client, 0] + theta[client, 1] * table["x"]
    row = (table["y"] - linear) ** 2 / 2 if family == "gaussian" else np.logaddexp(0.0, linear) - table["z"] * linear
    return np.bincount(client, table["w"] / table["w"].mean() * row)


def squares(x):
    return np.sum(x**2, axis=-1)


def form_23(table, family, values):
    theta, w, root = np.split(values.reshape(-1, D), [M, M + K])
    tied = GAMMA / 2 * squares(theta - w[CLUSTER])
    return losses(table, family, theta).sum() + tied.sum() + np.sum(LAM / 2 * squares(w - root))


def form_21(table, family, values, alpha):
    theta = values.reshape(M, D)
    Gamma = np.bincount(CLUSTER, GAMMA)
    own = np.stack([GAMMA[here] @ theta[here] for here in (j == CLUSTER for j in range(K))]) / Gamma[:, None]
    part = alpha[CLUSTER]
    every = (part * GAMMA) @ theta / np.sum(part * GAMMA)
    tied = GAMMA / 2 * ((1.0 - part) * squares(theta - own[CLUSTER]) + part * squares(theta - every))
    return losses(table, family, theta).sum() + tied.sum()


def smallest(function, size):
    found = minimize(function, np.zeros(size), method="BFGS", options={"gtol": 1e-7, "maxiter": 2000})
    return found.x[: M * D].reshape(M, D)


@pytest.mark.parametrize("family", [pytest.param("gaussian", marks=pytest.mark.soak), "binomial"])
def test_both_forms_have_the_minimiser_that_is_fitted(table, family):
    Gamma = np.bincount(CLUSTER, GAMMA)
    alpha = LAM / (LAM + Gamma)
    np.testing.assert_allclose(ClusterTies.of(CLUSTER, K, GAMMA, LAM, None).alpha, alpha)
    np.testing.assert_allclose(alpha * Gamma / (1.0 - alpha), LAM)
    one = smallest(lambda v: form_23(table, family, v), (M + K + 1) * D)
    other = smallest(lambda v: form_21(table, family, v, alpha), M * D)
    np.testing.assert_allclose(one, other, atol=1e-4)
    formula = "y ~ x" if family == "gaussian" else "z ~ x"
    labels = {"client": "client", "cluster": "cluster", "family": family, "offset": "o", "weights": "w", "splits": 0}
    gamma = {f"c{i}": g for i, g in enumerate(GAMMA)}
    for tied in ({"lam": LAM}, {"alpha": alpha}):
        tied = {name: {f"j{j}": v for j, v in enumerate(values)} for name, values in tied.items()}
        fitted = coterie.fit(table, formula, gamma=gamma, **tied, **labels)
        np.testing.assert_allclose(fitted.model.client, one, atol=1e-4)


def test_rounds_approach_it_too(table):
    exact = coterie.fit(table, "y ~ x", client="client", cluster="cluster", gamma=2.0, lam=1.0, splits=0)
    rounds = coterie.fit(table, "y ~ x", client="client", cluster="cluster", gamma=2.0, lam=1.0, splits=0,
                         method="async-al2sgd", rounds={"accuracy": 1e-6})  # fmt: skip
    np.testing.assert_allclose(rounds.model.client, exact.model.client, atol=1e-3)
