"""Deviations of the rows' gradients, against a loop over rows."""

import numpy as np
import pytest

from coterie.numerics.arrays import full
from coterie.objectives.constants import gradient_scatter
from coterie.objectives.glm import GLM


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_against_a_loop_over_rows(family):
    rng = np.random.default_rng(3)
    starts, stops = np.array([0, 5, 6, 6]), np.array([5, 6, 6, 12])
    X, offset = rng.normal(size=(12, 3)), rng.normal(size=12) * 0.1
    weights = rng.choice([0.0, 0.5, 1.0, 2.0], size=12)
    weights[5] = 0.0
    y = {"gaussian": rng.normal(size=12), "binomial": rng.random(12) < 0.5, "poisson": rng.poisson(2, 12)}[family]
    y = y.astype(float)
    theta = rng.normal(size=(4, 3)) * 0.3
    g, A, rows, w, w2 = gradient_scatter(GLM(X, y, offset, weights, starts, stops, family), theta)
    mean = {"gaussian": lambda e: e, "binomial": lambda e: 1 / (1 + np.exp(-e)), "poisson": np.exp}[family]
    for i in range(4):
        here = range(starts[i], stops[i])
        each = [-(y[r] - mean(X[r] @ theta[i] + offset[r])) * X[r] for r in here]
        total = sum(weights[r] for r in here)
        expected = sum((weights[r] * e for r, e in zip(here, each, strict=True)), np.zeros(3)) / (total or 1.0)
        square = np.zeros((3, 3))
        for r, e in zip(here, each, strict=True):
            square += weights[r] ** 2 * np.outer(e - expected, e - expected)
        np.testing.assert_allclose(g[i], expected, atol=1e-12)
        np.testing.assert_allclose(full(A[i]), square, atol=1e-12)
        assert rows[i] == sum(weights[r] > 0 for r in here)
        np.testing.assert_allclose([w[i], w2[i]], [total, sum(weights[r] ** 2 for r in here)])
