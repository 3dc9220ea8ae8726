"""Promised against measured: means of many runs of the noisy quadratic under Theorems 4.1, 5.1, 5.2; exponents."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.methods.collaboration import theory
from papers.outcome import Settings
from papers.paper_004 import bc_bounds, bounds, exact, tuning, wga_theory
from papers.paper_004.bc_bounds import Correction, sharp_bound, theorem_bound
from papers.paper_004.noisy_quadratic import Curve, average, simulate
from papers.paper_004.recursion import after_own_step, recursion_bound

RUNS, SIGMA, START = 300, 2.0, 3.0
T = np.array([0, 1, 3, 10, 30, 100, 300, 1_000, 3_000])


def curve(zeta: float, delta: float, alpha: float, eta: float, beta: float, N: int = 20, c0: int = 0) -> Curve:
    """One coordinate, with L = mu = 1 and ``x_0* = 0``."""
    return Curve(1.0, 1.0 + delta, 0.0, zeta / (1.0 + delta), SIGMA, N, eta, alpha, beta, START, c0)  # type: ignore[arg-type]


def measured(curves: list[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """Means over runs, and the same less three standard errors."""
    mean, error = average(simulate(curves, T, RUNS, 7))
    return mean, mean - 3.0 * error


def test_averaging_lies_under_theorem_41() -> None:
    """m = 0 where Hessians are equal; otherwise ``|delta e + z|^2 <= 2 delta^2 G + 2 zeta^2``."""
    settings = [
        (zeta, delta, alpha, eta)
        for zeta in (0.0, 1.0, 10.0)
        for delta in (0.0, 0.3)
        for alpha in (0.1, 20 / 21)
        for eta in (0.01, 0.3)
    ]
    curves = [curve(zeta, delta, alpha, eta, 0.0) for zeta, delta, alpha, eta in settings]
    means, lows = measured(curves)
    for (zeta, delta, alpha, eta), mean, low in zip(settings, means, lows, strict=True):
        m, zeta2 = (2.0 * delta**2, 2.0 * zeta**2) if delta else (0.0, zeta**2)
        by = wga_theory.descent(1.0, 1.0, alpha, SIGMA**2, SIGMA**2 / 20, zeta2, m)
        most = by.bound(T, eta, mean[0])
        assert np.all(low <= most * (1 + 1e-12))
        if delta == 0.0:
            assert most[-1] < 3.0 * mean[-1]  # the bound is not vacuous


def test_an_oracle_lies_under_theorem_51() -> None:
    """Its noise makes the corrected average one of fewer collaborators without bias."""
    for noise, eta in ((0.0, 0.02), (4.0, 0.02), (0.0, 0.5), (40.0, 0.5)):
        N, total = 20, SIGMA**2 / 20 + noise / 20
        alpha = float(theory.best_alpha(SIGMA**2, SIGMA**2 / N, noise / N))
        assert alpha == pytest.approx(N / (N + 1 + noise / SIGMA**2))
        rng = np.random.default_rng(1)
        x, losses = np.full(RUNS, START), []
        for _ in range(400):
            losses.append(0.5 * x**2)
            own, other = x + SIGMA * rng.normal(size=RUNS), x + np.sqrt(total) * rng.normal(size=RUNS)
            x = x - eta * ((1.0 - alpha) * own + alpha * other)
        mean, error = np.mean(losses, axis=1), np.std(losses, axis=1, ddof=1) / RUNS**0.5
        by = bc_bounds.oracle_descent(1.0, 1.0, alpha, SIGMA**2, SIGMA**2 / N, noise / N)
        most = by.bound(np.arange(400), eta, mean[0])
        assert np.all(mean - 3.0 * error <= most * (1 + 1e-12))
        assert most[-1] < 4.0 * mean[-1]


def test_correction_lies_under_theorem_52_and_the_sharper_bounds() -> None:
    settings = [
        (zeta, delta, alpha, eta, beta, c0)
        for zeta in (0.0, 10.0)
        for delta in (0.0, 0.05, 0.5)
        for alpha in (0.5, 20 / 21)
        for eta, beta in ((0.005, 0.1), (0.01, 0.02), (0.1, 0.6))
        for c0 in (0, 1)
    ]
    curves = [curve(*s[:5], c0=s[5]) for s in settings]
    means, lows = measured(curves)
    finite = np.zeros(3, dtype=int)
    for (_, delta, alpha, eta, beta, c0), made, mean, low in zip(settings, curves, means, lows, strict=True):
        by = Correction(1.0, 1.0, delta, alpha, eta, beta, SIGMA**2, SIGMA**2 / 20)
        gap = float((made.A1 @ (made.start - made.x1) - made.start)[0] ** 2)
        F, E, at = mean[0], float(bc_bounds.first_error("zero", gap, SIGMA**2, SIGMA**2 / 20)), T
        if c0:  # b_0 shares the first step's noise
            (F, E), at = (float(v) for v in after_own_step(by, F)), T[1:] - 1
        for i, bound in enumerate((theorem_bound, sharp_bound, recursion_bound)):
            most = bound(by, at, F, E)
            assert np.all(low[-len(at) :] <= most * (1 + 1e-12))
            finite[i] += bool(np.isfinite(most[-1]))
    assert np.all(finite >= [20, 40, 30])


def slope(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def test_noise_floors_are_proportional_to_the_step() -> None:
    """Alone, averaging without bias, and correction at delta = 0 with ``beta`` in proportion: slope 1 in eta."""
    etas = np.geomspace(1e-4, 1e-2, 5)
    for alpha, share in ((0.0, 0.0), (20 / 21, 0.0), (20 / 21, 0.05)):
        levels = np.array([exact.level(curve(0.0, 0.0, alpha, eta, share * eta)).loss for eta in etas])
        assert slope(etas, levels) == pytest.approx(1.0, abs=0.01)
    curves = [curve(0.0, 0.0, 20 / 21, eta, 0.0) for eta in (0.02, 0.2)]
    mean, _ = measured(curves)
    assert slope(np.array([0.02, 0.2]), mean[:, -1]) == pytest.approx(1.0, abs=0.15)
    by = wga_theory.descent(1.0, 1.0, 20 / 21, SIGMA**2, SIGMA**2 / 20, 0.0)
    assert slope(etas, by.level(etas)) == pytest.approx(1.0, abs=1e-12)


def test_the_floor_of_averaging_grows_with_the_square_of_the_bias() -> None:
    zetas = np.geomspace(1.0, 64.0, 7)
    levels = [exact.level(curve(z, 0.0, 10 / 11, 0.01, 0.0)) for z in zetas]
    assert slope(zetas, np.array([v.bias for v in levels])) == pytest.approx(2.0, abs=1e-9)
    for z, v in zip(zetas, levels, strict=True):
        by = wga_theory.descent(1.0, 1.0, 10 / 11, SIGMA**2, SIGMA**2 / 20, z**2)
        assert v.loss <= by.level(0.01) < 1.3 * v.loss


def test_the_floor_with_theorem_52s_beta_falls_as_eta_to_two_thirds() -> None:
    """The bound's does, where delta outweighs the noise; the loss itself is below, and falls at least as fast."""
    etas, alpha = np.geomspace(1e-9, 1e-6, 5), 20 / 21
    average = SIGMA**2 / 20
    betas = np.array([float(theory.best_beta(e, 0.5, alpha, SIGMA**2, average, T=np.inf)) for e in etas])
    assert slope(etas, betas) == pytest.approx(2 / 3, abs=1e-6)
    by = Correction(1.0, 1.0, 0.5, alpha, etas, betas, SIGMA**2, average)
    floors = theorem_bound(by, np.inf, 0.0, 0.0)
    assert slope(etas, floors) == pytest.approx(2 / 3, abs=0.01)
    levels = np.array([exact.level(curve(4.0, 0.5, alpha, e, b)).loss for e, b in zip(etas, betas, strict=True)])
    assert np.all(levels <= floors)
    assert slope(etas, levels) > 0.6


