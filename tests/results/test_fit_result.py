"""The frames and texts of a result."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.methods import hierarchical
from tests.results import factory


def test_frames_are_the_models_numbers() -> None:
    result = factory.world().result
    m = result.model
    assert list(result.global_coefficients.columns) == ["term", "estimate", "std_error", "df"]
    np.testing.assert_allclose(result.global_coefficients["std_error"], 0.1)
    assert result.client_coefficients.index.name == "school"
    assert result.client_coefficients.loc[1003, "x"] == m.client[3, 1]
    np.testing.assert_array_equal(result.theta, result.client_coefficients)
    np.testing.assert_allclose(result.client_std_errors, 0.1)
    assert result.cluster_coefficients.index.name == "sector"
    assert result.cluster_coefficients.loc["sector 1", "x"] == m.nodes[0][1, 1]


def test_several_levels_are_told_apart() -> None:
    result = factory.world(levels=(4, 2)).result
    assert result.cluster_coefficients.index.names == ["level", "cluster"]
    assert result.cluster_coefficients.loc[("region", "region 1"), "x"] == result.model.nodes[1][1, 1]
    levels = result.variance_components["level"]
    assert levels.to_list() == ["client", "client", "sector", "sector", "region", "region", "residual"]


def test_without_clusters_the_frame_is_empty() -> None:
    result = factory.world(levels=()).result
    assert result.cluster_coefficients.shape == (0, 2)
    assert result.variance_components["level"].to_list() == ["client", "client", "residual"]


def test_variances_come_first_then_correlations_then_the_residual() -> None:
    D = np.array([[4.0, -0.6], [-0.6, 0.25]])
    result = factory.world(D=D, levels=(), sigma=3.0).result
    expected = pd.DataFrame(
        [
            ("client", "(Intercept)", "", 2.0, 4.0),
            ("client", "x", "", 0.5, 0.25),
            ("client", "(Intercept)", "x", -0.6, -0.6),
            ("residual", "", "", 3.0, 9.0),
        ],
        columns=["level", "term", "term2", "sd", "cov"],
    )
    pd.testing.assert_frame_equal(result.variance_components, expected)


def test_a_variance_of_zero_is_a_row_and_a_level_of_one_node_is_not() -> None:
    result = factory.world(D=np.zeros((2, 2)), levels=(1,)).result
    assert result.variance_components["level"].to_list() == ["client", "client", "residual"]
    assert result.variance_components["sd"].to_list() == [0.0, 0.0, 1.0]


def test_columns_that_all_share_have_no_variance_and_methods_without_variances_have_none() -> None:
    result = factory.world().result
    shared = replace(result, model=replace(result.model, personal=np.array([0])))
    assert set(shared.variance_components["term"]) == {"(Intercept)", ""}
    local = replace(result, model=replace(result.model, method="local"))
    assert local.variance_components["level"].to_list() == ["residual"]
    counts = factory.world(family="poisson").result
    assert "residual" not in set(counts.variance_components["level"])


def test_the_text_is_short_and_the_html_is_escaped() -> None:
    result = replace(factory.world().result, formula="y ~ x<script>")
    assert repr(result).startswith("hierarchical model of y ~ x<script>, gaussian\nfitted for: 12 clients (school)")
    assert len(repr(result).splitlines()) <= 6
    html = result._repr_html_()
    assert "<script>" not in html
    assert "y ~ x&lt;script&gt;" in html


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_how_unsure_variances_are_is_found_when_it_is_read(family, monkeypatch) -> None:
    """Sites are asked within the run; here an in-process fit is asked later, and its table may have changed by then."""
    rng, g = np.random.default_rng(3), np.arange(360) // 12
    y = 0.8 * rng.normal(size=30)[g] + rng.normal(size=360)
    table = pd.DataFrame({"g": g, "x": rng.normal(size=360), "y": y if family == "gaussian" else 1.0 * (y > 0.0)})
    asked, explore = [], hierarchical.explore
    monkeypatch.setattr(hierarchical, "explore", lambda *given: asked.append(1) or explore(*given))
    call = {"client": "g", "splits": 0, "family": family, "covariance": "diagonal"}
    over_wire = coterie.fit(table.copy(), "y ~ x", engine={"kind": "loopback", "sites": 2}, **call)
    assert len(asked) == 1
    here, sent = coterie.fit(table, "y ~ x", **call), coterie.fit(table.copy(), "y ~ x", **call)
    table.loc[:, "y"] = 1.0 - table["y"]
    assert str(here) and len(here.client_coefficients) == 30 and here.aic and len(asked) == 1
    there = pickle.loads(pickle.dumps(sent.model))  # noqa: S301 - our own
    assert len(asked) == 2
    for result in (here, here, replace(sent, model=there)):
        np.testing.assert_allclose(result.global_coefficients["df"], over_wire.global_coefficients["df"], rtol=1e-6)
        np.testing.assert_allclose(result.client_std_errors, over_wire.client_std_errors, rtol=1e-6)
    assert len(asked) == 3
