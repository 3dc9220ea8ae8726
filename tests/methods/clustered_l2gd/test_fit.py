"""Fits over rounds, from a table to coefficients: near the exact optimum, as theory promised, and counted."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.engines import InProcess
from coterie.methods import given_strengths
from coterie.methods.async_al2sgd import AsyncAL2SGD
from coterie.methods.async_l2gd import AsyncL2GD
from coterie.methods.clustered_l2gd import fit as rounds
from coterie.methods.clustered_l2gd.cluster_rounds import (
    Coordinated,
    Majority,
    communications,
    draw,
    expected_communications,
    previous,
    ring,
)
from coterie.methods.clustered_l2gd.theory import fractions
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.objectives.gradient_steps import Momentum
from coterie.relations.clusters import ClusterTies, ClusterTree
from tests.methods.known_clusters import SIZES, table, theta_of

BOTH = pytest.mark.parametrize("accelerated", [False, True], ids=["l2gd", "al2sgd"])


def problem_of(family="gaussian", clusters=5, d=3):
    return GroupedProblem(ClusterTree((np.zeros(clusters, dtype=np.int64),)), family, np.arange(d), None)


def run(glm, clusters, accelerated=False, **options):
    """A fit over rounds, and the exact one."""
    fed, problem = InProcess(glm, clusters), problem_of(glm.family, int(clusters.max()) + 1)
    strengths = {k: options.pop(k) for k in ("gamma", "lam", "alpha") if k in options}
    exact = given_strengths.given(fed, problem, **strengths)
    return rounds.fit(fed, problem, **strengths, rounds=options, accelerated=accelerated), exact


def near(over, exact):
    """The distance that the run reports is the one between the two fits."""
    away = np.linalg.norm(over.client - exact.client) / np.linalg.norm(exact.client)
    assert away == pytest.approx(over.info["rounds"]["gap"], rel=1e-6)
    return away


def grouped(family, seed=4):
    rng = np.random.default_rng(seed)
    shop = np.repeat(np.arange(30), rng.integers(10, 30, 30))
    x = rng.normal(size=shop.size)
    eta = 0.5 + rng.normal(0, 0.5, 30)[shop] + 0.4 * (shop % 3) + (0.8 + rng.normal(0, 0.3, 30)[shop]) * x
    y = {
        "gaussian": eta + rng.normal(size=shop.size),
        "binomial": (rng.random(shop.size) < 1 / (1 + np.exp(-eta))).astype(int),
        "poisson": rng.poisson(np.exp(np.minimum(eta, 2.5))),
    }[family]
    return pd.DataFrame({"shop": shop, "town": shop % 3, "x": x, "y": y})


@pytest.mark.soak("poisson-async-l2gd", "binomial-async-l2gd")
@pytest.mark.parametrize("method", ["async-l2gd", "async-al2sgd"])
@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_from_a_table_to_the_optimum(family, method):
    """With learned strengths, of standard columns; the exact fit with these is what the run comes near."""
    df = grouped(family).assign(x=lambda d: (d["x"] - d["x"].mean()) / d["x"].std(ddof=0))
    result = coterie.fit(df, "y ~ x", client="shop", cluster="town", family=family, method=method, splits=0)
    about, strengths = result.settings["rounds"], result.settings["strengths"]
    exact = coterie.fit(
        df, "y ~ x", client="shop", cluster="town", family=family, splits=0,
        gamma=strengths["gamma"], lam=strengths["lam"],
    )  # fmt: skip
    away = np.linalg.norm(result.model.client - exact.model.client) / np.linalg.norm(exact.model.client)
    assert exact.method == "given-strengths"
    assert away == pytest.approx(about["gap"], rel=1e-4, abs=1e-9)
    assert about["status"] == "finished"
    assert about["gap"] < max(about["promised"], about["accuracy"])
    assert "of the way short of the exact optimum" in result.notes[-1]
    assert result.predict(df.head())["prediction"].notna().all()


def test_what_is_left_of_the_differences_is_free_of_the_outcome_s_zero():
    df, found = grouped("gaussian"), []
    steps = {"steps": 300, "eta": 0.004, "p0": 0.1, "p": 0.2}
    for zero in (0.0, 1000.0):
        options = {"gamma": 9.0, "lam": 16.0, "splits": 0, "client": "shop", "cluster": "town"}
        moved = df.assign(y=df["y"] + zero)
        over = coterie.fit(moved, "y ~ x", method="async-l2gd", rounds=steps, **options)
        exact = coterie.fit(moved, "y ~ x", **options)
        away = np.linalg.norm(over.model.client - exact.model.client)
        about, spread = over.settings["rounds"], np.linalg.norm(exact.model.client - exact.model.root)
        assert about["differing"] == pytest.approx(away / spread, rel=1e-4)
        words = f"or {100 * about['differing']:.2g}% of how far clients' models lie from the global one"
        assert any(words in note for note in over.notes)
        found.append(about)
    assert found[1]["differing"] == pytest.approx(found[0]["differing"], rel=1e-3)
    assert found[1]["gap"] < 0.1 * found[0]["gap"]


@BOTH
def test_looks_are_as_many_as_asked_and_one_exchange_each(accelerated):
    glm, clusters = table(rows=(5, 12))
    options = {"gamma": 2.0, "alpha": 0.4, "steps": 400, "eta": None if accelerated else 1e-3}
    few, _ = run(glm, clusters, accelerated, looks=2, **options)
    many, _ = run(glm, clusters, accelerated, looks=40, **options)
    few, steps = few.info["rounds"], [t for t, *_ in few.info["rounds"]["trace"]]
    assert steps == [1, 200, 400]
    assert few["gap"] == pytest.approx(many.info["rounds"]["gap"], rel=1e-9)
    assert len(many.info["rounds"]["trace"]) > 40


@BOTH
@pytest.mark.parametrize("form", ["equal", "own", "some alone", "clusters apart", "no clusters"])
def test_near_the_optimum_for_every_shape_of_the_ties(form, accelerated):
    glm, clusters = table(rows=(5, 12))
    rng = np.random.default_rng(3)
    gamma = rng.uniform(0.5, 3.0, len(clusters)) if form in ("own", "some alone") else np.full(len(clusters), 2.0)
    if form == "some alone":
        gamma[[0, 4, 9]] = 0.0
    alpha = {"clusters apart": 0.0, "no clusters": 1.0}.get(form, 0.4)
    over, exact = run(glm, clusters, accelerated, gamma=gamma, alpha=alpha)
    about = over.info["rounds"]
    assert near(over, exact) < max(about["promised"], about["accuracy"])
    if form == "clusters apart":
        assert about["p0"] == 0.0 and about["communications"]["between"] == 0
    if form == "no clusters":
        assert about["p"] == 0.0 and about["communications"]["within"] == 0
    np.testing.assert_allclose(over.nodes[0], exact.nodes[0], atol=0.05)
    np.testing.assert_allclose(over.root, exact.root, atol=0.05)


@BOTH
@pytest.mark.parametrize("sizes", [(20,), (1,), (1,) * 12], ids=["one cluster", "one client", "a cluster each"])
def test_few_clusters_few_clients(sizes, accelerated):
    glm, clusters = table(rows=(5, 12), sizes=sizes)
    over, exact = run(glm, clusters, accelerated, gamma=2.0, alpha=0.5)
    assert near(over, exact) < over.info["rounds"]["accuracy"]
    if len(clusters) == 1:  # tied to nobody: its own least squares
        assert over.info["rounds"]["communications"]["between"] == 0


@BOTH
def test_without_clusters(accelerated):
    """L2GD: one cluster, and no tree above the clients but the root."""
    glm, _ = table(rows=(5, 12))
    fed = InProcess(glm)
    over = rounds.fit(
        fed, GroupedProblem(ClusterTree(), "gaussian", np.arange(3), None), gamma=1.5, accelerated=accelerated
    )
    near(over, given_strengths.given(fed, GroupedProblem(ClusterTree(), "gaussian", np.arange(3), None), 1.5))
    assert over.nodes == () and over.info["rounds"]["gap"] < 0.01


@BOTH
def test_both_forms_of_the_strengths_run_alike(accelerated):
    """Proposition 2.2: (2.3) with lambda_j is (2.1) with alpha_j = lambda_j / (lambda_j + Gamma_j)."""
    glm, clusters = table(rows=(5, 12))
    lam = np.array([1.0, 2.0, 0.5, 4.0, 3.0])
    alpha = lam / (lam + 2.0 * np.array(SIZES))
    ends = [run(glm, clusters, accelerated, gamma=2.0, **form)[0].client for form in ({"lam": lam}, {"alpha": alpha})]
    np.testing.assert_allclose(*ends, rtol=1e-9)


@pytest.mark.parametrize(
    ("network", "accelerated"),
    [
        *(pytest.param("all-to-all", a, id=f"all-to-all-{'al2sgd' if a else 'l2gd'}") for a in (False, True)),
        pytest.param("ring", True, id="ring-al2sgd"),
        pytest.param("ring", False, id="ring-l2gd", marks=pytest.mark.soak),  # the longest; its coins are tried below
    ],
)
def test_peers_need_no_coordinator(network, accelerated):
    glm, clusters = table(rows=(5, 12))
    over, exact = run(
        glm, clusters, accelerated, gamma=2.0, alpha=0.4, coordinator="peers", network=network, ties="heads"
    )
    about = over.info["rounds"]
    assert near(over, exact) < about["accuracy"]
    sent, T = about["communications"], about["steps"]
    messages = (sent["between"] + sent.get("refreshes", 0)) * (20 if network == "all-to-all" else 40)
    assert sent["peers"]["messages"] == messages + -(-T // 1024) * 20


@BOTH
def test_peers_and_a_coordinator_agree_on_the_same_coins(accelerated):
    """One vote is one coin: with the votes as the coordinator's coins, averages are all that differs."""
    glm, clusters = table(rows=(5, 12))
    vote = Majority(0.2, 5)
    p = np.full(5, 0.3)
    ties = ClusterTies.of(clusters, 5, 2.0, None, 0.4)
    ends = []
    for peers in ({"vote": vote}, {"vote": vote, "network": ring}):
        fed = InProcess(glm, clusters)
        method = (
            AsyncAL2SGD(ties, 0.2, p, fractions(0.2, p), Momentum(0.3, 0.4, 0.95, 0.01, 0.002), 0.1, **peers)
            if accelerated
            else AsyncL2GD(ties, 0.2, p, fractions(0.2, p), 0.004, **peers)
        )
        *_, _ = method.run(fed, [150])
        ends.append(theta_of(fed))
    np.testing.assert_allclose(*ends, rtol=1e-12)


