"""Outcomes drawn from fits, and parametric bootstraps."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.results import simulate


@functools.cache
def table() -> pd.DataFrame:
    """Twelve clients in three clusters, rows shuffled, an outcome for each family."""
    rng = np.random.default_rng(5)
    school = np.repeat(np.arange(12), 8)
    x = rng.normal(size=96)
    eta = 0.5 + 0.7 * x + rng.normal(size=12)[school] + 0.8 * rng.normal(size=3)[school % 3]
    frame = pd.DataFrame({"school": school, "sector": school % 3, "x": x, "weight": rng.uniform(0.5, 2.0, 96)})
    frame["y"] = eta + rng.normal(size=96)
    frame["passed"] = (rng.random(96) < 1.0 / (1.0 + np.exp(-eta))).astype(int)
    frame["visits"] = rng.poisson(np.exp(0.3 * eta))
    return frame.sample(frac=1.0, random_state=1).reset_index(drop=True)


@functools.cache
def fitted(formula: str = "y ~ x", cluster: Any = "sector", **options: Any) -> coterie.FitResult:
    options = {"method": "hierarchical", "splits": 0, "covariance": "diagonal"} | options
    return coterie.fit(table(), formula, client="school", cluster=cluster, **options)


@pytest.mark.soak
def test_new_clients_vary_as_the_fit_says() -> None:
    fit = fitted()
    drawn = fit.simulate(4000, seed=1)
    frame, m = table(), fit.model
    X = np.c_[np.ones(96), frame["x"]]
    D = m.D_client[0] + m.D_levels[0]
    np.testing.assert_array_equal(drawn.index, frame.index)
    spread = np.sqrt(np.einsum("np,pq,nq->n", X, D, X) + m.sigma2)
    np.testing.assert_allclose(drawn.std(axis=1) / spread, 1.0, atol=0.06)
    assert np.abs((drawn.mean(axis=1) - X @ m.root) / spread).max() < 0.08
    one, other = np.flatnonzero(frame["school"] == 4)[:2]
    expected = X[one] @ D @ X[other] / (spread[one] * spread[other])
    assert np.corrcoef(drawn.iloc[one], drawn.iloc[other])[0, 1] == pytest.approx(expected, abs=0.06)
    mate = np.flatnonzero(frame["school"] == 7)[0]  # of the same sector
    expected = X[one] @ m.D_levels[0] @ X[mate] / (spread[one] * spread[mate])
    assert np.corrcoef(drawn.iloc[one], drawn.iloc[mate])[0, 1] == pytest.approx(expected, abs=0.06)


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_clients_that_stay_have_their_own_means(family: str) -> None:
    name = {"gaussian": "y", "binomial": "passed", "poisson": "visits"}[family]
    fit = fitted(f"{name} ~ x", family=family)
    drawn = fit.simulate(2000, redraw=False)
    mean = fit.predict(table())["prediction"]
    assert np.abs((drawn.mean(axis=1) - mean) / (drawn.std(axis=1) + 1e-9)).max() < 0.1
    assert family == "gaussian" or (drawn.dtypes == np.int64).all()


def test_weights_are_precisions() -> None:
    fit = fitted(weights="weight")
    drawn = fit.simulate(3000, redraw=False)
    sd = np.sqrt(fit.model.sigma2 / (table()["weight"] / table()["weight"].mean()))
    np.testing.assert_allclose(drawn.std(axis=1) / sd, 1.0, atol=0.06)


@pytest.mark.soak("negative-binomial")
@pytest.mark.parametrize("family", ["negative-binomial", "gamma"])
def test_dispersions_are_drawn_and_found_again(family: str) -> None:
    rng = np.random.default_rng(4)
    client, mean = np.repeat(np.arange(30), 10), np.exp(1.0 + 0.3 * rng.normal(size=30))
    y = mean[client] * rng.gamma(2.0, 0.5, 300)
    y = rng.poisson(y) if family == "negative-binomial" else y
    frame = pd.DataFrame({"client": client, "y": y})
    fit = coterie.fit(frame, "y ~ 1", client="client", family=family, method="hierarchical", splits=0)
    drawn = fit.simulate(3000, redraw=False)
    centre = fit.predict(frame)["prediction"]
    np.testing.assert_allclose(drawn.mean(axis=1) / centre, 1.0, atol=0.1)
    noise = drawn.var(axis=1) - (centre if family == "negative-binomial" else 0.0)
    assert (noise / centre**2).mean() == pytest.approx(fit.model.sigma2, rel=0.1)
    with pytest.raises(coterie.CoterieError, match="dispersion would have"):
        fit.profile()
    weighed = coterie.fit(frame.assign(w=1.0 + frame.index % 3), "y ~ 1", client="client", family=family,
                          method="pooled", splits=0, weights="w")  # fmt: skip
    spread = weighed.simulate(3000).var(axis=1)
    assert spread[frame.index % 3 == 0].mean() == pytest.approx(spread[frame.index % 3 == 2].mean(), rel=0.1)


def test_shares_are_drawn_of_their_trials() -> None:
    rng = np.random.default_rng(4)
    frame = pd.DataFrame({"client": np.repeat(np.arange(20), 5), "trials": rng.integers(2, 9, 100)})
    frame["yes"] = rng.binomial(frame["trials"], 0.3)
    frame["no"] = frame["trials"] - frame["yes"]
    fit = coterie.fit(frame, "cbind(yes, no) ~ 1", client="client", family="binomial", method="pooled", splits=0)
    counts = fit.simulate(2000).mul(frame["trials"], axis=0)
    np.testing.assert_allclose(counts, counts.round(), atol=1e-9)
    p = 1.0 / (1.0 + np.exp(-fit.model.root[0]))
    np.testing.assert_allclose(counts.var(axis=1) / (frame["trials"] * p * (1.0 - p)), 1.0, atol=0.2)


def test_draws_depend_on_seed_and_number_alone(tmp_path: Path) -> None:
    fit = fitted()
    drawn = fit.simulate(5, seed=3)
    pd.testing.assert_frame_equal(fit.simulate(2, seed=3), drawn.iloc[:, :2], check_column_type=False)
    assert not fit.simulate(1, seed=4)[0].equals(drawn[0])
    fit.save(tmp_path)
    back = coterie.load(tmp_path)
    pd.testing.assert_frame_equal(back.simulate(5, seed=3, table=table()), drawn)
    with pytest.raises(coterie.CoterieError, match="table=df"):
        back.simulate(1)
    with pytest.raises(coterie.CoterieError, match="other clients"):
        back.simulate(1, table=table().assign(school=lambda f: f["school"] + 1))


def test_rows_that_were_dropped_have_no_outcomes() -> None:
    frame = table().copy()
    frame.loc[[3, 50], "x"] = np.nan
    fit = coterie.fit(frame, "y ~ x", client="school", method="pooled", splits=0, missing="drop")
    assert list(fit.simulate(1).index) == [k for k in range(96) if k not in (3, 50)]


@pytest.mark.parametrize(("n", "seed"), [(0, 0), (1.5, 0), (True, 0), (1, -1), (1, "a")])
def test_counts_and_seeds_are_whole(n: Any, seed: Any) -> None:
    with pytest.raises(coterie.CoterieError, match="must be a whole number"):
        fitted().simulate(n, seed)


def test_a_method_without_variances_keeps_its_clients() -> None:
    fit = fitted(method="local")
    assert fit.simulate(1).shape == (96, 1)
    with pytest.raises(coterie.CoterieError, match="redraw=False"):
        fit.simulate(1, redraw=True)


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_the_same_outcomes_give_the_same_fit(family: str) -> None:
    fit = fitted({"gaussian": "y ~ x", "binomial": "passed ~ x"}[family], family=family)
    again = simulate.refit(fit, fit.fitting.clients.y)
    assert again.log_likelihood == fit.log_likelihood
    np.testing.assert_allclose(again.client_coefficients, fit.client_coefficients, rtol=1e-12)


@pytest.mark.soak
def test_a_bootstrap_scatters_as_standard_errors_say() -> None:
    fit = fitted(cluster=(), covariance="isotropic")
    boot = coterie.bootstrap(fit, n=120, seed=2)
    found, known = boot.interval(0.9), fit.summary(0.9).coefficients
    assert list(boot.observed.index) == ["(Intercept)", "x", "sd client (Intercept)", "sd client x", "sd residual"]
    np.testing.assert_allclose(found["std_error"].iloc[:2], known["std_error"], rtol=0.25)
    np.testing.assert_array_equal(found["observed"].iloc[:2], known["estimate"])
    assert (found["lower"] < found["observed"]).all()
    assert "120 parametric bootstrap samples" in repr(boot)


def test_a_bootstrap_is_the_same_in_processes_and_of_any_length() -> None:
    fit = fitted(cluster=())
    one = coterie.bootstrap(fit, lambda r: r.log_likelihood, n=4, seed=7)
    two = coterie.bootstrap(fit, lambda r: {"0": r.log_likelihood}, n=3, seed=7, processes=2)
    np.testing.assert_array_equal(one.replicates.to_numpy()[:3], two.replicates)
    first = simulate.refit(fit, fit.simulate(1, seed=7)[0].to_numpy()[fit.fitting.clients.order])
    assert one.replicates.iloc[0, 0] == first.log_likelihood


def test_a_bootstrapped_likelihood_ratio_agrees_with_the_mixture() -> None:
    flat = table().assign(y=lambda f: 0.3 * f["x"] + np.random.default_rng(8).normal(size=96))
    small, large = (
        coterie.fit(flat, "y ~ x", client="school", splits=0, **more)
        for more in ({"method": "pooled"}, {"method": "hierarchical", "shared": "x", "reml": False})
    )
    exact = coterie.compare_fits(small, large).iloc[1]
    drawn = coterie.compare_fits(small, large, bootstrap=99, seed=1).iloc[1]
    assert drawn["chisq"] == exact["chisq"]
    assert drawn["p"] == pytest.approx(exact["p"], abs=0.15)
    assert drawn["test"] == "parametric bootstrap, 99 samples"


def test_what_cannot_be_bootstrapped_is_refused(tmp_path: Path) -> None:
    fit = fitted(cluster=())
    fit.save(tmp_path)
    back = coterie.load(tmp_path)
    with pytest.raises(coterie.CoterieError, match="one that was loaded"):
        coterie.bootstrap(back)
    with pytest.raises(coterie.CoterieError, match="rows are here"):
        coterie.compare_fits(back, fitted(cluster=(), covariance="full"), bootstrap=9)
    with pytest.raises(coterie.CoterieError, match="return a number"):
        coterie.bootstrap(fit, lambda r: "text", n=2)
    with pytest.raises(coterie.CoterieError, match="processes must be"):
        coterie.bootstrap(fit, n=2, processes=0)


def test_draws_whose_statistic_is_no_number_are_said_and_are_not_most() -> None:
    fit = fitted(cluster=())

    def root(least: float) -> Any:
        return lambda r: {"root": np.nan if r is not fit and r.global_coefficients["estimate"][0] < least else 1.0}

    drawn = coterie.bootstrap(fit, lambda r: r.global_coefficients["estimate"][0], n=5).replicates[0].sort_values()
    boot = coterie.bootstrap(fit, root(drawn.iloc[1:3].mean()), n=5)
    assert boot.interval().loc["root", ["draws", "upper"]].tolist() == [3, 1.0]
    assert "5 parametric bootstrap samples; root is no number in 2, which are left out" in repr(boot)
    with pytest.raises(coterie.CoterieError, match=r"'root' is a number in 2 of 5 samples, too few for an interval"):
        coterie.bootstrap(fit, root(drawn.iloc[2:4].mean()), n=5)


def test_fits_that_fail_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    fit, refit = fitted(cluster=()), simulate.refit

    def second_fails(result: Any, y: Any, intervals: bool = False) -> Any:
        if abs(y.sum() - bad) < 1e-9:
            raise coterie.CoterieError("no such fit")
        return refit(result, y, intervals)

    bad = float(fit.simulate(2, seed=0)[1].sum())
    monkeypatch.setattr(simulate, "refit", second_fails)
    boot = coterie.bootstrap(fit, n=3)
    assert boot.failures == ["no such fit"]
    assert boot.replicates.isna().all(axis=1).tolist() == [False, True, False]
    assert np.isfinite(boot.interval()).all().all()
