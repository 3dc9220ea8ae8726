"""Theorems 5.1 and 5.2, C.3, C.4: exact losses lie under every bound, printed conditions fail, choices are minima."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.methods.collaboration import theory
from coterie.methods.collaboration.theory import variance
from papers.paper_004 import bc_bounds, recursion
from papers.paper_004.bc_bounds import Correction
from papers.paper_004.exact import noises, transition
from papers.paper_004.noisy_quadratic import Curve
from papers.tests.random_quadratic import T, random_quadratic


def chosen(rng, f):
    """Step sizes and weights of all kinds, also those for which some proof does not hold."""
    alpha = float(rng.choice([0.0, 0.1, 0.5, 1.0, f.curve.N / (f.curve.N + 1)]))
    eta = float(theory.largest_step(f.smooth, alpha, f.delta)) * float(rng.choice([1.0, 10.0 ** rng.uniform(-2, 0)]))
    least = float(theory.least_beta(eta, f.delta, alpha))
    best = float(theory.best_beta(eta, f.delta, alpha, *f.noise))
    near = float(np.clip(least * 10.0 ** rng.uniform(-1, 1), 1e-6, 1.0))
    return {"alpha": alpha, "eta": eta, "beta": float(rng.choice([1.0, near, best]))}


def test_exact_losses_lie_under_every_bound() -> None:
    rng, finite = np.random.default_rng(0), np.zeros(3, dtype=int)
    for _ in range(60):
        f = random_quadratic(rng)
        by = Correction(f.smooth, f.mu, f.delta, **(at := chosen(rng, f)), noise0=f.noise[0], average=f.noise[1])
        exact, E0 = f.losses(**at), bc_bounds.first_error("zero", f.gap, *f.noise)
        for i, bound in enumerate((bc_bounds.theorem_bound, bc_bounds.sharp_bound, recursion.recursion_bound)):
            most = bound(by, T, exact[0], float(E0))
            assert np.all(exact <= most * (1 + 1e-9))
            finite[i] += bool(np.isfinite(most).all())
        exact, (F1, e1) = f.losses(**at, c0=1), recursion.after_own_step(by, exact[0])
        for bound in (bc_bounds.sharp_bound, recursion.recursion_bound):
            assert np.all(exact[1:] <= bound(by, T[1:] - 1, float(F1), float(e1)) * (1 + 1e-9))
    assert np.all(finite > 20)


def test_exact_losses_lie_under_theorem_51() -> None:
    """An oracle with noise is one collaborator without bias, and with more noise."""
    rng = np.random.default_rng(1)
    for _ in range(40):
        f = random_quadratic(rng)
        own, average = f.noise
        alpha = float(theory.best_alpha(own, average, average))  # an oracle as noisy as the average
        by = bc_bounds.oracle_descent(f.smooth, f.mu, alpha, own, average, average)
        eta = float(by.most) * 10.0 ** rng.uniform(-2, 0)
        exact = f.losses(A1=f.curve.A0, x1=f.curve.x0, N=f.curve.N / 2, alpha=alpha, beta=0.0, eta=eta)
        assert np.all(exact <= by.bound(T, eta, exact[0]) * (1 + 1e-9))


def squares(f, at, steps):
    """Expected ``|grad f_0(x_t)|^2`` (steps,) of BC with c_0 = 0."""
    curve, d = replace(f.curve, **at), len(f.curve.x0)
    F, Q, v = transition(curve), noises(curve)[1], np.concatenate([curve.start, np.zeros(d), [1.0]])
    M, out = np.outer(v, v), []
    for _ in range(steps):
        out.append(np.sum((curve.A0 @ curve.A0) * M[:d, :d]))
        M = F @ M @ F.T + Q
    return np.array(out)


def test_mean_squared_gradients_lie_under_the_non_convex_bounds() -> None:
    rng, steps = np.random.default_rng(2), 400
    t = np.arange(1, steps + 1)
    for _ in range(20):
        f = random_quadratic(rng)
        by = Correction(f.smooth, 0.0, f.delta, **(at := chosen(rng, f)), noise0=f.noise[0], average=f.noise[1])
        seen, F0 = np.cumsum(squares(f, at, steps)) / t, f.losses([0])[0]
        for bound in (bc_bounds.theorem_nonconvex_bound, bc_bounds.sharp_nonconvex_bound):
            assert np.all(seen <= bound(by, t, F0, f.gap) * (1 + 1e-9))


def test_inequality_11_and_12_are_what_8_9_10_add_up_to() -> None:
    """The coefficients of E, Delta and G in C.4's potential, wherever its conditions hold."""
    rng = np.random.default_rng(3)
    for _ in range(2_000):
        alpha, beta, mu = rng.uniform(0.01, 1.0), 10.0 ** rng.uniform(-4, 0), 1.0
        eta = 10.0 ** rng.uniform(-4, 0) * 0.7
        delta = beta / (120.0**0.5 * alpha * eta) * rng.uniform(0.0, 1.0) ** 0.1
        x, e, k = (alpha * delta * eta) ** 2, 2 * alpha**2 * eta / beta, 10 * alpha**2 * delta**2 * eta / beta**2
        rate = min(0.5 * mu * eta, 0.375 * beta)
        E = alpha**2 * eta - e * beta + k * 3 * eta**2 * alpha**2
        Delta = alpha**2 * delta**2 * eta + e * 2 * delta**2 / beta - k + 3 * k * x
        assert -rate * e * (1 - 1e-12) >= E
        assert Delta <= -rate * k * (1 - 1e-12)
        assert -0.5 * eta + 3 * k * eta**2 <= -0.25 * eta * (1 - 1e-12)
        weight, noise, found, never = Correction(mu, mu, delta, alpha, eta, beta, 2.0, 0.5).printed()
        spread = variance(alpha, 2.0, 0.5)
        by_hand = 0.5 * eta**2 * spread + k * eta**2 * spread + e * beta**2 * 2.5
        np.testing.assert_allclose([weight, noise, found, never], [e, by_hand, rate, 0.0], rtol=1e-12)


