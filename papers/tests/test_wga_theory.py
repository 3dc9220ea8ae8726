"""Theorem 4.1, C.2 and appendix B: the weights minimise what they should, and exact losses lie under every bound."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from coterie.errors import CoterieError
from coterie.methods.collaboration import theory
from coterie.numerics.arrays import over
from papers.paper_004 import wga_theory
from papers.paper_004.wga_theory import Descent, repeated
from papers.tests.random_quadratic import T, random_quadratic


def test_the_closed_alpha_is_where_the_derivative_vanishes() -> None:
    """For m = 0, by differentiating; and it is the paper's for equal collaborators."""
    rng = np.random.default_rng(0)
    s0, a, z = rng.exponential(size=(3, 500)) * 10.0 ** rng.uniform(-3, 3, (3, 500))
    alpha = wga_theory.best_alpha(s0, a, z)
    slope = -2.0 * (1.0 - alpha) * s0 + 2.0 * alpha * (a + z)
    assert np.all(np.abs(slope) <= 1e-14 * s0)
    L, mu, N, T_, zeta2, sigma2 = 3.0, 0.2, 7, 900.0, 0.04, 5.0
    scale = L / (mu * T_)
    paper = 1.0 / (1.0 + 1.0 / N + mu * zeta2 * T_ / (L * sigma2))
    assert wga_theory.best_alpha(scale * sigma2, scale * sigma2 / N, zeta2) == pytest.approx(paper, rel=1e-14)
    assert wga_theory.best_alpha(1.0, 1.0 / N, 0.0) == pytest.approx(N / (N + 1), rel=1e-14)
    assert wga_theory.best_alpha(0.0, 0.0, 0.0) == 0.0


@pytest.mark.parametrize("m", [1e-6, 0.3, 1.0, 2.0, 40.0, 1e8, 1e20])
def test_the_numerical_alpha_is_the_minimum_however_small_the_interval(m: float) -> None:
    rng = np.random.default_rng(1)
    high = min(1.0, m**-0.5)
    for _ in range(60):
        s0, a, z = rng.exponential(size=3) * 10.0 ** rng.uniform(-3, 3, 3)
        alpha = float(wga_theory.best_alpha(s0, a, z, m))
        assert 0.0 < alpha < high
        grid = high * np.linspace(0.0, 1.0, 4_001)[:-1]
        values = wga_theory.bound(grid, s0, a, z, m)
        assert wga_theory.bound(alpha, s0, a, z, m) <= values.min() * (1 + 1e-12)
        falls = np.diff(values) < -1e-12 * values[1:]
        assert not np.any(falls[1:] & ~falls[:-1] & (np.diff(values)[:-1] > 1e-12 * values[1:-1]))  # one valley
    assert wga_theory.best_alpha(1.0, 0.0, 0.0, m) <= high


def test_alpha_and_tau_together_are_as_good_as_a_grid() -> None:
    rng = np.random.default_rng(2)
    for _ in range(80):
        n, m, scale = int(rng.integers(1, 8)), 10.0 ** rng.uniform(-2, 3), 10.0 ** rng.uniform(-2, 1)
        noise, bias = rng.exponential(size=(2, n)) * 10.0 ** rng.uniform(-3, 1.5, (2, n))
        chosen = wga_theory.best_weights(1.0, noise, bias, [0, n], scale, m)
        grid = min(1.0, m**-0.5) * np.linspace(0.0, 1.0, 1_001)[:-1]
        starts = np.arange(len(grid) + 1) * n
        tau = wga_theory.best_tau(np.tile(noise, 1_000), np.tile(bias, 1_000), starts, scale, 1.0 - grid**2 * m)
        tau = tau.reshape(-1, n)
        values = wga_theory.bound(grid, scale, scale * (tau**2 @ noise), tau @ bias, m)
        assert scale / chosen.speedup[0] <= values.min() * (1 + 1e-9)
        assert chosen.speedup[0] >= 1.0


def test_many_main_clients_at_once_are_as_one_by_one() -> None:
    rng = np.random.default_rng(3)
    counts = np.array([3, 0, 1, 5])
    starts = np.concatenate([[0], np.cumsum(counts)])
    noise, bias = rng.exponential(size=(2, 9))
    noise0, scale = rng.exponential(size=4), rng.exponential(size=4)
    for m in (np.zeros(4), np.array([0.0, 0.5, 3.0, 90.0])):
        found = wga_theory.best_weights(noise0, noise, bias, starts, scale, m)
        assert found.alpha[1] == 0.0
        assert found.speedup[1] == 1.0
        for i in (0, 2, 3):
            on = slice(starts[i], starts[i + 1])
            one = wga_theory.best_weights(noise0[i], noise[on], bias[on], [0, counts[i]], scale[i], m[i])
            np.testing.assert_allclose(found.tau[on], one.tau, rtol=1e-12)
            np.testing.assert_allclose(found.alpha[i], one.alpha[0], rtol=1e-12)
    free = wga_theory.best_weights(noise0, noise, bias, starts, scale)
    np.testing.assert_allclose(free.speedup, 1.0 / (1.0 - free.alpha), rtol=1e-12)
    endless = wga_theory.best_tau(noise, bias, starts, 0.0)
    assert set(endless) <= {0.0, 1.0}


