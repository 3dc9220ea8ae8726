"""Results of real fits: what every method leaves can be predicted with, saved, loaded and reported."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.report.fit_page import render
from tests.results import factory

METHODS = ("local", "pooled", "own-intercept", "clusterwise", "hierarchical")


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return factory.world(clients=24, levels=(4, 2), rows=12, seed=3).table


@pytest.mark.parametrize("cluster", [(), ("sector",), ("sector", "region")], ids=["none", "one", "two"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_leaves_a_result_that_can_be_used(method, cluster, table, tmp_path) -> None:
    if method == "clusterwise" and not cluster:
        pytest.skip("it needs clusters")
    result = coterie.fit(table, "y ~ x", client="school", cluster=cluster, method=method, splits=1)
    result.save(tmp_path / "model")
    again = coterie.load(tmp_path / "model")
    strangers = table.assign(school=np.where(np.arange(len(table)) % 2, table["school"], -1))
    got = result.predict(strangers, interval=0.9)
    pd.testing.assert_frame_equal(again.predict(strangers, interval=0.9), got)
    assert got["prediction"].notna().all()
    assert not (got["upper"] - got["lower"] > 100).any(), "an interval that says nothing is given as if it did"
    assert render(again) == render(result)
    assert result.client_coefficients.shape == (24, 2)
    known = got["source"] == "client"
    expected = (
        result.client_coefficients.loc[table["school"]].to_numpy() * np.c_[np.ones(len(table)), table["x"]]
    ).sum(1)
    np.testing.assert_allclose(got["prediction"][known], expected[known])


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_counts_and_classes_too(family, tmp_path) -> None:
    world = factory.world(clients=20, rows=15, family=family, seed=5)
    result = coterie.fit(world.table, "y ~ x", client="school", cluster="sector", family=family, splits=1)
    result.save(tmp_path / "model")
    assert render(coterie.load(tmp_path / "model")) == render(result)
    got = result.predict(world.table, interval=0.9)
    assert (got["lower"] < got["prediction"]).all()
    assert (got["prediction"] < got["upper"]).all()


def test_intervals_of_a_real_fit_hold_as_often_as_they_say() -> None:
    """Clients left out of the fit, drawn from the same tree: their outcomes lie inside nine times in ten."""
    hits = []
    for seed in range(12):
        table = factory.world(clients=120, levels=(8,), rows=10, seed=100 + seed).table
        unseen = table["school"] % 4 == seed % 4
        fit = coterie.fit(table[~unseen], "y ~ x", client="school", cluster="sector", method="hierarchical", splits=0)
        got = fit.predict(table[unseen], interval=0.9)
        assert set(got["source"]) == {"cluster"}
        y = table["y"][unseen]
        hits.append(((got["lower"] <= y) & (y <= got["upper"])).mean())
    assert np.mean(hits) == pytest.approx(0.9, abs=0.025)
