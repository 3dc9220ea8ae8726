"""Weights on the simplex: optimality conditions, another solver, degenerate matrices, and what is refused."""

from __future__ import annotations

import time

import numpy as np
import pytest
from scipy.optimize import minimize

from coterie.errors import CoterieError
from coterie.numerics.simplex_qp import diagonal_simplex_qp, simplex_qp


def residual(Q: np.ndarray, q: np.ndarray, tau: np.ndarray) -> float:
    """The largest violation of the optimality conditions, relative to the size of the numbers."""
    cost, size = 2.0 * Q @ tau + q, max(np.abs(Q).max(), np.ptp(q), 1e-300)
    excess = cost - cost @ tau
    return max(-excess.min() / size, np.abs(excess * tau).max() / size, abs(tau.sum() - 1.0), -tau.min())


def problem(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Of any rank, often with ties, in any units."""
    n = int(rng.integers(1, 13))
    rank = int(rng.integers(0, n + 2))
    A = rng.normal(size=(rank, n)) if rng.random() < 0.7 else rng.integers(-1, 2, (rank, n)).astype(float)
    q = rng.normal(size=n) * rng.choice([0.0, 1e-3, 1.0, 10.0])
    scale = 10.0 ** rng.integers(-8, 9)
    return scale * A.T @ A, scale * (np.round(q) if rng.random() < 0.3 else q)


def test_a_dense_program_is_solved_to_optimality() -> None:
    rng = np.random.default_rng(0)
    for _ in range(1_000):
        Q, q = problem(rng)
        assert residual(Q, q, simplex_qp(Q, q)) < 1e-10


def test_it_agrees_with_another_solver() -> None:
    rng = np.random.default_rng(1)
    for _ in range(150):
        Q, q = problem(rng)
        size = max(np.abs(Q).max(), np.abs(q).max(), 1e-300)
        Q, q, n = Q / size, q / size, len(q)
        other = minimize(
            lambda t, Q=Q, q=q: t @ Q @ t + q @ t,
            np.full(n, 1.0 / n),
            jac=lambda t, Q=Q, q=q: 2.0 * Q @ t + q,
            bounds=[(0.0, 1.0)] * n,
            constraints={"type": "eq", "fun": lambda t: t.sum() - 1.0, "jac": np.ones_like},
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )
        tau = simplex_qp(Q, q)
        mine = tau @ Q @ tau + q @ tau
        assert mine <= other.fun + 1e-9
        assert other.fun <= mine + 1e-5


def test_a_diagonal_program_is_solved_to_optimality_and_is_a_dense_one() -> None:
    rng = np.random.default_rng(2)
    for _ in range(500):
        Q, q = problem(rng)
        d = np.diag(Q) * (rng.random(len(q)) > 0.2)
        tau = diagonal_simplex_qp(d, q, [0, len(q)])
        assert residual(np.diag(d), q, tau) < 1e-12
        dense = simplex_qp(np.diag(d), q)
        cost = [t @ (d * t) + q @ t for t in (tau, dense)]
        assert cost[0] == pytest.approx(cost[1], rel=1e-9, abs=1e-10 * max(d.max(), np.ptp(q)))


def test_known_answers() -> None:
    np.testing.assert_allclose(diagonal_simplex_qp([1.0, 2.0, 4.0], 0.0, [0, 3]), np.array([4, 2, 1]) / 7, rtol=1e-15)
    np.testing.assert_array_equal(
        diagonal_simplex_qp([0.0, 1.0, 0.0, 0.0], [2.0, 5.0, 2.0, 3.0], [0, 4]), [0.5, 0, 0.5, 0]
    )
    np.testing.assert_allclose(diagonal_simplex_qp([0.0, 1.0], [1.0, 0.0], [0, 2]), [0.5, 0.5], rtol=1e-15)
    np.testing.assert_allclose(diagonal_simplex_qp([0.0, 1.0], [3.0, 0.0], [0, 2]), [0.0, 1.0], rtol=1e-15)
    np.testing.assert_allclose(diagonal_simplex_qp([1e-320, 1.0], 0.0, [0, 2]), [1.0, 0.0], atol=1e-15)
    np.testing.assert_allclose(diagonal_simplex_qp([1e-200, 1e-200], [0.0, 1e-300], [0, 2]), [0.5, 0.5], rtol=1e-15)
    assert diagonal_simplex_qp([], [], [0, 0, 0]).shape == (0,)
    np.testing.assert_array_equal(simplex_qp(np.zeros((3, 3)), np.array([2.0, 1.0, 3.0])), [0, 1, 0])
    np.testing.assert_allclose(simplex_qp(np.ones((2, 2)) + np.eye(2)), [0.5, 0.5], rtol=1e-14)
    np.testing.assert_array_equal(simplex_qp([[7.0]], [-3.0]), [1.0])


def test_thousands_of_main_clients_are_quick() -> None:
    rng = np.random.default_rng(3)
    starts = np.arange(0, 2_410 * 1_000 + 1, 1_000)
    d, q = rng.exponential(size=(2, starts[-1]))
    diagonal_simplex_qp(d[:1], q[:1], [0, 1])
    before = time.perf_counter()
    tau = diagonal_simplex_qp(d, 0.01 * q, starts)
    assert time.perf_counter() - before < 5.0
    np.testing.assert_allclose(np.add.reduceat(tau, starts[:-1]), 1.0, rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: diagonal_simplex_qp([1.0, -1.0], 0.0, [0, 2]), "not negative"),
        (lambda: diagonal_simplex_qp([1.0, np.nan], 0.0, [0, 2]), "finite"),
        (lambda: diagonal_simplex_qp([1.0, 1.0], [0.0, np.inf], [0, 2]), "finite"),
        (lambda: diagonal_simplex_qp([1.0, 1.0], 0.0, [0, 1]), "rise from 0"),
        (lambda: simplex_qp(np.ones((2, 3))), "square"),
        (lambda: simplex_qp(np.eye(2), np.ones(3)), "square"),
        (lambda: simplex_qp(np.zeros((0, 0))), "one at least"),
        (lambda: simplex_qp([[1.0, np.inf], [np.inf, 1.0]]), "finite"),
        (lambda: simplex_qp([[1.0, 0.5], [0.0, 1.0]]), "symmetric"),
        (lambda: simplex_qp(-np.eye(3)), "positive semi-definite"),
    ],
)
def test_what_cannot_be_is_refused(call, words: str) -> None:
    with pytest.raises(CoterieError, match=words):
        call()
