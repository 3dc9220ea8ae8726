"""Weights on the simplex: optimality conditions, degenerate problems, and what is refused."""

from __future__ import annotations

import time

import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.numerics.simplex_qp import diagonal_simplex_qp


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


def test_a_diagonal_program_is_solved_to_optimality() -> None:
    rng = np.random.default_rng(2)
    for _ in range(500):
        Q, q = problem(rng)
        d = np.diag(Q) * (rng.random(len(q)) > 0.2)
        tau = diagonal_simplex_qp(d, q, [0, len(q)])
        assert residual(np.diag(d), q, tau) < 1e-12


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


def test_hundreds_of_main_clients_are_quick() -> None:
    rng = np.random.default_rng(3)
    starts = np.arange(0, 500 * 1_000 + 1, 1_000)
    d, q = rng.exponential(size=(2, starts[-1]))
    diagonal_simplex_qp(d[:1], q[:1], [0, 1])
    before = time.process_time()
    tau = diagonal_simplex_qp(d, 0.01 * q, starts)
    assert time.process_time() - before < 2.0
    np.testing.assert_allclose(np.add.reduceat(tau, starts[:-1]), 1.0, rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: diagonal_simplex_qp([1.0, -1.0], 0.0, [0, 2]), "not negative"),
        (lambda: diagonal_simplex_qp([1.0, np.nan], 0.0, [0, 2]), "finite"),
        (lambda: diagonal_simplex_qp([1.0, 1.0], [0.0, np.inf], [0, 2]), "finite"),
        (lambda: diagonal_simplex_qp([1.0, 1.0], 0.0, [0, 1]), "rise from 0"),
    ],
)
def test_what_cannot_be_is_refused(call, words: str) -> None:
    with pytest.raises(CoterieError, match=words):
        call()