def test_one_seed_is_one_run_and_another_is_another():
    df = grouped("gaussian")
    ends = [
        coterie.fit(
            df, "y ~ x", client="shop", cluster="town", method="async-l2gd", splits=0, gamma=5.0, lam=5.0,
            rounds={"steps": 300, "batch": 2, "p0": 0.1, "p": 0.1, "seed": seed},
        ).model.client
        for seed in (0, 0, 1)
    ]  # fmt: skip
    np.testing.assert_array_equal(ends[0], ends[1])
    assert np.abs(ends[0] - ends[2]).max() > 1e-4


def test_rows_are_drawn_by_the_seed_too():
    df = grouped("gaussian")
    ends = [
        coterie.fit(
            df, "y ~ x", client="shop", method="async-l2gd", splits=0, gamma=0.0,
            rounds={"steps": 50, "batch": 1, "seed": seed},
        ).model.client
        for seed in (0, 1)
    ]  # fmt: skip
    assert np.abs(ends[0] - ends[1]).max() > 1e-4  # nobody is tied, so no coin is thrown


@BOTH
def test_own_probabilities_and_common_ones(accelerated):
    """Corollaries 3.6 and 4.4, and own p_j: at equal calligraphic L no cluster speaks more often."""
    glm, clusters = table(rows=(5, 12))
    gamma = np.array([0.5, 4.0, 8.0, 1.0, 2.0])[clusters]
    about = {}
    for kind in ("own", "common"):
        over, exact = run(glm, clusters, accelerated, gamma=gamma, alpha=0.1, probabilities=kind)
        about[kind] = over.info["rounds"]
        assert near(over, exact) < about[kind]["accuracy"] * 3
    assert about["own"]["smoothness"] <= about["common"]["smoothness"] * (1 + 1e-9)
    assert "Corollary" in about["common"]["why"]