def test_exact_losses_lie_under_theorem_41() -> None:
    """(5) itself, its decreasing step, and the non-convex bound, with m > 0."""
    rng, tried = np.random.default_rng(4), 0
    for _ in range(60):
        f = random_quadratic(rng)
        alpha, (m, zeta2) = rng.uniform(0, 1), f.similarity(10.0 ** rng.uniform(-1, 1))
        if alpha**2 * m >= 0.95:
            continue
        by = wga_theory.descent(f.smooth, f.mu, alpha, *f.noise, zeta2, m)
        F0, eta = f.losses([0])[0], float(by.most) * 10.0 ** rng.uniform(-2, 0)
        exact = f.losses(alpha=alpha, beta=0.0, eta=eta)
        assert np.all(exact <= by.bound(T, eta, F0) * (1 + 1e-9))
        assert by.bound(1e15, eta, F0) == pytest.approx(by.level(eta))
        tried += 1
    assert tried > 20


def moments(f, alpha, etas, noise_growth=0.0):
    """Expected losses and squared gradients with any steps; noise may grow with the main client's gradient."""
    c, d = f.curve, len(f.curve.x0)
    H, z = c.A0 + alpha * (c.A1 - c.A0), alpha * c.A1 @ (c.x1 - c.x0)
    M, r = np.outer(c.start, c.start), c.start.copy()
    V = ((1 - alpha) ** 2 + alpha**2 / c.N) * c.sigma**2 * np.eye(d)
    losses, squares = [], []
    for eta in etas:
        losses.append(0.5 * np.sum(c.A0 * M))
        squares.append(np.sum((c.A0 @ c.A0) * M))
        B, b = np.eye(d) - eta * H, eta * z
        grown = (1 - alpha) ** 2 * noise_growth * squares[-1] / d * np.eye(d)
        M = B @ M @ B.T + np.outer(B @ r, b) + np.outer(b, B @ r) + np.outer(b, b) + eta**2 * (V + grown)
        r = B @ r + b
    return np.array(losses), np.array(squares)


def test_the_decreasing_step_a_schedule_and_growing_noise_lie_under_their_bounds() -> None:
    rng, steps, tried = np.random.default_rng(5), 1_000, 0
    t = np.arange(steps)
    for i in range(16):
        f = random_quadratic(rng)
        alpha, (m, zeta2), M0 = rng.uniform(0, 1), f.similarity(1.0), (0.0, 3.0)[i % 2]
        if alpha**2 * m >= 0.9:
            continue
        by = wga_theory.descent(f.smooth, f.mu, alpha, *f.noise, zeta2, m, wga_theory.growth(alpha, M0, 0.0, m))
        etas = by.decreasing_step(t)
        assert np.all(etas <= by.most)
        exact, squares = moments(f, alpha, etas, M0)
        scheduled = by.scheduled_bound(etas[:-1], exact[0])
        assert np.all(exact <= scheduled * (1 + 1e-9))
        assert np.all(scheduled <= by.decreasing_bound(t, exact[0]) * (1 + 1e-9))
        exact, squares = moments(f, alpha, np.full(steps, by.most), M0)
        assert np.all(exact <= by.bound(t, by.most, exact[0]) * (1 + 1e-9))
        assert squares.mean() <= by.nonconvex_bound(steps, by.most, exact[0]) * (1 + 1e-9)
        tried += 1
    assert tried > 5


def test_t_0_is_the_first_step_that_is_small_enough() -> None:
    rng = np.random.default_rng(6)
    for _ in range(200):
        by = Descent(1.0, 10.0 ** rng.uniform(-3, 0), 1.0, 0.0, rng.uniform(0.1, 1), rng.choice([0.0, 2.0]))
        t0, t = int(by.switch), np.arange(int(by.switch) + 2)
        free = (2.0 * t + 1.0) / (by.pull * (t + 1.0) ** 2)
        assert np.all(free[t0:] <= by.most * (1 + 1e-9))
        assert np.all(free[:t0] > by.most * (1 - 1e-9))
    assert Descent(2.0, 2.0, 1.0).switch == 0


