"""The comparison against a literal loop, and the choice of given strengths."""

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.data.clients import Clients
from coterie.data.splits import Splits, split_rows
from coterie.errors import CoterieError
from coterie.evidence.comparison import median_ratio
from coterie.evidence.table_comparison import TableComparison, all_splits, each_split, may_be_as_good
from coterie.evidence.table_selection import select
from coterie.families import GAUSSIAN
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.relations.clusters import ClusterTree
from coterie.relations.relations_by_label import aligned
from coterie.report.fit_page import made, render, tiles
from coterie.report.words import headline
from coterie.runs.run_table_method import client_losses, run
from papers.simulate import tree


@pytest.fixture(scope="module")
def table():
    return tree(clients=30, clusters=3, rows=(4, 20), columns=1, seed=2)[0]


def clients_of(df, family="gaussian"):
    from coterie.data.prepare_table import prepare

    return prepare(df, "y ~ x1", "client", "cluster", family=family)[0]


def test_losses_are_those_of_a_literal_loop(table):
    clients = clients_of(table)
    problem = GroupedProblem(ClusterTree.of(clients), "gaussian", np.arange(2), 0)
    splits = Splits(3, 0.3, seed=4)
    fits = {name: lambda c, name=name: run(name, c, problem, {})[0] for name in ("local", "pooled")}
    evidence = all_splits(each_split(clients, GAUSSIAN, fits, splits))
    sums, rows = {"local": np.zeros(30), "pooled": np.zeros(30)}, np.zeros(30)
    for repeat in range(3):
        test = split_rows(clients, 0.3, 4, repeat)
        for i in range(30):
            here = np.arange(clients.starts[i], clients.stops[i])
            train, held = here[~test[here]], here[test[here]]
            rows[i] += len(held)
            models = {
                "local": np.linalg.lstsq(clients.X[train], clients.y[train], rcond=None)[0],
                "pooled": np.linalg.lstsq(clients.X[~test], clients.y[~test], rcond=None)[0],
            }
            for name, theta in models.items():
                sums[name][i] += np.sum((clients.y[held] - clients.X[held] @ theta) ** 2)
    for name in fits:
        np.testing.assert_allclose(evidence.losses[name].sum(axis=0), sums[name], rtol=1e-8)
    np.testing.assert_array_equal(evidence.rows.sum(axis=0), rows)
    frame = evidence.table
    mean = {name: (sums[name] / rows)[rows > 0] for name in fits}
    assert frame.loc["local", "loss_clients"] == pytest.approx(mean["local"].mean())
    assert frame.loc["pooled", "loss_rows"] == pytest.approx(sums["pooled"].sum() / rows.sum())
    assert frame.loc["pooled", "gain_over_local"] == pytest.approx((mean["local"] - mean["pooled"]).mean())
    assert frame.loc["pooled", "better_than_local"] == pytest.approx((mean["pooled"] < mean["local"]).mean())


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_losses_of_classes_and_counts_are_scikit_learns(family):
    from sklearn.metrics import log_loss, mean_poisson_deviance

    df = tree(clients=10, rows=15, columns=1, family=family, seed=1)[0]
    clients = Clients.from_arrays(np.column_stack([np.ones(150), df["x1"]]), df["y"], df["client"])
    theta = np.tile([0.2, 0.3], (10, 1))
    eta = clients.X @ [0.2, 0.3]
    mine = client_losses(clients, family, theta).sum() / 150
    if family == "binomial":
        assert mine == pytest.approx(log_loss(clients.y, 1 / (1 + np.exp(-eta))))
    else:
        assert mine == pytest.approx(mean_poisson_deviance(clients.y, np.exp(eta)))


def test_the_same_answer_for_a_shuffled_table(table):
    options = {
        "client": "client",
        "cluster": "cluster",
        "splits": 0,
        "method": "hierarchical",
        "covariance": "diagonal",
    }
    one = coterie.fit(table, "y ~ x1", **options)
    other = coterie.fit(table.sample(frac=1, random_state=3), "y ~ x1", **options)
    assert one.log_likelihood == pytest.approx(other.log_likelihood, abs=1e-8)
    pd.testing.assert_frame_equal(one.client_coefficients, other.client_coefficients, rtol=1e-7)


def test_auto_takes_the_best_and_says_so(table):
    result = coterie.fit(table, "y ~ x1", "client", splits=3)
    assert result.recommended == result.comparison["loss_rows"].idxmin() == result.method
    assert {"local", "pooled"} <= set(result.comparison.index)
    assert result.recommended != "local" and f"{result.comparison['loss_rows'].min():.4g}" in result.reason
    assert result.reason.startswith(f"{result.method} has the lowest held-out squared error over rows")


