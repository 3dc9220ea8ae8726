"""The noisy quadratic of section 6 (Linear speedup in personalized collaborative learning), and Figures 1 to 6.

Simulated means are held against expectations written out here from the pseudo-code, apart from the package's: means
and covariances of x and c, step by step. Seeds are fixed; what they would do by chance is said where it matters.
"""

import json

import numpy as np
import pytest

from coterie import CoterieError
from papers import outcome
from papers.paper_004 import exact, figure1, figure2, figure3, figure4, figure5, figure6
from papers.paper_004.noisy_quadratic import Curve, average, simulate
from papers.paper_004.wga_theory import best_alpha, bound

SIGMA, ETA, BETA, N = 10.0, 5e-4, 1e-4, 10
WEIGHTS = {
    "Alone": (0.0, 0.0),
    **{f"{m}, alpha = {a:.3g}": (a, b) for a in (N / (N + 1), 0.5) for m, b in (("WGA", 0.0), ("BC", BETA))},
}


class Moments:
    """Means and covariances of (x, c) for curves of one dimension side by side, from c_0 = 0."""

    def __init__(self, curves):
        def column(name):
            return np.array([getattr(c, name) for c in curves], dtype=float).reshape(len(curves), -1, 1)

        self.A0, self.A1 = np.stack([c.A0 for c in curves]), np.stack([c.A1 for c in curves])
        self.x0, self.x1, self.x = column("x0"), column("x1"), column("start")
        self.eta, self.alpha, self.beta = column("eta"), column("alpha"), column("beta")
        self.s0, self.s1 = column("sigma") ** 2, column("sigma") ** 2 / column("N")
        self.c = np.zeros_like(self.x)
        self.xx, self.xc, self.cc = np.zeros((3, *self.A0.shape))
        eye = np.eye(len(self.A0[0]))
        self.R = eye - self.eta * ((1 - self.alpha) * self.A0 + self.alpha * self.A1)
        self.D = self.A1 - self.A0
        self.noise_xx = self.eta**2 * ((1 - self.alpha) ** 2 * self.s0 + self.alpha**2 * self.s1) * eye
        self.noise_xc = -self.eta * self.beta * (self.alpha * self.s1 - (1 - self.alpha) * self.s0) * eye
        self.noise_cc = self.beta**2 * (self.s0 + self.s1) * eye

    def loss(self):
        e = self.x - self.x0
        return 0.5 * np.sum(self.A0 * (self.xx + e * e.transpose(0, 2, 1)), axis=(1, 2))

    def means(self):
        g0, g1 = self.A0 @ (self.x - self.x0), self.A1 @ (self.x - self.x1)
        x = self.x - self.eta * ((1 - self.alpha) * g0 + self.alpha * (g1 - self.c))
        self.x, self.c = x, (1 - self.beta) * self.c + self.beta * (g1 - g0)

    def covariances(self):
        """x' = R x + h c + noise, c' = beta D x + k c + noise."""
        R, bD, h, k = self.R, self.beta * self.D, self.eta * self.alpha, 1 - self.beta
        x_next_x, x_next_c = R @ self.xx + h * self.xc.transpose(0, 2, 1), R @ self.xc + h * self.cc
        c_next_x, c_next_c = bD @ self.xx + k * self.xc.transpose(0, 2, 1), bD @ self.xc + k * self.cc
        self.xx = x_next_x @ R.transpose(0, 2, 1) + h * x_next_c + self.noise_xx
        self.xc = x_next_x @ bD.transpose(0, 2, 1) + k * x_next_c + self.noise_xc
        self.cc = c_next_x @ bD.transpose(0, 2, 1) + k * c_next_c + self.noise_cc


def expected(curves, times):
    """Expected losses (curves, s) at rising times."""
    at, out = Moments(curves), []
    for t in range(times[-1] + 1):
        if t in times:
            out.append(at.loss())
        at.means()
        at.covariances()
    return np.array(out).T


