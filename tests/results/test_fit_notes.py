"""What is not identified is said; what is found is said in words."""

import re

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.errors import CoterieError
from papers.simulate import tree
from tests.messages import names


def said(result, *parts):
    return any(all(p in note for p in parts) for note in result.notes)


def test_one_row_for_each_client_reports_no_variance():
    df = tree(clients=50, rows=1, columns=1, seed=0)[0]
    result = coterie.fit(df, "y ~ x1", "client")
    assert said(result, "has one row", "no variances are reported")
    assert result.method == "pooled" and set(result.variance_components["level"]) == {"residual"}
    with pytest.raises(CoterieError, match="--method pooled"):
        coterie.fit(df, "y ~ x1", "client", method="hierarchical")


def test_a_variance_of_zero_is_an_answer():
    rng = np.random.default_rng(2)
    df = tree(clients=40, rows=20, columns=1, seed=0)[0]
    df["y"] = 1.0 + 2.0 * df["x1"] + rng.normal(size=len(df)) + rng.normal(size=40)[np.repeat(np.arange(40), 20)]
    result = coterie.fit(df, "y ~ x1", "client", covariance="diagonal", method="hierarchical", splits=0)
    sd = result.variance_components.set_index(["level", "term"])["sd"]
    if sd["client", "x1"] == 0.0:
        assert said(result, "do not differ in x1", "variance is zero")
    assert sd["client", "(Intercept)"] > 0.5


def test_a_column_that_no_client_varies_in_is_shared():
    df = tree(clients=20, rows=10, columns=1, seed=0)[0]
    df["size"] = df.groupby("client")["x1"].transform("sum")
    result = coterie.fit(df, "y ~ x1 + size + x1:size", "client", splits=0)
    assert said(result, "size and x1:size", "one coefficient each")
    assert result.settings["shared"] == ["size", "x1:size"]
    assert np.ptp(result.client_coefficients["size"]) == 0.0


def test_clients_of_one_class_and_separation_are_finite_and_said():
    df = tree(clients=12, rows=15, columns=1, family="binomial", seed=3)[0]
    df.loc[df["client"] == df["client"].iloc[0], "y"] = 1
    result = coterie.fit(df, "y ~ x1", "client", family="binomial", splits=2)
    assert said(result, "1 of 12 clients", "one class only")
    assert np.isfinite(result.client_coefficients.to_numpy()).all()
    df["y"] = (df["x1"] > 0).astype(int)
    for method in ("hierarchical", "pooled", "local", "own-intercept"):
        result = coterie.fit(df, "y ~ x1", "client", family="binomial", method=method, splits=0)
        assert np.isfinite(result.client_coefficients.to_numpy()).all(), method
        assert result.predict(df)["prediction"].between(0, 1).all(), method
    assert said(
        coterie.fit(df, "y ~ x1", "client", family="binomial", method="pooled", splits=0), "separated perfectly"
    )


def test_asking_for_clusters_without_any_says_so():
    df = tree(clients=12, rows=15, columns=1, seed=3)[0]
    with pytest.raises(CoterieError, match="needs clusters"):
        coterie.fit(df, "y ~ x1", "client", method="clusterwise")
    with pytest.raises(CoterieError, match="Did you mean"):
        coterie.fit(df, "y ~ x1", "client", method="hierarchicl")


def test_correlations_of_one_are_said_in_plain_words():
    """Slopes that follow the intercepts, of ten clients: a singular covariance."""
    rng = np.random.default_rng(3)
    g, x = np.repeat(np.arange(10), 8), rng.normal(size=80)
    b = rng.normal(size=10)[g]
    df = pd.DataFrame({"g": g, "x": x, "y": b + (1.0 + 0.4 * b) * x + rng.normal(size=80)})
    result = coterie.fit(df, "y ~ x", "g", covariance="full", splits=0)
    assert result.variance_components["sd"].iloc[2] == pytest.approx(1.0, abs=1e-6)
    assert said(result, "the intercept and x", "correlation of 1", "singular fit")


