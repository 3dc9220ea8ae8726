"""The lambda path: its ends, warm starts, merging groups, the merge tree, and lambda chosen by held-out loss."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.engines import InProcess
from coterie.methods.networks.objective import NetworkObjective
from coterie.methods.networks.optimum import flow, lambda_max, optimum, path
from coterie.relations.clusters import adjusted_rand_index, merge_tree
from coterie.relations.network import Network
from coterie.relations.parameter_layout import Layout
from tests.methods.networks.network_table import near, table

PERSONAL = Layout.columns(3, np.arange(3))


@pytest.fixture(scope="module")
def grouped():
    """Three hidden groups of ten clients, and their graph."""
    glm, theta = table(n=30, rows=30, seed=2, spread=0.05)
    return glm, theta, Network.nearest(theta, 5, connected=True)


@pytest.mark.parametrize("p", [1, 2, np.inf])
def test_groups_are_found_over_a_range_of_lambda(grouped, p):
    glm, _, network = grouped
    known = np.arange(30) % 3
    found = path(InProcess(glm), network, p, layout=PERSONAL, steps=25, span=1e-3)
    assert all(o.kkt <= 1e-6 for o in found.at)
    assert found.lam[0] == np.inf and np.all(np.diff(found.lam) < 0.0)
    groups = found.labels.max(axis=1) + 1
    assert groups[0] == groups[1] == 1 and groups[-1] > 3
    assert sum(adjusted_rand_index(g, known) >= 0.95 for g in found.labels) >= 2
    late = optimum(InProcess(glm), network, found.lam[12], p, layout=PERSONAL)
    np.testing.assert_allclose(late.value, found.at[12].value, rtol=1e-6)
    assert found.at[12].exchanges < late.exchanges
    rising = found.tree.labels.max(axis=1)
    assert np.all(np.diff(rising) <= 0) and rising[-1] == 0
    assert found.tree.merges[-1][2] == 30


@pytest.mark.parametrize("p", [1, 2, np.inf])
def test_from_the_largest_lambda_on_clients_are_one_and_well_below_they_are_not(grouped, p):
    glm, _, network = grouped
    fed = InProcess(glm)
    one = optimum(fed, network, np.inf, p, layout=PERSONAL)
    objective = NetworkObjective(fed, network, 0.0, float(p), PERSONAL, np.ones(3), None)
    top = lambda_max(objective, one.x, one.Z)
    assert optimum(fed, network, top, p, layout=PERSONAL).groups.max() == 0
    assert optimum(fed, network, 0.2 * top, p, layout=PERSONAL).groups.max() > 0


def test_the_flow_carries_what_clients_have():
    _, theta = table(n=20)
    network = near(theta)
    G = np.random.default_rng(0).normal(size=(20, 3))
    for k in range(int(network.components.max()) + 1):
        G[network.components == k] -= G[network.components == k].mean(axis=0)
    U = flow(network, G)
    carried = np.zeros_like(G)
    np.add.at(carried, network.edges[:, 0], U)
    np.add.at(carried, network.edges[:, 1], -U)
    np.testing.assert_allclose(carried, G, atol=1e-6)


def test_held_out_loss_chooses_lambda(grouped):
    glm, theta, network = grouped
    seen = []

    def loss(at):
        seen.append(at.shape)
        return float(np.mean((at - theta) ** 2))

    found = path(InProcess(glm), network, layout=PERSONAL, steps=20, span=1e-3, loss=loss)
    assert seen == [(30, 3)] * 21
    best = int(np.argmin(found.loss))
    assert 0 < best < 20
    assert adjusted_rand_index(found.at[best].groups, np.arange(30) % 3) > 0.5


def test_a_path_of_given_lambdas_and_one_of_clients_alone(grouped):
    glm, _, network = grouped
    found = path(InProcess(glm), network, layout=PERSONAL, lam=[0.001, 0.01])
    np.testing.assert_array_equal(found.lam, [np.inf, 0.01, 0.001])
    alone = path(InProcess(glm), Network.of(30, []), layout=PERSONAL)
    assert len(alone.lam) == 1 and alone.labels.max() + 1 == 30


def test_merged_clients_are_those_joined_by_edges_with_equal_z():
    network = Network.of(6, [(0, 1), (1, 2), (3, 4)])
    Z = np.array([[1.0, 2.0], [1.0, 2.0], [1.5, 2.0], [1.0, 2.0], [1.0 + 1e-5, 2.0], [1.0, 2.0]])
    np.testing.assert_array_equal(network.merged(Z), [0, 0, 1, 2, 2, 3])
    np.testing.assert_array_equal(network.merged(Z, 1e-8), [0, 0, 1, 2, 3, 4])
    np.testing.assert_array_equal(network.merged(np.zeros((6, 2))), [0, 0, 0, 1, 1, 2])
    np.testing.assert_array_equal(Network.of(2, []).merged(np.zeros((2, 0))), [0, 1])


def test_the_tree_keeps_together_what_parts_again():
    labels = [np.array([0, 0, 1, 2]), np.array([0, 1, 2, 3]), np.array([0, 1, 1, 2]), np.array([0, 0, 0, 0])]
    tree = merge_tree(np.array([2.0, 1.0, 3.0, 4.0]), labels)
    np.testing.assert_array_equal(tree.lam, [1, 2, 3, 4])
    np.testing.assert_array_equal(tree.labels, [[0, 1, 2, 3], [0, 0, 1, 2], [0, 0, 0, 1], [0, 0, 0, 0]])
    assert tree.merges == ((2.0, (0, 1), 2), (3.0, (0, 2), 3), (4.0, (0, 3), 4))
