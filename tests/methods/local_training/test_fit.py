"""Methods that train, on tables: where they end is known, and what they leave can be read, kept and predicted with."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.deployment.site.prepared_data import works
from coterie.engines.local_engines import InProcess, Loopback
from coterie.errors import CoterieError
from coterie.methods.local_training.whitening import Frame, InFrame, turned, well_scaled
from coterie.methods.method import TRAINED_ON_ROWS
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.methods.registry import FITTED, METHODS
from coterie.objectives.glm import GLM
from coterie.relations.clusters import ClusterTree
from coterie.report.fit_page import render

TRAIN = [name for name, method in FITTED.items() if method.fits == TRAINED_ON_ROWS]
SPLIT = dict.fromkeys(("fedper", "fedrep", "fedbabu", "lg-fedavg"), "x")
FAMILIES = {"gaussian": "y", "binomial": "won", "poisson": "count"}


def shops(seed: int = 4, shop_count: int = 12) -> pd.DataFrame:
    """Shops in towns, with columns of unlike size far from zero."""
    rng = np.random.default_rng(seed)
    shop = np.repeat(np.arange(shop_count), rng.integers(12, 25, shop_count))
    x = rng.normal(2000.0, 5.0, shop.size)
    eta = rng.normal(0.0, 0.5, shop_count)[shop] + 0.5 * (x - 2000.0) / 5.0
    y = 300.0 + 40.0 * (eta + rng.normal(size=shop.size))
    won, count = rng.random(shop.size) < 1.0 / (1.0 + np.exp(-eta)), rng.poisson(np.exp(1.0 + eta))
    frame = {"shop": shop, "town": shop % 3, "land": (shop % 3) // 2, "x": x, "y": y}
    return pd.DataFrame(frame | {"won": won.astype(int), "count": count, "size": 7.0 * shop})


def fit(method: str, rounds=None, formula: str = "y ~ x", cluster="town", **options):
    options = {"splits": 0} | options
    return coterie.fit(shops(), formula, "shop", cluster, method=method, rounds=rounds, **options)


def apart(one, other) -> float:
    """How far predictions of the table's rows are from each other, relative to their spread."""
    a, b = (np.asarray(r.predict(shops(), type="link")["prediction"]) for r in (one, other))
    return float(np.abs(a - b).max() / a.std())


ENDS = [
    ("fedavg", {"E": 1}, "pooled"),
    ("dp-sgd", {}, "pooled"),
    *((method, {"rounds": 1000}, "pooled") for method in ("fedavgm", "fedadagrad", "fedyogi", "fedadam")),
    ("scaffold", {"E": 3}, "pooled"),
    ("fedprox", {"E": 1, "mu": 1.0}, "pooled"),
    ("feddyn", {}, "pooled"),
    ("ditto", {"lam": 0.0}, "local"),
    ("apfl", {"alpha": 1.0}, "local"),
    ("fedavg-finetune", {"rounds": 1, "finetune": 5000}, "local"),
    ("group-models", {}, "clusterwise"),
    ("group-sgd", {}, "clusterwise"),
    ("group-penalty", {"lam": 0.0}, "local"),
    ("l2gd", {"lam": 0.0, "rounds": 200}, "local"),
]


@cache
def exact(end: str):
    return fit(end)


@pytest.mark.soak(
    "fedadam-{'rounds': 1000}-pooled", "fedyogi-{'rounds': 1000}-pooled", "fedadagrad-{'rounds': 1000}-pooled"
)
@pytest.mark.parametrize(("method", "rounds", "end"), ENDS, ids=str)
def test_a_run_ends_at_the_exact_optimum_of_its_objective(method, rounds, end):
    assert apart(fit(method, rounds), exact(end)) < 1e-6


@cache
def pulled(lam: float):
    """Ditto's models under a pull that is as strong as that."""
    return fit("ditto", {"lam": lam, "s": 20, "rounds": 3000 if lam > 1.0 else 300})