@BOTH
def test_the_variant_with_one_coin(accelerated):
    glm, clusters = table(rows=(5, 12))
    over, exact = run(glm, clusters, accelerated, gamma=2.0, alpha=0.4, one_coin=True)
    about = over.info["rounds"]
    assert (about["p0"], about["p"], about["tau"]) == (0.1, 0.0, 1.0)
    assert about["communications"]["within"] == 0 and near(over, exact) < 0.05


@pytest.mark.parametrize("majority", [False, True], ids=["coordinator", "peers"])
def test_rounds_fall_as_often_as_proposition_32_and_the_corrected_formula_say(majority):
    """By the coins, over 100 seeds: both formulas within 3 standard errors."""
    T, p0, p, free = 2000, 0.1, np.array([0.05, 0.2, 0.5]), np.ones(3, dtype=bool)
    vote = Majority(p0, 3) if majority else Coordinated(p0)
    seen = []
    for seed in range(100):
        ((_, globally, locally),) = draw(seed, 0, T, vote, p)
        between, within = communications(globally, locally, free, previous(seed, 0, vote, p))
        own = locally[~globally]  # Proposition 3.2 skips over global rounds
        seen.append([between, *within, *np.sum(own[1:] & ~own[:-1], axis=0)])
    mean = expected_communications(p0, p, T, free)
    close_to(seen, [mean["between"], *mean["within"], *mean["printed"]])


