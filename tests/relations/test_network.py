"""The similarity network: what edges a user may give, nearest neighbours, components joined, known clusters."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.spatial.distance import cdist

from coterie.errors import CoterieError
from coterie.relations import neighbours
from coterie.relations.clusters import (
    adjusted_rand_index,
    by_first,
    leading_eigenvectors,
    spectral_clustering,
)
from coterie.relations.network import Network
from coterie.report.network_figures import spring_layout
from tests.messages import names


def blobs(n=60, clusters=3, apart=12.0, q=3, seed=0):
    rng = np.random.default_rng(seed)
    known = np.arange(n) % clusters
    return apart * rng.normal(size=(clusters, q))[known] + rng.normal(size=(n, q)), known


def neighbour_pairs(P, k):
    """All pairs where one is among the other's k nearest, by sorting all distances."""
    D = cdist(P, P)
    np.fill_diagonal(D, np.inf)
    near = np.argsort(D, axis=1)[:, :k]
    return {(min(i, j), max(i, j)) for i in range(len(P)) for j in near[i]}, np.sort(D, axis=1)[:, k - 1]


def as_set(network):
    return {tuple(e) for e in network.edges.tolist()}


# -- a user's own edges


def test_edges_are_kept_once_in_order_of_their_clients():
    network = Network.of(5, [(3, 1), (0, 2), (1, 3), (0, 2)], [2.0, 1.0, 2.0, 1.0])
    assert network.edges.tolist() == [[0, 2], [1, 3]]
    assert network.weight.tolist() == [1.0, 2.0]
    assert network.degree.tolist() == [1, 1, 1, 1, 0]
    assert np.flatnonzero(network.degree == 0).tolist() == [4]
    assert network.components.tolist() == [0, 1, 0, 1, 2]
    np.testing.assert_array_equal(network.adjacency.toarray()[1], [0, 0, 0, 2, 0])
    assert len(network) == 2


@pytest.mark.parametrize("edges", [[], np.empty((0, 2), int)])
def test_no_edges_leave_everyone_isolated(edges):
    network = Network.of(3, edges)
    assert np.flatnonzero(network.degree == 0).tolist() == [0, 1, 2]
    assert network.components.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("n", "edges", "weight", "message"),
    [
        (3, [(1, 1)], None, "Clients 1 have an edge to themselves: leave such edges out"),
        (3, [(0, 3), (-1, 2)], None, "not there (-1, 3): numbers go from 0 to 2"),
        (3, [(0, 1)], [-1.0], "positive finite numbers, but edge 0 has -1.0"),
        (3, [(0, 1), (1, 2)], [1.0, np.nan], "edge 1 has nan"),
        (3, [(0, 1)], [0.0], "leave edges without weight out"),
        (3, [(0, 1)], [np.inf], "edge 0 has inf"),
        (3, [(0, 1)], ["heavy"], "Weights of edges must be numbers"),
        (3, [(0, 1)], [1.0, 2.0], "one weight for each edge"),
        (3, [(0, 1), (1, 0)], [1.0, 2.0], "Clients 1 and 0 have edges of different weight"),
        (3, [(0, 1, 2)], None, "of shape (M, 2)"),
        (3, [(0.0, 1.0)], None, "an integer array"),
        (0, [], None, "n must be a whole number from 1"),
        (2.5, [], None, "n must be a whole number"),
    ],
)
def test_edges_that_cannot_be(n, edges, weight, message):
    with pytest.raises(CoterieError) as e:
        Network.of(n, edges, weight)
    assert message in str(e.value)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array, sparse.coo_matrix])
def test_a_matrix_of_weights_is_a_network(kind):
    A = np.array([[0.0, 2.0, 0.0], [2.0, 0.0, 0.5], [0.0, 0.5, 0.0]])
    network = Network.from_adjacency(kind(A))
    assert network.edges.tolist() == [[0, 1], [1, 2]]
    assert network.weight.tolist() == [2.0, 0.5]
    np.testing.assert_array_equal(Network.from_adjacency(network.adjacency).adjacency.toarray(), A)


