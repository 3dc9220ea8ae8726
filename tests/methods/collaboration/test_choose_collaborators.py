"""With whom to collaborate: programs against an active set, what is predicted against what is true, who is left out."""

import numpy as np
import pytest

from coterie.data.clients import Clients
from coterie.engines.local_engines import InProcess
from coterie.errors import CoterieError
from coterie.methods.collaboration.choose_collaborators import choose, nearest_clients, nearest_pairs
from coterie.methods.collaboration.collaborators import Collaborators
from coterie.methods.collaboration.metric_and_similarity import around_pooled, between, client_similarity, posterior
from coterie.methods.collaboration.optimum import optimum
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.numerics.simplex_qp import mixture_weights
from coterie.objectives.glm import GLM
from coterie.objectives.quadratic import Quadratic
from coterie.relations.clusters import ClusterTree
from coterie.runs.run_table_method import client_losses, objective


def federation(theta, rows, seed=0, family="gaussian", clusters=None, block=4096):
    """Clients with given coefficients (n, d), the first of them an intercept's, and numbers of rows."""
    rng = np.random.default_rng(seed)
    n, d = theta.shape
    codes = np.repeat(np.arange(n), rows)
    X = np.column_stack([np.ones(codes.size), rng.normal(size=(codes.size, d - 1))])
    eta = np.sum(X * theta[codes], axis=1)
    y = eta + rng.normal(size=codes.size)
    if family == "binomial":
        y = (rng.random(codes.size) < 1 / (1 + np.exp(-eta))).astype(float)
    clients = Clients.from_arrays(X, y, codes, None if clusters is None else clusters[codes])
    fed = InProcess(
        objective(clients, family), clients.clusters if clients.levels else None, ids=clients.ids, block=block
    )
    tree = ClusterTree.of(clients) if clients.levels else ClusterTree()
    return fed, around_pooled(fed, GroupedProblem(tree, family, np.arange(d), 0))[1]


def test_weights_of_a_mixture_are_optimal():
    rng = np.random.default_rng(1)
    M, d, sizes = 6, 3, np.array([1, 4, 0, 7, 30, 5])
    of = np.repeat(np.arange(M), sizes)
    own, own_noise = rng.normal(size=(M, d)), rng.random(M)
    others, noise = rng.normal(size=(of.size, d)), rng.random(of.size)
    weight, tau = mixture_weights(own, own_noise, others, noise, of)
    for i in range(M):
        here = of == i
        A, v = np.vstack([own[i], others[here]]), np.append(own_noise[i], noise[here])
        found = np.append(weight[i], (1.0 - weight[i]) * tau[here])
        slope = 2.0 * (A @ (A.T @ found) + v * found)
        assert abs(found.sum() - 1.0) < 1e-12 and found.min() >= 0.0
        np.testing.assert_allclose(slope[found > 0.0], slope.min(), rtol=1e-8)
    assert weight[2] == 1.0


def test_given_tau_leaves_alpha_to_be_chosen():
    rng = np.random.default_rng(2)
    of, tau = np.array([0, 0, 1]), np.array([0.3, 0.7, 1.0])
    own, others = rng.normal(size=(3, 2)), rng.normal(size=(3, 2))
    own_noise, noise = rng.random(3), rng.random(3)
    weight, same = mixture_weights(own, own_noise, others, noise, of, tau)
    np.testing.assert_array_equal(same, tau)
    assert weight[2] == 1.0
    grid = np.linspace(0, 1, 100_001)[:, None]
    q, v = tau[:2] @ others[:2], tau[:2] ** 2 @ noise[:2]
    value = np.sum((grid * own[0] + (1 - grid) * q) ** 2, axis=1) + grid[:, 0] ** 2 * own_noise[0]
    value += (1 - grid[:, 0]) ** 2 * v
    assert weight[0] == pytest.approx(float(grid[np.argmin(value), 0]), abs=1e-4)


