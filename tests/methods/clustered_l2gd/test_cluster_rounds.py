"""Several levels of clusters over rounds: the estimator's algebra, the pseudo-code, and the exact optimum."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize

import coterie
from coterie.engines import InProcess, Loopback
from coterie.methods import given_strengths
from coterie.methods.async_al2sgd import AsyncAL2SGD
from coterie.methods.async_l2gd import AsyncL2GD
from coterie.methods.clustered_l2gd import fit as rounds
from coterie.methods.clustered_l2gd import theory
from coterie.methods.clustered_l2gd.cluster_rounds import Coordinated, Levels, cluster_coins, own_levels
from coterie.methods.clustered_l2gd.strong_convexity import mu_F
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.numerics import keyed_random
from coterie.objectives.gradient_steps import Momentum
from coterie.relations.clusters import ClusterTies, ClusterTree
from tests.messages import names
from tests.methods.known_clusters import gradient, table, theta_of

REGION = np.array([0, 0, 1, 1, 1])
TREE = ClusterTree((REGION, np.zeros(2, dtype=np.int64)))
P0, P, Q = 0.15, np.array([0.1, 0.3, 0.2, 0.05, 0.4]), np.array([0.25, 0.1])[REGION]
BOTH = pytest.mark.parametrize("accelerated", [False, True], ids=["l2gd", "al2sgd"])


def ties_of(clusters, equal=False):
    rng = np.random.default_rng(7)
    gamma = 1.0 if equal else rng.uniform(0.3, 2.0, len(clusters))
    return ClusterTies.of(clusters, 5, gamma, [rng.uniform(1, 9, 5), rng.uniform(2, 20, 2)], None, TREE.parents)


def penalty(ties, theta):
    """Ties to averages, as they stand: their value, and its gradient by every client's theta (m, d) at each level."""
    value, gradients = 0.0, []
    for share, passed, node in zip(ties.share, ties.passed, ties.nodes, strict=True):
        mine, weight = node[ties.clusters], passed[ties.clusters] * ties.gamma
        mean = np.stack([weight[mine == r] @ theta[mine == r] / weight[mine == r].sum() for r in mine])
        size = share[ties.clusters] * ties.gamma
        value += 0.5 * float(size @ np.sum((theta - mean) ** 2, axis=1))
        gradients.append(size[:, None] * (theta - mean))
    return value, gradients


def test_ties_to_averages_are_those_to_centres():
    """Least over all centres, the form (2.3) with two levels is the one with averages; its gradient is the sum."""
    _, clusters = table()
    ties, theta = ties_of(clusters), np.random.default_rng(1).normal(size=(len(clusters), 1))
    (_, lam), (_, top) = ties.tree

    def centred(w):
        a, b, c = w[:5], w[5:7], w[7]
        out = ties.gamma @ (theta[:, 0] - a[clusters]) ** 2 + lam @ (a - b[REGION]) ** 2 + top @ (b - c) ** 2
        return 0.5 * float(out)

    least = minimize(centred, np.zeros(8), method="BFGS", options={"gtol": 1e-9}).fun
    value, gradients = penalty(ties, theta)
    assert value == pytest.approx(least, rel=1e-9)
    bumped = [penalty(ties, theta + 1e-6 * e[:, None])[0] for e in np.eye(len(theta))]
    np.testing.assert_allclose((np.array(bumped) - value) / 1e-6, np.sum(gradients, axis=0)[:, 0], atol=1e-4)


