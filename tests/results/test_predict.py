"""Predictions: against a loop over rows, with every way a client can be unknown; intervals against a known truth."""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest

from coterie.errors import CoterieError
from coterie.numerics.arrays import full
from coterie.results.predict import predict_rows
from tests.messages import names
from tests.results import factory


def one_row(model, x, client, clusters, interval):
    """The literal twin: one row, whole matrices, plain Python."""
    spread = np.zeros_like(model.root_cov)
    known = {str(label): i for i, label in enumerate(model.labels)}
    parent = None
    if str(client) in known and client is not None:
        at = known[str(client)]
        theta, cov, source = model.client[at], full(model.client_cov[at]), "client"
    else:
        spread = spread + model.D_client[0]
        theta, cov, source = model.root, model.root_cov, "global"
        for depth, level in enumerate(model.levels):
            label = clusters.get(level.name)
            where = [j for j, v in enumerate(level.labels) if label is not None and str(v) == str(label)]
            if where:
                theta, cov = model.nodes[depth][where[0]], full(model.node_cov[depth][where[0]])
                source = "cluster" if len(model.levels) == 1 else level.name
                parent = depth
                break
            spread = spread + model.D_levels[depth]
    del parent
    eta = float(x @ theta)
    variance = float(x @ (cov + spread) @ x) + (model.sigma2 if model.family == "gaussian" else 0.0)
    half = NormalDist().inv_cdf(0.5 + interval / 2) * variance**0.5
    link = {"gaussian": lambda v: v, "poisson": np.exp, "binomial": lambda v: 1 / (1 + np.exp(-v))}[model.family]
    return link(eta), source, link(eta - half), link(eta + half)


def strangers(table: pd.DataFrame, levels: tuple[str, ...]) -> pd.DataFrame:
    """Some rows of the table, of which many have a client or clusters that the fit has not seen."""
    out = table.sample(60, random_state=1).astype({"school": object, **dict.fromkeys(levels, object)})
    place = {c: out.columns.get_loc(c) for c in out.columns}
    out.iloc[10:25, place["school"]] = "nobody"
    out.iloc[25:40, place["school"]] = None
    for start, level in zip((15, 20, 22), levels, strict=False):
        out.iloc[start : start + 15, place[level]] = "nowhere"
        out.iloc[start + 15 : start + 18, place[level]] = None
    return out


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
@pytest.mark.parametrize("levels", [(), (3,), (4, 2), (5, 3, 2)], ids=["none", "one", "two", "three"])
def test_predictions_are_those_of_a_loop_over_rows(family, levels) -> None:
    world = factory.world(clients=20, levels=levels, family=family, labels=np.array([f"s {i}" for i in range(20)]))
    names = tuple(level.name for level in world.result.model.levels)
    table = strangers(world.table, names)
    got = world.result.predict(table, interval=0.8)
    for (_, row), (_, found) in zip(table.iterrows(), got.iterrows(), strict=True):
        clusters = {n: row[n] for n in names}
        expected = one_row(world.result.model, np.array([1.0, row["x"]]), row["school"], clusters, 0.8)
        assert found["source"] == expected[1]
        np.testing.assert_allclose([found[c] for c in ("prediction", "lower", "upper")],
                                   [expected[0], *expected[2:]], rtol=1e-12)  # fmt: skip
    wanted = {"client", "global", *(("cluster",) if len(names) == 1 else names)}
    assert set(got["source"]) == wanted
    assert got.index.equals(table.index)


def test_large_tables_go_through_in_blocks() -> None:
    world = factory.world(clients=50, rows=2)
    table = pd.concat([world.table] * 1000, ignore_index=True)
    got = world.result.predict(table, interval=0.5)
    once = world.result.predict(world.table, interval=0.5)
    np.testing.assert_array_equal(got[["prediction", "lower"]], np.tile(once[["prediction", "lower"]], (1000, 1)))


def test_an_own_variance_for_each_cluster_widens_its_own_strangers() -> None:
    world = factory.world(clients=12, levels=(2,))
    own = np.stack([np.diag([0.1, 0.1]), np.diag([9.0, 9.0])])
    result = replace(world.result, model=replace(world.result.model, D_client=own))
    table = pd.DataFrame({"school": [None] * 3, "sector": ["sector 0", "sector 1", None], "x": 1.0})
    got = result.predict(table, interval=0.9)
    width = (got["upper"] - got["lower"]).to_numpy() / (2 * NormalDist().inv_cdf(0.95))
    # x'(cov + D)x + sigma2 = .02 + 2d + 1; for the unknown sector d is the mean over clients, plus D of the sectors
    np.testing.assert_allclose(width**2, [0.02 + 0.2 + 1, 0.02 + 18 + 1, 0.02 + 9.1 + 0.7 + 1])
    table = result.variance_components
    assert list(table.columns) == ["level", "cluster", "term", "term2", "sd", "cov"]
    assert table.query("level == 'client'").groupby("cluster")["cov"].first().to_list() == [0.1, 9.0]