def settled(curve):
    """The loss that the spread of x adds in the end, d = 1: the recursion's fixed point from its action on a basis."""
    images = []
    for values in (*np.eye(3), np.zeros(3)):
        at = Moments([curve])
        at.xx[:], at.xc[:], at.cc[:] = values
        at.covariances()
        images.append([at.xx.item(), at.xc.item(), at.cc.item()])
    *columns, constant = np.array(images)
    on = slice(0, 1 if curve.beta == 0 else 3)
    A = np.stack(columns, axis=1) - constant[:, None]
    return 0.5 * curve.A0.item() * np.linalg.solve((np.eye(3) - A)[on, on], constant[on])[0]


def one(alpha, beta, *, zeta=4.0, a1=2.0, N=N, eta=ETA, start=1.0, c0=0):
    return Curve(1.0, a1, 0.0, zeta / a1, SIGMA, N, eta, alpha, beta, start, c0)


def five():
    """delta = 1 and zeta = 4 in five dimensions; the Hessians do not commute."""
    rng = np.random.default_rng(4)
    turns = np.linalg.qr(rng.normal(size=(2, 5, 5)))[0]
    A0 = turns[0] @ np.diag([1.0, 1.5, 2.0, 3.0, 4.0]) @ turns[0].T
    D = turns[1] @ np.diag([1.0, 0.5, -0.3, 0.2, -0.8]) @ turns[1].T
    A0, A1 = (A0 + A0.T) / 2, (A0 + D + (A0 + D).T) / 2
    toward = rng.normal(size=5)
    x1 = np.linalg.solve(A1, 4.0 * toward / np.linalg.norm(toward))
    assert np.abs(A0 @ A1 - A1 @ A0).max() > 0.1
    return [Curve(A0, A1, np.zeros(5), x1, SIGMA, N, ETA, a, b, x1 / 2) for a, b in WEIGHTS.values()]


LONG = (1_000, 10_000, 100_000)


@pytest.mark.parametrize(
    ("d", "times"), [(1, (300, 3_000, 20_000)), *(pytest.param(d, LONG, marks=pytest.mark.soak) for d in (1, 5))]
)
def test_simulated_means_are_the_expectations(d, times):
    curves = five() if d == 5 else [one(a, b) for a, b in WEIGHTS.values()]
    assert curves[0].zeta == pytest.approx(4.0) and curves[0].delta == pytest.approx(1.0)
    theirs = expected(curves, times)
    np.testing.assert_allclose([exact.loss(c, times) for c in curves], theirs, rtol=1e-9)
    mean, error = average(simulate(curves, times, runs=1_000, seed=0))
    z = (mean - theirs) / error
    assert np.abs(z).max() < 3.0, dict(zip(WEIGHTS, z.round(2).tolist(), strict=True))


@pytest.mark.parametrize("c0", [1, 6])
@pytest.mark.parametrize("alpha", [N / (N + 1), 0.5])
def test_an_observed_first_bias_enters_the_expectation(c0, alpha):
    """A large beta and step, so that the noise which c_0 shares with the first step shows at once."""
    curve, times = one(alpha, 0.3, eta=0.2, c0=c0), [1, 2, 3, 5, 9]
    mean, error = average(simulate([curve], times, runs=100_000, seed=1))
    z = (mean[0] - exact.loss(curve, times)) / error[0]
    assert np.abs(z).max() < 3.0, z


def test_with_the_first_sample_the_first_step_is_one_of_alone():
    curves = one(0.5, 0.3, c0=1), one(0.0, 0.0)
    np.testing.assert_allclose(*simulate(curves, [0, 1], runs=5), rtol=1e-12)
    np.testing.assert_allclose(*(exact.loss(c, [0, 1]) for c in curves), rtol=1e-12)


