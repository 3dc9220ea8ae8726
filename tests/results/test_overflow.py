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


@pytest.mark.parametrize(
    ("family", "power"), [("gaussian", -145), ("gaussian", 145), ("student-t(4)", -300), ("student-t(4)", 300)]
)
def test_outcomes_in_units_whose_powers_overflow_are_fitted_in_others(family, power):
    plain = DF.assign(y=DF["y"] + np.sin(np.arange(80)))

    def fitted(unit):
        table = plain.assign(y=unit * plain["y"])
        return coterie.fit(table, "y ~ x", "g", family=family, method="hierarchical", splits=1)

    one, other = fitted(1.0), fitted(2.0**power)
    for found, expected in ((other.model.root, one.model.root), (other.client_std_errors, one.client_std_errors)):
        np.testing.assert_allclose(found * 2.0**-power, expected, rtol=1e-9)
    free = other.rows - 2 * one.reml
    assert other.log_likelihood == pytest.approx(one.log_likelihood - free * power * np.log(2.0), rel=1e-9)
    columns = ["std_error", "df"]
    found = other.global_coefficients[columns] * [2.0**-power, 1.0]
    np.testing.assert_allclose(found, one.global_coefficients[columns], rtol=1e-9)
    gains = other.comparison["gain_over_local_low"] * 2.0 ** -(power * (1 + one.reml))
    np.testing.assert_allclose(gains, one.comparison["gain_over_local_low"], rtol=1e-6)


def test_the_noise_of_gradients_is_in_the_unit_of_outcomes():
    how = {"method": "async-l2gd", "rounds": {"steps": 4}, "splits": 0}
    one, other = (coterie.fit(DF.assign(y=unit * DF["y"]), "y ~ x", "g", **how) for unit in (1.0, 2.0**120))
    assert other.theory["rounds"]["sigma2"] == one.theory["rounds"]["sigma2"] * 2.0**240 > 0.0
