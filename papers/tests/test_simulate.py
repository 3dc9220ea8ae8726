"""Simulated tables hold what their truth says."""

import numpy as np
import pytest

from coterie.data.prepare_table import prepare
from coterie.errors import CoterieError
from papers.simulate import BRACKETS, donor_response, tree


def test_truth_and_table_have_the_stated_shapes():
    df, truth = tree(40, (8, 3), (2, 6), 2, "gaussian", 1.0, (0.5, [0.1, 0.2, 0.3]), seed=4)
    assert truth["clients"].shape == (40, 3)
    assert [w.shape for w in truth["clusters"]] == [(8, 3), (3, 3)]
    assert truth["terms"] == ("(Intercept)", "x1", "x2")
    counts = df.groupby("client").size()
    assert counts.min() == 2
    assert counts.max() == 6
    clients, design = prepare(df, truth["formula"], truth["client"], truth["cluster"])
    assert design.terms == truth["terms"]
    assert [len(level.labels) for level in clients.levels] == [8, 3]
    assert clients.labels.tolist() == list(range(40))
    assert np.array_equal(clients.order, np.arange(len(df)))


def test_no_noise_gives_the_truth_back():
    df, truth = tree(5, 2, 30, 2, sigma=0.0, seed=1)
    for i, rows in df.groupby("client"):
        X = np.column_stack([np.ones(len(rows)), rows["x1"], rows["x2"]])
        assert np.linalg.lstsq(X, rows["y"], rcond=None)[0] == pytest.approx(truth["clients"][i])


def test_standard_deviations_are_those_asked_for():
    df, truth = tree(20_000, (2000, 100), 3, 1, "gaussian", [2.0, 0.5], ([1.0, 0.3], 0.1), 1.5, [4.0, -1.0], seed=2)
    home = np.arange(20_000) * 2000 // 20_000
    region = np.arange(2000) * 100 // 2000
    assert (truth["clients"] - truth["clusters"][0][home]).std(axis=0) == pytest.approx([2.0, 0.5], rel=0.02)
    assert (truth["clusters"][0] - truth["clusters"][1][region]).std(axis=0) == pytest.approx([1.0, 0.3], rel=0.05)
    assert (truth["clusters"][1] - truth["root"]).std(axis=0) == pytest.approx([0.1, 0.1], rel=0.25)
    theta = truth["clients"][df["client"]]
    residual = df["y"] - theta[:, 0] - theta[:, 1] * df["x1"]
    assert residual.std() == pytest.approx(1.5, rel=0.02)
    assert abs(np.corrcoef(residual, df["x1"])[0, 1]) < 0.02
    assert df["x1"].std() == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_means_of_other_families(family):
    df, truth = tree(1, 0, 200_000, 1, family, root=[0.3, 0.4], sd_client=0.0, seed=5)
    eta = 0.3 + 0.4 * df["x1"]
    mean = 1 / (1 + np.exp(-eta)) if family == "binomial" else np.exp(eta)
    assert df["y"].mean() == pytest.approx(mean.mean(), rel=0.01)
    assert np.mean(df["y"] * df["x1"]) == pytest.approx(np.mean(mean * df["x1"]), rel=0.02)
    variance = mean * (1 - mean) if family == "binomial" else mean
    assert np.var(df["y"] - mean) == pytest.approx(variance.mean(), rel=0.02)
    assert df["y"].dtype == np.int64
    assert truth["cluster"] == ()


def test_numbers_are_keyed():
    a, ta = tree(30, 0, 5, 1, seed=3)
    b, tb = tree(50, 0, 5, 1, seed=3)
    assert np.array_equal(ta["clients"], tb["clients"][:30])
    assert a.equals(b[b["client"] < 30])
    assert not np.array_equal(ta["clients"], tree(30, 0, 5, 1, seed=4)[1]["clients"])


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"family": "normal"}, "no family 'normal'"),
        ({"clients": 0}, "at least 1"),
        ({"clients": 3, "clusters": 5}, "fewer clusters"),
        ({"clusters": (4, 9)}, "fewer clusters"),
        ({"rows": 0}, "rows must be"),
        ({"rows": (5, 2)}, "rows must be"),
        ({"sd_client": [1.0, 2.0, 3.0]}, "sd_client must be one number or 2"),
        ({"sd_cluster": [1.0, 2.0]}, "2 entries for 1 levels"),
    ],
)
def test_bad_arguments(arguments, match):
    with pytest.raises(CoterieError, match=match):
        tree(**arguments)


def test_solicitations_have_the_shape_of_the_paper():
    df, truth = donor_response(1, 3000)
    assert truth["clients"].shape == (3000, 3)
    clients, design = prepare(df, truth["formula"], truth["client"], truth["cluster"], truth["family"])
    assert design.terms == truth["terms"]
    assert clients.levels[0].labels.tolist() == sorted(BRACKETS)
    assert np.array_equal(clients.labels, np.arange(3000))
    counts = clients.counts
    assert 5 <= counts.min() <= 6
    assert 300 <= counts.max() <= 600
    assert counts.mean() == pytest.approx(52, rel=0.05)
    assert 0.04 < df["donated"].mean() < 0.08
    assert df[["recency", "frequency"]].min().min() >= 1
    eta = np.sum(clients.X * truth["clients"][clients.codes], axis=1)
    mean = 1 / (1 + np.exp(-eta))
    score = clients.X.T @ (clients.y - mean) / np.sqrt((clients.X**2).T @ (mean * (1 - mean)))
    assert np.abs(score).max() < 4
    assert np.mean(np.logaddexp(0, eta) - clients.y * eta) == pytest.approx(0.2, abs=0.03)


def test_solicitations_scatter_as_the_truth_says():
    _, truth = donor_response(2, 20_000)
    home = np.repeat(np.arange(5), [7599, 7199, 2400, 1201, 1601])
    scatter = (truth["clients"] - truth["clusters"][0][home]).std(axis=0)
    assert scatter == pytest.approx(truth["sd_client"], rel=0.03)


def test_solicitations_are_keyed():
    a, _ = donor_response(3, 40)
    assert a.equals(donor_response(3, 40)[0])
    assert not a.equals(donor_response(4, 40)[0])
    with pytest.raises(CoterieError, match="5 income brackets"):
        donor_response(0, 4)
