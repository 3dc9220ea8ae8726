"""Row weights are relative: a constant factor, however large or small, changes no number of a fit."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.estimators import HierarchicalClassifier, HierarchicalRegressor
from tests.messages import names

RNG = np.random.default_rng(0)
N = 150
DF = pd.DataFrame(
    {"x": RNG.normal(size=N), "c": np.arange(N) % 10, "k": np.arange(N) % 10 % 3, "w": RNG.uniform(0.5, 2, N)}
)
DF["gaussian"] = 2 * DF["x"] + 0.3 * DF["c"] + RNG.normal(size=N)
DF["binomial"] = (RNG.random(N) < 1 / (1 + np.exp(-DF["x"] - 0.2 * DF["c"] + 1))).astype(int)
DF["poisson"] = RNG.poisson(np.exp(0.5 * DF["x"] + 0.1 * DF["c"]))
GIVEN = {"gamma": 2.0, "lam": 1.0}


def fitted(df, family, method, **options):
    r = coterie.fit(
        df, f"{family} ~ x", client="c", cluster="k", family=family, method=method, splits=0, weights="w", **options
    )
    bounds = r.predict(df, interval=0.9)[["prediction", "lower", "upper"]].to_numpy()
    parts = [[r.log_likelihood], r.global_coefficients["std_error"], r.client_coefficients.to_numpy(), bounds]
    return np.concatenate([np.ravel(part) for part in parts])


@pytest.mark.soak("hierarchical-options3-poisson")
@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
@pytest.mark.parametrize(
    ("method", "options"),
    [("local", {}), ("pooled", {}), ("own-intercept", {}), ("hierarchical", {}), ("given-strengths", GIVEN)],
)
def test_a_constant_factor_changes_nothing(family, method, options):
    here = fitted(DF, family, method, **options)
    for factor in (1e-300, 1e-8, 1e16, 1e300):
        there = fitted(DF.assign(w=DF["w"] * factor), family, method, **options)
        np.testing.assert_allclose(there, here, rtol=1e-6, atol=1e-8, equal_nan=True)


@pytest.mark.parametrize("method", ["async-l2gd", "similarity-network", "weighted-averaging"])
def test_nor_in_runs_over_rounds(method):
    options = {"rounds": {"steps": 20}}
    if method == "async-l2gd":
        options |= GIVEN
    if method == "similarity-network":
        options = {"network": {"space": "model", "k": 2, "lam": 0.1}}
    one, other = (
        coterie.fit(
            DF.assign(w=DF["w"] * factor), "gaussian ~ x", client="c", method=method, weights="w", splits=0,
            cluster="k" if method == "async-l2gd" else None, **options,
        ).client_coefficients
        for factor in (1.0, 1e20)
    )  # fmt: skip
    np.testing.assert_allclose(other, one, rtol=1e-8)


def test_weights_over_thirty_orders_are_those_of_the_rows_that_have_one():
    w = np.where(np.arange(N) < 120, 1.0, 1e-30)
    r = coterie.fit(DF.assign(w=w), "gaussian ~ x", client="c", method="pooled", weights="w", splits=0)
    known = coterie.fit(DF[:120], "gaussian ~ x", client="c", method="pooled", splits=0)
    np.testing.assert_allclose(r.global_coefficients["estimate"], known.global_coefficients["estimate"], rtol=1e-9)


@pytest.mark.parametrize(
    ("model", "outcome"), [(HierarchicalRegressor(), "gaussian"), (HierarchicalClassifier(), "binomial")]
)
def test_estimators_take_relative_weights(model, outcome):
    zero = np.where(np.arange(N) % 7 == 0, 0.0, DF["w"])
    one, other = (
        model.fit(DF[["x"]], DF[outcome], clients=DF["c"], sample_weight=zero * f).client_coef_ for f in (1.0, 1e40)
    )
    np.testing.assert_allclose(other, one, rtol=1e-8)


@pytest.mark.parametrize("residual", ["common", "by-client"])
def test_an_interval_is_of_the_weight_of_its_row(residual, tmp_path):
    """About s2 mean(w) / w, which is not quite known itself; the rest is what an endless weight leaves."""
    df = DF.assign(w=DF["w"] * 40)
    fit = coterie.fit(df, "gaussian ~ x", client="c", weights="w", method="hierarchical", splits=0, residual=residual)
    fit.save(tmp_path)
    result = coterie.load(tmp_path)
    found, mean = result.predict(df, interval=0.9), df["w"].mean()
    rest = result.predict(df.assign(w=1e300), interval=0.9)
    s2 = result.model.sigma2 if residual == "common" else df["c"].map(result.client_residual_sd) ** 2
    wide, least = ((f["upper"] - f["lower"]) / 2 / 1.6448536269514722 for f in (found, rest))
    np.testing.assert_allclose(wide**2, least**2 + s2 * mean / df["w"], rtol=0.04)
    assert not found.attrs["notes"]
    plain = result.predict(df.drop(columns="w"), interval=0.9)
    pd.testing.assert_frame_equal(plain, result.predict(df.assign(w=mean), interval=0.9))
    assert re.search(names(f"'w' mean weight {mean:.4g}"), plain.attrs["notes"][0])


def test_a_row_without_a_weight_has_no_interval():
    result = coterie.fit(DF, "gaussian ~ x", client="c", weights="w", method="hierarchical", splits=0)
    odd = DF.head(5).assign(w=[1.0, np.nan, 0.0, -1.0, np.inf])
    found = result.predict(odd, interval=0.9)
    assert found["lower"].notna().tolist() == [True, False, False, False, False] == found["upper"].notna().tolist()
    assert found["prediction"].notna().all()
    (note,) = found.attrs["notes"]
    assert re.search(names("interval 'w' rows 2, 3, 4, 5"), note)


@pytest.mark.parametrize("light", [1e-4, 1e-10, 1e-14])
def test_an_own_intercept_is_as_free_in_light_clients(light):
    """The within estimator, in plain sums; standard errors are those of a client's mean."""
    df = DF.assign(w=np.where(DF["c"] < 3, light, 1.0))
    result = coterie.fit(df, "gaussian ~ x", client="c", cluster="k", weights="w", method="own-intercept", splits=0)
    x, y = (df[name] - df.groupby("c")[name].transform("mean") for name in ("x", "gaussian"))
    slope = (df["w"] * x * y).sum() / (df["w"] * x * x).sum()
    means = df.groupby("c")[["gaussian", "x"]].mean()
    found = result.client_coefficients.loc[means.index]
    np.testing.assert_allclose(found["x"], slope, rtol=1e-9)
    np.testing.assert_allclose(found["(Intercept)"], means["gaussian"] - slope * means["x"], atol=1e-8)
    sd = (result.model.sigma2 * df["w"].mean() / (light * 15)) ** 0.5
    np.testing.assert_allclose(result.client_std_errors["(Intercept)"][:1], sd, rtol=0.05 if light > 1e-8 else 1e-6)