def test_the_estimator_is_unbiased_and_as_smooth_as_is_said():
    """Every outcome of the coins by its probability; differences of gradients are bound by 2 L times a divergence."""
    glm, clusters = table(rows=(5, 12))
    ties, rng = ties_of(clusters), np.random.default_rng(2)
    levels = Levels.of(ties, P0, P, (Q,))
    np.testing.assert_allclose(levels.probability.sum(axis=0) + levels.local, 1.0, rtol=1e-14)
    np.testing.assert_allclose(levels.shares.sum(axis=1), 1.0, rtol=1e-14)
    np.testing.assert_allclose(np.einsum("lak,lk->ak", levels.weights, levels.probability), ties.share, rtol=1e-13)
    H = np.stack([glm.X[a:b].T * glm.weights[a:b] @ glm.X[a:b] for a, b in zip(glm.starts, glm.stops, strict=True)])
    L = ties.most(np.linalg.eigvalsh(H)[:, -1])
    most = levels.smoothness(L)
    for _ in range(50):
        v = rng.normal(size=(len(clusters), 3)) * rng.choice([0.1, 1.0, 5.0], (len(clusters), 1))
        loss = np.einsum("mij,mj->mi", H, v)
        divergence = 0.5 * float(np.sum(v * loss)) + penalty(ties, v)[0]
        pulls, square = penalty(ties, v)[1], np.sum(loss**2, axis=1) / levels.local[clusters]
        for level, P_l in enumerate(levels.probability):
            g = sum((levels.weights[level, a] / ties.share[a])[clusters, None] * pulls[a] for a in range(level + 1))
            square += P_l[clusters] * np.sum(g**2, axis=1)
        assert square.sum() <= 2.0 * most * divergence * (1 + 1e-12)


def test_one_level_is_the_paper():
    _, clusters = table()
    ties, L = ClusterTies.of(clusters, 5, 1.3, 4.0, None), np.full(5, 2.0)
    p0, p = theory.own_probabilities(ties.C1, ties.C2, L)
    own = own_levels(ties, L)
    assert own.chosen[0] == pytest.approx(p0)
    assert own.smoothness(L) == pytest.approx(theory.smoothness(p0, p, ties.C1, ties.C2, L))
    levels = Levels.of(ties, P0, P)
    np.testing.assert_allclose(levels.shares[0, 1], theory.fractions(P0, P), rtol=1e-14)
    assert levels.smoothness(L) == pytest.approx(theory.smoothness(P0, P, ties.C1, ties.C2, L))
    squares, loss = np.random.default_rng(3).random((2, 5)), np.ones(5)
    assert levels.noise(squares, loss) == pytest.approx(theory.noise(P0, P, squares[1], squares[0], loss))


def test_own_probabilities_are_the_best():
    _, clusters = table()
    ties, L, rng = ties_of(clusters), np.array([1.0, 3.0, 2.0, 0.5, 4.0]), np.random.default_rng(4)
    best = own_levels(ties, L).smoothness(L)
    for _ in range(300):
        coins = rng.random(4) * rng.choice([0.1, 0.5, 1.0])
        assert Levels.of(ties, coins[0], np.full(5, coins[1]), (coins[2:][REGION],)).smoothness(L) >= best * (1 - 1e-9)


def coins(T, seed=0):
    """The level of every cluster's round at each step, -1 for none."""
    steps = np.arange(T)
    fell = keyed_random.uniform(seed, "coins of level 1", np.zeros(T), steps, 2)[:, REGION] < Q
    out = np.where(cluster_coins(seed, steps, P), 0, -1)
    out[fell] = 1
    out[Coordinated(P0).draw(seed, steps)] = 2
    return out


def pulls(ties, levels, level, theta):
    """What rounds of ``level`` (k,) step on, literally."""
    _, each = penalty(ties, theta)
    g = np.zeros_like(theta)
    for i, j in enumerate(ties.clusters):
        for a in range(level[j] + 1):
            g[i] += levels.shares[a, level[j], j] / levels.probability[level[j], j] * each[a][i]
    return g


@pytest.mark.soak(
    "binomial-exchanges-own",
    "binomial-exchanges-equal",
    "gaussian-exchanges-own",
    "gaussian-exchanges-equal",
    "gaussian-loopback-own",
)
@pytest.mark.parametrize("equal", [True, False], ids=["equal", "own"])
@pytest.mark.parametrize("engine", ["compiled", "exchanges", "loopback"])
@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_algorithm_1_takes_the_steps_of_its_coins(family, engine, equal):
    glm, clusters = table(family)
    ties = ties_of(clusters, equal)
    levels, grad, eta = Levels.of(ties, P0, P, (Q,)), gradient(glm), 0.004
    theta = np.zeros((len(clusters), 3))
    for t, level in enumerate(coins(150)):
        g = pulls(ties, levels, level, theta)
        local = grad(theta, t) / levels.local[clusters, None]
        theta = theta - eta * np.where(level[clusters, None] < 0, local, g)
    fed = Loopback(glm, clusters, sites=3) if engine == "loopback" else InProcess(glm, clusters)
    method = AsyncL2GD(ties, P0, P, theory.fractions(P0, P), eta, q=(Q,), compiled=engine == "compiled")
    *_, state = method.run(fed, [1, 40, 41, 150])
    np.testing.assert_allclose(theta_of(fed), theta, rtol=1e-9, atol=1e-11)
    spoke = coins(150)
    assert state["between"] == np.sum(spoke[:, 0] == 2)
    np.testing.assert_array_equal(state["within"], np.sum((spoke == 0) | (spoke == 1), axis=0))