def test_candidates_are_the_nearest_by_distance_and_noise():
    rng = np.random.default_rng(3)
    n, places = 40, np.repeat([0, 1, 2], [25, 14, 1])
    g, around, noise, main = rng.normal(size=(n, 2)), rng.normal(size=(n, 2)), rng.random(n), np.array([3, 30, 39, 0])
    of, who = nearest_clients(g, noise, around, main, places, 5)
    for i, client in enumerate(main):
        others = [k for k in range(n) if k != client and places[k] == places[client]]
        score = {k: np.sum((g[k] - around[client]) ** 2) + noise[k] for k in others}
        assert set(who[of == i]) == set(sorted(score, key=score.get)[:5])
    all_of = np.repeat(np.arange(4), 10)
    all_who = np.concatenate([rng.choice(np.setdiff1d(np.arange(n), [c]), 10, replace=False) for c in main])
    at = nearest_pairs(g, noise, around[main], all_of, all_who, 3)
    np.testing.assert_array_equal(np.bincount(all_of[at]), [3, 3, 3, 3])
    for i, client in enumerate(main):
        score = {k: np.sum((g[k] - around[client]) ** 2) + noise[k] for k in all_who[all_of == i]}
        assert set(all_who[at][all_of[at] == i]) == set(sorted(score, key=score.get)[:3])


def test_variances_between_and_within_are_found():
    rng = np.random.default_rng(4)
    n, C, S = 4000, np.array([[0.7, 0.1], [0.1, 0.3]]), np.array([[0.5, -0.2], [-0.2, 0.2]])
    groups, noise = rng.integers(0, 3, n), rng.uniform(0.2, 3.0, n)
    means = np.array([[1.0, 0.0], [-1.0, 2.0], [0.0, 0.0]])
    true = means[groups] + rng.multivariate_normal(np.zeros(2), S, n)
    g = true + np.sqrt(noise)[:, None] * rng.multivariate_normal(np.zeros(2), C, n)
    found, spread = between(g, noise, C, groups)
    np.testing.assert_allclose(found, means, atol=0.08)
    np.testing.assert_allclose(spread, S, atol=0.06)
    b, unsure = posterior(g, noise, C, found[groups], spread)
    i = 7
    V = noise[i] * C
    gain = spread @ np.linalg.inv(spread + V)
    np.testing.assert_allclose(b[i], found[groups[i]] + gain @ (g[i] - found[groups[i]]), atol=1e-10)
    assert unsure[i] == pytest.approx(np.trace(spread - gain @ spread))
    error = np.sum((b - true) ** 2, axis=1)
    assert error.mean() == pytest.approx(unsure.mean(), rel=0.05)


def test_copies_collaborate_and_strangers_do_not():
    copies, metric = federation(np.tile([1.0, 2.0], (60, 1)), np.full(60, 30))
    choice = choose(copies, metric, count=10)
    assert np.median(choice.speedup) > 8.0
    assert np.median(choice.alpha) > 0.85
    rng = np.random.default_rng(0)
    strangers, metric = federation(rng.normal(size=(60, 2)) * 30.0, np.full(60, 30))
    choice = choose(strangers, metric, count=10)
    assert choice.speedup.max() < 1.05
    assert choice.alpha.mean() < 0.15


def test_of_two_kinds_one_collaborates_with_ones_own():
    kind = np.arange(40) % 2
    theta = np.where(kind[:, None] == 0, [5.0, 1.0], [-5.0, -1.0])
    fed, metric = federation(theta, np.full(40, 40), seed=2)
    choice = choose(fed, metric)
    who = choice.pairs
    assert np.all(kind[who.pair_client] == kind[who.main[who.pair_main]])
    assert np.median(choice.alpha) > 0.5
    assert len(np.unique(who.pair_main)) == 40 and np.diff(who.starts).max() <= 10


