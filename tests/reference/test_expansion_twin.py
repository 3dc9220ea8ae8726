"""Losses to second order: the compiled kernel against the derivatives of rows written out."""

import numpy as np
import pytest

from coterie.objectives.constants import expand_glm
from coterie.objectives.glm import GLM
from coterie.objectives.holdout import HeldOut
from tests.methods.dense import point


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_expansion_of_losses(family):
    rng = np.random.default_rng(5)
    counts = np.array([4, 0, 7, 1])
    n, p = counts.sum(), 3
    X, y = rng.normal(size=(n, p)), rng.integers(0, 2, n).astype(float)
    offset, weights, unit = rng.normal(size=n), rng.uniform(0.0, 2.0, n), np.array([1.0, 0.2, 3.0])
    stops = np.cumsum(counts)
    glm = GLM(X, y, offset, weights, stops - counts, stops, family)
    theta = rng.normal(size=(4, p))
    A, b = expand_glm(glm, unit, theta)
    for i in range(4):
        rows = slice(stops[i] - counts[i], stops[i])
        x = X[rows] * unit
        _, score, curvature = point(family, offset[rows] + x @ theta[i], y[rows])
        H = (x * (weights[rows] * curvature)[:, None]).T @ x
        np.testing.assert_allclose(A[i], H[np.tril_indices(p)], atol=1e-12)
        np.testing.assert_allclose(b[i], x.T @ (weights[rows] * score) + H @ theta[i], atol=1e-12)


def test_rows_to_test_on_go_with_their_clients():
    rng = np.random.default_rng(6)
    one, other = ((np.array([0, 2, 5]), np.array([2, 5, 6])), (np.array([0, 1, 1]), np.array([1, 1, 4])))
    train, test = (
        GLM(rng.normal(size=(6, 2)), rng.normal(size=6), np.zeros(6), np.ones(6), *at) for at in (one, other)
    )
    some = HeldOut(train, test).take(np.array([2, 0]))
    assert some.counts.tolist() == [1, 2]
    assert some.held.counts.tolist() == [3, 1]
    assert some.X is train.X
    assert some.held.X is test.X