@pytest.mark.parametrize("loopback", [False, True])
def test_algorithm_2_takes_the_steps_of_its_coins(loopback):
    glm, clusters = table("binomial")
    ties = ties_of(clusters)
    levels, grad, m = Levels.of(ties, P0, P, (Q,)), gradient(glm), Momentum(0.3, 0.4, 0.95, 0.01, 0.002)
    moves = keyed_random.uniform(0, "anchor coin", np.zeros(150), np.arange(150), 1)[:, 0] < 0.1
    x = y = z = np.zeros((len(clusters), 3))
    for t, level in enumerate(coins(150)):
        theta = m.a1 * z + m.a2 * x + (1 - m.a1 - m.a2) * y
        local = (grad(theta, t) - grad(x, t)) / levels.local[clusters, None]
        change = np.where(level[clusters, None] < 0, local, pulls(ties, levels, level, theta - x))
        g = grad(x, t) + sum(penalty(ties, x)[1]) + change
        y, z = theta - m.eta * g, m.b1 * z + (1 - m.b1) * theta - m.pace * g
        x = y if moves[t] else x
    fed = Loopback(glm, clusters, sites=3) if loopback else InProcess(glm, clusters)
    method = AsyncAL2SGD(ties, P0, P, theory.fractions(P0, P), m, 0.1, batch=0, q=(Q,))
    *_, state = method.run(fed, [1, 40, 41, 150])
    np.testing.assert_allclose(theta_of(fed), y, rtol=1e-9, atol=1e-11)
    spoke = coins(150)
    assert state["between"] == np.sum(spoke[:, 0] == 2) and state["refreshes"] == moves.sum()
    np.testing.assert_array_equal(state["within"], np.sum((spoke == 0) | (spoke == 1), axis=0))


def dense(glm, clusters, gamma, lam, top):
    """Newton's method on (2.3) with two levels of clusters, over all clients, clusters, regions and the root."""
    m, d = len(clusters), glm.X.shape[1]
    at, G = np.zeros((m + 5 + 2 + 1, d)), np.zeros((m + 8, m + 8))
    for i, j, s in [
        *((i, m + c, gamma[i]) for i, c in enumerate(clusters)),
        *((m + c, m + 5 + r, lam[c]) for c, r in enumerate(REGION)),
        *((m + 5 + r, m + 7, top[r]) for r in range(2)),
    ]:
        G[[i, j], [i, j]] += s
        G[[i, j], [j, i]] -= s
    for _ in range(60):
        g, H = G @ at, np.kron(G, np.eye(d))
        for i, (a, b) in enumerate(zip(glm.starts, glm.stops, strict=True)):
            eta, X, w = glm.offset[a:b] + glm.X[a:b] @ at[i], glm.X[a:b], glm.weights[a:b]
            mean = {"gaussian": eta, "binomial": 1 / (1 + np.exp(-eta)), "poisson": np.exp(eta)}[glm.family.name]
            bend = {"gaussian": np.ones_like(eta), "binomial": mean * (1 - mean), "poisson": mean}[glm.family.name]
            g[i] += X.T @ (w * (mean - glm.y[a:b]))
            H[i * d : i * d + d, i * d : i * d + d] += X.T * (w * bend) @ X
        at = at - np.linalg.solve(H + 1e-12 * np.eye(len(H)), g.ravel()).reshape(at.shape)
    return at[:m], (at[m : m + 5], at[m + 5 : m + 7]), at[-1], H


