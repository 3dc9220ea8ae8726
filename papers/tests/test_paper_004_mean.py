"""Collaborative mean estimation (Linear speedup in personalized collaborative learning, section 4).

Simulated errors are held against formulas written out here, apart from the package's recursion. Seeds are fixed; of 180
deviations held below 3 standard errors chance would put one above in about a third of all seeds.
"""

import json
from dataclasses import replace

import numpy as np
import pytest

from coterie.numerics import keyed_random
from papers import outcome
from papers.paper_004 import mean
from papers.paper_004.mean_estimation import MU0, Setting, averaging, decreasing, errors, estimates, measured
from papers.paper_004.wga_theory import best_alpha, best_weights

TIMES = [1, 2, 3, 10, 30, 100]
GAPS = (0.0, 0.1, 0.3, 1.0)
UNEQUAL = Setting(np.array([0.3, -0.5, 1.0]), np.array([0.5, 2.0, 1.0]), 0.6, np.array([0.2, 0.3, 0.5]), sigma=1.5)
SETTINGS = {f"gap {gap:g}": Setting.equal(gap, 3, sigma=2.0) for gap in GAPS} | {"unequal": UNEQUAL}


def tenth(t):
    return 0.1


SCHEDULES = {
    "WGA": {},
    "WGA, C.2's step": {"step": decreasing},
    "BC": {"beta": averaging},
    "BC, c_0 = 0": {"beta": averaging, "first": "zero"},
    "BC, beta = .1": {"beta": tenth},
    "BC, beta = .1, c_0 = 0": {"beta": tenth, "first": "zero"},
}


def weights(s, T):
    """x_T - mu_0 as a weighted sum: how much each own sample (T,) and each mixed sample (T,) counts; step 1/(t+1)."""
    own, mixed = np.zeros(T), np.zeros(T)
    c_own, c_mixed = np.zeros((T, T)), np.zeros((T, T))
    for t in range(T):
        c = (c_own[t - 1], c_mixed[t - 1]) if t else (np.zeros(T), np.zeros(T))
        beta = 0.0 if s.beta is None else s.beta(t)
        here = np.eye(T)[t]
        if t == 0 and s.beta is not None and s.first == "sample":
            c = (here, -here)
        own += (here * (1 - s.alpha) + s.alpha * c[0]) / T
        mixed += (here * s.alpha + s.alpha * c[1]) / T
        c_own[t], c_mixed[t] = (1 - beta) * c[0] + beta * here, (1 - beta) * c[1] - beta * here
    return own, mixed


def by_weights(s, T):
    own, mixed = weights(s, T)
    a = float(np.sum(s.tau**2 * s.sigmas**2))
    return s.sigma**2 * np.sum(own**2) + a * np.sum(mixed**2) + (np.sum(mixed) * float(s.tau @ s.gaps)) ** 2


def test_weighted_averaging_is_the_average_of_the_mixed_samples():
    T, runs = 20, 3
    found = estimates([UNEQUAL], [1, T], runs, seed=5)[0]
    noise = keyed_random.starts(5, "rows", np.arange(runs * 4))
    means = MU0 + np.append(0.0, UNEQUAL.gaps)
    z = means - np.append(UNEQUAL.sigma, UNEQUAL.sigmas) * np.array(
        [keyed_random.normal(noise, np.full(runs * 4, t), 1).reshape(runs, 4) for t in range(T)]
    )
    mixed = z @ np.append(1.0 - UNEQUAL.alpha, UNEQUAL.alpha * UNEQUAL.tau)
    np.testing.assert_allclose(found[:, 0] + MU0, mixed[0], rtol=1e-12)
    np.testing.assert_allclose(found[:, 1] + MU0, mixed.mean(axis=0), rtol=1e-12)


@pytest.mark.soak("BC, beta = .1", "BC, c_0 = 0", "BC", "WGA, C.2's step")
@pytest.mark.parametrize("schedules", SCHEDULES.values(), ids=SCHEDULES)
def test_simulated_errors_are_the_exact_ones(schedules):
    settings = [replace(s, **schedules) for s in SETTINGS.values()]
    found, se = measured(estimates(settings, TIMES, 500, seed=1))
    exact = np.array([errors(s, TIMES) for s in settings])
    assert np.abs((found - exact) / se).max() < 3.0, ((found - exact) / se).round(2)


@pytest.mark.parametrize("schedules", [pytest.param(v, id=k) for k, v in SCHEDULES.items() if "step" not in k])
@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_the_exact_errors_are_those_of_a_weighted_sum(setting, schedules):
    setting = replace(setting, **schedules)
    theirs = [by_weights(setting, T) for T in TIMES]
    np.testing.assert_allclose(errors(setting, TIMES), theirs, rtol=1e-11)
    if not schedules:
        np.testing.assert_allclose(setting.error(TIMES), theirs, rtol=1e-11)


def test_c2s_step_counts_samples_by_their_number():
    s, T = replace(UNEQUAL, step=decreasing), 40
    counts = (2.0 * np.arange(T) + 1.0) / T**2
    theirs = s.variance * np.sum(counts**2) + (s.alpha * s.gap) ** 2
    assert errors(s, [T])[0] == pytest.approx(theirs, rel=1e-12)