def close_to(seen, formula):
    """Means of runs within 3 standard errors, and the one round that the ends of a run are worth."""
    error = np.std(seen, axis=0, ddof=1) / len(seen) ** 0.5
    assert np.all(np.abs(np.mean(seen, axis=0) - formula) < 3.0 * error + 1.0)


@pytest.mark.soak("algorithm 2")
@pytest.mark.parametrize("gammas", ["equal", "unequal", "algorithm 2"])
def test_communications_of_runs_are_those_expected(gammas):
    """Clusters of equal gamma: a round after a round is free, as Proposition 3.2 wants it. Else it is paid for."""
    glm, clusters = table(d=1, rows=(1, 3))
    T, p0, p = 2000, 0.05, np.full(5, 0.2)
    gamma = np.linspace(0.5, 1.0, len(clusters)) if gammas == "unequal" else np.ones(len(clusters))
    ties = ClusterTies.of(clusters, 5, gamma, None, 0.4)
    assert ties.equal.sum() == (1 if gammas == "unequal" else 5)
    seen = []
    for seed in range(40):
        fed = InProcess(glm, clusters)
        if gammas == "algorithm 2":
            T = 200
            method = AsyncAL2SGD(ties, p0, p, fractions(p0, p), Momentum(0.3, 0.4, 0.9, 1e-3, 1e-4), 0.1, seed=seed)
        else:
            method = AsyncL2GD(ties, p0, p, fractions(p0, p), 1e-4, seed=seed)
        *_, state = method.run(fed, [T])
        seen.append([state["between"], *state["within"]])
    mean = expected_communications(p0, p, T, ties.equal & (gammas != "algorithm 2"))
    close_to(seen, [mean["between"], *mean["within"]])


def test_where_a_run_is_looked_at_does_not_change_what_is_counted():
    glm, clusters = table(d=1, rows=(1, 3))
    p, counts = np.full(5, 0.5), []
    for stops in ([600], range(1, 601)):
        method = AsyncL2GD(ClusterTies.of(clusters, 5, 1.0, None, 0.4), 0.3, p, fractions(0.3, p), 1e-3)
        *_, state = method.run(InProcess(glm, clusters), stops)
        counts.append([state["between"], *state["within"]])
    assert counts[0] == counts[1]


def test_a_result_is_saved_and_loaded_with_its_run(tmp_path):
    df = grouped("gaussian")
    flat = coterie.fit(
        df, "y ~ x", client="shop", cluster="town", method="async-al2sgd",
        splits=0, gamma=3.0, alpha=1.0, rounds={"coordinator": "peers", "network": "ring"},
    )  # fmt: skip
    flat.model.info["rounds"]["promised"] = float("inf")  # as where mu_F is 0
    flat.save(tmp_path / "model")
    again = coterie.load(tmp_path / "model")
    assert again.settings["rounds"] == flat.settings["rounds"]
    assert again.settings["strengths"]["lam"] == np.inf
    assert again.model.info == flat.model.info
    assert again.notes == flat.notes


@BOTH
def test_many_steps_are_said_before_they_are_taken(accelerated, monkeypatch, caplog):
    rng = np.random.default_rng(0)
    client, x = np.repeat(np.arange(4), 8), rng.normal(size=32)
    df = pd.DataFrame({"c": client, "x": x, "y": x * (1 + client) + rng.normal(size=32)})
    method, asked = ("async-al2sgd" if accelerated else "async-l2gd"), {"gamma": 1.0, "splits": 0}
    for many, steps in ((10**6, None), (2, 5), (2, None)):
        monkeypatch.setattr(rounds, "MANY", many)
        coterie.fit(df, "y ~ x", "c", method=method, rounds={"accuracy": 0.5, "steps": steps}, **asked)
        assert ("steps over rounds, for an accuracy of 0.5, may take minutes" in caplog.text) == (
            many == 2 and not steps
        )


@BOTH
def test_where_no_theory_says_how_many_steps_they_are_bounded(accelerated, monkeypatch):
    """F is as good as flat in some direction where outcomes are separated."""
    glm, clusters = table("binomial")
    fed, ties = InProcess(glm, clusters), ClusterTies.of(clusters, int(clusters.max()) + 1, 1e-6, 1e-6, None, ())
    rounds.solve_exactly(fed, problem_of("binomial", int(clusters.max()) + 1), ties)
    monkeypatch.setattr(rounds, "mu_F", lambda *_, **__: 0.0)
    plan = rounds.plan_async_al2sgd if accelerated else rounds.plan_async_l2gd
    about = plan(fed, ties, rounds.Options.of({"accuracy": 1e-6})).about
    assert about["steps"] == rounds.UNKNOWN == 10_000 and about["promised"] == np.inf
