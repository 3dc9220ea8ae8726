"""Clusters without a coordinator: the majority's coin, and averages among themselves."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from coterie.engines import InProcess
from coterie.methods.async_l2gd import AsyncL2GD
from coterie.methods.clustered_l2gd.cluster_rounds import NETWORKS, Majority, central, ring, traffic
from coterie.methods.clustered_l2gd.theory import fractions
from coterie.relations.clusters import ClusterTies
from tests.methods.known_clusters import table, theta_of
from tests.reference.ring_twin import ring_by_messages


@pytest.mark.parametrize("ties", ["tails", "heads"])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("p0", [0.0, 0.01, 0.05, 0.5, 0.97, 1.0])
def test_the_majority_has_the_probability_asked_for(p0, k, ties):
    vote = Majority(p0, k, ties)
    probability = 0.0
    for coins in itertools.product([0, 1], repeat=k):
        heads, against = sum(coins), k - sum(coins)
        if heads > against or (heads == against and ties == "heads"):
            probability += vote.q**heads * (1 - vote.q) ** against
    assert probability == pytest.approx(p0, abs=1e-12)


def test_many_clusters_can_vote_too():
    assert 0.4 < Majority(0.05, 5000).q < 0.5


def test_the_votes_fall_as_often_as_they_should():
    steps = np.arange(200_000)
    for k in (1, 4, 7):
        share = Majority(0.05, k).draw(3, steps).mean()
        assert share == pytest.approx(0.05, abs=4 * np.sqrt(0.05 * 0.95 / len(steps)))


def test_votes_say_nothing_about_the_clusters_own_coins():
    """P(xi_j = 1 | xi_0 = 0) must stay p_j: a majority of the xi_j themselves would change it."""
    from coterie.methods.clustered_l2gd.cluster_rounds import cluster_coins

    steps, p = np.arange(100_000), np.full(3, 0.287)
    quiet = ~Majority(0.2, 3).draw(1, steps)
    share = cluster_coins(1, steps, p)[quiet].mean()
    assert share == pytest.approx(0.287, abs=4 * np.sqrt(0.287 * 0.713 / (3 * quiet.sum())))


@pytest.mark.parametrize(("k", "d"), [(1, 3), (2, 1), (5, 3), (7, 20), (20, 20)])
def test_averages_among_themselves(k, d):
    rng = np.random.default_rng(k)
    weights, averages = rng.uniform(0.1, 2, k), rng.normal(size=(k, d))
    expected = np.tile(weights @ averages / weights.sum(), (k, 1))
    np.testing.assert_allclose(NETWORKS["all-to-all"](weights, averages), expected, rtol=1e-13, atol=1e-15)
    by_messages, sent = ring_by_messages(weights, averages)
    np.testing.assert_allclose(ring(weights, averages), by_messages, rtol=1e-15, atol=0)
    np.testing.assert_allclose(by_messages, expected, rtol=1e-13, atol=1e-15)
    assert sent == traffic("ring", k, d, 1, 0)["messages"]


def test_nobody_tied_is_zero():
    for network in NETWORKS.values():
        assert not network(np.zeros(3), np.ones((3, 2))).any()


@pytest.mark.parametrize("network", ["all-to-all", "ring"])
def test_the_same_numbers_as_with_a_coordinator(network):
    glm, clusters = table()
    p = np.array([0.1, 0.3, 0.2, 0.05, 0.4])
    ties, vote = ClusterTies.of(clusters, 5, 1.0, 2.0, None), Majority(0.15, 5)
    theta = []
    for average in (central, NETWORKS[network]):
        for compiled in (True, False):
            fed = InProcess(glm, clusters)
            method = AsyncL2GD(ties, 0.15, p, fractions(0.15, p), 0.004, compiled=compiled, vote=vote, network=average)
            *_, state = method.run(fed, [150])
            theta.append(theta_of(fed))
    assert state["between"] > 5
    for other in theta[1:]:
        np.testing.assert_allclose(other, theta[0], rtol=1e-12)