def test_a_matrix_that_is_not_symmetric_is_refused_or_made_so():
    A = np.array([[0.0, 2.0, 0.0], [1.0, 0.0, 0.0], [0.0, 3.0, 0.0]])
    with pytest.raises(CoterieError, match="not symmetric"):
        Network.from_adjacency(A)
    network = Network.from_adjacency(A, symmetrise=True)
    assert network.edges.tolist() == [[0, 1], [1, 2]]
    assert network.weight.tolist() == [2.0, 3.0]
    assert len(Network.from_adjacency(np.zeros((3, 3)))) == 0


@pytest.mark.parametrize(
    ("A", "message"),
    [
        (np.eye(2), "an edge to themselves"),
        (np.array([[0.0, -1.0], [-1.0, 0.0]]), "positive finite"),
        (np.array([[0.0, np.nan], [np.nan, 0.0]]), "positive finite"),
        (np.ones((2, 3)), "must be square"),
        ([["a", "b"]], "square table of numbers"),
    ],
)
def test_a_matrix_that_cannot_be(A, message):
    with pytest.raises(CoterieError, match=message):
        Network.from_adjacency(A)


# -- nearest neighbours


@pytest.mark.parametrize("k", [1, 4])
def test_neighbours_are_those_of_all_distances(k):
    P = np.random.default_rng(0).normal(size=(80, 3)) + 100
    want, scale = neighbour_pairs(P, k)
    network = Network.nearest(P, k, weighted=True)
    assert as_set(network) == want
    i, j = network.edges.T
    d = np.linalg.norm(P[i] - P[j], axis=1)
    np.testing.assert_allclose(network.weight, np.maximum(np.exp(-(d**2) / (scale[i] * scale[j])), 0.01), rtol=1e-6)
    assert (Network.nearest(P, k).weight == 1.0).all()


def test_mutual_neighbours_are_those_of_both():
    P = np.random.default_rng(1).normal(size=(50, 2))
    D = cdist(P, P)
    np.fill_diagonal(D, np.inf)
    near = [set(np.argsort(D[i])[:3]) for i in range(50)]
    assert as_set(Network.nearest(P, 3, mutual=True)) == {
        (i, j) for i in range(50) for j in near[i] if i < j and i in near[j]
    }


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("clusters", [1, 4])
def test_components_are_joined_by_a_minimum_spanning_tree_between_them(k, clusters):
    P, _ = blobs(120, clusters, seed=k)
    before, after = Network.nearest(P, k), Network.nearest(P, k, connected=True)
    c, D = before.components, cdist(P, P)
    pieces = c.max() + 1
    between = np.array([[D[np.ix_(c == a, c == b)].min() for b in range(pieces)] for a in range(pieces)])
    want = minimum_spanning_tree(between).sum()
    added = np.array(sorted(as_set(after) - as_set(before)), dtype=int).reshape(-1, 2)
    assert as_set(before) <= as_set(after)
    assert len(added) == pieces - 1
    assert after.components.max() == 0
    assert D[added[:, 0], added[:, 1]].sum() == pytest.approx(want)


def test_large_components_are_joined_as_well():
    P, known = blobs(900, 3, apart=30.0)
    network = Network.nearest(P, 8, connected=True)
    i, j = network.edges.T
    assert np.sum(known[i] != known[j]) == 2
    assert network.components.max() == 0


def test_clients_at_one_place():
    network = Network.nearest(np.zeros((30, 2)), 3, weighted=True, connected=True)
    assert network.components.max() == 0
    assert (network.weight == 1.0).all()
    assert (network.degree >= 3).all()
    half = Network.nearest(np.repeat([[0.0], [1.0]], 10, axis=0), 4, weighted=True, connected=True)
    assert half.components.max() == 0
    assert half.weight.min() == pytest.approx(0.01)


def test_one_and_two_clients():
    assert Network.nearest([[0.0], [5.0]], 1, weighted=True, connected=True).edges.tolist() == [[0, 1]]
    with pytest.raises(CoterieError, match="One client has no neighbours"):
        Network.nearest([[0.0]], 1)