@pytest.mark.soak("100.0")
@pytest.mark.parametrize("lam", [0.0, 0.1, 10.0, 100.0])
def test_ditto_ends_at_each_clients_own_optimum_beside_the_shared_model(lam):
    """The pull is in columns in which all rows together have curvature one, so its matrix is their mean curvature."""
    df = shops()
    w = exact("pooled").global_coefficients["estimate"].to_numpy()
    own = pulled(lam).client_coefficients
    X, y = np.c_[np.ones(len(df)), df["x"] - 2000.0], df["y"].to_numpy()
    M, w = lam * X.T @ X / len(df), [w[0] + 2000.0 * w[1], w[1]]
    for shop in range(12):
        here = df["shop"] == shop
        H, b = (X[here].T @ X[here] / here.sum(), X[here].T @ y[here] / here.sum())
        expected = np.linalg.solve(H + M, b + M @ w)
        got = own.loc[shop].to_numpy() @ [[1.0, 0.0], [2000.0, 1.0]]
        np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.soak
def test_a_strong_pull_makes_ditto_pooled_and_none_makes_it_local():
    pooled, local = exact("pooled"), exact("local")
    far = [apart(pulled(lam), pooled) for lam in (10.0, 100.0)]
    assert far[1] < 0.15 * far[0] < 0.15 * apart(local, pooled)  # as 1 / lam


def likeliest(X, y, family: str):
    """Newton's method for one group of rows."""
    w = np.zeros(X.shape[1])
    for _ in range(50):
        eta = X @ w
        mean = {"gaussian": eta, "binomial": 1.0 / (1.0 + np.exp(-eta)), "poisson": np.exp(eta)}[family]
        v = {"gaussian": np.ones_like(eta), "binomial": mean * (1.0 - mean), "poisson": mean}[family]
        w = w + np.linalg.solve(X.T @ (v[:, None] * X), X.T @ (y - mean))
    return w


@pytest.mark.parametrize(("family", "outcome"), FAMILIES.items())
def test_every_family_converges_by_its_default_steps(family, outcome):
    df = shops()
    for method, group in (("fedavg", np.zeros(len(df))), ("group-models", df["town"])):
        run = fit(method, None, f"{outcome} ~ x", family=family)
        assert run.settings["training"]["rounds"] < 1000
        got = np.asarray(run.predict(df, type="link")["prediction"])
        for g in np.unique(group):
            X, y = np.c_[np.ones(len(df)), (df["x"] - 2000.0) / 5.0][group == g], df[outcome][group == g].to_numpy()
            np.testing.assert_allclose(got[group == g], X @ likeliest(X, y, family), atol=1e-6 * np.std(got))


def test_own_columns_of_fedper_beside_shared_ones_are_the_within_estimator():
    for method in ("fedper", "fedrep"):
        assert apart(fit(method, shared="x", rounds=400), fit("own-intercept")) < 1e-6


def test_shared_columns_are_shared_and_columns_constant_within_clients_too():
    for method in ("fedper", "group-sgd", "group-penalty", "found-groups", "fedavg"):
        client = fit(method, 20, "y ~ x + size", shared="x").client_coefficients
        np.testing.assert_allclose(client["x"], client["x"].iloc[0], rtol=1e-10)
        np.testing.assert_allclose(client["size"], client["size"].iloc[0], rtol=1e-10)
        assert method == "fedavg" or client["(Intercept)"].nunique() > 1


LIKE = (
    *("apfl", "cluster-l2gd", "fedavg-finetune", "fedprox", "group-models", "ifca", "l2gd", "pfedme", "scaffold"),
    *("fedbabu", "lg-fedavg", "per-fedavg", "feddyn", "fedala", "fedsoft", "fedamp", "fedfomo", "apple", "pfedgraph"),
)
LIKE += ("fedbuff", "fedavgm", "fedadagrad", "fedyogi")
"""Methods that leave what others of those here leave: a model of each client, or of each client and group."""


