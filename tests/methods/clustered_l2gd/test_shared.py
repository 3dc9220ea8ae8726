"""Columns that all clients share, over rounds: the estimator's algebra, plain loops, and the exact optimum."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.engines import InProcess
from coterie.federation import work
from coterie.methods.async_al2sgd import AsyncAL2SGD
from coterie.methods.async_l2gd import AsyncL2GD
from coterie.methods.clustered_l2gd import fit as rounds
from coterie.methods.clustered_l2gd import theory
from coterie.methods.clustered_l2gd.cluster_rounds import Levels, own_levels
from coterie.methods.clustered_l2gd.strong_convexity import client_constants, mu_F
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.numerics import keyed_random
from coterie.objectives.gradient_steps import Momentum
from coterie.relations.clusters import ClusterTies, ClusterTree
from tests.engines.faults import Faults, Loopback
from tests.methods.clustered_l2gd.test_cluster_rounds import P0, REGION, TREE, P, Q, coins, penalty, pulls
from tests.methods.known_clusters import gradient, table, theta_of

OWN = np.array([True, False, True, True])
NAMES = ["0", "2", "3"]
BOTH = pytest.mark.parametrize("accelerated", [False, True], ids=["l2gd", "al2sgd"])


def ties_of(clusters, kind="own"):
    rng = np.random.default_rng(7)
    gamma = np.ones(len(clusters)) if kind == "equal" else rng.uniform(0.3, 2.0, len(clusters))
    if kind == "some alone":
        gamma[[0, 5, 9]] = 0.0
    return ClusterTies.of(clusters, 5, gamma, [rng.uniform(1, 9, 5), rng.uniform(2, 20, 2)], None, TREE.parents)


def hessians(glm):
    return np.stack([glm.X[a:b].T * glm.weights[a:b] @ glm.X[a:b] for a, b in zip(glm.starts, glm.stops, strict=True)])


def shared_only(v):
    """The gradient over models whose shared parts are equal: its shared part is the mean of clients'."""
    return np.where(OWN, v, v.mean(axis=0))


def test_the_estimator_is_unbiased_and_as_smooth_as_is_said():
    """Every outcome of the coins by its probability, on squares; models have equal shared parts."""
    glm, clusters = table(rows=(5, 12), d=4)
    ties, rng, H = ties_of(clusters), np.random.default_rng(2), hessians(glm)
    levels, L = Levels.of(ties, P0, P, (Q,)), ties.most(np.linalg.eigvalsh(H[:, OWN][:, :, OWN])[:, -1])
    most = levels.smoothness(L, np.mean(H[:, 1, 1]))
    for _ in range(50):
        v = rng.normal(size=(len(clusters), 4)) * rng.choice([0.1, 1.0, 5.0], (len(clusters), 1))
        v[:, 1] = rng.normal() * rng.choice([0.1, 1.0, 5.0])
        loss, tied = np.einsum("mij,mj->mi", H, v), penalty(ties, v * OWN)
        divergence = 0.5 * float(np.sum(v * loss)) + tied[0]
        mean, square = np.zeros_like(v), np.zeros(len(v))
        outcomes = [(levels.local[clusters, None], OWN * loss / levels.local[clusters, None])]
        for level, P_l in enumerate(levels.probability):
            g = sum((levels.weights[level, a] / ties.share[a])[clusters, None] * tied[1][a] for a in range(level + 1))
            g = g + (level == 2) * np.where(OWN, 0.0, loss.mean(axis=0)) / P0
            outcomes.append((P_l[clusters, None], g))
        for probability, g in outcomes:
            mean, square = mean + probability * g, square + np.sum(probability * g**2, axis=1)
        np.testing.assert_allclose(mean, shared_only(loss) + sum(tied[1]), rtol=1e-9, atol=1e-9)
        assert square.sum() <= 2.0 * most * divergence * (1 + 1e-12)


def test_own_probabilities_are_the_best():
    _, clusters = table()
    ties, L, rng = ties_of(clusters), np.array([1.0, 3.0, 2.0, 0.5, 4.0]), np.random.default_rng(4)
    for shared in (0.01, 2.0, 50.0):
        best = own_levels(ties, L, shared).smoothness(L, shared)
        for _ in range(300):
            some = rng.random(4) * rng.choice([0.1, 0.5, 1.0])
            tried = Levels.of(ties, some[0], np.full(5, some[1]), (some[2:][REGION],))
            assert tried.smoothness(L, shared) >= best * (1 - 1e-4)


def engine_of(kind, glm, clusters):
    return Loopback(glm, clusters, sites=3) if kind == "loopback" else InProcess(glm, clusters)


