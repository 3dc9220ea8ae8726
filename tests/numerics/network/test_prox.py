"""The prox of a similarity network where clients' metrics are all but singular."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.numerics.network import prox
from coterie.numerics.network.edge_penalty_problem import Problem, certify
from coterie.numerics.network.newton import newton
from coterie.numerics.network.prox import network_prox


def metrics(n, q, condition):
    """Symmetric matrices (n, q, q) in random frames, largest eigenvalue 1."""
    rng = np.random.default_rng(0)
    frames = np.linalg.qr(rng.normal(size=(n, q, q)))[0]
    H = (frames * np.logspace(0.0, -np.log10(condition), q)) @ frames.transpose(0, 2, 1)
    return (H + H.transpose(0, 2, 1)) / 2.0


@pytest.mark.parametrize("condition", [1e8, 1e10, 1e12])
def test_inverses_are_as_exact_as_solves(condition):
    H, b = metrics(40, 5, condition), np.random.default_rng(1).normal(size=(40, 5))
    problem = Problem.of(b, [[0, 1]], 1.0, 2, H)
    by_inverse = np.einsum("nij,nj->ni", problem.inverse, b)
    by_solve = np.linalg.solve(H, b[..., None])[..., 0]
    left = [np.abs(np.einsum("nij,nj->ni", H, x) - b).max() for x in (by_inverse, by_solve)]
    assert left[0] <= 5.0 * left[1]
    assert left[0] <= 1e-15 * np.abs(by_inverse).max()  # no more than rounding of the solution leaves


@pytest.mark.parametrize("p", [1, 2, np.inf])
def test_a_nearly_singular_metric_is_solved_to_its_gap(p):
    rng = np.random.default_rng(2)
    pairs = np.array([(i, j) for i in range(12) for j in range(i + 1, 12)])
    edges = pairs[rng.choice(len(pairs), 30, replace=False)]
    found = network_prox(rng.normal(size=(12, 4)), edges, 1e-3, p, 1e-8, metric=metrics(12, 4, 1e12))
    assert found.gap <= 1e-8


def test_newton_steps_on_few_clients_with_many_columns_are_those_in_the_span_of_their_rows():
    rng = np.random.default_rng(3)
    V = rng.normal(size=(3, 40)).repeat(2, axis=0) + 0.2 * rng.normal(size=(6, 40))
    edges = [(i, j) for i in range(6) for j in range(i)]
    wide = Problem.of(V, edges, 0.8, 2, rng.uniform(0.5, 2.0, size=6))
    found, _ = newton(wide, certify(wide, 0.1 * rng.normal(size=(15, 40)), V), 1.0, 1e-10, 1000)
    assert found.gap <= 1e-10 and len(np.unique(found.Z, axis=0)) < 6
    by_splitting = network_prox(V, edges, 0.8, 2, 1e-12, metric=wide.H[:, 0, 0])
    assert np.abs(found.Z - by_splitting.Z).max() < 1e-4
    assert np.linalg.norm(found.U, axis=1).max() <= 0.8 * (1.0 + 1e-14)


@pytest.mark.parametrize("p", [1, 2, np.inf])
def test_clients_of_many_edges_are_solved_in_another_order_and_come_back_in_theirs(p, monkeypatch):
    rng = np.random.default_rng(4)
    V, masses = rng.normal(size=(60, 3)), rng.uniform(0.5, 2.0, 60)
    i, j = np.triu_indices(60, 1)
    kept = rng.permutation(len(i))[:150]
    edges = np.stack([j[kept], i[kept]], axis=1)
    weight = np.where(rng.random(150) < 0.2, 0.0, rng.uniform(0.0, 0.3, 150))
    as_they_are = network_prox(V, edges, weight, p, 1e-10, metric=masses)
    monkeypatch.setattr(prox, "MANY", 1)
    ordered = network_prox(V, edges, weight, p, 1e-10, metric=masses)
    np.testing.assert_allclose(ordered.Z, as_they_are.Z, atol=2e-4)
    pulls = np.zeros_like(V)
    np.add.at(pulls, edges[:, 0], ordered.dual)
    np.subtract.at(pulls, edges[:, 1], ordered.dual)
    np.testing.assert_allclose(masses[:, None] * (V - ordered.Z), pulls, atol=2e-4)
    assert np.all(ordered.dual[weight == 0.0] == 0.0) and ordered.gap <= 1e-10
    assert network_prox(V, edges, weight, p, 1e-9, metric=masses, start=ordered).iterations == 0