@pytest.mark.parametrize("method", [pytest.param(n, marks=[pytest.mark.soak] * (n in LIKE)) for n in TRAIN])
def test_what_a_method_leaves_can_be_predicted_with_kept_and_reported(method, tmp_path):
    df = shops()
    result = coterie.fit(df, "y ~ x", "shop", ["town", "land"], method=method, rounds=12, splits=1,
                         shared=SPLIT.get(method, ()))  # fmt: skip
    assert {"local", "pooled", "hierarchical", method} <= set(result.comparison.index)
    assert np.isfinite(result.comparison.loc[method, "loss_rows"])
    result.save(tmp_path / "model")
    again = coterie.load(tmp_path / "model")
    strangers = df.assign(shop=np.where(np.arange(len(df)) % 2, df["shop"], -1))
    got = result.predict(strangers, interval=0.9)
    pd.testing.assert_frame_equal(again.predict(strangers, interval=0.9), got)
    assert got["prediction"].notna().all()
    assert render(again) == render(result)
    about = result.settings["training"]
    assert about["rounds"] == 12 and about["status"] == "finished"
    assert about["trace"][-1][1] < about["trace"][0][1] or method == "ifca"


@pytest.mark.parametrize("method", ["group-models", "group-sgd", "cluster-l2gd", "group-penalty"])
def test_clients_never_seen_are_answered_by_their_group(method):
    df, result = shops(), fit(method, 50)
    new = result.predict(df.assign(shop=-1))
    assert (new["source"] == "cluster").all()
    counts, own = df.groupby("shop").size(), result.client_coefficients
    for town, centre in result.cluster_coefficients.iterrows():
        weight = counts[counts.index % 3 == town]
        np.testing.assert_allclose(centre, weight @ own.loc[weight.index] / weight.sum(), rtol=1e-9)


def test_the_shared_model_answers_for_clients_never_seen():
    for method in ("ditto", "pfedme", "apfl"):
        result = fit(method, {"rounds": 40})
        centre = result.global_coefficients["estimate"].to_numpy()
        assert np.abs(result.client_coefficients.to_numpy() - centre).max() > 0.0
        assert (result.predict(shops().assign(shop=-1))["source"] == "global").all()


def test_found_groups_are_named():
    df = shops()
    df["y"] = 10.0 * (df["shop"] % 2) + df["x"] * np.where(df["shop"] % 2, 1.0, -1.0)
    df["y"] += np.random.default_rng(0).normal(size=len(df))
    for method, rounds in (("found-groups", {"k": 2}), ("cfl", {}), ("ifca", {"k": 2, "seed": 1})):
        found = coterie.fit(df, "y ~ x", "shop", method=method, rounds=rounds, splits=0).merged
        assert list(found.index) == list(range(12))
        assert (found[::2] == found[0]).all() and (found[1::2] == found[1]).all() and found[0] != found[1]


def test_units_and_zeros_of_columns_change_nothing():
    df = shops()
    other = df.assign(x=(df["x"] - 1990.0) * 1e-4, y=7.0 + 1e5 * df["y"])
    for method in ("ditto", "ifca", "cfl", "group-penalty"):
        one, two = (coterie.fit(t, "y ~ x", "shop", "town", method=method, rounds=30, splits=0) for t in (df, other))
        np.testing.assert_allclose(
            7.0 + 1e5 * one.predict(df)["prediction"], two.predict(other)["prediction"], rtol=1e-7
        )


def test_a_number_of_rounds_is_an_option_and_a_run_that_is_short_says_so():
    one, two = fit("ditto", 3), fit("ditto", {"rounds": 3})
    pd.testing.assert_frame_equal(one.client_coefficients, two.client_coefficients)
    assert any("After 3 rounds of ditto, models still moved" in note for note in one.notes)
    assert not any("still moved" in note for note in fit("ditto").notes)
    assert fit("async-l2gd", 50, gamma=5.0, alpha=0.4).settings["rounds"]["steps"] == 50


def test_steps_that_are_too_long_are_named():
    notes = " ".join(fit("fedavg", {"eta": 50.0, "E": 5, "rounds": 400}).notes)
    assert "diverged" in notes and "leave eta out" in notes


