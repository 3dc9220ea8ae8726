"""What is too large a number to be predicted is empty with its reason, or an error: never inf without a word."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.errors import CoterieError
from coterie.estimators import HierarchicalRegressor
from tests.messages import names

RNG = np.random.default_rng(0)
DF = pd.DataFrame({"g": np.arange(80) % 8, "x": RNG.normal(size=80)})
DF["y"] = RNG.poisson(np.exp(0.5 + 0.4 * DF["x"]))
FAR = pd.DataFrame({"g": [0, 1, 99, 3], "x": [0.1, 1e5, 1.0, 1e200]})


@pytest.fixture(scope="module")
def fit():
    return coterie.fit(DF, "y ~ x", "g", family="poisson", method="hierarchical", splits=0)


def test_predictions_too_large_are_refused_or_empty(fit):
    with pytest.raises(CoterieError, match=names("large number 2 rows data 4 missing='empty'")):
        fit.predict(FAR)
    found = fit.predict(FAR, interval=0.9, missing="empty")
    assert found["source"].astype(str).to_list()[1] == "none: the prediction is too large a number"
    numbers = found[["prediction", "lower", "upper"]]
    assert numbers.iloc[[1, 3]].isna().all(axis=None) and np.isfinite(numbers.iloc[[0, 2]]).all(axis=None)
    assert not any("never seen have no interval" in note for note in found.attrs["notes"])
    link = fit.predict(FAR, interval=0.9, type="link")
    assert np.isfinite(link["prediction"]).all()


def test_an_interval_without_an_end_is_empty_and_said(fit):
    x = 700.0 / fit.global_coefficients["estimate"].iloc[1]  # e^700 is a number; the upper end is none
    found = fit.predict(pd.DataFrame({"g": [None], "x": [x]}), interval=0.99)
    assert np.isfinite(found["prediction"]).all() and found[["lower", "upper"]].isna().all(axis=None)
    assert any("interval is too large a number in 1 row (data row 1)" in note for note in found.attrs["notes"])


def test_estimators_refuse_them():
    model = HierarchicalRegressor("poisson").fit(DF[["x"]], DF["y"], clients=DF["g"])
    with pytest.raises(CoterieError, match=names("large number 1 row")):
        model.predict(pd.DataFrame({"x": [0.0, 1e5]}))