@pytest.mark.parametrize("family", ["gaussian", "poisson"])
@pytest.mark.parametrize("covariance", ["full", "diagonal", "auto"])
def test_no_standard_deviation_is_rounding(family, covariance):
    """Clients are all alike: what is left of a search is zero, not 4e-08, and nothing correlates with it."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        g, x, day = np.repeat(np.arange(15), 20), rng.normal(size=300), rng.integers(0, 7, 300).astype(float)
        eta = 0.5 + 0.3 * x
        y = rng.poisson(np.exp(eta)) if family == "poisson" else eta + rng.normal(size=300)
        df = pd.DataFrame({"g": g, "x": x, "day": day, "y": y})
        spread = coterie.fit(
            df, "y ~ x + day", "g", family=family, covariance=covariance, method="hierarchical", splits=0
        ).variance_components
        sd = spread.query("level == 'client' and term2 == ''")["sd"]
        assert not ((sd > 0.0) & (sd < 1e-4)).any(), sd.to_list()
        assert spread["sd"].notna().all()


def test_counts_of_zero_and_outcomes_without_noise_are_named():
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"x": rng.normal(size=80), "g": np.repeat(np.arange(8), 10)})
    df["y"] = np.where(df["g"] < 3, 0, 1 + rng.poisson(2.0, 80))
    for method in ("local", "hierarchical"):
        counts = coterie.fit(df, "y ~ x", client="g", family="poisson", method=method, splits=0)
        assert any(note.startswith("3 of 8 clients (g) have counts of 0 only") for note in counts.notes)
    df["y"] = 1.0 + 2.0 * df["x"]
    for method, more in (("local", {}), ("pooled", {}), ("hierarchical", {}), ("given-strengths", {"gamma": 1e9})):
        fit = coterie.fit(df, "y ~ x", client="g", method=method, splits=0, **more)
        assert any("give the outcome to six digits or more" in note for note in fit.notes)
        assert np.isfinite(fit.client_std_errors.select_dtypes("number").to_numpy()).all() and fit.model.sigma2 >= 0.0
    df["y"] += 1e-4 * rng.normal(size=80)
    assert not any("six digits" in note for note in coterie.fit(df, "y ~ x", client="g", splits=0).notes)


def test_a_residual_variance_that_is_the_prior_s_is_said():
    """Of an exactly fitted client; where there is none, nothing is said."""
    rng = np.random.default_rng(1)
    client, x, noise = np.repeat(np.arange(14), 6), rng.normal(size=84), rng.normal(size=84)
    said = []
    for noisy in (client != 3, True):
        df = pd.DataFrame({"c": [f"ward {i}" for i in client], "x": x, "y": 0.5 * x + noise * noisy})
        result = coterie.fit(df, "y ~ x", client="c", method="hierarchical", residual="by-client", splits=0)
        said.append([note for note in result.notes if "residual s.d." in note])
    assert re.search(names("ward 3 common variance"), *said[0]) and not said[1]


def test_digits_that_sums_of_squares_lose_are_said():
    """Residuals 1e-5 of the outcome: their variance, by least squares of each client, is right to the digits said."""
    rng, client = np.random.default_rng(0), np.repeat(np.arange(30), 12)
    x, own = rng.normal(size=360), rng.normal(size=(30, 2))
    df = pd.DataFrame({"c": client, "x": x, "y": own[client, 0] + own[client, 1] * x + 1e-5 * rng.normal(size=360)})
    exact = sum(np.polyfit(g["x"], g["y"], 1, full=True)[1][0] for _, g in df.groupby("c")) / 300
    found = coterie.fit(df, "y ~ x", "c", method="hierarchical", covariance="diagonal", splits=0)
    assert found.model.sigma2 == pytest.approx(exact, rel=1e-4)
    assert any("about 5 digits" in note for note in found.notes)