@pytest.mark.soak(
    "binomial-exchanges-own",
    "binomial-exchanges-equal",
    "gaussian-exchanges-own",
    "gaussian-exchanges-equal",
    "gaussian-exchanges-some alone",
    "gaussian-loopback-own",
    "gaussian-loopback-some alone",
    "binomial-loopback-equal",
)
@pytest.mark.parametrize("kind", ["equal", "own", "some alone"])
@pytest.mark.parametrize("engine", ["compiled", "exchanges", "loopback"])
@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_algorithm_1_takes_the_steps_of_its_coins(family, engine, kind):
    glm, clusters = table(family, d=4)
    ties = ties_of(clusters, kind)
    levels, grad, eta = Levels.of(ties, P0, P, (Q,)), gradient(glm), 0.004
    theta = np.zeros((len(clusters), 4))
    for t, level in enumerate(coins(150)):
        f = grad(theta, t)
        step = np.where(level[clusters, None] < 0, f / levels.local[clusters, None], pulls(ties, levels, level, theta))
        shared = f.mean(axis=0) / P0 * (level[0] == 2)
        theta = theta - eta * np.where(OWN, step, shared)
    fed = engine_of(engine, glm, clusters)
    more = {"q": (Q,), "personal": NAMES, "compiled": engine == "compiled"}
    *_, state = AsyncL2GD(ties, P0, P, theory.fractions(P0, P), eta, **more).run(fed, [1, 40, 41, 150])
    np.testing.assert_allclose(theta_of(fed), theta, rtol=1e-9, atol=1e-11)
    assert state["between"] == np.sum(coins(150)[:, 0] == 2)


@pytest.mark.soak("some alone-loopback", "own-in process")
@pytest.mark.parametrize("engine", ["in process", "loopback"])
@pytest.mark.parametrize("kind", ["own", "some alone"])
def test_algorithm_2_takes_the_steps_of_its_coins(engine, kind):
    glm, clusters = table("binomial", d=4)
    ties = ties_of(clusters, kind)
    levels, grad, m = Levels.of(ties, P0, P, (Q,)), gradient(glm), Momentum(0.3, 0.4, 0.95, 0.01, 0.002)
    moves = keyed_random.uniform(0, "anchor coin", np.zeros(150), np.arange(150), 1)[:, 0] < 0.1
    x = y = z = np.zeros((len(clusters), 4))
    for t, level in enumerate(coins(150)):
        theta = m.a1 * z + m.a2 * x + (1 - m.a1 - m.a2) * y
        change = grad(theta, t) - grad(x, t)
        local = change / levels.local[clusters, None]
        own = np.where(level[clusters, None] < 0, local, pulls(ties, levels, level, theta - x))
        g = shared_only(grad(x, t)) + sum(penalty(ties, x * OWN)[1])
        g = g + np.where(OWN, own, change.mean(axis=0) / P0 * (level[0] == 2))
        y, z = theta - m.eta * g, m.b1 * z + (1 - m.b1) * theta - m.pace * g
        x = y if moves[t] else x
    fed = engine_of(engine, glm, clusters)
    method = AsyncAL2SGD(ties, P0, P, theory.fractions(P0, P), m, 0.1, batch=0, q=(Q,), personal=NAMES)
    *_, state = method.run(fed, [1, 40, 41, 150])
    np.testing.assert_allclose(theta_of(fed), y, rtol=1e-9, atol=1e-11)
    assert state["between"] == np.sum(coins(150)[:, 0] == 2) and state["refreshes"] == moves.sum()


def dense(glm, clusters, gamma, lam):
    """Newton's method on (2.3), one level of clusters, over clients, clusters and the root; shared columns apart."""
    own, d = np.flatnonzero(OWN), len(OWN)
    m, k = len(clusters), clusters.max() + 1
    G = np.zeros((m + k + 1, m + k + 1))
    edges = [(i, m + c, gamma[i]) for i, c in enumerate(clusters)] + [(m + c, m + k, lam[c]) for c in range(k)]
    for i, j, s in edges:
        G[[i, j], [i, j]] += s
        G[[i, j], [j, i]] -= s
    n, q = len(G), len(own)
    at = np.zeros(n * q + d - q)
    ridge = np.kron(G, np.eye(q))
    for _ in range(60):
        g, H = np.zeros_like(at), np.zeros((len(at), len(at)))
        g[: n * q], H[: n * q, : n * q] = ridge @ at[: n * q], ridge
        for i, (a, b) in enumerate(zip(glm.starts, glm.stops, strict=True)):
            where = np.empty(d, dtype=int)
            where[OWN], where[~OWN] = np.arange(i * q, i * q + q), n * q + np.arange(d - q)
            eta, X, w = glm.offset[a:b] + glm.X[a:b] @ at[where], glm.X[a:b], glm.weights[a:b]
            mean = {"gaussian": eta, "binomial": 1 / (1 + np.exp(-eta)), "poisson": np.exp(eta)}[glm.family.name]
            bend = {"gaussian": np.ones_like(eta), "binomial": mean * (1 - mean), "poisson": mean}[glm.family.name]
            g[where] += X.T @ (w * (mean - glm.y[a:b]))
            H[np.ix_(where, where)] += X.T * (w * bend) @ X
        at = at - np.linalg.solve(H + 1e-12 * np.eye(len(H)), g)
    theta = np.empty((m, d))
    theta[:, OWN], theta[:, ~OWN] = at[: m * q].reshape(m, q), at[n * q :]
    return theta, H


