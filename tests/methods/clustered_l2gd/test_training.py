"""Async-L2GD and Async-AL2SGD+ on softmax, coin by coin, against plain loops; layers that nothing ties."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.methods.clustered_l2gd.cluster_rounds import Coordinated, Levels, draw
from coterie.numerics import keyed_random
from coterie.relations.clusters import ClusterTies
from coterie.runs.training import train
from tests.messages import names
from tests.methods.clustered_l2gd.test_cluster_rounds import pulls
from tests.methods.plain_softmax import gradients, problem

ETA, LAM, ALPHA, TAU, P = 0.3, 0.4, 0.3, 8, 1.0 / 9.0
GIVEN = {"eta": ETA, "lam": LAM, "alpha": ALPHA, "tau": TAU, "B": 0}


class Plain:
    """What both algorithms are made of, for four clients in two clusters."""

    def __init__(self, problem):
        self.gradient, self.rows = gradients(problem)
        self.cluster, self.n, self.d = problem.data.group, len(self.rows), problem.objective.dim
        self.gamma, self.share = LAM * self.rows, P / (P + 2 * (1 - P) * P)
        self.step = ETA * (1 - P) ** 2 / self.rows.max()
        ((_, xi0, xi),) = draw(0, 0, 3 * TAU, Coordinated(P), np.full(2, P))
        self.coins = list(zip(xi0, xi, strict=True))
        assert xi0.any() and (xi[~xi0]).any()

    def loss(self, theta):
        return np.stack([self.rows[i] * self.gradient(i, theta[i]) for i in range(self.n)])

    def means(self, theta):
        """Every client's cluster's average, and that of all."""
        own = np.stack([self.gamma[c == self.cluster] @ theta[c == self.cluster] for c in self.cluster])
        own /= np.array([self.gamma[c == self.cluster].sum() for c in self.cluster])[:, None]
        return own, self.gamma @ theta / self.gamma.sum()


def test_async_l2gd_takes_the_steps_of_its_coins():
    four = problem()
    plain = Plain(four)
    theta, gamma = np.zeros((4, plain.d)), plain.gamma[:, None]
    for global_round, within in plain.coins:
        own, mean = plain.means(theta)
        if global_round:
            pull = ALPHA * (theta - mean) + plain.share * (1 - ALPHA) * (theta - own)
            theta = theta - plain.step / P * gamma * pull
            continue
        pulls = plain.step * (1 - plain.share) * (1 - ALPHA) / ((1 - P) * P) * gamma * (theta - own)
        steps = plain.step / ((1 - P) * (1 - P)) * plain.loss(theta)
        theta = theta - np.where(within[plain.cluster][:, None], pulls, steps)
    found = train(four, "async-l2gd", GIVEN)
    np.testing.assert_allclose(found.theta, theta, atol=1e-6)


def test_async_al2sgd_takes_the_steps_of_its_coins():
    four = problem()
    plain = Plain(four)
    gamma, s, eta = plain.gamma[:, None], plain.share, plain.step
    x = y = z = np.zeros((4, plain.d))
    moves = keyed_random.uniform(0, "anchor coin", np.zeros(3 * TAU), np.arange(3 * TAU), 1)[:, 0] < 1.0 / TAU
    for (global_round, within), move in zip(plain.coins, moves, strict=True):
        theta = 0.3 * z + 0.3 * x + 0.4 * y
        (own_x, mean_x), (own, mean) = plain.means(x), plain.means(theta)
        h = plain.loss(x) + gamma * (x - ALPHA * mean_x - (1 - ALPHA) * own_x)
        if global_round:
            change = ALPHA * ((theta - mean) - (x - mean_x)) + s * (1 - ALPHA) * ((theta - own) - (x - own_x))
            g = h + gamma * change / P
        else:
            pulls = (1 - s) * (1 - ALPHA) / ((1 - P) * P) * gamma * ((theta - own) - (x - own_x))
            local = (plain.loss(theta) - plain.loss(x)) / ((1 - P) * (1 - P))
            g = h + np.where(within[plain.cluster][:, None], pulls, local)
        y, z = theta - eta * g, z - 0.25 * eta / 0.3 * g
        x = y if move else x
    found = train(four, "async-al2sgd", GIVEN)
    np.testing.assert_allclose(found.theta, y, atol=1e-6)


@pytest.mark.parametrize("name", ["async-l2gd", "async-al2sgd"])
def test_untied_layers_do_not_travel(name):
    net = {"path": "mlp", "args": {"sizes": [64, 5, 10]}, "dtype": "float64"}
    four = problem(model=net)
    free, apart = train(four, name, GIVEN | {"lam": 1e-12}), train(four, name, GIVEN | {"untied": ["*"]})
    np.testing.assert_allclose(apart.theta, free.theta, atol=1e-9)
    whole, head = train(four, name, GIVEN), train(four, name, GIVEN | {"untied": ["head*"]})
    assert head.ledger["bytes_up"] < whole.ledger["bytes_up"]
    assert np.abs(head.theta - whole.theta).max() > 1e-6
    assert any("no rate" in note for note in whole.notes)


@pytest.mark.parametrize("method", ["async-l2gd", "async-al2sgd"])
def test_clusters_are_tied_to_all_as_clients_to_their_cluster_by_default(method):
    """Proposition 2.2 with ``lambda_j = gamma_i``: ``alpha_j = 1 / (1 + n_j)``, 1/3 for clusters of two."""
    given = {name: value for name, value in GIVEN.items() if name != "alpha"}
    found = train(problem(), method, given).theta
    np.testing.assert_array_equal(found, train(problem(), method, given | {"alpha": 1.0 / 3.0}).theta)
    assert not np.allclose(found, train(problem(), method, given | {"alpha": 0.3}).theta, atol=1e-6)


def four_groups():
    """Eight clients in four groups, softmax."""
    return problem(data={"clients": 8, "rows": 240, "angles": [0, 90, 180, 270]})


REGIONS, GROUPS = {"1": "north", "2": "south", "3": "north", "4": "south"}, {"1": 0.2, "2": 0.9, "3": 0.5, "4": 0.1}
TAUS = 3 * TAU


def above(eight, beta):
    """ClusterTies and rounds of four groups in two regions."""
    clusters, node = eight.data.group, np.array([0, 1, 0, 1])
    gamma = np.array(list(GROUPS.values()))[clusters] * eight.objective.sizes()
    ties = ClusterTies(gamma, np.full(4, ALPHA), clusters, ((node, beta[node]),))
    levels = Levels.of(ties, P, np.full(4, P), (np.full(4, P),))
    ((_, xi0, xi),) = draw(0, 0, TAUS, Coordinated(P), np.full(4, P))
    level = np.where(xi, 0, -1)
    over = levels.drawn(0, 0, xi0)
    level[over > 0] = over[over > 0]
    assert {-1, 0, 1, 2} == set(level.ravel())
    return ties, levels, level


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("beta", [None, {"north": 0.3, "south": 0.8}])
def test_regions_and_strengths_of_groups_take_the_steps_of_their_coins(beta, shared):
    eight = four_groups()
    ties, levels, coins = above(eight, np.array([1 / 3, 1 / 3] if beta is None else list(beta.values())))
    gradient, rows = gradients(eight)
    d = eight.objective.dim
    own = np.array([not (shared and str(j).startswith("1")) for j in range(d)])
    theta, step = np.zeros((8, d)), ETA * (1 - P) ** 3 / rows.max()
    for level in coins:
        f = np.stack([rows[i] * gradient(i, theta[i]) for i in range(8)])
        mine = level[ties.clusters, None]
        g = np.where(mine < 0, f / levels.local[ties.clusters, None], pulls(ties, levels, level, theta))
        theta = theta - step * np.where(own, g, f.mean(axis=0) / P * (level[0] == 2))
    given = GIVEN | {"lam": GROUPS, "regions": REGIONS, "beta": beta}
    given |= {"personal": [f"{j}*" for j in range(10) if j != 1]} if shared else {}
    found = train(eight, "async-l2gd", given)
    np.testing.assert_allclose(found.theta, theta, atol=1e-6)
    assert not shared or any("one for all clients" in note for note in found.notes)


@pytest.mark.parametrize("name", ["async-l2gd", "async-al2sgd"])
def test_shared_layers_of_a_net_are_one_for_all(name):
    net = {"path": "mlp", "args": {"sizes": [64, 5, 10]}, "dtype": "float64"}
    eight = problem(model=net, layout={"personal": ["head*"]})
    found, tied = train(eight, name, GIVEN | {"p0": 0.4, "eta": 0.05}), train(problem(model=net), name, GIVEN)
    body = sum(size for layer, size in eight.objective.names.items() if not layer.startswith("head"))
    assert np.ptp(found.theta[:, :body], axis=0).max() < 1e-12 < np.ptp(found.theta[:, body:], axis=0).max()
    assert np.ptp(tied.theta[:, :body], axis=0).max() > 1e-3
    assert found.status == "running" and np.isfinite(found.theta).all()


@pytest.mark.parametrize("name", ["async-l2gd", "async-al2sgd"])
def test_layers_that_nothing_ties_are_personal_ones(name):
    net = {"path": "mlp", "args": {"sizes": [64, 5, 10]}, "dtype": "float64"}
    eight = problem(model=net, layout={"personal": ["head*"]})
    with pytest.raises(CoterieError, match=names("untied dense1.bias shared personal")):
        train(eight, name, GIVEN | {"untied": ["*"]})


def broken_problem(which, **more):
    """Four clients in two clusters, of which some have a row that is no number."""
    four = problem(**more)
    X, rows = np.array(four.data.train.X, dtype=np.float64), four.data.train
    for i in which:
        X[rows.starts[i]] = np.nan
    return replace(four, data=replace(four.data, train=replace(rows, X=X)))


@pytest.mark.parametrize("layout", [{}, {"personal": ["head*"]}])
@pytest.mark.parametrize("name", ["async-l2gd", "async-al2sgd"])
def test_a_client_whose_rows_are_broken_is_left_out(name, layout):
    """The others' models are those of a run without it."""
    net = {"path": "mlp", "args": {"sizes": [64, 5, 10]}, "dtype": "float64"}
    four, given = broken_problem([1], model=net, layout=layout), GIVEN | {"eta": 0.05, "p0": 0.4}
    found = train(four, name, given)
    assert found.status == "running" and list(found.quarantined) == [four.data.labels[1]]
    assert np.isfinite(found.theta).all() and np.isfinite(found.scores.loss).all()
    others, data = np.array([0, 2, 3]), four.data
    parts = [replace(p, starts=p.starts[others], stops=p.stops[others]) for p in (data.train, data.test)]
    labels = tuple(data.labels[i] for i in others)
    three = replace(data, train=parts[0], test=parts[1], labels=labels, ids=data.ids[others], group=data.group[others])
    expected = train(replace(four, data=three), name, given)
    np.testing.assert_allclose(found.theta[others], expected.theta, atol=1e-12)
    np.testing.assert_allclose(found.theta[1], expected.theta[0], atol=0.3)  # of the same cluster


@pytest.mark.parametrize("name", ["async-l2gd", "async-al2sgd"])
def test_a_cluster_and_all_clients_that_are_broken(name):
    found = train(broken_problem([2, 3]), name, GIVEN)
    assert found.status == "running" and len(found.quarantined) == 2 and np.isfinite(found.theta).all()
    found = train(broken_problem(range(4)), name, GIVEN)
    assert "every client is quarantined" in found.status and np.isfinite(found.theta).all()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"lam": {"1": 0.1}}, "lam none of 2, 3, 4 give all"),
        ({"lam": {"5": 0.1}}, "lam has no group '5'"),
        ({"lam": -1}, "lam a table of groups"),
        ({"regions": {"1": "north"}}, "regions nothing of 2, 3, 4"),
        ({"regions": REGIONS, "beta": {"west": 0.1}}, "beta has no group 'west'"),
    ],
)
def test_tables_of_groups_name_each(given, words):
    with pytest.raises(CoterieError, match=names(words)):
        train(four_groups(), "async-l2gd", GIVEN | given)