@pytest.mark.parametrize("T", [1.0, 10.0, 1_000.0])
@pytest.mark.parametrize("gap", GAPS)
def test_the_best_alpha_is_that_of_grimberg_and_of_theorem_41(gap, T):
    one = Setting(np.array([gap]), np.array([0.5]), 0.5, np.ones(1), sigma=2.0)
    closed = 4.0 / (4.0 + 0.25 + T * gap**2)
    assert one.best(T).alpha == pytest.approx(closed, rel=1e-9)
    assert float(best_alpha(4.0 / T, 0.25 / T, gap**2)) == pytest.approx(closed, rel=1e-12)
    alphas = np.linspace(0.0, 1.0, 10_001)
    least = alphas[np.argmin([replace(one, alpha=a).error(T) for a in alphas])]
    assert least == pytest.approx(closed, abs=1e-4)
    many = Setting.equal(gap, 10)
    assert many.best(T).alpha == pytest.approx(1.0 / (1.0 + 0.1 + T * gap**2), rel=1e-9)
    assert float(many.error(T) / many.best(T).error(T)) >= 1.0


def test_no_other_weights_have_less_error_than_the_best():
    best, rng = UNEQUAL.best(20.0), np.random.default_rng(0)
    w = rng.dirichlet(np.full(4, 0.5), 20_000)
    near = 0.99 * np.append(1.0 - best.alpha, best.alpha * best.tau) + 0.01 * w
    for others in (w, near):
        tau = others[:, 1:] / others[:, 1:].sum(axis=1, keepdims=True)
        made = [replace(UNEQUAL, alpha=1.0 - o[0], tau=t).error(20.0) for o, t in zip(others, tau, strict=True)]
        assert min(made) > best.error(20.0) * (1.0 - 1e-12)
    by = best_weights(UNEQUAL.sigma**2, UNEQUAL.sigmas**2, UNEQUAL.gaps**2, [0, 3], 1.0 / 20.0)
    theirs = replace(UNEQUAL, alpha=float(by.alpha[0]), tau=by.tau)
    assert best.error(20.0) < theirs.error(20.0) < UNEQUAL.sigma**2 / 20.0


@pytest.mark.parametrize("gap", [0.3, *(pytest.param(gap, marks=pytest.mark.soak) for gap in (0.0, 0.1, 1.0))])
def test_the_best_alpha_has_the_least_simulated_error(gap):
    T, alphas = 30, np.linspace(0.0, 1.0, 11)
    found, _ = measured(estimates([Setting.equal(gap, 3, a) for a in alphas], [T], 2_000, seed=2))
    assert abs(alphas[np.argmin(found[:, 0])] - Setting.equal(gap, 3).best(T).alpha) <= 0.1


@pytest.mark.parametrize("setting", [*SETTINGS.values(), replace(UNEQUAL, alpha=0.0), replace(UNEQUAL, alpha=1.0)])
def test_errors_are_under_the_bounds(setting):
    times = list(range(1, 200))
    for step, bound in ((averaging, mean.repeated), (decreasing, mean.bound)):
        promised = bound(replace(setting, step=step), times)
        assert np.all(errors(replace(setting, step=step), times) <= promised * (1.0 + 1e-12))
    late = replace(setting, step=decreasing)
    if float(setting.tau @ setting.gaps**2) == pytest.approx(setting.gap**2):
        exact = errors(late, [10_000])[0] - (setting.alpha * setting.gap) ** 2
        promised = mean.bound(late, [10_000])[0] - (setting.alpha * setting.gap) ** 2
        assert promised / exact == pytest.approx(3.0, abs=1e-3)


@pytest.mark.parametrize("beta", [averaging, tenth, lambda t: 0.001, lambda t: 1.0])
@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_correcting_the_bias_of_a_mean_gains_nothing(setting, beta):
    """Gauss and Markov from c_0 = b_0; from c_0 = 0, averaging with the mean weight."""
    for alpha in (0.1, 0.5, 1.0):
        s = replace(setting, alpha=alpha, beta=beta)
        for T in (1, 5, 60):
            assert errors(s, [T])[0] >= s.sigma**2 / T * (1.0 - 1e-12)
            zero = replace(s, first="zero")
            share = float(weights(zero, T)[1].sum())
            assert 0.0 <= share <= alpha + 1e-12
            assert errors(zero, [T])[0] >= replace(s, alpha=share).error(T) * (1.0 - 1e-12)


@pytest.mark.soak
def test_what_is_written_and_drawn():
    made = mean.run(outcome.Settings(seeds=40, quick=True))
    written = json.loads(outcome.document("004/mean", made, 1.0))["numbers"]
    for curve in written["alike"]:
        exact = Setting.equal(curve["gap"], 10, curve["alpha"]).error(curve["T"])
        np.testing.assert_allclose(curve["exact"], exact, rtol=1e-12)
        assert np.all(np.abs(np.array(curve["mean"]) - exact) < 5.0 * np.array(curve["se"]))
    several = {name: at["exact"][0] for name, at in written["several"].items()}
    assert several["the best alpha and tau"] == min(several.values())
    assert b"<svg" in outcome.render(made.draw)
    alone = mean.run(outcome.Settings(seeds=1, quick=True))
    assert alone.tables[0].rows[0][3].endswith("(-)")