def test_the_constant_step_minimises_the_bound_and_is_never_zero() -> None:
    rng = np.random.default_rng(7)
    for _ in range(50):
        by = Descent(1.0, 10.0 ** rng.uniform(-2, 0), 10.0 ** rng.uniform(-3, 3), 0.0, rng.uniform(0.2, 1))
        F0, steps = rng.exponential(), 10.0 ** rng.uniform(1, 6)
        eta = float(by.step(steps, F0))
        assert 0.0 < eta <= by.most
        best = minimize_scalar(
            lambda u, by=by, F0=F0, n=steps: float(by.bound(n, np.exp(u), F0)),
            bounds=(np.log(1e-9), np.log(by.most * (1 - 1e-9))),
            method="bounded",
            options={"xatol": 1e-6},
        )
        if 2.0 * by.pull**2 * F0 * steps > 100.0 * by.noise:
            assert by.bound(steps, eta, F0) <= 1.05 * best.fun
        best = minimize_scalar(
            lambda u, by=by, F0=F0, n=steps: float(by.nonconvex_bound(n, np.exp(u), F0)),
            bounds=(np.log(1e-9), np.log(by.most * (1 - 1e-9))),
            method="bounded",
        )
        found = by.nonconvex_bound(steps, by.nonconvex_step(steps, F0), F0)
        assert found <= best.fun * (1 + 1e-6)
    assert Descent(1.0, 0.1, 1e9).step(10, 1e-9) > 0.0  # max(1, .) would give 0
    assert Descent(4.0, 0.1, 0.0).step(10, 1.0) == 0.25


def test_appendix_b_bounds_the_noise() -> None:
    """Gradients at random, as far from the main client's as A4 allows."""
    rng = np.random.default_rng(8)
    for _ in range(300):
        N, m, alpha = 4, rng.exponential(), rng.uniform()
        G0, tau = rng.normal(size=3) * 10.0 ** rng.uniform(-2, 2), rng.dirichlet(np.ones(N))
        sigma2, M, zeta2 = rng.exponential(size=(3, N + 1))
        off = rng.normal(size=(N, 3))
        off *= (np.sqrt(m * G0 @ G0 + zeta2[1:]) / np.linalg.norm(off, axis=1))[:, None]
        noise = M[1:] * np.sum((G0 + off) ** 2, axis=1) + sigma2[1:]
        seen = (1 - alpha) ** 2 * (M[0] * G0 @ G0 + sigma2[0]) + alpha**2 * np.sum(tau**2 * noise)
        quiet = wga_theory.collaborator_noise(sigma2[1:], M[1:], zeta2[1:])
        average, growth = (wga_theory.sums(tau**2 * v, [0, N])[0] for v in (quiet, M[1:]))
        grows = wga_theory.growth(alpha, M[0], growth, m)
        assert seen <= (grows * G0 @ G0 + theory.variance(alpha, sigma2[0], average)) * (1 + 1e-12)
        assert grows <= wga_theory.growth_at_most(M[0], growth, m)
    by = wga_theory.descent(2.0, 0.1, 0.5, 1.0, 0.1, 0.3, m=1.0, M=5.0)
    assert by.most == pytest.approx(0.75 / 20.0)
    assert (by.c, wga_theory.descent(2.0, 0.1, 0.5, 1.0, 0.1, 0.3).c) == (4.0, 2.0)


def test_recursions_in_closed_form() -> None:
    value = 3.0
    for t in range(30):
        assert repeated(0.2, 0.7, t, 3.0) == pytest.approx(value)
        value = 0.8 * value + 0.7
    np.testing.assert_array_equal(repeated(np.array([0.0, 1.0]), 2.0, 5, 3.0), [13.0, 2.0])
    np.testing.assert_array_equal(over(np.array([0.0, 1.0]), np.zeros(2)), [0.0, np.inf])


def test_where_nothing_is_promised_bounds_are_infinite() -> None:
    by = Descent(1.0, 0.1, 1.0)
    np.testing.assert_array_equal(np.isinf(by.bound(3, np.array([0.5, 1.0, 1.5]), 1.0)), [False, False, True])
    np.testing.assert_array_equal(
        np.isinf(by.scheduled_bound(np.array([0.5, 1.5, 0.5]), 1.0)), [False, False, True, True]
    )
    assert np.isinf(by.level(1.5)) and np.isinf(by.nonconvex_bound(3, 1.5, 1.0)) and np.isfinite(by.level(1.0))
    for growth in (0.0, 1.0):
        none = wga_theory.descent(1.0, 0.1, 0.5, 1.0, 1.0, 1.0, m=4.0, M=growth)  # alpha is 1 / sqrt(m)
        for found in (none.bound(3, 0.1, 1.0), none.level(0.1), none.nonconvex_bound(3, 0.1, 1.0)):
            assert np.isposinf(found)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: wga_theory.descent(1.0, 0.1, 1.5, 1.0, 1.0, 1.0), "between 0 and 1"),
        (lambda: Descent(1.0, 0.1, 1.0).bound(3, 0.0, 1.0), "above 0"),
        (lambda: Descent(1.0, 0.0, 1.0).decreasing_step(3), "mu > 0"),
    ],
)
def test_what_cannot_be_is_refused(call, words: str) -> None:
    with pytest.raises(CoterieError, match=words):
        call()