@pytest.mark.soak("binomial-l2gd", "poisson-l2gd", "poisson-al2sgd")
@BOTH
@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_near_the_dense_optimum(family, accelerated):
    glm, clusters = table(family, rows=(5, 12), d=4)
    rng = np.random.default_rng(1)
    gamma, lam = rng.uniform(0.5, 3.0, len(clusters)), rng.uniform(1, 10, 5)
    problem = GroupedProblem(ClusterTree((np.zeros(5, dtype=np.int64),)), family, np.flatnonzero(OWN), None)
    fed = InProcess(glm, clusters)
    over = rounds.fit(fed, problem, gamma=gamma, lam=lam, rounds={"looks": 3}, accelerated=accelerated)
    theta, _ = dense(glm, clusters, gamma, lam)
    about = over.info["rounds"]
    away = np.linalg.norm(over.client - theta) / np.linalg.norm(theta)
    assert about["status"] == "finished" and away < max(about["promised"], about["accuracy"])
    assert np.ptp(over.client[:, 1]) < 1e-12 and over.root[1] == over.client[0, 1]
    if accelerated:
        assert away < 1e-3
    assert "smoothness" in about["why"] and "shared" in about["why"]


def test_mu_of_shared_columns_is_the_dense_one():
    glm, clusters = table(rows=(1, 6), d=4)
    ties = ClusterTies.of(
        clusters, 5, np.random.default_rng(3).uniform(0.3, 2.0, len(clusters)), np.arange(1.0, 6.0), None
    )
    m, k, q = len(clusters), 5, 3
    _, H = dense(glm, clusters, ties.gamma, ties.lam)
    free = np.r_[np.arange(m * q), np.arange((m + k + 1) * q, len(H))]
    above = np.arange(m * q, (m + k + 1) * q)
    schur = H[np.ix_(free, free)] - H[np.ix_(free, above)] @ np.linalg.solve(
        H[np.ix_(above, above)], H[np.ix_(above, free)]
    )
    scale = np.r_[np.ones(m * q), np.full(len(free) - m * q, m**-0.5)]  # a distance counts every client's copy
    found = mu_F(InProcess(glm, clusters), ties, own=OWN, tolerance=1e-6)
    assert found == pytest.approx(np.linalg.eigvalsh(schur * scale * scale[:, None])[0], rel=1e-5)


def test_constants_are_of_the_columns_apart():
    glm, clusters = table(d=4)
    H, c = hessians(glm), client_constants(InProcess(glm, clusters), own=OWN)
    np.testing.assert_allclose(c.L, np.linalg.eigvalsh(H[:, OWN][:, :, OWN])[:, -1], rtol=1e-10)
    np.testing.assert_allclose(c.shared, H[:, 1, 1], rtol=1e-10)
    square = glm.weights * np.sum(glm.X[:, OWN] ** 2, axis=1)
    most = [square[a:b].max(initial=0.0) * (b - a) for a, b in zip(glm.starts, glm.stops, strict=True)]
    np.testing.assert_allclose(c.L_row, most, rtol=1e-12)