def test_every_step_of_the_expectation_and_any_choice_of_steps():
    curves, times = five(), list(range(40))
    theirs = expected(curves, times)
    np.testing.assert_allclose([exact.loss(c, times) for c in curves], theirs, rtol=1e-11)
    np.testing.assert_allclose([exact.loss(c, [0, 1, 38]) for c in curves], theirs[:, [0, 1, 38]], rtol=1e-11)


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
def test_the_lyapunov_level_is_the_fixed_point_and_the_end_of_the_expectation(weights):
    curve = one(*weights)
    level = exact.level(curve)
    assert level.noise == pytest.approx(settled(curve), rel=1e-8)
    alpha, beta = weights
    limit = 0.0 if beta or not alpha else alpha * 4.0 / (1.0 - alpha + alpha * 2.0)
    assert level.bias == pytest.approx(0.5 * limit**2, rel=1e-9, abs=1e-20)
    assert exact.loss(curve, [10_000_000])[0] == pytest.approx(level.loss, rel=1e-7)


ZETAS = (1.0, 4.0, 16.0, 64.0)


@pytest.mark.parametrize(("zetas", "runs"), [(ZETAS[::3], 60), pytest.param(ZETAS, 1_000, marks=pytest.mark.soak)])
def test_bias_correction_ends_at_one_level_whatever_zeta(zetas, runs):
    """Own noise for each zeta, from x_1* with c_0 = 0; what is left of the start after 200,000 steps is below .1%."""
    curves = [one(N / (N + 1), BETA, zeta=z, start=z / 2.0) for z in zetas]
    level = settled(curves[0])
    ends = []
    for seed, curve in enumerate(curves):
        assert exact.level(curve).loss == pytest.approx(level, rel=1e-8)
        assert exact.loss(curve, [200_000])[0] == pytest.approx(level, rel=1e-3)
        mean, error = average(simulate([curve], [200_000], runs=runs, seed=seed))
        ends.append((mean.item(), error.item()))
    mean, error = np.array(ends).T
    assert np.abs(mean - level).max() < 3.0 * error.min(), (mean / level, error / level)
    assert np.ptp(mean) < 3.0 * 2**0.5 * error.max()


def test_weighted_averaging_ends_with_the_square_of_zeta():
    """alpha = 10/11, from x_1*; after 20,000 steps nothing is left of the start."""
    curves = [one(10 / 11, 0.0, zeta=z, start=z / 2.0) for z in ZETAS]
    floor = settled(curves[0])
    mean, _ = average(simulate(curves, [20_000], runs=1_000, seed=2))
    slope = np.polyfit(np.log(ZETAS), np.log(mean[:, 0] - floor), 1)[0]
    assert slope == pytest.approx(2.0, abs=0.02)
    np.testing.assert_allclose(mean[:, 0], [exact.level(c).loss for c in curves], rtol=0.02)


@pytest.mark.soak("2500-0.028")
@pytest.mark.parametrize(("runs", "error"), [(2_500, 0.028), pytest.param(10_000, 0.014, marks=pytest.mark.soak)])
def test_speedup_is_linear_at_delta_zero_where_the_average_is_long(runs, error):
    """Levels are held to 3.5 of their standard errors.

    c takes 1 / beta steps to settle, up to 2e8, so it begins settled: at delta = 0 its spread in the end is that of the
    mean of 2 / beta - 1 observed biases. x starts at x_0*, and after 16,000 steps is within .1% of its level.
    """
    made = [(n, share, share * ETA / (n if share == 1e-3 else 1)) for n in (1, 10, 100) for share in (1e-3, 0.1, 1.0)]
    curves = [one(n / (n + 1), beta, a1=1.0, N=n, start=0.0, c0=round(2.0 / beta - 1.0)) for n, _, beta in made]
    mean = average(simulate([one(0.0, 0.0, start=0.0), *curves], [16_000], runs=runs, seed=3))[0][:, 0]
    alone = settled(one(0.0, 0.0))
    assert mean[0] == pytest.approx(alone, rel=3.5 * error)
    for (n, share, beta), curve, found in zip(made, curves, mean[1:], strict=True):
        level = exact.level(curve).loss
        assert level == pytest.approx(settled(curve), rel=1e-5)
        assert exact.loss(curve, [16_000])[0] == pytest.approx(level, rel=1e-3)
        assert found == pytest.approx(level, rel=3.5 * error), (n, beta)
        if share == 1e-3:
            assert found == pytest.approx(alone / (n + 1), rel=7.0 * error), n


