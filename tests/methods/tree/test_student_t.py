"""Student's t for outcomes with outliers: what it is for, what it cannot do, and numbers by other ways to them."""

from functools import cache

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import coterie
from coterie.errors import CoterieError


@cache
def table() -> pd.DataFrame:
    rng = np.random.default_rng(4)
    g, x = np.repeat(np.arange(15), 8), rng.normal(size=120)
    y = 2.0 + 0.7 * x + 0.6 * rng.normal(size=15)[g] + 0.5 * rng.standard_t(3, 120)
    return pd.DataFrame({"g": g, "k": g % 3, "x": x, "y": y})


def fit(frame: pd.DataFrame, family: str = "student-t", **how: object) -> coterie.FitResult:
    how = {"client": "g", "splits": 0, "method": "hierarchical"} | how
    return coterie.fit(frame, "y ~ x", family=family, **how)


@pytest.mark.parametrize("method", ["pooled", "hierarchical", "own-intercept"])
def test_one_wild_row_moves_it_little(method: str) -> None:
    wild = table().assign(y=lambda d: np.where(d.index == 50, 1e4, d["y"]))
    robust, not_robust = ([fit(d, f, method=method) for d in (table(), wild)] for f in ("student-t(4)", "gaussian"))
    se = np.sqrt(np.diag(robust[0].model.root_cov))
    assert np.abs(robust[1].model.root - robust[0].model.root).max() < 0.5 * se.max()
    assert np.abs(robust[1].model.client - robust[0].model.client).max() < 0.3
    assert np.abs(not_robust[1].model.root - not_robust[0].model.root).max() > 20.0


METHODS = ["pooled", "local", "clusterwise", "hierarchical", "fedavg", "weighted-averaging", "bias-correction"]


@pytest.mark.parametrize("method", METHODS)
def test_units_and_the_zero_of_outcomes_change_nothing(method: str) -> None:
    how = {"method": method} | ({"cluster": "k"} if method in ("clusterwise", "hierarchical") else {})
    one = fit(table(), "student-t(4)", **how)
    other = fit(table().assign(y=lambda d: 1e6 * d["y"] - 1e9), "student-t(4)", **how)
    expected = 1e6 * one.model.client - np.array([1e9, 0.0])
    np.testing.assert_allclose(other.model.client, expected, rtol=0.0, atol=20.0 * (1 + 10 * (method == "fedavg")))
    assert other.model.sigma2 == pytest.approx(1e12 * one.model.sigma2, rel=1e-5)


def test_the_likelihood_is_that_of_a_dense_sum() -> None:
    """Over 4,001 values of each client's deviation, out to eight standard deviations, at what was estimated."""
    found, frame = fit(table(), shared=["x"]), table()
    (a, b), sd = found.model.root, found.model.D_client[0, 0, 0] ** 0.5
    u, total = np.linspace(-8.0, 8.0, 4001), 0.0
    for _, rows in frame.groupby("g"):
        eta = a + b * rows["x"].to_numpy()[:, None] + sd * u
        scale, degrees = found.model.sigma2**0.5, found.model.scattering.degrees
        logs = stats.t.logpdf(rows["y"].to_numpy()[:, None], degrees, eta, scale).sum(axis=0) + stats.norm.logpdf(u)
        total += np.logaddexp.reduce(logs) + np.log(u[1] - u[0])
    assert found.model.info["quadrature"] > 1
    assert found.log_likelihood == pytest.approx(total, abs=1e-3)


def test_degrees_of_freedom_that_are_found_may_as_well_be_given() -> None:
    found = fit(table())
    given = fit(table(), found.model.family)
    np.testing.assert_array_equal(found.model.client, given.model.client)
    assert (found.log_likelihood, found.parameters) == (given.log_likelihood, given.parameters + 1)
    for degrees in (5.2, 5.9):
        assert fit(table(), f"student-t({degrees})").log_likelihood < found.log_likelihood


@pytest.mark.parametrize(("family", "method"), [("student-t(4)", "hierarchical"), ("student-t", "pooled")])
def test_sites_find_the_same(family: str, method: str) -> None:
    how = [{"method": method, "engine": engine} for engine in ("auto", {"kind": "loopback", "sites": 3})]
    one, other = (fit(table(), family, **each) for each in how)
    np.testing.assert_allclose(other.model.client, one.model.client, rtol=1e-10)
    assert (other.model.family, other.model.sigma2) == (one.model.family, pytest.approx(one.model.sigma2, rel=1e-10))
    assert other.log_likelihood == pytest.approx(one.log_likelihood, rel=1e-10)


def test_outcomes_without_outliers_are_said_to_have_none() -> None:
    even = table().assign(y=lambda d: d["x"] + np.sin(d.index))
    found, gaussian = fit(even, method="pooled"), fit(even, "gaussian", method="pooled")
    assert found.model.family == "student-t(100)"
    assert [note for note in found.notes if "family gaussian" in note]
    np.testing.assert_allclose(found.model.root, gaussian.model.root, atol=0.02)


def test_it_is_saved_and_compared(tmp_path) -> None:
    small, found = fit(table(), method="pooled"), fit(table())
    found.save(tmp_path / "model")
    loaded = coterie.load(tmp_path / "model")
    asked = {"interval": 0.9, "interval_of": "outcome"}
    pd.testing.assert_frame_equal(loaded.predict(table(), **asked), found.predict(table(), **asked))
    wide = found.predict(table(), **asked)
    assert 0.85 <= table()["y"].between(wide["lower"], wide["upper"]).mean() <= 0.97
    assert coterie.compare_fits(small, found)["p"].iloc[1] < 1e-3


def test_outcomes_that_lie_on_their_models_have_no_scale() -> None:
    flat = table().assign(y=lambda d: np.where(d.index % 10 == 0, d["y"], 1.0))
    with pytest.raises(CoterieError, match=r"Most outcomes lie exactly.*student-t\(4\).*take family gaussian"):
        fit(flat, "student-t(4)")


@pytest.mark.parametrize("family", ["student-t", "student-t(4)"])
@pytest.mark.parametrize("alike", [0.0, 1.0])
def test_clients_whose_outcomes_are_mostly_one_number_have_no_scale(family: str, alike: float) -> None:
    """Of all, and of each client: the likelihood has no bound as the scale goes to zero."""
    rng = np.random.default_rng(2)
    g, x = np.repeat(np.arange(12), 6), rng.normal(size=72)
    frame = pd.DataFrame({"g": g, "x": x, "y": alike * g + (np.arange(72) % 9 == 0) * rng.normal(size=72)})
    with pytest.raises(CoterieError, match="Most outcomes lie exactly on their models"):
        coterie.fit(frame, "y ~ x", client="g", family=family, method="hierarchical", splits=0)


@pytest.mark.parametrize("method", ["similarity-network", "async-l2gd", "async-al2sgd"])
def test_methods_for_convex_losses_are_refused(method: str) -> None:
    with pytest.raises(CoterieError, match=f"'{method}' needs losses that are convex.*hierarchical"):
        fit(table(), method=method, **({"network": {"lam": 1.0}} if method == "similarity-network" else {}))
