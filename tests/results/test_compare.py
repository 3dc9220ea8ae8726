"""The comparison against a literal loop, and the choice of given strengths."""

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.data.clients import Clients
from coterie.data.simulate import tree
from coterie.data.split import split_rows
from coterie.errors import CoterieError
from coterie.methods.fitted import Problem
from coterie.relations.clusters import Tree
from coterie.results.compare import Splits, evaluate, run
from coterie.results.metrics import bootstrap, client_losses
from coterie.results.strengths import aligned, select


@pytest.fixture(scope="module")
def table():
    return tree(clients=30, clusters=3, rows=(4, 20), columns=1, seed=2)[0]


def clients_of(df, family="gaussian"):
    from coterie.data import prepare

    return prepare(df, "y ~ x1", "client", "cluster", family=family)[0]


def test_losses_are_those_of_a_literal_loop(table):
    clients = clients_of(table)
    problem = Problem(Tree.of(clients), "gaussian", np.arange(2), 0)
    splits = Splits(3, 0.3, seed=4)
    fits = {name: lambda c, name=name: run(name, c, problem, {})[0] for name in ("local", "pooled")}
    evidence = evaluate(clients, "gaussian", fits, splits)
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
        np.testing.assert_allclose(evidence.losses[name], sums[name], rtol=1e-8)
    np.testing.assert_array_equal(evidence.rows, rows)
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


def test_bootstrap_covers_the_mean_and_knows_its_limit():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(200):
        low, high = bootstrap(rng.exponential(size=60), rng, draws=300)
        hits += low <= 1.0 <= high
    assert 0.86 <= hits / 200 <= 0.99
    many = rng.normal(size=30_000)
    low, high = bootstrap(many, rng)
    assert high - low == pytest.approx(2 * 1.96 * many.std() / 30_000**0.5, rel=1e-3)
    assert np.isnan(bootstrap(np.array([1.0]), rng)).all()


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
    result = coterie.fit(table, "y ~ x1", "client", "cluster", splits=3)
    assert result.recommended == result.comparison["loss_rows"].idxmin() == result.method
    assert {"local", "pooled"} <= set(result.comparison.index)
    assert result.recommended != "local" and f"{result.comparison['loss_rows'].min():.4g}" in result.reason


def test_a_grid_is_chosen_from_inside_the_training_rows(table):
    clients = clients_of(table)
    problem = Problem(Tree.of(clients), "gaussian", np.arange(2), 0)
    splits = Splits(2, 0.25, seed=0)
    grid = aligned(clients, {"gamma": [1e-4, 1.0, 1e4], "lam": [0.1, 10.0]})
    chosen = select(clients, problem, grid, splits)
    losses = {}
    for gamma in grid["gamma"]:
        for lam in grid["lam"]:
            fits = {"given": lambda c, g=gamma, v=lam: run("given-strengths", c, problem, {"gamma": g, "lam": v})[0]}
            losses[gamma, lam] = evaluate(clients, "gaussian", fits, Splits(2, 0.25, seed=1)).losses["given"].sum()
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