@pytest.mark.parametrize("n", [1, 10, 100])
@pytest.mark.parametrize("beta", [1e-6, BETA, ETA])
def test_at_delta_zero_the_level_is_known_for_small_steps(n, beta):
    ideal = settled(one(0.0, 0.0)) / (n + 1)
    level = exact.level(one(n / (n + 1), beta, a1=1.0, N=n)).loss
    assert level / ideal == pytest.approx(1.0 + n * beta / (beta + ETA), rel=1e-3)


def test_section_6_values_are_far_from_the_ideal_level_at_delta_zero():
    curve = one(100 / 101, BETA, a1=1.0, N=100)
    assert exact.level(curve).loss / (exact.level(one(0.0, 0.0)).loss / 101) == pytest.approx(17.7, abs=0.05)


def test_a_step_that_is_too_large_is_named():
    with pytest.raises(CoterieError, match="grows without bound at eta = 3: take a smaller step"):
        exact.level(one(0.5, 0.1, eta=3.0))


KEYS = ("a0", "a1", "x0", "x1", "sigma", "N", "eta", "alpha", "beta", "start")


@pytest.mark.parametrize("figure", [figure1, figure2, figure3, figure4], ids=lambda f: f.__name__[-7:])
def test_written_curves_can_be_checked_from_their_settings(figure):
    made = figure.run(outcome.Settings(seeds=20))
    written = json.loads(outcome.document("x", made, 1.0))["numbers"]["curves"]
    for curve in written:
        again = Curve(*(curve[key] for key in KEYS))
        t, mean, se, theirs = (np.array(curve[key]) for key in ("t", "mean", "se", "exact"))
        assert t[0] == 0 and mean[0] == theirs[0] and se[0] < 1e-12
        assert np.all(np.abs(mean - theirs)[1:] < 5.0 * se[1:] + 0.5 * theirs[1:])
        if curve["c0"] == 0:
            few = [int(v) for v in t if v <= 300]
            np.testing.assert_allclose(theirs[: len(few)], expected([again], few)[0], rtol=1e-9)
        else:
            assert curve["c0"] == "sample"


@pytest.mark.soak
def test_one_run_has_no_standard_error_and_is_drawn_all_the_same():
    made = figure1.run(outcome.Settings(seeds=1))
    assert made.tables[0].rows[0][1].endswith("(-)")
    assert b"<svg" in outcome.render(made.draw)


@pytest.mark.parametrize("m", [0.05, 0.5, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("n", [1.0, 7.0, 500.0])
def test_the_best_alpha_without_bias_is_a_root_of_its_cubic(m, n):
    """Setting the derivative to 0 leaves ``a m x^3 - 3 m x^2 + (a + 2 m) x - 1 = 0`` with a = 1 + 1/N."""
    a = 1.0 + 1.0 / n
    roots = np.roots([a * m, -3.0 * m, a + 2.0 * m, -1.0])
    inside = [r.real for r in roots if abs(r.imag) < 1e-9 and 0.0 < r.real < min(1.0, m**-0.5)]
    theirs = min(inside, key=lambda x: float(bound(x, 1.0, 1.0 / n, 0.0, m)))
    assert float(best_alpha(1.0, 1.0 / n, 0.0, m)) == pytest.approx(theirs, abs=1e-6)


@pytest.mark.soak
def test_the_maps_of_figures_5_and_6():
    map5, map6 = (f.run(outcome.Settings(quick=True)) for f in (figure5, figure6))
    assert map5.numbers["largest_difference"] < 1e-6
    n, x = map5.numbers["N"][:, None], map5.numbers["ratio"][None, :]
    np.testing.assert_allclose(map5.numbers["speedup"], 1.0 + n * x / (n + x), rtol=1e-10)
    np.testing.assert_allclose(map6.numbers["speedup"][0], map6.numbers["N + 1"], rtol=1e-9)
    assert np.all(np.diff(map6.numbers["speedup"], axis=0) < 0.0)
    for made in (map5, map6):
        assert b"<svg" in outcome.render(made.draw)
