"""Residuals, what they say of the fit, and what each client moves."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import coterie


@functools.cache
def table() -> pd.DataFrame:
    """A hundred clients in five clusters; outcomes that fit their family, and some that do not."""
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(100), 20)
    x = rng.normal(size=2000)
    eta = 0.5 + 0.3 * x + 0.3 * rng.normal(size=100)[client]
    mean = np.exp(eta)
    frame = pd.DataFrame({"client": client, "sector": client % 5, "x": x})
    frame["y"] = eta + rng.normal(size=2000)
    frame["heavy"] = eta + rng.standard_t(2, size=2000)
    frame["spread"] = eta + np.exp(0.8 * x) * rng.normal(size=2000)
    frame["wild"] = eta + np.where(client == 7, 4.0, 1.0) * rng.normal(size=2000)
    frame["passed"] = (rng.random(2000) < 1.0 / (1.0 + np.exp(-eta))).astype(int)
    frame["visits"] = rng.poisson(mean)
    frame["more"] = rng.poisson(mean * rng.gamma(2.0, 0.5, 2000))
    frame["none"] = np.where(rng.random(2000) < 0.2, 0, frame["visits"])
    frame["curved"] = rng.poisson(np.exp(eta + 0.3 * x**2))
    frame["trials"] = rng.integers(2, 9, 2000)
    frame["successes"] = rng.binomial(frame["trials"], 1.0 / (1.0 + np.exp(-eta)))
    frame["failures"] = frame["trials"] - frame["successes"]
    return frame


@functools.cache
def fitted(outcome: str, family: str = "gaussian", **options: Any) -> coterie.FitResult:
    options = {"method": "hierarchical", "covariance": "diagonal", "splits": 0, "cluster": "sector"} | options
    return coterie.fit(table(), f"{outcome} ~ x", client="client", family=family, **options)


CASES = [
    ("y", "gaussian"),
    ("passed", "binomial"),
    ("cbind(successes, failures)", "binomial"),
    ("visits", "poisson"),
]


@pytest.mark.parametrize(("outcome", "family"), CASES)
def test_quantile_residuals_are_normal_where_the_model_fits(outcome: str, family: str) -> None:
    fit = fitted(outcome, family)
    r = fit.residuals()
    np.testing.assert_array_equal(r.index, table().index)
    assert stats.kstest(r / r.std(), "norm").pvalue > 0.01
    assert r.std() == pytest.approx(1.0, abs=0.06)
    assert not any(bad for _, _, bad in fit.fit_check["findings"])
    again = fit.residuals(seed=1)
    assert (family == "gaussian") == again.equals(r)
    assert np.corrcoef(r, again)[0, 1] > 0.2


def test_residuals_of_a_gaussian_are_scaled_and_those_of_the_response_are_not() -> None:
    fit = fitted("y")
    response = table()["y"] - fit.predict(table())["prediction"]
    np.testing.assert_allclose(fit.residuals("response"), response, atol=1e-12)
    np.testing.assert_allclose(fit.residuals(), response / fit.model.sigma2**0.5, atol=1e-7)


@pytest.mark.parametrize(
    ("outcome", "family", "name", "words"),
    [
        ("heavy", "gaussian", "Tails", "beyond three standard deviations"),
        ("spread", "gaussian", "Spread", "more where predictions are large"),
        ("wild", "gaussian", "Clients", "1 of 100 clients (client) scatters more than others: 7."),
        ("more", "poisson", "Dispersion", "take a family with a dispersion, negative-binomial."),
        ("none", "poisson", "Zeros", "model whether there is anything"),
        ("curved", "poisson", "Columns", "Residuals bend with x"),
    ],
)
def test_what_does_not_fit_is_found_and_said(outcome: str, family: str, name: str, words: str) -> None:
    found = {what: (said, bad) for what, said, bad in fitted(outcome, family).fit_check["findings"]}
    assert found[name][1]
    assert words in found[name][0]


def test_zeros_and_ones_have_no_dispersion_and_few_rows_no_check() -> None:
    names = [name for name, _, _ in fitted("passed", "binomial").fit_check["findings"]]
    assert "Dispersion" not in names
    assert "Zeros" not in names
    assert "Dispersion" in [n for n, _, _ in fitted("cbind(successes, failures)", "binomial").fit_check["findings"]]
    few = coterie.fit(table().iloc[[0, 1, 2, 20, 21, 22]], "y ~ x", client="client", method="pooled", splits=0)
    assert few.fit_check == {}


def test_the_report_shows_the_check_also_of_a_saved_fit(tmp_path: Path) -> None:
    fit = fitted("more", "poisson")
    fit.save(tmp_path / "model")
    back = coterie.load(tmp_path / "model")
    assert back.fit_check == fit.fit_check
    for k, one in enumerate((fit, back)):
        one.report(tmp_path / f"{k}.html")
    page = (tmp_path / "0.html").read_text(encoding="utf-8")
    assert "Does the model fit?" in page
    assert "<strong>Dispersion: a doubt.</strong>" in page
    assert page == (tmp_path / "1.html").read_text(encoding="utf-8")
    pd.testing.assert_series_equal(back.residuals(table=table()), fit.residuals())
    for call in (back.residuals, back.influence):
        with pytest.raises(coterie.CoterieError, match="table=df"):
            call()


def test_rows_without_weight_have_no_residual() -> None:
    frame = table().assign(weight=np.where(np.arange(2000) % 10 == 3, 0.0, 2.0))
    fit = coterie.fit(frame, "y ~ x", client="client", method="pooled", weights="weight", splits=0)
    r = fit.residuals()
    assert r.reindex(frame.index).isna().equals(frame["weight"] == 0.0)


@pytest.mark.parametrize("method", ["hierarchical", "single-cluster", "pooled"])
def test_influence_is_generalised_least_squares_without_the_client(method: str) -> None:
    frame = table()[table()["client"] < 15]
    options = {"method": method, "covariance": "diagonal", "splits": 0, "cluster": "sector"}
    fit = coterie.fit(frame, "y ~ x", client="client", **options)
    m, X = fit.model, np.c_[np.ones(len(frame)), frame["x"]]
    V = m.sigma2 * np.eye(len(frame))
    V += np.equal.outer(frame["client"].to_numpy(), frame["client"].to_numpy()) * (X @ m.D_client[0] @ X.T)
    for D in m.D_levels[: 1 if method == "hierarchical" else 0]:
        V += np.equal.outer(frame["sector"].to_numpy(), frame["sector"].to_numpy()) * (X @ D @ X.T)

    def gls(keep: Any) -> tuple[Any, Any]:
        inverse = np.linalg.inv(V[np.ix_(keep, keep)])
        A = X[keep].T @ inverse @ X[keep]
        return np.linalg.solve(A, X[keep].T @ inverse @ frame["y"].to_numpy()[keep]), A

    whole, A = gls(np.arange(len(frame)))
    np.testing.assert_allclose(whole, m.root, rtol=1e-6)
    found = fit.influence()
    assert (found["rows"] == 20).all()
    for client in range(15):
        move = gls(np.flatnonzero(frame["client"] != client))[0] - whole
        np.testing.assert_allclose(
            found.loc[client, ["(Intercept)", "x"]], move / np.sqrt(np.diag(np.linalg.inv(A))), rtol=1e-6, atol=1e-9
        )
        assert found.loc[client, "distance"] == pytest.approx(move @ A @ move / 2.0, rel=1e-6, abs=1e-12)


def test_influence_on_counts_is_near_that_of_fitting_again() -> None:
    frame = table()[table()["client"] < 12]
    fit = coterie.fit(frame, "visits ~ x", client="client", family="poisson", method="pooled", splits=0)
    found = fit.influence()
    for client in (2, 9):
        left = frame[frame["client"] != client]
        again = coterie.fit(left, "visits ~ x", client="client", family="poisson", method="pooled", splits=0)
        move = (again.model.root - fit.model.root) / fit.global_coefficients["std_error"].to_numpy()
        np.testing.assert_allclose(found.loc[client, ["(Intercept)", "x"]], move, atol=0.05)


def test_what_has_no_influence_or_residuals_is_refused() -> None:
    with pytest.raises(coterie.CoterieError, match="'local' has not"):
        fitted("y", method="local").influence()
    with pytest.raises(coterie.CoterieError, match="use quantile or response"):
        fitted("y").residuals("pearson")  # type: ignore[arg-type]


@pytest.mark.parametrize("unit", [1e-90, 1e90])
def test_residuals_bend_with_a_column_in_any_unit(unit: float) -> None:
    few = table().head(400)
    one, other = (
        coterie.fit(
            few.assign(x=scale * few["x"]), "curved ~ x", client="client", method="pooled", splits=0, family="poisson"
        )
        for scale in (1.0, unit)
    )
    assert [f[0] for f in one.fit_check["findings"]] == [f[0] for f in other.fit_check["findings"]]