@pytest.mark.parametrize("spread", [0.0, 0.1, 0.5, 3.0])
def test_the_promise_is_kept_where_clients_are_small(spread):
    """The nearest of many noisy clients have the same noise, and seem to help more than they do."""
    rng = np.random.default_rng(5)
    theta = np.array([1.0, -1.0]) + spread * rng.normal(size=(300, 2))
    fed, metric = federation(theta, np.full(300, 20), seed=6)
    truth = metric.u(theta)
    choice = choose(fed, metric)
    together = np.sum((metric.u(optimum(fed, choice.pairs, choice.alpha, metric).theta) - truth) ** 2)
    alone = np.sum((metric.u(optimum(fed, choice.pairs, np.zeros(300), metric).theta) - truth) ** 2)
    assert together < 1.6 * np.sum(choice.noise / choice.speedup)
    assert together < 1.02 * alone


def test_counts_of_moderately_different_sizes_help_each_other():
    """Far from its optimum a client looks as noisy as it is wrong. (docs/collaborators.md says where this ends.)"""
    rng = np.random.default_rng(0)
    theta = np.array([0.5, 0.3]) + 0.3 * rng.normal(size=(60, 2))
    codes = np.repeat(np.arange(60), rng.integers(10, 50, 60))
    X = np.column_stack([np.ones(codes.size), rng.normal(size=codes.size)])
    mean = np.exp(np.sum(X * theta[codes], axis=1))
    clients = Clients.from_arrays(X, rng.poisson(mean), codes)
    fed = InProcess(objective(clients, "poisson"), ids=clients.ids)
    metric = around_pooled(fed, GroupedProblem(ClusterTree(), "poisson", np.arange(2), 0))[1]
    choice = choose(fed, metric)
    truth = Clients.from_arrays(X, mean, codes)
    together, alone = (
        client_losses(truth, "poisson", optimum(fed, choice.pairs, a, metric).theta).sum()
        for a in (choice.alpha, np.zeros(60))
    )
    assert together < alone


def test_the_gain_is_that_of_the_mean_loss():
    """f_0 falls by half of the squared error in u, where its Hessian is the identity."""
    fed, metric = federation(np.tile([0.0, 1.0], (100, 1)), np.full(100, 25), seed=8)
    choice = choose(fed, metric)
    bend = client_similarity(fed, metric).curvature
    np.testing.assert_allclose(2.0 * bend * choice.gain, choice.noise * (1.0 - 1.0 / choice.speedup))
    truth = metric.u(np.array([[0.0, 1.0]]))
    theta = optimum(fed, choice.pairs, choice.alpha, metric).theta
    alone = optimum(fed, choice.pairs, np.zeros(100), metric).theta
    fell = np.sum((metric.u(alone) - truth) ** 2, axis=1) - np.sum((metric.u(theta) - truth) ** 2, axis=1)
    assert 0.5 * fell.mean() == pytest.approx(choice.gain.mean(), rel=0.25)


def test_candidates_and_clusters_limit_who_is_chosen():
    rng = np.random.default_rng(9)
    clusters = np.repeat([0, 1, 2], [10, 9, 1])
    fed, metric = federation(rng.normal(size=(20, 2)) * 0.1, np.full(20, 15), clusters=clusters)
    choice = choose(fed, metric, same_cluster=True)
    who = choice.pairs
    assert np.all(clusters[who.pair_client] == clusters[who.main[who.pair_main]])
    assert choice.alpha[19] == 0.0 and choice.speedup[19] == 1.0
    named = Collaborators.of_one(4, 20, clients=[1, 2, 15], tau=[0.2, 0.3, 0.5])
    some = choose(fed, metric, np.array([4]), named, count=2)
    assert set(some.pairs.pair_client) <= {1, 2, 15} and len(some.pairs.pair_client) <= 2
    kept = choose(fed, metric, np.array([4]), named, keep=True)
    np.testing.assert_allclose(kept.pairs.tau, named.tau)
    assert 0.0 < kept.alpha[0] < 1.0