def test_the_outcome_and_the_cluster_columns_may_be_missing() -> None:
    world = factory.world()
    bare = world.table[["x", "school"]]
    pd.testing.assert_frame_equal(world.result.predict(bare), world.result.predict(world.table))


def test_a_table_without_rows_gives_one_without_rows() -> None:
    world = factory.world()
    got = world.result.predict(world.table.iloc[:0], interval=0.9)
    assert got.shape == (0, 4)


def test_predictions_have_the_index_of_the_table() -> None:
    world = factory.world()
    named = world.table.set_axis([f"row {i}" for i in range(len(world.table))])
    assert world.result.predict(named).index.equals(named.index)


def test_rows_that_cannot_be_read_are_empty_where_that_is_asked() -> None:
    world = factory.world()
    holes = world.table.assign(x=world.table["x"].where(np.arange(len(world.table)) != 3))
    with pytest.raises(CoterieError, match=names("1 row data 4 missing='empty'")):
        world.result.predict(holes)
    got, whole = world.result.predict(holes, 0.9, missing="empty"), world.result.predict(world.table, 0.9)
    assert got["source"].iloc[3] == "none: missing values in 'x'"
    numbers = ["prediction", "lower", "upper"]
    assert got[numbers].iloc[3].isna().all()
    pd.testing.assert_frame_equal(got.drop(got.index[3])[numbers], whole.drop(whole.index[3])[numbers])
    assert got.attrs == whole.attrs
    with pytest.raises(CoterieError, match=names("missing error empty 'drop'")):
        world.result.predict(holes, missing="drop")  # type: ignore[arg-type]


def test_labels_may_change_their_type() -> None:
    world = factory.world()
    text = world.table.assign(school=world.table["school"].astype(str))
    pd.testing.assert_frame_equal(world.result.predict(text), world.result.predict(world.table))


def test_a_client_keeps_its_model_in_another_cluster_and_the_table_says_so() -> None:
    world = factory.world()
    moved = world.table.assign(sector="sector 2")
    got = world.result.predict(moved)
    np.testing.assert_array_equal(got["prediction"], world.result.predict(world.table)["prediction"])
    (note,) = got.attrs["notes"]
    elsewhere = int((world.table["sector"] != "sector 2").sum())
    assert note.startswith(f"{elsewhere} rows are of a school that was in another cluster")
    assert world.result.predict(world.table).attrs["notes"] == []


def test_rows_without_a_label_are_told() -> None:
    world = factory.world()
    missing = world.table["school"].astype(object).where(np.arange(len(world.table)) > 1, None)
    (note,) = world.result.predict(world.table.assign(school=missing)).attrs["notes"]
    assert note == "2 rows have no label in 'school', and are answered like clients never seen."


def test_clusters_of_a_stranger_that_do_not_belong_together_are_told_too() -> None:
    world = factory.world(clients=20, levels=(4, 2))
    coarse = world.result.model.levels[1].name
    strangers = world.table.assign(school="never seen")
    assert world.result.predict(strangers).attrs["notes"] == []
    moved = strangers.assign(**{coarse: world.result.model.levels[1].labels[0]})
    got = world.result.predict(moved)
    np.testing.assert_array_equal(got["prediction"], world.result.predict(strangers)["prediction"])
    (note,) = got.attrs["notes"]
    elsewhere = int((world.table[coarse] != moved[coarse]).sum())
    assert note.startswith(f"{elsewhere} rows are of a school or cluster that was in another cluster")


def test_a_method_without_variances_admits_that_it_cannot_say_how_far_strangers_stray() -> None:
    world = factory.world()
    zero = np.zeros((1, 2, 2))
    local = replace(world.result.model, method="local", D_client=zero, D_levels=(zero[0],))
    got = replace(world.result, model=local).predict(world.table.assign(school=-1), interval=0.9)
    assert got["lower"].isna().all()
    assert got["prediction"].notna().all()
    assert "does not say how clients differ" in got.attrs["notes"][0]


def test_levels_that_do_not_differ_are_not_said_to_have_answered() -> None:
    world = factory.world()
    m = world.result.model
    zero = np.zeros((1, 2, 2))
    pooled = replace(
        m, method="pooled", client=np.tile(m.root, (12, 1)), nodes=(np.tile(m.root, (3, 1)),), D_client=zero,
        D_levels=(zero[0],),
    )  # fmt: skip
    got = replace(world.result, model=pooled).predict(world.table, interval=0.9)
    assert set(got["source"]) == {"global"}
    assert got["lower"].notna().all()
    clusterwise = replace(m, method="clusterwise", client=m.nodes[0][m.clusters], D_client=zero, D_levels=(zero[0],))
    assert set(replace(world.result, model=clusterwise).predict(world.table)["source"]) == {"cluster"}