def test_of_methods_that_cannot_be_told_apart_auto_takes_one_that_knows_the_clusters(table):
    result = coterie.fit(table, "y ~ x1", "client", "cluster", splits=3)
    losses, tied = result.comparison["loss_rows"], may_be_as_good(result.comparison, "")
    assert losses.idxmin() == "single-cluster" and "hierarchical" in tied
    assert result.recommended == result.method == "hierarchical"
    assert "a model of every cluster, for clients never seen, unlike single-cluster, which has the low" in result.reason
    assert (
        f"({losses.min():.4g}, against" in result.reason and f"{losses['hierarchical']:.4g} for hier" in result.reason
    )
    new = pd.DataFrame({"client": ["nobody"], "cluster": table["cluster"].iloc[:1], "x1": [0.5]})
    answer = result.predict(new, interval=0.9)
    assert answer["source"].iloc[0] == "cluster" and np.isfinite(answer[["lower", "upper"]].to_numpy()).all()
    assert headline(result).startswith("The hierarchical model is recommended: the median client has ")
    page = render(result)
    assert "</th>" in page and '<span class="badge">recommended</span>' in page
    assert '<span class="badge">best</span>' not in page


def evidence(losses, clients=40, clusters=2, splits=1, **more):
    """Held-out losses that scatter around given means, the same way for all methods but a little."""
    rng = np.random.default_rng(0)
    common, ones = rng.gamma(3.0, size=clients), np.ones((splits, clients))
    found = {name: loss * common + rng.normal(0.0, 0.2, (splits, clients)) for name, loss in losses.items()}
    above = (np.arange(clients) % clusters,) if clusters else ()
    return TableComparison(found, ones, ones, dict.fromkeys(losses, 0.0), GAUSSIAN, above=above, **more)


TIES = {"own-intercept": 1.0, "local": 3.0, "pooled": 2.0, "clusterwise": 1.02, "hierarchical": 1.01}


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (evidence(TIES), {"clusterwise", "hierarchical"}),
        (evidence(TIES, clusters=0), {"own-intercept"}),
        (evidence(TIES, clients=9), {"own-intercept", "clusterwise", "hierarchical"}),
        (evidence(TIES | {"clusterwise": 1.5, "hierarchical": 1.6}), {"own-intercept"}),
        (evidence(TIES | {"clusterwise": 1.5}), {"hierarchical"}),
    ],
    ids=["tied", "no clusters", "few clients", "worse", "one tied"],
)
def test_a_method_without_clusters_stays_where_it_is_better_or_there_are_none(given, taken):
    assert given.recommended() in taken
    if given.tested < 10:
        assert given.recommended() == given.best


def test_one_client_whose_own_model_is_degenerate_decides_nothing(table):
    """All but one of its rows are nearly alike: without that one its own model has a slope of thousands."""
    rows = table[table["client"] == table["client"].iloc[0]].index[:5]
    other = table[table["client"] != table["client"].iloc[0]]
    x = [2.0, 0.5, 0.501, 0.499, 0.502]
    bad = pd.concat([other, table.loc[rows].assign(x1=x, y=[1.0, 3.0, 2.0, 0.0, 1.5])])
    plain, result = (coterie.fit(df, "y ~ x1", "client", "cluster", splits=5) for df in (other, bad))
    ratio = result.client_gains["loss_recommended"] / result.client_gains["loss_local"]
    mean = result.comparison["loss_rows"]
    assert mean["local"] > 10.0 * mean[result.recommended]  # "more than 90% less", which the headline said
    size = f"{100.0 * (1.0 - ratio.median()):.1f}% less squared error than"
    assert f"the median client has {size} alone" in headline(result)
    assert f"The median client has {size} with a model of its own. Against that 1 of {len(ratio)} " in result.reason
    before = plain.client_gains["loss_recommended"] / plain.client_gains["loss_local"]
    assert abs(before.median() - ratio.median()) < 0.05
    assert any("the median client gains" in remark for _, _, remark in tiles(result))


@pytest.mark.parametrize(
    ("best", "other", "ratio"),
    [
        ([1.0, 2.0, 3.0], [2.0, 2.0, 1.0], 1.0),
        ([0.0, 1.0, 5.0], [0.0, 0.0, 10.0], 1.0),
        ([np.nan, 1.0], [2.0, 4.0], 0.25),
        ([1.0], [0.0], np.inf),
        ([3e-4, 2e-4, 1.0], [1e-38, 2e-37, 3.0], np.inf),  # what is lost to rounding
        ([np.inf, 1.0, 1.0], [2.0, 2.0, 4.0], 0.5),
    ],
)
def test_the_median_ratio_stands_zeros_and_gaps(best, other, ratio):
    assert median_ratio(np.array(best), np.array(other)) == ratio
    assert np.isnan(median_ratio(np.array([np.nan]), np.array([1.0])))


