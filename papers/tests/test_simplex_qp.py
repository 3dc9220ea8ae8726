"""Weights on the simplex: optimality conditions, another solver, degenerate matrices, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from coterie.errors import CoterieError
from papers.paper_004.simplex_qp import simplex_qp
from tests.numerics.test_simplex_qp import problem, residual


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


def test_known_answers() -> None:
    np.testing.assert_array_equal(simplex_qp(np.zeros((3, 3)), np.array([2.0, 1.0, 3.0])), [0, 1, 0])
    np.testing.assert_allclose(simplex_qp(np.ones((2, 2)) + np.eye(2)), [0.5, 0.5], rtol=1e-14)
    np.testing.assert_array_equal(simplex_qp([[7.0]], [-3.0]), [1.0])


@pytest.mark.parametrize(
    ("call", "words"),
    [
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
