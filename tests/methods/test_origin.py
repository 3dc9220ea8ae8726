"""Where a column has its zero does not change what "auto" chooses, what it predicts, nor what it says of spreads."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.errors import CoterieError
from coterie.methods.tree.covariance_structure import Structure, at_means


def pupils(family):
    rng = np.random.default_rng(2)
    school = np.repeat(np.arange(36), rng.integers(8, 30, 36))
    year, ses = rng.integers(0, 10, len(school)).astype(float), rng.normal(size=len(school))
    eta = 0.3 * ses + rng.normal(0, 0.9, 36)[school] + rng.normal(0, 0.3, 36)[school] * ses + 0.05 * year
    y = (
        eta + rng.normal(size=len(school))
        if family == "gaussian"
        else rng.uniform(size=len(school)) < 1 / (1 + np.exp(-eta))
    )
    return pd.DataFrame({"school": school, "district": school % 4, "year": year, "ses": ses, "y": np.asarray(y, float)})


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_the_zero_of_a_column_changes_nothing(family):
    df = pupils(family)
    moved = df.assign(year=df["year"] + 2015.0)
    options = {"client": "school", "cluster": "district", "family": family, "method": "hierarchical", "splits": 0}
    fits = [coterie.fit(d, "y ~ ses + year", **options) for d in (df, moved)]
    here, there = fits
    assert here.settings["covariance"] == there.settings["covariance"]
    for name, value in here.settings["criterion"].items():
        assert there.settings["criterion"][name] == pytest.approx(value, abs=1e-3)
    predicted = [f.predict(d, interval=0.9) for f, d in zip(fits, (df, moved), strict=True)]
    width = (predicted[0]["upper"] - predicted[0]["lower"]).mean()
    for column in ("prediction", "lower", "upper"):
        np.testing.assert_allclose(predicted[1][column], predicted[0][column], atol=1e-5 * width)
    assert not any("separated" in note for f in fits for note in f.notes)
    tables = [f.variance_components for f in fits]
    assert tables[0]["term"].tolist() == tables[1]["term"].tolist()
    np.testing.assert_allclose(tables[1]["sd"], tables[0]["sd"], atol=2e-3)
    spread = tables[1].query("level == 'client' and term == '(Intercept)'")["sd"].iloc[0]
    assert 0.5 < spread < 1.4  # of the models at the means: nothing of 2,015 years


ALONE = {
    **{name: {} for name in ("local", "clusterwise", "pooled", "own-intercept")},
    "given-strengths": {"gamma": 0.0, "lam": 0.0},
    "weighted-averaging": {"rounds": {"steps": 60, "batch": 4}},
    "bias-correction": {"rounds": {"steps": 60, "batch": 4}},
    "ditto": {"rounds": 12},
    **{name: {"rounds": {"steps": 200, "looks": 2}} for name in ("async-l2gd", "async-al2sgd")},
    "similarity-network": {"network": {"edges": [(0, 3), (3, 6), (1, 4)], "lam": 0.02}},
}


@pytest.mark.soak(
    "poisson-bias-correction", "poisson-weighted-averaging", "poisson-similarity-network", "poisson-async-al2sgd"
)
@pytest.mark.parametrize("method", ALONE)
@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_nothing_depends_on_the_zero_or_unit_of_a_column_but_strengths_that_are_given(family, method):
    df, predicted = spread(family, 0.0), []
    for table in (df, df.assign(x=(df["x"] + 2000.0) * 1e3, z=(df["z"] + 2000.0) * 1e3)):
        how = {"client": "client", "cluster": "cluster", "family": family, "method": method, "splits": 0}
        predicted.append(coterie.fit(table, "y ~ x + z", **how, **ALONE[method]).predict(table)["prediction"])
    np.testing.assert_allclose(predicted[1], predicted[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("how", [{"network": {"solver": "admm"}}, {"rounds": {"codec": "tv:2", "steps": 60}}])
def test_a_network_is_solved_wherever_a_shared_column_has_its_zero(how):
    """Consensus ADMM, and a run over a codec, of counts came to 1e124."""
    network, predicted = {"edges": [(0, 3), (3, 6), (1, 4)], "lam": 0.02} | how.get("network", {}), []
    for zero in (0.0, 2000.0):
        table = spread("poisson", zero)
        fit = coterie.fit(
            table, "y ~ x + z", client="client", family="poisson", method="similarity-network", splits=0,
            shared=["x"], network=network, rounds=how.get("rounds"),
        )  # fmt: skip
        predicted.append(fit.predict(table)["prediction"])
    np.testing.assert_allclose(predicted[1], predicted[0], rtol=1e-4)


def test_a_named_structure_is_of_the_columns_as_they_are():
    moved = pupils("gaussian").assign(year=lambda d: d["year"] + 2015.0)
    fit = coterie.fit(moved, "y ~ ses + year", client="school", method="hierarchical", covariance="two", splits=0)
    assert "centred" not in fit.model.info


def spread(family, x, seed=3):
    """72 rows of 12 clients in 3 clusters; a column that lies ``x`` from zero."""
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(12), 6)
    table = pd.DataFrame({"x": rng.normal(size=72), "z": rng.normal(size=72)})
    b = rng.normal(0, 0.5, (12, 3)) + rng.normal(0, 0.4, (3, 3))[np.arange(12) % 3] + [0.5, 0.6, -0.3]
    eta = b[client, 0] + b[client, 1] * table["x"] + b[client, 2] * table["z"]
    if family == "gaussian":
        y = eta + rng.normal(size=72)
    else:
        y = rng.random(72) < 1 / (1 + np.exp(-eta)) if family == "binomial" else rng.poisson(np.exp(eta))
    table["x"] += x
    return table.assign(y=np.asarray(y, float), client=client, cluster=client % 3)


@pytest.mark.soak("diagonal-poisson", "two-binomial")
@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
@pytest.mark.parametrize("covariance", ["isotropic", "two", "diagonal"])
def test_a_named_structure_finds_its_optimum_however_far_a_column_lies(family, covariance):
    """Slopes of a column so far from zero are intercepts at its mean, so that no fit is worse than these alone."""
    how = {"client": "client", "cluster": "cluster", "family": family, "method": "hierarchical", "splits": 0}
    far = coterie.fit(spread(family, 1e6), "y ~ x + z", covariance=covariance, **how)
    intercepts = coterie.fit(spread(family, 0.0), "y ~ x + z", shared=["x", "z"], covariance="diagonal", **how)
    assert far.log_likelihood > intercepts.log_likelihood - 0.02
    assert not any("separated" in note for note in far.notes)


def test_of_two_optima_the_better_is_found():
    """-124.7771 and -113.3410: Nelder and Mead's from four starts each, on the dense restricted likelihood."""
    how = {"client": "client", "cluster": "cluster", "covariance": "diagonal", "method": "hierarchical", "splits": 0}
    for seed, x, best in ((3, 10.0, -124.7771), (4, 3.0, -113.3410)):
        fit = coterie.fit(spread("gaussian", x, seed), "y ~ x + z", **how)
        assert fit.log_likelihood == pytest.approx(best, abs=2e-3)
        assert (fit.variance_components["term2"] == "").all()  # no correlations of rounding