def diverges(a0, a1, eta, alpha, beta, N=10) -> bool:
    F = transition(Curve(a0, a1, 0.0, 1.0, 1.0, N, eta, alpha, beta, 1.0))[:-1, :-1]
    return bool(np.abs(np.linalg.eigvals(F)).max() > 1.0)


def test_the_printed_condition_is_not_enough() -> None:
    """Theorem 5.2 promises a bound, and the loss grows: in small units ``1 / (6 alpha^2 delta^2)`` forbids nothing.

    Neither does ``1 / (6 alpha delta)`` do, with many collaborators: C.4's beta falls with ``sigma^2(alpha)``.
    """
    L, N = 0.01, 1_000
    alpha, own = N / (N + 1), (1.0, 1.0 / N)
    eta, delta = 1.0 / L, 2.0 * L
    assert 6.0 * alpha**2 * delta**2 * eta <= 1.0
    beta = min(1.0, (10.0 * delta**2 * variance(alpha, *own) / sum(own)) ** (1 / 3) * eta ** (2 / 3))
    assert diverges(L, L + delta, eta, alpha, beta, N)
    a0, delta, N = 0.05, 1.0, 10_000
    alpha, own = N / (N + 1), (1.0, 1.0 / N)
    eta = 1.0 / (6.0 * alpha * delta)
    beta = (10.0 * (delta * eta) ** 2 * variance(alpha, *own) / sum(own)) ** (1 / 3)
    assert beta < eta * (alpha * delta - a0)
    assert diverges(a0, a0 - delta, eta, alpha, beta, N)
    assert not diverges(a0, a0 - delta, eta, alpha, float(theory.least_beta(eta, delta, alpha)), N)


def test_below_the_largest_step_some_beta_is_promised_something() -> None:
    rng = np.random.default_rng(4)
    for _ in range(300):
        L, alpha = 10.0 ** rng.uniform(-3, 3), rng.uniform(0, 1)
        delta = 2.0 * L * rng.uniform()
        eta = float(theory.largest_step(L, alpha, delta)) * rng.choice([1.0, rng.uniform(0.01, 1.0)])
        least = float(theory.least_beta(eta, delta, alpha))
        assert least <= 1.0 + 1e-12
        assert least**2 == pytest.approx(4 * (1 + least) * (alpha * delta * eta) ** 2)
        best = float(theory.best_beta(eta, delta, alpha, 1.0, 0.1))
        for beta in (max(least, 1e-9), best, 1.0):
            by = Correction(L, 0.1 * L, delta, alpha, eta, min(beta, 1.0), 1.0, 0.1)
            assert np.isfinite(bc_bounds.sharp_bound(by, 100, 1.0, 1.0))