@pytest.mark.parametrize("family", ["binomial", "gaussian"])
def test_blocks_of_clients_change_nothing(family):
    rng = np.random.default_rng(10)
    theta = rng.normal(size=(50, 3)) * 0.5
    rows = rng.integers(2, 40, 50)
    fed, metric = federation(theta, rows, family=family)
    blocks, _ = federation(theta, rows, family=family, block=7)
    one, other = choose(fed, metric), choose(blocks, metric)
    np.testing.assert_array_equal(one.pairs.pair_client, other.pairs.pair_client)
    np.testing.assert_allclose(one.alpha, other.alpha, atol=1e-9)


def test_a_client_without_rows_that_weigh_takes_all_from_others_and_gives_nothing():
    metric = federation(np.tile([1.0, 2.0], (12, 1)), np.full(12, 20))[1]
    rng = np.random.default_rng(0)
    X = np.column_stack([np.ones(240), rng.normal(size=240)])
    weights = np.where(np.arange(240) < 20, 0.0, 1.0)
    clients = Clients.from_arrays(
        X, X @ [1.0, 2.0] + rng.normal(size=240), np.repeat(np.arange(12), 20), None, weights=weights
    )
    choice = choose(InProcess(objective(clients, "gaussian"), ids=clients.ids), metric)
    assert choice.alpha[0] > 0.999
    assert 0 not in choice.pairs.pair_client
    assert np.isfinite(choice.speedup).all()


def test_what_cannot_be_chosen_from():
    _, metric = federation(np.ones((3, 2)), np.full(3, 9))
    smooth = InProcess(Quadratic(np.tile(np.eye(2), (3, 1, 1)), np.ones((3, 2))))
    with pytest.raises(CoterieError, match="chosen by the gradients of rows"):
        choose(smooth, metric)
    alone = InProcess(Quadratic(np.eye(2)[None], np.ones((1, 2))))
    with pytest.raises(CoterieError, match="one client only"):
        choose(alone, metric)


def test_separated_outcomes_do_not_send_clients_away():
    rng = np.random.default_rng(4)
    n, m = 25, 5
    X = np.column_stack([np.ones(n * m), rng.normal(size=(n * m, 8))])
    y = (X[:, 1] > 0.0).astype(float)
    y[: n * 3] = rng.uniform(size=n * 3) < 0.5
    starts = np.arange(m) * n
    glm = GLM(X, y, np.zeros(n * m), np.ones(n * m), starts, starts + n, "binomial")
    fed = InProcess(glm)
    metric = around_pooled(
        fed, GroupedProblem(ClusterTree((np.zeros(1, dtype=np.int64),)), "binomial", np.arange(9), 0)
    )[1]
    choice = choose(fed, metric)
    assert np.isfinite(choice.speedup).all()
    assert np.isfinite(optimum(fed, choice.pairs, choice.alpha, metric).theta).all()


@pytest.mark.parametrize("spread", [0.3, 1.0])
def test_clients_whose_counts_differ_by_orders_of_magnitude_stay_alone(spread):
    rng = np.random.default_rng(0)
    m, n = 30, 20
    beta = np.array([13.0, 0.3]) + spread * rng.normal(size=(m, 2)) * np.array([1.0, 0.3])
    X = np.column_stack([np.ones(m * n), rng.normal(size=m * n)])
    y = rng.poisson(np.exp(np.sum(np.repeat(beta, n, axis=0) * X, axis=1))).astype(float)
    starts = np.arange(m) * n
    fed = InProcess(GLM(X, y, np.zeros(m * n), np.ones(m * n), starts, starts + n, "poisson"))
    metric = around_pooled(
        fed, GroupedProblem(ClusterTree((np.zeros(1, dtype=np.int64),)), "poisson", np.arange(2), 0)
    )[1]
    choice = choose(fed, metric)
    assert not choice.alpha.any()
    theta = optimum(fed, choice.pairs, choice.alpha, metric).theta
    np.testing.assert_allclose(theta, beta, atol=0.02)