def test_a_frame_is_undone_by_the_nearest():
    """What is said in other structures of the same frame begins where it was."""
    mean = np.array([0.0, 3.0, -700.0])
    diagonal, full = (Structure.named(name, 3, 0, mean) for name in ("diagonal", "full"))
    phi = np.array([[1.3, 0.4, 0.2]])
    L = diagonal.factor(phi)
    np.testing.assert_allclose(diagonal.nearest(L), phi, rtol=1e-10)
    np.testing.assert_allclose(full.factor(full.nearest(L, least=0.0)), L, rtol=1e-10, atol=1e-9)
    np.testing.assert_array_equal(diagonal.start(1.0), 1.0)
    np.testing.assert_array_equal(full.start(1.0), [1.0, 0.0, 1.0, 0.0, 0.0, 1.0])


@pytest.mark.parametrize("family", ["gaussian", "poisson"])
@pytest.mark.parametrize("covariance", ["full", "auto"])
@pytest.mark.parametrize("zero", [2020.0, 1e5])
def test_an_unstructured_covariance_is_found_wherever_a_column_has_its_zero(family, covariance, zero):
    rng = np.random.default_rng(4)
    g, t = np.repeat(np.arange(30), 10), np.tile(np.arange(5.0), 60) - 2.0
    eta = 0.3 + 0.8 * rng.normal(size=30)[g] + (0.1 + 0.4 * rng.normal(size=30)[g]) * t
    y = rng.poisson(np.exp(eta)) if family == "poisson" else eta + rng.normal(size=300)
    here, there = (
        coterie.fit(
            pd.DataFrame({"g": g, "t": t + z, "y": y}), "y ~ t", "g", family=family, covariance=covariance,
            method="hierarchical", splits=0,
        )
        for z in (0.0, zero)
    )  # fmt: skip
    assert there.log_likelihood == pytest.approx(here.log_likelihood, abs=1e-5)
    slopes = [f.global_coefficients.set_index("term").loc["t"].astype(float) for f in (here, there)]
    np.testing.assert_allclose(slopes[1], slopes[0], rtol=1e-3)
    np.testing.assert_allclose(there.variance_components["sd"], here.variance_components["sd"], rtol=2e-3)


def test_a_structure_that_depends_on_the_zero_says_so():
    moved = pupils("gaussian").assign(year=lambda d: d["year"] + 2015.0)
    fit = coterie.fit(moved, "y ~ ses + year", client="school", method="hierarchical", covariance="diagonal", splits=0)
    assert any("'diagonal'" in note and "year" in note and "zero" in note for note in fit.notes)


def test_a_column_too_far_from_zero_is_refused_with_the_remedy():
    df = pupils("gaussian").assign(ses=lambda d: d["ses"] + 1e9)
    with pytest.raises(CoterieError, match=r"'ses' .*(subtract one that is near its mean|leave one of them out)"):
        coterie.fit(df, "y ~ ses + year", client="school", splits=0)
    coterie.fit(df, "y ~ scale(ses) + year", client="school", splits=0)


def test_a_variance_of_zero_at_the_means_is_zero():
    """What is left where numbers cancel is no spread, and no correlation."""
    mean = np.array([1.0, 1000.0, 3.0])
    frame = np.eye(3)
    frame[0, 1:] = -mean[1:]
    D = frame @ np.diag([0.0, 0.18, 0.0]) @ frame.T
    info = {"centred": {"intercept": 0, "means": mean.tolist()}}
    np.testing.assert_allclose(at_means(D, info), np.diag([0.0, 0.18, 0.0]), rtol=1e-12)
    np.testing.assert_array_equal(at_means(D[None], info)[0], at_means(D, info))
    assert at_means(D, info)[0, 0] == 0.0 and at_means(D, {}) is D
