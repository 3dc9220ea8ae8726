"""Profile intervals, against lme4's: ``tests/reference/lme4/inference.R`` made the numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import coterie
from tests.results.test_inference import REFERENCE, fitted

NAMES = {
    ("client", "(Intercept)"): "sd_(Intercept)|Subject",
    ("client", "Days"): "sd_Days|Subject",
    ("residual", ""): "sigma",
    ("global", "(Intercept)"): "(Intercept)",
    ("global", "Days"): "Days",
    ("global", "age"): "age",
}


@pytest.mark.parametrize("name", ["intercept", "diagonal", "full", "binomial"])
def test_ends_are_those_of_lme4(name: str) -> None:
    known, found = REFERENCE["profile"][name], fitted(name).profile()
    seen = 0
    for row in found.to_dict("records"):
        if name == "full" and row["level"] == "client" and row["term"] != "Days":
            continue  # of columns less their means, which lme4 does not show
        label = NAMES[row["level"], row["term"]].replace("Subject", "district" if name == "binomial" else "Subject")
        width = known[label][1] - known[label][0]
        np.testing.assert_allclose([row["lower"], row["upper"]], known[label], atol=5e-4 * width)
        seen += 1
    assert seen >= 3


def small(**changes: Any) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    client = np.repeat(np.arange(12), 6)
    x = rng.normal(size=72)
    y = 1.0 + 0.5 * x + rng.normal(size=4)[client % 4] + 0.7 * rng.normal(size=12)[client] + rng.normal(size=72)
    return pd.DataFrame({"client": client, "sector": client % 4, "x": x, "y": y}).assign(**changes)


def test_clusters_have_intervals_and_restricted_ones_are_wider() -> None:
    options = {"client": "client", "cluster": "sector", "shared": "x", "method": "hierarchical", "splits": 0}
    reml, ml = (coterie.fit(small(), "y ~ x", reml=reml, **options) for reml in (True, False))
    wide, narrow = reml.profile(0.9), ml.profile(0.9)
    assert wide["level"].tolist() == ["global", "global", "client", "cluster", "residual"]
    assert (wide["lower"] <= wide["estimate"]).all()
    assert (wide["estimate"] <= wide["upper"]).all()
    assert wide["upper"][3] > narrow["upper"][3]
    np.testing.assert_allclose(wide[["lower", "upper"]][:2], narrow[["lower", "upper"]][:2], rtol=1e-3)  # the full one


def test_a_variance_of_zero_has_an_upper_end() -> None:
    rng = np.random.default_rng(0)
    frame = small(y=rng.normal(size=72))
    frame["y"] -= frame.groupby("client")["y"].transform("mean")
    fit = coterie.fit(frame, "y ~ x", client="client", shared="x", method="hierarchical", splits=0)
    assert fit.variance_components["sd"][0] == 0.0
    row = fit.profile().iloc[2]
    assert row["lower"] == 0.0
    assert 0.0 < row["upper"] < 0.5
    assert 0.0 < fit.summary().variances["upper"][0] < 0.5


def test_units_and_origins_do_not_matter() -> None:
    options = {"client": "client", "method": "hierarchical", "covariance": "full", "splits": 0}
    plain = coterie.fit(small(), "y ~ x", **options).profile()
    far = coterie.fit(small(x=lambda f: 1000.0 + 10.0 * f["x"]), "y ~ x", **options).profile()
    np.testing.assert_allclose(far["upper"][[1, 3]], plain["upper"][[1, 3]] / 10.0, rtol=1e-3)
    np.testing.assert_allclose(far["lower"][[2, 4, 5]], plain["lower"][[2, 4, 5]], rtol=2e-3, atol=1e-3)


def test_what_has_no_profile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(coterie.CoterieError, match="no profile of the method 'pooled'"):
        fitted("pooled").profile()
    each = coterie.fit(small(), "y ~ x", client="client", method="hierarchical", residual="by-client", splits=0)
    with pytest.raises(coterie.CoterieError, match="with one residual variance"):
        each.profile()
    fitted("intercept").save(tmp_path)
    with pytest.raises(coterie.CoterieError, match="rows must be here"):
        coterie.load(tmp_path).profile()
    with pytest.raises(coterie.CoterieError, match="probability"):
        fitted("intercept").profile(1.5)