def test_beta_minimises_its_part_of_the_bound() -> None:
    rng = np.random.default_rng(5)
    grid = np.geomspace(1e-7, 1.0, 20_001)
    for _ in range(100):
        N, alpha, own = int(rng.integers(1, 100)), rng.uniform(0.1, 1.0), 10.0 ** rng.uniform(-2, 2)
        average, eta, delta = own / N, 10.0 ** rng.uniform(-6, -3), 10.0 ** rng.uniform(-3, 0)
        steps, E0 = 10.0 ** rng.uniform(2, 8), own * 10.0 ** rng.uniform(-2, 2)
        S, spread = own + average, variance(alpha, own, average)
        for horizon in (steps, np.inf):
            value = grid * S + 5.0 * (delta * eta) ** 2 * spread / grid**2 + E0 / (grid * horizon)
            least = float(theory.least_beta(eta, delta, alpha))
            beta = float(theory.best_beta(eta, delta, alpha, own, average, horizon, E0))
            assert beta == pytest.approx(max(grid[np.argmin(value)], least), rel=2e-3)
        C4 = min(1.0, (10.0 * delta**2 * spread / S) ** (1 / 3) * eta ** (2 / 3))
        assert beta == pytest.approx(max(C4, least), rel=1e-12)
        floor = 4.0 * alpha**2 * S * C4 + 20.0 * alpha**2 * (delta * eta) ** 2 * spread / C4**2
        assert floor == pytest.approx(
            6.0 * 10 ** (1 / 3) * alpha**2 * S ** (2 / 3) * spread ** (1 / 3) * (delta * eta) ** (2 / 3)
        )
    assert theory.best_beta(1e-3, 0.0, 0.9, 4.0, 0.4, T=2_500.0) == pytest.approx(0.02)
    assert theory.best_beta(1e-3, 1.0, 0.9, 0.0, 0.0) == 1.0
    many = theory.best_beta(
        np.full(3, 1e-3), np.array([0.0, 0.1, 1.0]), np.array([0.0, 0.5, 0.9]), np.ones(3), np.ones(3)
    )
    assert np.all((many > 0.0) & (many <= 1.0))


def test_alpha_and_tau_are_dictated_by_the_variance() -> None:
    N, v2, own = 12, 3.0, 2.0
    assert theory.best_alpha(own, own / N, v2 / N) == pytest.approx(N / (N + 1 + v2 / own), rel=1e-14)
    assert variance(theory.best_alpha(own, own / N, v2 / N), own, (own + v2) / N) == pytest.approx(
        own * (1 + v2 / own) / (N + 1 + v2 / own)
    )
    np.testing.assert_array_equal(theory.best_alpha(np.array([0.0, 0.0, 1.0]), np.array([0.0, 1.0, 0.0])), [0, 0, 1])
    rng = np.random.default_rng(6)
    noise = rng.exponential(size=5)
    tau = theory.best_tau(noise, np.array([0, 3, 5]))
    np.testing.assert_allclose(tau[:3], (1 / noise[:3]) / np.sum(1 / noise[:3]), rtol=1e-13)
    assert np.sum(tau[:3] ** 2 * noise[:3]) <= noise[:3].sum() / 9
    np.testing.assert_array_equal(theory.best_tau(np.array([0.0, 1.0, 0.0]), np.array([0, 3])), [0.5, 0.0, 0.5])


def test_where_it_begins() -> None:
    assert bc_bounds.first_error("zero", 3.0, 1.0, 0.5) == 3.0
    assert bc_bounds.first_error("sample", 3.0, 1.0, 0.5) == 1.5
    assert bc_bounds.first_error(4, 3.0, 1.0, 0.5) == 0.375
    for wrong in ("one", 0, True, 1.5):
        with pytest.raises(CoterieError, match="number of samples"):
            bc_bounds.first_error(wrong, 3.0, 1.0, 0.5)
    rng = np.random.default_rng(7)
    for _ in range(100):  # with c_0 = 0, the first move without its noise
        m, zeta2, alpha, g = rng.exponential(), rng.exponential(), rng.uniform(), rng.normal(size=3)
        b = rng.normal(size=3)
        b *= np.sqrt(m * g @ g + zeta2) / np.linalg.norm(b)
        assert np.sum((g + alpha * b) ** 2) <= recursion.first_move(g @ g, zeta2, m)


def test_without_collaborators_or_beyond_their_conditions_bounds_say_so() -> None:
    alone = Correction(2.0, 0.1, 3.0, 0.0, 0.2, 1e-3, 1.0, 0.1)
    t = np.arange(50)
    np.testing.assert_allclose(
        bc_bounds.sharp_bound(alone, t, 5.0, 9.0),
        bc_bounds.oracle_descent(2.0, 0.1, 0.0, 1.0, 0.0).bound(t, 0.2, 5.0),
        rtol=1e-12,
    )
    far = Correction(2.0, 0.1, 3.0, 1.0, 0.2, 1e-3, 1.0, 0.1)
    assert np.isinf(bc_bounds.sharp_bound(far, 5, 1.0, 1.0))
    assert np.isinf(bc_bounds.theorem_bound(far, 5, 1.0, 1.0))
    assert recursion.recursion_bound(far, [0, 5], 1.0, 1.0)[0] == 1.0
    assert np.isinf(recursion.recursion_bound(far, 100_000, 1.0, 1.0)[0])
    steep = Correction(2.0, 0.1, 0.0, 1.0, 0.6, 1.0, 1.0, 0.1)
    assert np.isinf(recursion.recursion_bound(steep, 5, 1.0, 1.0)[0])
