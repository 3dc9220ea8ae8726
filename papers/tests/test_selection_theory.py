"""Corollary 5.3: which delta still pays, what c_0 costs, and what no method can do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from papers.paper_004 import exact
from papers.paper_004 import tuning as theory
from papers.paper_004.noisy_quadratic import Curve
from papers.paper_004.tuning import Setting

N = 100
BY = Setting(L=1.0, mu=0.0, noise0=1.0, average=1.0 / N, F0=1.0, E0=0.0)


@pytest.mark.parametrize(("mu", "horizons", "slope"), [(0.0, (1e4, 1e10), -0.5), (0.1, (1e6, 1e12), -1.0)])
def test_the_largest_delta_falls_as_the_corollary_says(mu: float, horizons: tuple[float, float], slope: float) -> None:
    """In the mu-PL case T stands for T / log T, so that the slope is a little less."""
    by = replace(BY, mu=mu, E0=0.01)
    deltas = [theory.largest_delta(by, T) for T in horizons]
    assert np.log(deltas[1] ** 2 / deltas[0] ** 2) / np.log(horizons[1] / horizons[0]) == pytest.approx(slope, abs=0.1)
    assert theory.speedup(by, horizons[0], 0.9 * deltas[0]) > 1.0 > theory.speedup(by, horizons[0], 1.1 * deltas[0])


def test_a_speed_up_of_n_plus_one_needs_a_c_0_of_many_samples() -> None:
    S, T = BY.noise0 + BY.average, 1e8
    root = np.sqrt(N + 1.0)  # of the bound sqrt(sigma^2 / T)
    assert theory.speedup(BY, T, 0.0) == pytest.approx(root, rel=0.02)
    one, many = (theory.speedup(replace(BY, E0=S / samples), T, 0.0) for samples in (1, 100 * N))
    assert one < 2.0
    assert many > 0.8 * root
    for mu, most in ((0.5, 2.0), (0.1, 7.0)):  # with logarithms of T, hence not N + 1
        quick = replace(BY, mu=mu)
        assert 55.0 < theory.speedup(quick, 1e4, 0.0) < N + 1.0
        assert 0.5 * most < theory.speedup(replace(quick, E0=S), 1e6, 0.0) < most


def test_correction_does_not_pay_where_there_is_nothing_to_gain() -> None:
    assert theory.largest_delta(replace(BY, noise0=0.0, E0=1.0), 1e3) == pytest.approx(2.0)  # alpha = 0: as alone
    assert theory.largest_delta(replace(BY, average=100.0, E0=100.0), 1e3) == 0.0
    alone = theory.tuned(BY, 1e4, 0.0, 0.0)
    assert alone.eta == pytest.approx(np.sqrt(2.0 / 1e4), rel=0.1)
    assert alone.bound == pytest.approx(2.0 * np.sqrt(2.0 / 1e4), rel=0.01)


def test_no_step_size_and_beta_find_a_mean_better_than_its_own_samples_do() -> None:
    """delta = 0, 100 collaborators whose common bias nobody knows: exact losses, from far away."""
    T, best = 300, np.inf
    for eta in np.geomspace(1e-2, 0.5, 12):
        for beta in np.geomspace(1e-3, 1.0, 12):
            for c0 in (0, 1):
                curve = Curve(1.0, 1.0, 0.0, 30.0, 1.0, N, eta, N / (N + 1), beta, 30.0, c0)
                best = min(best, exact.loss(curve, [T])[0])
    assert best > 0.5 / T
