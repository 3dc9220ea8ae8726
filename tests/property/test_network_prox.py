"""Network prox: CVXPY's optimum, a dual that is feasible, and what any solution keeps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import CoterieError
from coterie.numerics.network.prox import Proximal, network_prox

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
        ({"edges": [[0, 12]]}, "Edge 0 names client 12; clients go from 0 to 11."),
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


@st.composite
def networks(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, float, np.ndarray | None]:
    """V, edges, weights of very different size, p and a metric."""
    seed, n, q = draw(st.integers(0, 10**6)), draw(st.integers(1, 9)), draw(st.integers(1, 4))
    rng = np.random.default_rng(seed)
    pairs = np.argwhere(np.triu(rng.random((n, n)) < draw(st.sampled_from([0.0, 0.3, 0.9])), 1))
    weight = 10.0 ** rng.uniform(-3, 1, len(pairs)) * (rng.random(len(pairs)) > 0.1)
    V = rng.normal(size=(n, q)) * draw(st.sampled_from([1e-3, 1.0, 1e3]))
    V = np.round(V) if draw(st.booleans()) else V
    kind = draw(st.sampled_from(["none", "masses", "matrices"]))
    return (
        V,
        pairs,
        weight * max(float(np.abs(V).max()), 1e-3),
        draw(st.sampled_from([1, 2, INF])),
        metric_of(kind, n, q),
    )


def solved(V: np.ndarray, edges: np.ndarray, weight: np.ndarray, p: float, H: np.ndarray | None) -> Proximal:
    found = network_prox(V, edges, weight, p, 1e-10, metric=H)
    assert found.gap <= 1e-10
    return found


def apart(Z: np.ndarray, other: np.ndarray, V: np.ndarray) -> float:
    """Distance relative to V's size."""
    return float(np.abs(Z - other).max() / max(np.abs(V).max(), 1e-9))


def components(n: int, edges: np.ndarray) -> np.ndarray:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    return connected_components(coo_array((np.ones(len(edges)), edges.T), shape=(n, n)), directed=False)[1]


@settings(max_examples=60, deadline=None)
@given(networks())
def test_the_dual_is_feasible_and_the_gap_is_that_of_the_pair(case: tuple) -> None:
    V, edges, weight, p, H = case
    found = solved(V, edges, weight, p, H)
    dual = {1: INF, 2: 2, INF: 1}[p]
    assert np.all(np.linalg.norm(found.dual, dual, axis=1) <= weight * (1 + 1e-12))
    pull = np.zeros_like(V)
    np.add.at(pull, edges[:, 0], found.dual)
    np.add.at(pull, edges[:, 1], -found.dual)
    full = [
        np.eye(V.shape[1]) if H is None else H[i] * np.eye(V.shape[1]) if H.ndim == 1 else H[i] for i in range(len(V))
    ]
    low = sum(g @ v - 0.5 * g @ np.linalg.solve(h, g) for g, v, h in zip(pull, V, full, strict=True))
    high = objective(found.Z, V, edges, weight, p, H)
    assert high - low <= 1e-9 * high + 1e-13 * np.abs(V).max() ** 2


@settings(max_examples=40, deadline=None)
@given(networks())
def test_means_of_components_stay(case: tuple) -> None:
    V, edges, weight, p, H = case
    if H is not None and H.ndim == 3:
        return
    mass = np.ones(len(V)) if H is None else H
    Z, group = solved(V, edges, weight, p, H).Z, components(len(V), edges)
    for column in (Z - V).T:
        assert np.abs(np.bincount(group, mass * column)).max() <= 1e-9 * max(np.abs(V).max(), 1.0) * len(V)


@settings(max_examples=40, deadline=None)
@given(networks(), st.integers(0, 99))
def test_the_order_of_clients_and_edges_and_the_ends_of_edges_do_not_matter(case: tuple, seed: int) -> None:
    V, edges, weight, p, H = case
    rng = np.random.default_rng(seed)
    order, lines = rng.permutation(len(V)), rng.permutation(len(edges))
    place = np.argsort(order)
    other = place[edges][lines]
    other = np.where(rng.random((len(edges), 1)) < 0.5, other, other[:, ::-1])
    Z = solved(V, edges, weight, p, H).Z
    again = solved(V[order], other, weight[lines], p, None if H is None else H[order]).Z
    assert apart(again[place], Z, V) < 1e-3  # both are as near the optimum as the gap says