@pytest.mark.parametrize(
    ("points", "k", "message"),
    [
        (np.zeros((5, 2)), 5, names("k most 4 among 5 clients smaller")),
        (np.zeros((5, 2)), 0, names("k whole number 1")),
        (np.zeros((5, 2)), True, "k must be a whole number"),
        ([[0.0], [np.nan], [1.0]], 1, names("Points clients 1 finite numbers")),
        ([["a"], ["b"]], 1, "must be numbers, in rows of one length"),
        (np.zeros((5, 2, 2)), 1, "a row for each client"),
        (np.zeros((5, 0)), 1, "a row for each client"),
    ],
)
def test_neighbours_that_cannot_be(points, k, message):
    with pytest.raises(CoterieError, match=message):
        Network.nearest(points, k)


def test_ties_do_not_hang_on_rounding():
    P = np.repeat(np.random.default_rng(0).normal(size=(10, 4)), 5, axis=0)
    moved = P + 1e-15 * np.random.default_rng(1).normal(size=P.shape)
    np.testing.assert_array_equal(Network.nearest(P, 3).edges, Network.nearest(moved, 3).edges)


def test_another_distance_ranks_those_that_are_near():
    P = np.random.default_rng(3).normal(size=(60, 2))
    network = Network.nearest(P, 4, weighted=True, distance=lambda i, j: np.abs(P[i] - P[j]).sum(axis=1))
    D = cdist(P, P, "cityblock")
    np.fill_diagonal(D, np.inf)
    near, scale = np.argsort(D, axis=1)[:, :4], np.sort(D, axis=1)[:, 3]
    assert as_set(network) == {(min(i, j), max(i, j)) for i in range(60) for j in near[i]}
    i, j = network.edges.T
    np.testing.assert_allclose(
        network.weight, np.maximum(np.exp(-(D[i, j] ** 2) / (scale[i] * scale[j])), 0.01), rtol=1e-9
    )


class Descent:
    """What pynndescent gives, searched exactly: every point is most often its own nearest neighbour."""

    def __init__(self, P, n_neighbors, random_state):
        near = np.argsort(cdist(P, P), axis=1, kind="stable")[:, :n_neighbors]
        near[::7, -1] = -1  # where it found fewer
        self.neighbor_graph = near.astype(np.int32), None


@pytest.mark.parametrize("library", [False, pytest.param(True, marks=pytest.mark.soak)])  # it compiles itself: slow
def test_many_clients_are_searched_approximately_and_repeatably(monkeypatch, library):
    if not library:
        monkeypatch.setitem(sys.modules, "pynndescent", SimpleNamespace(NNDescent=Descent))
    monkeypatch.setattr(neighbours, "EXACT", 100)
    P, _ = blobs(1500, 4, q=8)
    found, again = (Network.nearest(P, 6, seed=2) for _ in range(2))
    np.testing.assert_array_equal(found.edges, again.edges)
    want, _ = neighbour_pairs(P, 6)
    assert len(as_set(found) & want) > 0.98 * len(want)
    copies = Network.nearest(np.repeat(P[:20], 60, axis=0), 6)
    i, j = copies.edges.T
    assert (i != j).all()
    assert (copies.degree >= 6).all()


def test_random_and_complete_networks():
    network = Network.random(200, 5, seed=1)
    assert (network.degree >= 5).all()
    np.testing.assert_array_equal(network.edges, Network.random(200, 5, seed=1).edges)
    assert not np.array_equal(network.edges, Network.random(200, 5, seed=2).edges)
    assert as_set(network) == as_set(Network.of(200, network.edges))
    j = network.edges[network.edges[:, 0] == 0, 1]
    assert len(set(j.tolist())) == len(j)
    assert as_set(Network.random(4, 3)) == as_set(Network.complete(4))
    assert len(Network.random(1, 0)) == len(Network.complete(1)) == 0
    with pytest.raises(CoterieError, match="at most 3"):
        Network.random(4, 4)


# -- known clusters


