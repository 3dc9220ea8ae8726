"""What clients send of their rows, compiled, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.objectives import data_features
from coterie.objectives.glm import GLM
from tests.reference import data_features_twin as twin


@pytest.fixture
def glm():
    rng = np.random.default_rng(3)
    counts = np.array([5, 0, 1, 8, 3])
    stops, n = np.cumsum(counts), counts.sum()
    weights = rng.uniform(0.5, 2.0, n)
    weights[[1, 4]] = 0.0
    weights[-3:] = 0.0  # a client whose rows weigh nothing
    return GLM(rng.normal(size=(n, 3)) + 5, rng.normal(size=n), np.zeros(n), weights, stops - counts, stops)


@pytest.fixture(params=[[0, 1, 2], [2, 3, 0]], ids=["columns", "with the response"])
def units(request):
    return np.array(request.param), np.array([5.0, 0.3, 4.0]), np.array([0.5, 2.0, 1.0])


def test_moments(glm, units):
    rows, w, mean, A = data_features.moments(glm, *units)
    for i in range(len(glm)):
        want = twin.moments(glm, i, *units)
        assert (rows[i], w[i]) == pytest.approx(want[:2])
        np.testing.assert_allclose(mean[i], want[2], atol=1e-13)
        np.testing.assert_allclose(A[i], want[3], atol=1e-12)


def test_radii(glm, units):
    want = [twin.radius(glm, i, *units) for i in range(len(glm))]
    np.testing.assert_allclose(data_features.radii(glm, *units), want, rtol=1e-13)


def test_features(glm, units):
    omega = data_features.frequencies(1, 7, 3, 1.7)
    want = [twin.features(glm, i, *units, omega) for i in range(len(glm))]
    np.testing.assert_allclose(data_features.features(glm, *units, omega), want, atol=1e-13)


def test_frequencies_are_normal_and_the_same_wherever_drawn():
    omega = data_features.frequencies(4, 20_000, 2, 3.0)
    np.testing.assert_array_equal(omega[:10], data_features.frequencies(4, 10, 2, 3.0))
    assert abs(omega.mean()) < 0.01
    np.testing.assert_allclose(np.cov(omega.T) * 9.0, np.eye(2), atol=0.03)
    assert not np.allclose(omega[:10], data_features.frequencies(5, 10, 2, 3.0))
