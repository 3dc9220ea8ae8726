"""BFGS against the textbook's update of the Hessian itself, and the guarded inverse."""

import numpy as np
import pytest

from coterie.methods.tree.covariance_structure import bfgs_update, guarded_inverse


def direct(B, s, y):
    """Nocedal and Wright (6.19): the update of the Hessian, whose inverse (6.17) must be ours."""
    return B - np.outer(B @ s, B @ s) / (s @ B @ s) + np.outer(y, y) / (y @ s)


@pytest.mark.parametrize("n", [1, 2, 6])
def test_update(n):
    rng = np.random.default_rng(n)
    B = np.eye(n)
    H = np.eye(n)
    for _ in range(5):
        s = rng.normal(size=n)
        y = s * rng.uniform(0.5, 3.0, n)
        H, B = bfgs_update(H, s, y), direct(B, s, y)
        np.testing.assert_allclose(H, np.linalg.inv(B), rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(H @ y, s, rtol=1e-9)


def test_no_update_without_positive_curvature():
    H = np.diag([1.0, 2.0])
    s = np.array([1.0, 0.0])
    for y in (np.array([-1.0, 0.0]), np.array([0.0, 1.0]), np.zeros(2), np.array([1e-12, 1.0])):
        assert bfgs_update(H, s, y) is H


def test_inverse_of_a_good_matrix_is_its_inverse():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(20, 4))
    H = X.T @ X
    np.testing.assert_allclose(guarded_inverse(H), np.linalg.inv(H), rtol=1e-9)


@pytest.mark.parametrize("H", [np.zeros((3, 3)), np.diag([1.0, -1.0, 0.0]), np.ones((3, 3)), np.diag([1e12, 1.0, 0.0])])
def test_inverse_is_positive_definite_and_finite(H):
    values = np.linalg.eigvalsh(guarded_inverse(H))
    assert np.all(np.isfinite(values))
    assert values.min() > 0


def test_inverse_of_nothing():
    assert guarded_inverse(np.zeros((0, 0))).shape == (0, 0)