def test_a_deviance_does_not_depend_on_who_stands_before():
    y = np.concatenate([np.full(2000, 9e9), [1.0, 2.0, 3.0]])
    clients = Clients.from_arrays(np.ones((2003, 1)), y, np.repeat([0, 1], [2000, 3]))
    alone = Clients.from_arrays(np.ones((3, 1)), y[-3:], [1, 1, 1])
    theta = np.log([[9e9], [2.0]])
    assert client_losses(clients, "poisson", theta)[1] == client_losses(alone, "poisson", theta[1:])[0]
    held = clients.subset(np.arange(2003) >= 2000)  # the first has no rows left
    np.testing.assert_array_equal(client_losses(held, "poisson", theta)[0], 0.0)
    assert client_losses(held, "poisson", theta)[1] == client_losses(alone, "poisson", theta[1:])[0]


def test_a_grid_is_chosen_from_inside_the_training_rows(table):
    clients = clients_of(table)
    problem = GroupedProblem(ClusterTree.of(clients), "gaussian", np.arange(2), 0)
    splits = Splits(2, 0.25, seed=0)
    grid = aligned(clients, {"gamma": [1e-4, 1.0, 1e4], "lam": [0.1, 10.0]})
    chosen = select(clients, problem, grid, splits)
    losses = {}
    for gamma in grid["gamma"]:
        for lam in grid["lam"]:
            fits = {"given": lambda c, g=gamma, v=lam: run("given-strengths", c, problem, {"gamma": g, "lam": v})[0]}
            losses[gamma, lam] = (
                all_splits(each_split(clients, GAUSSIAN, fits, Splits(2, 0.25, seed=1))).losses["given"].sum()
            )
    assert (chosen["gamma"], chosen["lam"]) == min(losses, key=losses.get)


def test_strengths_by_label_reach_their_clients(table):
    clients = clients_of(table)
    by_label = {label: float(i + 1) for i, label in enumerate(clients.labels)}
    shuffled = dict(sorted(by_label.items(), key=lambda item: -item[1]))
    np.testing.assert_array_equal(aligned(clients, {"gamma": shuffled})["gamma"][0], np.arange(1.0, 31.0))
    result = coterie.fit(
        table, "y ~ x1", "client", "cluster", gamma=by_label, lam=2, method="given-strengths", splits=0
    )
    assert result.settings["strengths"]["gamma"] == list(np.arange(1.0, 31.0))


STRENGTHS = [
    ("lam alone", {"lam": 1.0}, "needs gamma"),
    ("both forms", {"gamma": 1.0, "lam": 1.0, "alpha": 0.5}, "not both"),
    ("unknown label", {"gamma": {"nobody": 1.0}}, "names client 'nobody'"),
    ("label missing", {"gamma": {0: 1.0}}, "has no entry for client"),
    ("empty grid", {"gamma": []}, "is empty"),
    ("negative", {"gamma": -1.0}, "not negative"),
    ("alpha above 1", {"gamma": 1.0, "alpha": 1.5}, "between 0"),
    ("no grid without splits", {"gamma": [1.0, 2.0], "splits": 0, "method": "given-strengths"}, "at least one split"),
]


@pytest.mark.parametrize("options, sentence", [c[1:] for c in STRENGTHS], ids=[c[0] for c in STRENGTHS])
def test_bad_strengths_get_a_sentence(table, options, sentence):
    with pytest.raises(CoterieError, match=sentence):
        coterie.fit(table, "y ~ x1", "client", "cluster", **{"splits": 1, **options})


def test_lam_without_clusters_says_so(table):
    with pytest.raises(CoterieError, match="name a cluster column"):
        coterie.fit(table, "y ~ x1", "client", gamma=1.0, lam=1.0)


def test_a_run_that_diverged_has_a_row_and_says_so():
    """Its held-out losses are too large to be squared, so that their standard error is infinite."""
    rng = np.random.default_rng(5)
    school, hours = np.repeat(np.arange(6), 10), rng.normal(size=60)
    table = pd.DataFrame({"school": school, "hours": hours, "score": hours + school + rng.normal(size=60)})
    result = coterie.fit(table, "score ~ hours", "school", method="async-l2gd", gamma=1, rounds={"eta": 9.0}, splits=1)
    assert result.comparison.loc["async-l2gd", "se_clients"] == np.inf
    assert any("The run diverged by step" in note for note in result.notes)
    assert np.isfinite(result.client_coefficients).all(axis=None)