@pytest.mark.parametrize("n, heavy, formula", [(1, 1, "y ~ x"), (1, 0, "y ~ 1"), (2, 1, "y ~ 1"), (3, 2, "y ~ x")])
@pytest.mark.parametrize("name", ["local", "weighted-averaging", "bias-correction"])
def test_rows_of_no_weight_do_not_say_that_there_is_no_noise(name, n, heavy, formula):
    """All that is left of each client's rows, beside what is fitted, is one light row, or nothing: pooled tells."""
    rng = np.random.default_rng(1)
    df = pd.DataFrame({"c": np.repeat(np.arange(30), n), "x": rng.normal(size=30 * n)})
    df["w"] = np.where((np.arange(30 * n) % n < heavy) & ((df["c"] % 2 < 1) | (n > 1)), 1.0, 1e-6)
    df["w"] = 1.0 if not heavy else df["w"]
    df["y"] = 1.0 + rng.normal(0, 0.5, 30)[df["c"]] + 0.5 * df["x"] + rng.normal(0, 0.9, len(df))
    fits = {m: coterie.fit(df, formula, client="c", weights="w", method=m, splits=0) for m in ("pooled", name)}
    if name != "weighted-averaging" or heavy:
        assert fits[name].model.sigma2 == pytest.approx(fits["pooled"].model.sigma2)
    assert 0.3 < fits[name].model.sigma2 / fits["pooled"].model.sigma2 < 1.01
    if name == "local":
        assert any(re.search(names("No row left over pooled"), note) for note in fits[name].notes)
    assert any(re.search(names("rows weight 0.001 scatter"), note) for note in fits[name].notes) == (heavy > 0)


@pytest.mark.parametrize("name, formula", [("own-intercept", "y ~ 1"), ("clusterwise", "y ~ x")])
def test_a_model_for_each_row_leaves_the_residuals_of_the_pooled_one(name, formula):
    rng = np.random.default_rng(2)
    df = pd.DataFrame({"c": range(20), "k": np.arange(20) // 2, "x": rng.normal(size=20), "y": rng.normal(size=20)})
    found, pooled = (coterie.fit(df, formula, "c", "k", method=m, splits=0).model.sigma2 for m in (name, "pooled"))
    assert found == pytest.approx(pooled)
