"""Algorithm 2, corrected: the pseudo-code for the same coins, over exchanges."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.engines import InProcess, Loopback
from coterie.methods.async_al2sgd import AsyncAL2SGD
from coterie.methods.clustered_l2gd import cluster_rounds
from coterie.methods.clustered_l2gd.cluster_rounds import Majority, ring
from coterie.methods.clustered_l2gd.theory import fractions
from coterie.numerics import keyed_random
from coterie.objectives.gradient_steps import Momentum
from coterie.objectives.quadratic import Quadratic
from tests.methods.known_clusters import gradient, table, theta_of, ties_of
from tests.reference.al2sgd_loop import async_al2sgd

MOMENTUM = Momentum(a1=0.3, a2=0.4, b1=0.95, pace=0.01, eta=0.002)
P = np.array([0.1, 0.3, 0.2, 0.05, 0.4])


def literal(glm, ties, method, n, ids, seed):
    steps = np.arange(n)
    p = np.where(ties.Gamma > 0, method.p, 0)
    draws = (
        cluster_rounds.Coordinated(method.p0).draw(method.seed, steps),
        cluster_rounds.cluster_coins(method.seed, steps, p),
    )
    moves = keyed_random.uniform(method.seed, "anchor coin", np.zeros(n), steps, 1)[:, 0] < method.rho
    whole, row = gradient(glm), gradient(glm, method.batch, ids, seed)

    def change(theta, x, t):
        return row(theta, t) - row(x, t)

    return async_al2sgd(
        lambda x: whole(x, 0), change, glm.X.shape[1], ties, method.momentum, method.p0, p, method.tau, *draws, moves
    )


@pytest.mark.soak(
    "binomial-2-some alone", "poisson-1-equal", "gaussian-0-some alone", "gaussian-1-own", "gaussian-1-equal"
)
@pytest.mark.parametrize("kind", ["equal", "own", "some alone"])
@pytest.mark.parametrize(("family", "batch"), [("gaussian", 0), ("gaussian", 1), ("binomial", 2), ("poisson", 1)])
def test_the_pseudo_code(family, batch, kind):
    glm, clusters = table(family)
    ties = ties_of(kind, clusters)
    m = MOMENTUM if family != "poisson" else Momentum(0.3, 0.4, 0.95, 0.001, 0.0002)
    method = AsyncAL2SGD(ties, 0.15, P, fractions(0.15, P), m, rho=0.1, seed=2, batch=batch)
    ids = np.arange(100, 100 + len(clusters), dtype=np.uint64)
    fed = InProcess(glm, clusters, ids=ids, seed=11)
    *_, state = method.run(fed, [7, 60, 61, 150])
    assert state["refreshes"] > 5 and state["between"] > 5
    np.testing.assert_allclose(theta_of(fed), literal(glm, ties, method, 150, ids, 11), rtol=1e-9, atol=1e-11)


def test_sites_and_stops_do_not_matter():
    glm, clusters = table("binomial")
    ties = ties_of("own", clusters)
    method = AsyncAL2SGD(ties, 0.15, P, fractions(0.15, P), MOMENTUM, rho=0.1, batch=2)
    ends = []
    for fed, stops in (
        (InProcess(glm, clusters), [90]),
        (InProcess(glm, clusters, block=3), [1, 30, 31, 90]),
        (Loopback(glm, clusters, sites=4), [90]),
    ):
        *_, _ = method.run(fed, stops)
        ends.append(theta_of(fed))
    np.testing.assert_allclose(ends[1], ends[0], rtol=1e-12)
    np.testing.assert_allclose(ends[2], ends[0], rtol=1e-12)


def test_without_a_coordinator_the_numbers_are_the_same():
    glm, clusters = table()
    ties, vote = ties_of("own", clusters), Majority(0.15, 5)
    ends = []
    for options in ({}, {"network": ring}):
        fed = InProcess(glm, clusters)
        method = AsyncAL2SGD(ties, 0.15, P, fractions(0.15, P), MOMENTUM, rho=0.1, vote=vote, **options)
        *_, _ = method.run(fed, [120])
        ends.append(theta_of(fed))
    np.testing.assert_allclose(ends[1], ends[0], rtol=1e-12)


def test_any_objective_with_gradients_will_do():
    """A quadratic has no rows and no kernel, as a neural network has none: batch = 0 takes its whole gradient."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(20, 3, 3))
    objective = Quadratic(root @ root.transpose(0, 2, 1) + np.eye(3), rng.normal(size=(20, 3)))
    _, clusters = table()
    ties = ties_of("equal", clusters)
    fed = InProcess(objective, clusters)
    method = AsyncAL2SGD(ties, 0.15, P, fractions(0.15, P), MOMENTUM, rho=0.1, batch=0)
    *_, _ = method.run(fed, [100])
    steps = np.arange(100)
    draws = cluster_rounds.Coordinated(0.15).draw(0, steps), cluster_rounds.cluster_coins(0, steps, P)
    moves = keyed_random.uniform(0, "anchor coin", np.zeros(100), steps, 1)[:, 0] < 0.1
    grad = objective.gradient
    expected = async_al2sgd(
        grad, lambda th, x, t: grad(th) - grad(x), 3, ties, MOMENTUM, 0.15, P, fractions(0.15, P), *draws, moves
    )
    np.testing.assert_allclose(theta_of(fed), expected, rtol=1e-10, atol=1e-13)


def test_divergence_is_named_and_nothing_is_lost():
    glm, clusters = table()
    fed = InProcess(glm, clusters)
    wild = Momentum(0.3, 0.4, 0.95, 1e6, 1e6)
    method = AsyncAL2SGD(ties_of("equal", clusters), 0.15, P, fractions(0.15, P), wild, rho=0.1)
    *_, state = method.run(fed, [2, 4000, 8000])
    assert state["status"].startswith("diverged by step ") and state["t"] == 4000
    assert np.isfinite(theta_of(fed)).all()