@pytest.mark.parametrize("alpha", [0.0, 20 / 21])
def test_the_decreasing_step_gains_one_over_t_without_logarithms(alpha: float) -> None:
    """Runs with C.2's step from t_0 on, where f_0 has curvatures 1 and 1/10, and nothing is biased."""
    by = wga_theory.descent(1.0, 0.1, alpha, SIGMA**2, SIGMA**2 / 20, 0.0)
    steps, rng, H = 20_000, np.random.default_rng(2), np.array([[1.0], [0.1]])
    stops = [0, 100, 1_000, 2_000, 5_000, 10_000, 20_000]
    etas, sd = by.decreasing_step(np.arange(steps)), np.sqrt(by.noise / 2.0)
    x, losses = np.full((2, RUNS), START), []
    for t in range(steps + 1):
        if t in stops:
            losses.append(0.5 * np.sum(H * x**2, axis=0))
        x = x - etas[min(t, steps - 1)] * (H * x + sd * rng.normal(size=x.shape))
    mean, error = np.mean(losses, axis=1), np.std(losses, axis=1, ddof=1) / RUNS**0.5
    assert np.all(mean - 3.0 * error <= by.decreasing_bound(np.array(stops), mean[0]) * (1 + 1e-12))
    assert slope(np.array(stops[3:]), mean[3:]) == pytest.approx(-1.0, abs=0.1)
    later = 1e9 * np.array([1.0, 10.0])
    assert slope(later, by.decreasing_bound(later, mean[0])) == pytest.approx(-1.0, abs=1e-3)


def test_tuned_bounds_are_kept_by_runs() -> None:
    """eta and beta that Corollary 5.3's comparison chooses, for a c_0 of many samples."""
    by = tuning.Setting(1.0, 1.0, SIGMA**2, SIGMA**2 / 20, 0.5 * START**2, 1e-3)
    best = tuning.tuned(by, 1_000, 0.02)
    alone = tuning.tuned(by, 1_000, 0.02, 0.0)
    made = curve(0.0, 0.02, 20 / 21, best.eta, best.beta)  # c_0 = 0, whose error is (0.02 START)^2
    assert best.bound < 0.5 * alone.bound
    assert exact.loss(made, [1_000])[0] <= best.bound


def test_the_experiment_draws_what_it_says() -> None:
    """004/bounds: no mean above a bound, and Theorem 5.2 repeated is below what working alone is promised."""
    made = bounds.run(Settings(quick=True))
    curves = made.numbers["curves"]
    assert all(c["under_every_bound"] for c in curves)
    assert all(np.all(np.isfinite(b)) for c in curves for b in c["bounds"].values())
    assert curves[-1]["bounds"]["(8) to (10), repeated"][-1] < made.numbers["alone"]["promised_level"]
    assert len(made.draw().axes) == 4
