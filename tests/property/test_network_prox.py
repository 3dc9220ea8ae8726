"""Network prox: CVXPY's optimum, a dual that is feasible, and what any solution keeps."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.numerics.network_prox import network_prox

INF = float("inf")


def problem(seed: int, n: int = 12, q: int = 3, density: float = 0.3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """V, edges and weights of a random graph."""
    rng = np.random.default_rng(seed)
    pairs = np.argwhere(np.triu(rng.random((n, n)) < density, 1))
    return rng.normal(size=(n, q)), pairs, rng.uniform(0.02, 0.4, len(pairs))


def metric_of(kind: str, n: int, q: int) -> np.ndarray | None:
    """No metric, masses or matrices."""
    rng = np.random.default_rng(7)
    if kind == "masses":
        return rng.uniform(0.3, 3.0, n)
    A = rng.normal(size=(n, q, q))
    return A @ A.transpose(0, 2, 1) + 0.3 * np.eye(q) if kind == "matrices" else None


def objective(
    Z: np.ndarray, V: np.ndarray, edges: np.ndarray, weight: np.ndarray, p: float, H: np.ndarray | None
) -> float:
    """What is minimised, literally."""
    q, total = V.shape[1], 0.0
    for i, d in enumerate(Z - V):
        total += 0.5 * d @ (np.eye(q) if H is None else H[i] * np.eye(q) if H.ndim == 1 else H[i]) @ d
    return total + sum(w * np.linalg.norm(Z[i] - Z[j], p) for w, (i, j) in zip(weight, edges, strict=True))


@pytest.mark.parametrize("kind", ["none", "masses", "matrices"])
@pytest.mark.parametrize("p", [1, 2, INF])
def test_it_is_the_optimum_that_cvxpy_finds(p: float, kind: str) -> None:
    import cvxpy as cp

    V, edges, weight = problem(int(min(p, 3)))
    n, q = V.shape
    H = metric_of(kind, n, q)
    roots = np.linalg.cholesky(
        np.ones((n, 1, 1)) * np.eye(q) if H is None else H if H.ndim == 3 else H[:, None, None] * np.eye(q)
    )
    Z = cp.Variable((n, q))
    near = sum(0.5 * cp.sum_squares(roots[i].T @ (Z[i] - V[i])) for i in range(n))
    tied = sum(w * cp.norm(Z[i] - Z[j], p) for w, (i, j) in zip(weight, edges, strict=True))
    best = cp.Problem(cp.Minimize(near + tied)).solve(
        solver="CLARABEL", tol_gap_rel=1e-10, tol_gap_abs=1e-10, tol_feas=1e-10
    )
    found = network_prox(V, edges, weight, p, 1e-12, metric=H)
    assert found.gap <= 1e-12
    np.testing.assert_allclose(objective(found.Z, V, edges, weight, p, H), best, rtol=1e-8)
    np.testing.assert_allclose(found.Z, Z.value, atol=1e-5)  # what an interior point method leaves of a merged pair


def test_bad_input_is_refused_in_a_sentence() -> None:
    V, edges, _ = problem(0)
    for bad, sentence in [
        ({"edges": [[0, 12]]}, "Edge 0 names client 12, but clients go from 0 to 11."),
        ({"edges": [[3, 3]]}, "Edge 0 ties client 3 to itself"),
        ({"edges": [[0, 1], [1, 0]]}, "Clients 0 and 1 are tied by more than one edge"),
        ({"weight": -1.0}, "has weight -1.0"),
        ({"weight": np.nan}, "has weight nan"),
        ({"V": np.where(np.arange(36).reshape(12, 3) == 4, np.nan, V)}, "Row 1 of V"),
        ({"p": 3}, "p must be 1, 2 or inf"),
        ({"metric": -np.ones(12)}, "The metric of client 0"),
    ]:
        with pytest.raises(CoterieError, match=sentence):
            network_prox(**{"V": V, "edges": edges, "weight": 0.1, **bad})