def test_a_network_of_clusters_agrees_with_them():
    P, known = blobs(90, 3, apart=15.0)
    joined = Network.nearest(P, 5, weighted=True, connected=True)
    found = joined.against(np.array(["a", "b", "c"])[known])
    assert found["inside"] > 0.99
    assert found["modularity"] == pytest.approx(found["inside"] - found["chance"])
    assert found["assortativity"] > 0.97
    assert found["components"] == 0.0
    assert found["spectral"] == 1.0
    assert Network.nearest(P, 5).against(known)["components"] == 1.0


def test_modularity_is_newmans():
    network = Network.random(30, 3)
    known = np.arange(30) % 4
    A, d = network.adjacency.toarray(), network.adjacency.sum(axis=0)
    same = known[:, None] == known
    want = np.sum((A - np.outer(d, d) / d.sum()) * same) / d.sum()
    assert network.against(known)["modularity"] == pytest.approx(want)


def test_a_random_network_says_nothing():
    known = np.arange(200) % 4
    found = Network.random(200, 8).against(known)
    assert abs(found["assortativity"]) < 0.1
    assert found["spectral"] < 0.1


def test_networks_and_clusters_with_nothing_to_compare():
    found = Network.of(4, []).against([0, 0, 1, 1])
    assert np.isnan(found["inside"])
    assert np.isnan(Network.of(4, [(0, 1)]).against([0, 0, 0, 0])["assortativity"])
    assert Network.of(3, [(0, 1)]).against([0, 1, 2])["spectral"] == 1.0
    with pytest.raises(CoterieError, match=names("label 4 clients")):
        Network.of(4, []).against([0, 1])
    with pytest.raises(CoterieError, match=names("Client 1 known cluster")):
        Network.of(2, []).against(["a", None])


def test_agreement_is_the_adjusted_rand_index():
    assert adjusted_rand_index([0, 0, 1, 1], ["b", "b", "a", "a"]) == 1.0
    assert adjusted_rand_index([0, 0, 1, 2], [0, 0, 1, 1]) == pytest.approx(0.571428571)  # scikit-learn's documentation
    assert by_first(np.array([7, 7, 2, 9, 2])).tolist() == [0, 0, 1, 2, 1]


@pytest.mark.parametrize("n", [200, 700])
def test_spectral_clusters_of_separate_components_are_the_components(n):
    P, known = blobs(n, 4, apart=40.0)
    network = Network.nearest(P, 5)
    assert adjusted_rand_index(spectral_clustering(network.adjacency, 4), known) == 1.0


def test_eigenvectors_of_a_long_thin_network():
    n = 1200
    path = Network.of(n, [(i, i + 1) for i in range(n - 1)])
    vectors = leading_eigenvectors(path.adjacency, 3)
    d = path.degree.astype(float)
    normal = path.adjacency.toarray() / np.sqrt(np.outer(d, d))
    values = np.linalg.eigvalsh(normal)[::-1][:3]
    np.testing.assert_allclose(np.einsum("ik,ij,jk->k", vectors, normal, vectors), values, atol=1e-10)


# -- places


@pytest.mark.parametrize("n", [1, 2, 3, 60, 600])
def test_places_are_finite_repeatable_and_apart(n):
    network = Network.random(n, min(4, n - 1)) if n > 1 else Network.of(1, [])
    place = spring_layout(network)
    assert place.shape == (n, 2)
    assert np.isfinite(place).all()
    np.testing.assert_array_equal(place, spring_layout(network))
    if n > 1:
        assert np.linalg.norm(place, axis=1).max() == pytest.approx(1.0)
        D = cdist(place, place)
        np.fill_diagonal(D, np.inf)
        assert D.min() > 0.05 / np.sqrt(n)


def test_places_keep_clusters_together():
    P, known = blobs(80, 4, apart=10.0)
    place = spring_layout(Network.nearest(P, 5, connected=True))
    D, same = cdist(place, place), known[:, None] == known
    assert D[same].mean() < 0.4 * D[~same].mean()
    assert np.isfinite(spring_layout(Network.of(5, []))).all()