BAD = [
    ("fedbn", {}, ["normalise", "use 'fedper'"]),
    ("ditto", {"rounds": {"lam": -1}}, ["lam must be a number from 0, not -1"]),
    ("ditto", {"rounds": {"la": 1}}, ["no option 'la'", "Did you mean 'lam'"]),
    ("ditto", {"rounds": 0}, ["rounds of the method ditto must be a whole number from 1"]),
    ("ditto", {"rounds": True}, ["rounds must be a whole number, or options such as"]),
    ("ditto", {"rounds": "many"}, ["options such as {'eta': 0.1}, not 'many'"]),
    ("ditto", {"rounds": {"personal": "x"}}, ["shared names the columns", "leave personal out of rounds"]),
    ("ditto", {"rounds": {"eta": [0.1, 0.2]}}, ["eta of the method ditto must be one value"]),
    ("ditto", {"shared": "x"}, ["gives every client all coefficients", "leave shared out"]),
    ("ifca", {"shared": "x"}, ["gives every group all coefficients", "leave shared out"]),
    ("fedper", {}, ["needs columns that all clients share", "--shared"]),
    ("fedrep", {"shared": ("x", "(Intercept)")}, ["needs columns of clients' own", "use method 'fedavg'"]),
    ("group-sgd", {"cluster": None}, ["needs clusters", "--cluster"]),
    ("auto", {"rounds": {"eta": 0.1}}, ["rounds are options of the methods", "name one as the method"]),
]  # fmt: skip


@pytest.mark.parametrize(("method", "options", "fragments"), BAD, ids=[f"{m} {o}" for m, o, _ in BAD])
def test_what_cannot_be_is_refused_in_one_sentence(method, options, fragments):
    with pytest.raises(CoterieError) as caught:
        fit(method, **options)
    assert str(caught.value).endswith((".", "?"))
    for fragment in fragments:
        assert fragment in str(caught.value)


def test_every_method_is_for_tables_or_says_why_it_is_not():
    for name, method in METHODS.items():
        assert bool(method.fits) != ("table" in method.not_for), name


def clients_of(df: pd.DataFrame, outcome: str, family: str) -> GLM:
    X, y = np.c_[np.ones(len(df)), df["x"], df["size"]], df[outcome].to_numpy(dtype=np.float64)
    starts = np.flatnonzero(np.diff(df["shop"], prepend=-1))
    offset, weights = 0.1 * np.sin(np.arange(len(df))), 1.0 + 0.5 * np.cos(np.arange(len(df)))
    return GLM(X, y, offset, weights, starts, np.append(starts[1:], len(df)), family)


@pytest.mark.parametrize(("family", "outcome"), FAMILIES.items())
def test_in_a_frame_losses_are_the_same_and_all_rows_have_curvature_one(family, outcome):
    glm = clients_of(shops(), outcome, family)
    problem = GroupedProblem(ClusterTree(), family, np.array([0, 1]), 0)
    frame = well_scaled(InProcess(glm), problem)
    assert frame.R[2, 0] == frame.R[2, 1] == 0.0  # what is shared depends on what is shared alone
    inside = turned(glm, frame.row)
    assert inside.X is turned(glm, frame.row).X
    u = np.random.default_rng(1).normal(size=(len(glm), 3))
    out, here = (o.derivatives(np.ones(3), t) for o, t in ((glm, frame.theta(u)), (inside, u)))
    np.testing.assert_allclose(here[0] * frame.size**2, out[0], rtol=1e-9)
    begin = inside.derivatives(np.ones(3), np.zeros_like(u))
    A = np.zeros((3, 3))
    A[np.tril_indices(3)] = begin[2].sum(axis=0) / glm.weights.sum()
    np.testing.assert_allclose(np.tril(A), np.eye(3), atol=1e-8)
    again = Frame.of_row(frame.row)
    np.testing.assert_array_equal(again.R, frame.R)
    assert again.size == frame.size


def test_a_site_sees_which_work_is_meant_inside_a_frame():
    inside = {"work": "coterie.methods.local_training.whitening:in_frame", "message": {"inner": "ditto:update", "w": 0}}
    named = [inside["work"], "coterie.methods.ditto:update"]
    assert works(inside) == named
    noisy = {"inner": inside["work"], "message": inside["message"]}
    assert works({"work": "coterie.engines.privacy.site_guard:noisy", "message": noisy})[1:] == named


def test_rows_of_another_outcome_are_not_taken_for_those_that_were_turned():
    df = shops()
    glm = clients_of(df, "y", "gaussian")
    other = GLM(glm.X, glm.y + 1.0, glm.offset, glm.weights, glm.starts, glm.stops)
    row = Frame(np.zeros(3), np.eye(3)).row
    np.testing.assert_allclose(turned(other, row).y - turned(glm, row).y, 1.0)