@pytest.mark.soak("poisson-l2gd", "binomial-l2gd")
@BOTH
@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_near_the_optimum_of_two_levels(family, accelerated):
    """Strengths of every client, cluster and region: as near as promised to the optimum of a dense Newton's method."""
    glm, clusters = table(family, rows=(5, 12))
    rng = np.random.default_rng(1)
    gamma, lam = rng.uniform(0.5, 3.0, len(clusters)), [rng.uniform(1, 10, 5), rng.uniform(1, 30, 2)]
    problem, fed = GroupedProblem(TREE, family, np.arange(3), None), InProcess(glm, clusters)
    over = rounds.fit(fed, problem, gamma=gamma, lam=lam, rounds={"looks": 3}, accelerated=accelerated)
    theta, nodes, root, _ = dense(glm, clusters, gamma, *lam)
    about = over.info["rounds"]
    away = np.linalg.norm(over.client - theta) / np.linalg.norm(theta)
    assert away == pytest.approx(about["gap"], rel=1e-3, abs=1e-8)
    assert away < max(about["promised"], about["accuracy"]) and about["status"] == "finished"
    for found, best in zip((*over.nodes, over.root), (*nodes, root), strict=True):
        np.testing.assert_allclose(found, best, atol=0.05 if not accelerated else 1e-4)
    exact = given_strengths.given(fed, problem, gamma, lam)
    np.testing.assert_allclose(exact.client, theta, atol=1e-6)
    assert about["communications"]["within"] == pytest.approx(about["communications"]["within_expected"], rel=1, abs=9)


def test_mu_of_two_levels_is_the_dense_one():
    glm, clusters = table(rows=(1, 6))
    ties = ties_of(clusters)
    *_, H = dense(glm, clusters, ties.gamma, ties.tree[0][1], ties.tree[1][1])
    own = 3 * len(clusters)
    schur = H[:own, :own] - H[:own, own:] @ np.linalg.solve(H[own:, own:], H[own:, :own])
    assert mu_F(InProcess(glm, clusters), ties) == pytest.approx(np.linalg.eigvalsh(schur)[0], rel=2e-3)


def towns(family):
    rng = np.random.default_rng(4)
    shop = np.repeat(np.arange(24), rng.integers(8, 16, 24))
    b = rng.normal(0, 0.5, 24) + rng.normal(0, 0.5, 6)[np.arange(24) // 4] + rng.normal(0, 0.6, 3)[np.arange(24) // 8]
    x = rng.normal(size=len(shop))
    eta = b[shop] + 0.5 * x
    y = eta + rng.normal(size=len(shop)) if family == "gaussian" else rng.random(len(shop)) < 1 / (1 + np.exp(-eta))
    return pd.DataFrame({"shop": shop, "town": shop // 4, "land": shop // 8, "x": x, "y": y * 1.0})


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_from_a_table_with_strengths_of_levels_by_label_or_learned(family):
    df = towns(family)
    how = {"client": "shop", "cluster": ["town", "land"], "family": family, "splits": 0}
    given = {"gamma": {i: 1.0 + i % 3 for i in range(24)}, "lam": {"town": {i: 2.0 + i for i in range(6)}, "land": 9.0}}
    for strengths in (given, {}):
        over = coterie.fit(df, "y ~ x", method="async-al2sgd", **how, **strengths)
        about = over.settings["rounds"]
        assert about["gap"] < about["accuracy"] and len(over.settings["strengths"]["lam"]) == 2
        assert over.predict(df)["prediction"].notna().all()
    exact, over = (coterie.fit(df, "y ~ x", method=m, **how, **given) for m in ("given-strengths", "async-al2sgd"))
    np.testing.assert_allclose(over.predict(df)["prediction"], exact.predict(df)["prediction"], atol=1e-3)


def test_options_of_one_level_are_refused_for_several():
    for option in ({"p": 0.2}, {"one_coin": True}, {"p0": 0.1}, {"probabilities": "common"}):
        with pytest.raises(coterie.CoterieError, match=names("several levels leave p0, p")):
            coterie.fit(
                towns("gaussian"), "y ~ x", client="shop", cluster=["town", "land"], method="async-l2gd",
                gamma=1.0, lam=2.0, rounds=option, splits=0,
            )  # fmt: skip