def test_few_units_move_gains_through_the_one_model_for_all(table):
    """Their influence by what one model for all, fitted without each, does to the others' mean gain."""
    clients = clients_of(table)
    problem = GroupedProblem(ClusterTree.of(clients), "gaussian", np.arange(2), 0)
    fits = {name: lambda c, name=name: run(name, c, problem, {})[0] for name in ("local", "pooled")}
    evidence = all_splits(each_split(clients, GAUSSIAN, fits, splits := Splits(2, 0.3, seed=4)))
    total, tested = evidence.total, evidence.total > 0
    losses = {k: np.zeros(30) for k in ("all", 0, 1, 2)}
    for repeat in range(2):
        test = split_rows(clients, splits.fraction, 4, repeat)
        for k in losses:
            kept = ~test & ((k == "all") | (clients.clusters[clients.codes] != k))
            theta = np.linalg.lstsq(clients.X[kept], clients.y[kept], rcond=None)[0]
            square = np.where(test, (clients.y - clients.X @ theta) ** 2, 0.0)
            losses[k] += np.bincount(clients.codes, square, 30)
    moved = []
    for k in range(3):
        others = tested & (clients.clusters != k)
        moved.append(np.mean((losses["all"] - losses[k])[others] / total[others]) * 2.0 / 3.0)
    expected = np.array(moved) - np.mean(moved)
    np.testing.assert_allclose(evidence._retrained("local", "pooled"), expected, rtol=1e-7)
    np.testing.assert_allclose(evidence._retrained("pooled", "local"), -expected, rtol=1e-7)
    assert evidence._retrained("local", "local") == 0.0


def test_clients_that_truly_lose_are_named():
    """Eight of 40 clients have a tenth of the noise and their own relation: one residual variance draws them away."""
    rng, odd = np.random.default_rng(9000), np.arange(40) < 8
    theta = np.where(odd[:, None], 1.0 + 0.3 * rng.choice([-1.0, 1.0], (40, 2)), 1.0)
    client, x = np.repeat(np.arange(40), 60), rng.normal(size=2400)
    noise = np.where(odd, 0.1, 1.0)[client] * rng.normal(size=2400)
    table = pd.DataFrame({"c": client, "x": x, "y": theta[client, 0] + theta[client, 1] * x + noise})
    found = coterie.fit(table, "y ~ x", client="c", splits=20, covariance="diagonal")
    named = found.client_gains["worse_than_local"].to_numpy()
    assert named[odd].sum() >= 5 and not named[~odd].any()


def test_a_given_split_holds_out_the_rows_that_it_says(table):
    """Of the rows that another split holds out there is the same evidence; choices are made by those left."""
    clients = clients_of(table)
    df, late = table.assign(day=np.arange(len(table))), np.zeros(len(table), dtype=bool)
    late[clients.order] = split_rows(clients, 0.25, 0, 0, order=np.arange(len(table))[clients.order])
    df["fold"], df["held"] = np.where(late, "test", "Train"), late
    how = {"client": "client", "cluster": "cluster", "methods": ["hierarchical", "given-strengths"], "gamma": 0.5}
    by_day = coterie.compare(df, "y ~ x1", **how, order_by="day").drop(columns=["seconds"], errors="ignore")
    for name in ("fold", "held"):
        found = coterie.compare(df, "y ~ x1", **how, given_split=name).drop(columns=["seconds"], errors="ignore")
        pd.testing.assert_frame_equal(found, by_day)
    result = coterie.fit(df, "y ~ x1", "client", "cluster", given_split="fold")
    assert ", on the rows given to test on." in result.reason and "that 'fold' holds out" in " ".join(made(result))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"given_split": "fold"}, "All rows of client a are held out by 'fold'"),
        ({"given_split": "none"}, "No row of 'none' says test"),
        ({"given_split": "y"}, "by train, validation or test"),
        ({"given_split": "fold", "order_by": "x"}, "given_split and order_by both"),
        ({"given_split": "fold", "test_fraction": 0.5}, "given_split and test_fraction both"),
        ({"given_split": "fold", "splits": 0}, "given_split changes nothing"),
        ({"given_split": "flod"}, "Did you mean 'fold'"),
    ],
)
def test_a_split_that_cannot_be_given(how, said):
    df = pd.DataFrame({"client": list("aaabbbbb"), "x": np.arange(8.0), "y": np.arange(8.0) % 3})
    df["fold"], df["none"] = ["test"] * 4 + ["train"] * 4, "train"
    with pytest.raises(CoterieError, match=said):
        coterie.fit(df, "y ~ x", "client", **how)