def test_work_in_a_frame_keeps_state_and_counts_gradients():
    from coterie.methods.fedavg import FedAvg

    glm = clients_of(shops(), "y", "gaussian")
    fed = InProcess(glm)
    frame = well_scaled(fed, GroupedProblem(ClusterTree(), "gaussian", np.arange(3), 0))
    method, before = FedAvg(eta=0.5), fed.ledger.gradient_calls
    *_, state = method.run(InFrame(fed), [2])
    assert fed.ledger.gradient_calls - before >= 2 * len(glm)
    w, share = np.zeros(3), np.add.reduceat(glm.weights, glm.starts) / glm.weights.sum()
    X = glm.X @ frame.R
    y = (glm.y - glm.offset - glm.X @ frame.at) / frame.size
    for _ in range(2):  # the paper's loop, in plain NumPy
        ends = []
        for lo, hi in zip(glm.starts, glm.stops, strict=True):
            residual = glm.weights[lo:hi] * (X[lo:hi] @ w - y[lo:hi])
            ends.append(w - 0.5 * residual @ X[lo:hi] / glm.weights[lo:hi].sum())
        w = share @ np.array(ends)
    np.testing.assert_allclose(state["w"], w, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", ["ditto", "ifca", "group-sgd", "found-groups"])
def test_over_sites_behind_a_wire_the_numbers_are_those_of_one_process(method):
    glm, towns = clients_of(shops(), "y", "gaussian"), np.repeat(np.arange(3), 4)
    problem = GroupedProblem(ClusterTree((np.zeros(3, dtype=np.int64),)), "gaussian", np.array([0, 1]), 0)
    rounds = {"rounds": 8, **({"k": 2} if method == "found-groups" else {})}
    here = FITTED[method].fit(InProcess(glm, towns), problem, rounds=rounds)
    there = FITTED[method].fit(
        Loopback(glm, towns, sites=[[0, 3, 9], [1, 2, 4, 11], [5, 6, 7, 8, 10]]), problem, rounds=rounds
    )
    np.testing.assert_allclose(there.client, here.client, rtol=1e-9)
    np.testing.assert_allclose(there.root, here.root, rtol=1e-9)
    np.testing.assert_allclose(there.nodes[0], here.nodes[0], rtol=1e-9)
    assert there.info["training"].get("groups") == here.info["training"].get("groups")


@pytest.mark.parametrize("copies", [False, True])
def test_a_column_that_rows_do_not_tell_from_others_keeps_its_coefficient(copies):
    """As a rare one in the training rows of a split; the others have the frame of a table without it."""
    glm = clients_of(shops(), "y", "gaussian")
    whole, less = (GroupedProblem(ClusterTree(), "gaussian", np.arange(p), 0) for p in (3, 2))
    X = glm.X.copy()
    X[:, 2] = 2.0 * X[:, 1] - X[:, 0] if copies else 0.0
    frame = well_scaled(InProcess(replace(glm, X=X)), whole)
    want = well_scaled(InProcess(replace(glm, X=np.ascontiguousarray(X[:, :2]))), less)
    np.testing.assert_allclose(frame.R[:2, :2], want.R, rtol=1e-9)
    assert not frame.R[2].any() and not frame.R[:, 2].any()


@pytest.mark.soak("binomial")
@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_a_rare_column_that_splits_empty_stops_no_comparison(family):
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"client": np.repeat(np.arange(8), 12), "x": rng.normal(size=96), "rare": 0.0})
    df.loc[5, "rare"] = 1.0
    df["y"] = df["x"] * (1.0 + 0.1 * df["client"]) + rng.normal(size=96)
    if family == "binomial":
        df["y"] = 1.0 * (df["y"] > 0.0)
    asked = ["ditto", "fedavg", "weighted-averaging"]
    found = coterie.compare(df, "y ~ x + rare", "client", methods=asked, splits=3, family=family)
    assert [*found.index] == ["local", "pooled", *asked] and np.isfinite(found["loss_rows"]).all()
    plain = coterie.compare(df, "y ~ x", "client", methods=asked, splits=3, family=family)
    np.testing.assert_allclose(found["loss_rows"], plain["loss_rows"], rtol=0.15)