@settings(max_examples=40, deadline=None)
@given(networks())
def test_p_1_separates_by_coordinate(case: tuple) -> None:
    V, edges, weight, _, H = case
    if H is not None and H.ndim == 3:
        return
    Z = solved(V, edges, weight, 1, H).Z
    for a in range(V.shape[1]):
        assert apart(solved(V[:, [a]], edges, weight, 1, H).Z, Z[:, [a]], V) < 1e-3


@pytest.mark.parametrize("p", [1, 2, INF])
def test_extremes(p: float) -> None:
    V, none = problem(0)[0], np.zeros((0, 2), dtype=np.int64)
    edges = np.array([[0, 1], [1, 2], [4, 3]])
    for weight, at in ((none, 1.0), (edges, 0.0), (np.empty((0, 2)), [])):
        found = network_prox(V, weight, at, p)
        np.testing.assert_array_equal(found.Z, V)
        assert found.dual.shape == (len(weight), 3)
    huge = network_prox(V, edges, 1e9, p, 1e-9).Z
    for group in ([0, 1, 2], [3, 4]):
        np.testing.assert_array_equal(huge[group], np.broadcast_to(huge[group[0]], (len(group), 3)))
        np.testing.assert_allclose(huge[group[0]], V[group].mean(axis=0), atol=1e-15)
    np.testing.assert_array_equal(huge[5:], V[5:])
    same = network_prox(np.ones((12, 2)), edges, 0.3, p)
    np.testing.assert_array_equal(same.Z, np.ones((12, 2)))
    mixed = network_prox(V, edges, [0.0, 1e6, 1e-6], p, 1e-12)
    np.testing.assert_array_equal(mixed.dual[0], 0.0)
    np.testing.assert_array_equal(mixed.Z[0], V[0])
    np.testing.assert_array_equal(mixed.Z[1], mixed.Z[2])


@pytest.mark.parametrize("p", [1, 2, INF])
def test_a_start_saves_iterations_also_for_other_weights_and_v(p: float) -> None:
    V, edges, weight = problem(3, n=60, density=0.1)
    H = metric_of("matrices", 60, 3)
    cold = network_prox(V, edges, weight, p, 1e-8, metric=H)
    assert network_prox(V, edges, weight, p, 1e-8, metric=H, start=cold).iterations == 0
    V, weight = V + 1e-3 * np.random.default_rng(0).normal(size=V.shape), 0.99 * weight
    near, far = (network_prox(V, edges, weight, p, 1e-8, metric=H, start=s) for s in (cold, None))
    assert near.gap <= 1e-8
    assert near.iterations <= far.iterations
    np.testing.assert_allclose(near.Z, far.Z, atol=2e-3)
    again = network_prox(V, edges, weight, p, 1e-8, metric=H)
    np.testing.assert_array_equal(again.Z, far.Z)


def test_hidden_groups_come_out_with_equal_rows() -> None:
    rng = np.random.default_rng(5)
    V = np.repeat(4.0 * rng.normal(size=(3, 5)), 20, axis=0) + 0.3 * rng.normal(size=(60, 5))
    edges = np.array([(i, j) for i in range(60) for j in range(i + 1, 60) if i // 20 == j // 20 or (i + j) % 19 == 0])
    Z = network_prox(V, edges, 0.2, 2).Z
    assert len(np.unique(Z, axis=0)) == 3


def test_small_gaps_under_ill_conditioned_metrics() -> None:
    V, edges, weight = problem(6, n=80, q=6, density=0.1)
    rng = np.random.default_rng(6)
    A = rng.normal(size=(80, 20, 6)) * np.array([3.0, 1.0, 1.0, 0.5, 0.3, 0.1])
    H = np.einsum("nka,nkb->nab", A, A) / 20
    for p in (1, 2, INF):
        assert network_prox(V, edges, weight, p, 1e-8, metric=H, iterations=5000).gap <= 1e-8