def test_offsets_shift_the_linear_predictor() -> None:
    world = factory.world(family="poisson")
    result = replace(world.result, offset="exposure")
    table = world.table.assign(exposure=np.log(2.0))
    np.testing.assert_allclose(result.predict(table)["prediction"], 2.0 * world.result.predict(table)["prediction"])
    with pytest.raises(CoterieError, match=names("model's column 'exposure' not table")):
        result.predict(world.table)
    with pytest.raises(CoterieError, match=names("Column 'exposure' missing values 240 rows")):
        result.predict(table.assign(exposure=np.nan))


def test_the_link_scale_is_the_linear_predictor() -> None:
    world = factory.world(family="binomial")
    link, response = (world.result.predict(world.table, interval=0.9, type=t) for t in ("link", "response"))
    for column in ("prediction", "lower", "upper"):
        np.testing.assert_allclose(response[column], 1 / (1 + np.exp(-link[column])))


def test_a_result_without_a_formula_reads_columns_named_like_its_terms() -> None:
    world = factory.world()
    bare = replace(world.result, design=None)
    np.testing.assert_allclose(
        bare.predict(world.table)["prediction"], world.result.predict(world.table)["prediction"], rtol=1e-12
    )


@pytest.mark.parametrize(
    ("change", "options", "sentence"),
    [
        ({"x": np.inf}, {}, names("Column 'x' infinite values 240 rows")),
        ({"x": np.nan}, {}, names("Column 'x' has missing values 240 rows")),
        ({"x": "much"}, {}, names("Column 'x' values numbers 240 rows")),
        ({}, {"interval": 90}, names("interval probability 0 1 0.9 90")),
        ({}, {"interval": True}, "interval must be a probability"),
        ({}, {"type": "logit"}, names("type response link 'logit'")),
    ],
)
def test_bad_input_gets_a_sentence(change, options, sentence) -> None:
    world = factory.world()
    with pytest.raises(CoterieError, match=sentence):
        world.result.predict(world.table.assign(**change), **options)


def test_a_missing_client_column_is_named_with_its_neighbours() -> None:
    world = factory.world()
    with pytest.raises(CoterieError, match=names("client column 'school' table mean 'School'")):
        world.result.predict(world.table.rename(columns={"school": "School"}))


@pytest.mark.parametrize("kind", ["client", "cluster", "global"])
@pytest.mark.parametrize("interval", [0.5, 0.9])
def test_gaussian_intervals_hold_new_outcomes_as_often_as_they_say(kind, interval) -> None:
    """Strangers are drawn from the tree's own law: D around their cluster, D of the clusters around the root."""
    D, sigma, hits, n = np.diag([0.5, 0.2]), 0.7, [], 400
    for seed in range(40):
        m, theta = factory.model(clients=30, levels=(6,), seed=seed, sigma=sigma, uncertainty=0.2)
        rng = np.random.default_rng(1000 + seed)
        X = np.column_stack([np.ones(n), rng.normal(size=n)])
        clients, clusters = rng.integers(0, 30, n), rng.integers(0, 6, n)
        # The cluster's stated uncertainty (.2) is part of the truth; so is the root's.
        near = m.nodes[0][clusters] + rng.normal(0, 0.2, (n, 2))
        far = m.root + rng.normal(0, 0.2, (n, 2)) + rng.multivariate_normal(np.zeros(2), D, n)
        stray = rng.multivariate_normal(np.zeros(2), D, n)
        truth = {"client": theta[clients], "cluster": near + stray, "global": far + stray}[kind]
        y = (X * truth).sum(1) + rng.normal(0, sigma, n)
        labels = m.labels[clients] if kind == "client" else np.full(n, -1)
        known = {"sector": m.levels[0].labels[clusters]} if kind == "cluster" else {}
        a = predict_rows(m, X, labels, known, interval=interval)
        hits.append(np.mean((y >= a.lower) & (y <= a.upper)))
    assert np.mean(hits) == pytest.approx(interval, abs=4 * np.std(hits) / 40**0.5 + 1e-3)


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_intervals_of_means_hold_the_mean_of_a_stranger_as_often_as_they_say(family) -> None:
    m, _ = factory.model(levels=(3,), family=family, uncertainty=0.3)
    rng, n = np.random.default_rng(5), 20_000
    X = np.column_stack([np.ones(n), rng.normal(size=n)])
    clusters = rng.integers(0, 3, n)
    theta = m.nodes[0][clusters] + rng.normal(0, 0.3, (n, 2)) + rng.multivariate_normal(np.zeros(2), m.D_client[0], n)
    eta = (X * theta).sum(1)
    truth = np.exp(eta) if family == "poisson" else 1 / (1 + np.exp(-eta))
    a = predict_rows(m, X, np.full(n, -1), {"sector": m.levels[0].labels[clusters]}, interval=0.9)
    assert np.mean((truth >= a.lower) & (truth <= a.upper)) == pytest.approx(0.9, abs=0.01)