def shops(family="gaussian", seed=4):
    rng = np.random.default_rng(seed)
    shop = np.repeat(np.arange(24), rng.integers(8, 16, 24))
    x, size = rng.normal(size=len(shop)), rng.uniform(50, 60, 24)[shop]
    eta = rng.normal(0, 0.5, 24)[shop] + 0.5 * x + 0.02 * (size - 55) + rng.normal(0, 0.4, 6)[shop // 4]
    y = (
        eta + rng.normal(size=len(shop))
        if family == "gaussian"
        else 1.0 * (rng.random(len(shop)) < 1 / (1 + np.exp(-eta)))
    )
    return pd.DataFrame({"shop": shop, "town": shop // 4, "land": shop // 8, "x": x, "size": size, "y": y})


@pytest.mark.soak("learned-binomial-async-al2sgd", "given-binomial-async-l2gd", "learned-gaussian-async-l2gd")
@pytest.mark.parametrize("method", ["async-l2gd", "async-al2sgd"])
@pytest.mark.parametrize("family", ["gaussian", "binomial"])
@pytest.mark.parametrize("strengths", [{}, {"gamma": 3.0, "lam": 8.0}], ids=["learned", "given"])
def test_from_a_table(strengths, family, method):
    """A column that does not vary within a shop, far from zero, and one that is named: near the exact fit."""
    df = shops(family)
    how = {"client": "shop", "cluster": "town", "family": family, "splits": 0, "shared": "x"}
    over = coterie.fit(df, "y ~ x + size", method=method, **how, **strengths)
    about, found = over.settings["rounds"], over.settings["strengths"]
    assert about["status"] == "finished" and about["gap"] < max(about["promised"], about["accuracy"])
    assert over.settings["shared"] == ["x", "size"]
    assert any("a term more for them; what the paper" in note for note in over.notes)
    if strengths:
        exact = coterie.fit(df, "y ~ x + size", **how, **strengths)
        assert exact.method == "given-strengths"
        found, best = (r.predict(df)["prediction"] for r in (over, exact))
        np.testing.assert_allclose(found, best, atol=0.1 if method == "async-l2gd" else 2e-3)
    elif method == "async-al2sgd":
        assert found["columns"] == "standard" and np.ptp(over.model.client[:, 2]) < 1e-9


def test_without_ties_and_over_two_levels():
    df, methods = shops(), ("async-al2sgd", "given-strengths")
    alone = {"client": "shop", "gamma": 0.0, "splits": 0, "shared": "x"}
    over, exact = (coterie.fit(df, "y ~ x", method=m, **alone).predict(df)["prediction"] for m in methods)
    np.testing.assert_allclose(over, exact, atol=2e-2)
    how = {"client": "shop", "cluster": ["town", "land"], "splits": 0, "gamma": 2.0, "lam": {"town": 3.0, "land": 5.0}}
    over, exact = (coterie.fit(df, "y ~ x + size", method=m, **how).predict(df)["prediction"] for m in methods)
    np.testing.assert_allclose(over, exact, atol=2e-2)


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_a_run_that_began_compiled_goes_on_over_exchanges(family):
    glm, clusters = table(family, d=4)
    ties, found = ties_of(clusters), []
    for compiled in (True, False):
        fed = InProcess(glm, clusters)
        method = AsyncL2GD(ties, P0, P, theory.fractions(P0, P), 0.004, q=(Q,), personal=NAMES, compiled=compiled)
        *_, state = method.run(fed, [60])
        replace(method, compiled=False).advance(fed, state, 60)
        found.append(theta_of(fed))
    np.testing.assert_allclose(*found, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("first", [9, 30])
def test_clients_that_were_away_go_on_with_the_others(first):
    """Site 1 misses some exchanges, the anchor's among them or not: what it shares is right at its next one, and h."""
    glm, clusters = table("binomial", d=4)
    ties, m = ties_of(clusters), Momentum(0.3, 0.4, 0.95, 0.01, 0.002)
    fed = Loopback(
        glm,
        clusters,
        sites=3,
        retries=0,
        faults=Faults(request=lambda exchange, site: site == 1 and first <= exchange < first + 9),
    )
    method = AsyncAL2SGD(ties, P0, P, theory.fractions(P0, P), m, 1e-12, batch=0, q=(Q,), personal=NAMES)
    *_, state = method.run(fed, [100])
    theta, h = theta_of(fed), np.array(fed.ask(anchors)["h"])
    assert np.ptp(theta[:, 1]) == 0.0 and theta[0, 1] == state["copies"][0, 0, 0] != 0.0
    np.testing.assert_allclose(h, shared_only(gradient(glm)(np.zeros_like(theta), 0)), rtol=1e-10, atol=1e-12)


@work
def anchors(site):
    return {"h": site.state["h"]}


def test_a_column_that_is_one_with_free_intercepts_is_named_with_the_remedy():
    how = {"client": "shop", "splits": 0, "gamma": 0.0, "rounds": {"steps": 2000, "probabilities": "common"}}
    over = coterie.fit(shops(), "y ~ x + size", method="async-l2gd", **how)
    assert "mu_F = 0" in over.notes[-1] and "Tie clients (gamma above 0), or leave the column out" in over.notes[-1]
    exact = coterie.fit(shops(), "y ~ x + size", method="given-strengths", client="shop", splits=0, gamma=0.0)
    found, best = (r.predict(shops())["prediction"] for r in (over, exact))
    np.testing.assert_allclose(found, best, atol=1e-6)
