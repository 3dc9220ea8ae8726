"""The compiled network prox against Algorithm 5 in NumPy, and its kernels against their definitions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from coterie.numerics.network import edge_penalty_problem as penalty
from coterie.numerics.network.conjugate_gradients import EdgeCurvature, add_ties
from coterie.numerics.network.edge_penalty_problem import Problem, merged
from coterie.numerics.network.newton import NOBODY, Lagrangian, of_prox, slopes
from coterie.numerics.network.prox import network_prox, smoothed
from tests.reference import network_prox_twin as twin
from tests.reference.algorithm5 import algorithm5

INF = float("inf")
every_p = pytest.mark.parametrize("p", [1, 2, INF])


def problem(n: int = 30, q: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    pairs = np.ascontiguousarray(np.argwhere(np.triu(rng.random((n, n)) < 0.15, 1)))  # as kernels are given them
    return rng.normal(size=(n, q)), pairs, rng.uniform(0.05, 0.3, len(pairs))


@every_p
def test_the_splitting_without_relaxation_is_algorithm_5_iteration_by_iteration(p: float) -> None:
    V, edges, weight = problem()
    mass = np.random.default_rng(1).uniform(0.5, 2.0, len(V))
    found = algorithm5(Problem.of(V, edges, weight, p, mass), 0.7, 0.0, 10)
    _, U = next(itertools.islice(twin.admm(V, edges, weight, p, 0.7, mass), 9, None))
    np.testing.assert_allclose(found.U, U, atol=1e-12)


@every_p
def test_the_twins_optimum_is_reached(p: float) -> None:
    V, edges, weight = problem()
    Z, U = next(itertools.islice(twin.admm(V, edges, weight, p, 1.0), 1500, None))
    assert twin.relative_gap(V, edges, weight, p, Z, U) < 1e-7
    found = network_prox(V, edges, weight, p, 1e-11)
    assert found.gap <= 1e-11
    assert abs(twin.relative_gap(V, edges, weight, p, found.Z, found.dual)) < 1e-10
    np.testing.assert_allclose(found.Z, Z, atol=1e-5)


@every_p
def test_projections(p: float) -> None:
    rng = np.random.default_rng(2)
    X, radius = rng.normal(size=(500, 6)), rng.choice([0.0, 0.1, 1.0, 3.0, 9.0], 500)
    X[:50] = np.round(X[:50])  # ties
    Y = X.copy()
    penalty.project_all(Y, float(p), radius)
    np.testing.assert_allclose(Y, twin.project(X, p, radius), atol=1e-14)
    for x, r, y in zip(X, radius, Y, strict=True):
        x = x.copy()
        penalty.project(x, float(p), r, rng.exponential())  # from any level
        np.testing.assert_allclose(x, y, atol=1e-14)


def test_merged_clients_get_their_mean() -> None:
    V, edges, weight = problem()
    rng = np.random.default_rng(3)
    U = rng.normal(size=(len(edges), V.shape[1])) * rng.choice([0.0, 1.0], (len(edges), 1), p=[0.2, 0.8])
    mass = rng.uniform(0.5, 2.0, len(V))
    wide = np.repeat(mass[:, None], V.shape[1], axis=1)
    for p, dual in ((2.0, 2), (INF, 1)):
        inside = np.linalg.norm(U, dual, axis=1) < weight
        found = merged(V, U, edges, weight, p, wide)
        np.testing.assert_allclose(found, twin.merged(V, edges, inside, mass), atol=1e-13)
    found = merged(V, U, edges, weight, 1.0, wide)
    for a in range(V.shape[1]):
        column = twin.merged(V[:, [a]], edges, np.abs(U[:, a]) < weight, mass)
        np.testing.assert_allclose(found[:, [a]], column, atol=1e-13)


@every_p
def test_gradient_and_hessian_of_the_augmented_lagrangian(p: float) -> None:
    V, edges, weight = problem()
    rng = np.random.default_rng(4)
    H = np.einsum("nab,ncb->nac", *[rng.normal(size=(len(V), 4, 6))] * 2)
    checked = Problem.of(V, edges, weight, p, H)
    phi = Lagrangian(of_prox(checked), twin.project(rng.normal(size=(len(edges), 4)), p, weight), 0.8)
    x, Z, D, t = np.empty(0), rng.normal(size=V.shape), rng.normal(size=V.shape), 1e-6
    high, G_high = phi.at(x, Z + t * D), phi.gz.copy()
    low, G_low = phi.at(x, Z - t * D), phi.gz.copy()
    phi.at(x, Z)
    assert phi.along(x, D) == pytest.approx((high - low) / (2 * t), rel=1e-6)
    bent = np.empty_like(V)
    penalty.metric_times(checked.H, D, bent)
    a, b = slopes(Z, phi.U, phi.sigma, phi.model.graph, phi.level)
    add_ties(EdgeCurvature(edges, phi.sigma, a, b, NOBODY, NOBODY), D, bent)
    np.testing.assert_allclose(bent, (G_high - G_low) / (2 * t), atol=1e-5)


@pytest.mark.parametrize("masses", [False, True])
def test_laplacian_smoothing_solves_its_dense_system(masses: bool) -> None:
    rng = np.random.default_rng(0)
    edges, V = np.array([[0, 1], [1, 2], [0, 4], [2, 4]]), rng.normal(size=(6, 3))
    weight, mass = rng.uniform(0.1, 9.0, 4), rng.uniform(0.5, 2.0, 6) if masses else np.ones(6)
    A = np.diag(mass)
    for (i, j), w in zip(edges, weight, strict=True):
        A[[i, j], [i, j]] += w
        A[[i, j], [j, i]] -= w
    found = smoothed(V, edges, weight, mass if masses else None)
    np.testing.assert_allclose(found, np.linalg.solve(A, mass[:, None] * V), rtol=1e-12, atol=1e-12)
