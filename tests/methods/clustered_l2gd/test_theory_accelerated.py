"""Async-AL2SGD+'s theory: the corrected (4.1) and Lemma 4.2 by enumeration, rates against exact second moments, rho."""

from dataclasses import replace

import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.methods.clustered_l2gd import theory
from coterie.methods.clustered_l2gd.theory import (
    Katyusha,
    batch_smoothness,
    common_probabilities,
    sharp,
    smoothness,
    theorem,
)
from coterie.relations.clusters import ClusterTies
from tests.methods.clustered_l2gd.test_theory import (
    EDGES,
    affine,
    divergence,
    federation,
    smoothnesses,
    ties,
)
from tests.reference.l2gd_oracles import Federation, random_federation

STEPS = {"theorem": theorem, "sharp": sharp}


def row_smoothnesses(f: Federation) -> np.ndarray:
    """Each cluster's L~."""
    bound = 0.25 if f.family == "binomial" else 1.0
    own = np.array([bound * len(x) * np.max(np.sum(x**2, axis=1)) for x in f.X])
    return np.array([own[f.clusters == j].max() for j in range(f.k)])


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
@pytest.mark.parametrize("edge", EDGES)
def test_the_corrected_estimator_is_unbiased_and_the_printed_one_is_not(edge: str, family: str) -> None:
    f = federation(edge, family=family, rows=(2, 1, 2, 1, 1, 2))
    theta, x = np.random.default_rng(1).normal(size=(2, 6, 2))
    rows = list(f.rows())
    assert len(rows) == 8
    exact = f.gradient(theta)

    def mean(printed, draws):
        total = np.zeros_like(theta)
        for chance, *coins in f.outcomes():
            for chosen in draws:
                total += chance / len(draws) * f.oracle_41(theta, x, *coins, chosen, printed)
        return total

    for draws in (rows, [None]):
        assert np.abs(mean(False, draws) - exact).max() < 1e-14 * np.abs(exact).max()
    wrong = np.abs(mean(True, rows) - exact).max() / np.abs(exact).max()
    assert wrong < 1e-13 if edge == "no global rounds" else wrong > 1e-3


@pytest.mark.parametrize("edge", EDGES)
def test_lemma_42(edge: str) -> None:
    """About grad F(x), as printed, and about grad F(theta), as L-Katyusha's proof needs it, in both orders of D."""
    rng, best = np.random.default_rng(2), 0.0
    for seed in range(8):
        for family in ("gaussian", "binomial"):
            f = federation(edge, seed, family=family, rows=(2, 1, 2, 1, 1, 2))
            t = ties(f)
            ell = smoothness(f.p0, f.p, t.C1, t.C2, row_smoothnesses(f))
            theta, x = rng.normal(size=(2, 6, 2))
            at_x, at_theta, rows, about = f.gradient(x), f.gradient(theta), list(f.rows()), np.zeros(2)
            for chance, *coins in f.outcomes():
                for chosen in rows:
                    g = f.oracle_41(theta, x, *coins, chosen)
                    about += chance / len(rows) * np.array([np.sum((g - at_x) ** 2), np.sum((g - at_theta) ** 2)])
            least = 2 * ell * min(divergence(f, theta, x), divergence(f, x, theta))
            assert about[1] <= about[0] <= least * (1 + 1e-12)
            best = max(best, about[0] / least)
    assert best > 0.2


def moments(f: Federation, k: Katyusha) -> tuple[np.ndarray, np.ndarray]:
    """How second moments of (x, y, z) about the optimum go on, over all coins and rows, and how their means do."""
    n, shape = f.X[0].shape[1] * len(f.X), (len(f.X), f.X[0].shape[1])
    I, O = np.eye(n), np.zeros((n, n))  # noqa: E741
    theta, x, z = np.hstack([k.a2 * I, (1 - k.a1 - k.a2) * I, k.a1 * I]), np.hstack([I, O, O]), np.hstack([O, O, I])
    second, mean, rows, none = (
        np.zeros((9 * n * n, 9 * n * n)),
        np.zeros((3 * n, 3 * n)),
        list(f.rows()),
        np.zeros(shape),
    )
    for chance, *coins in f.outcomes():
        for chosen in rows:
            A, _ = affine(f, lambda v, r=chosen, coins=coins: f.oracle_41(v, none, *coins, r))
            B, _ = affine(f, lambda v, r=chosen, coins=coins: f.oracle_41(none, v, *coins, r))
            g = A @ theta + B @ x
            y, new = theta - k.eta * g, k.b1 * z + (1 - k.b1) * theta - k.b2 * g
            for weight, anchor in ((k.rho, y), (1 - k.rho, x)):
                M = np.vstack([anchor, y, new])
                second += chance / len(rows) * weight * np.kron(M, M)
                mean += chance / len(rows) * weight * M
    return second, mean


def ill_conditioned(seed: int, tie: float = 1.0, scale=(10.0, 0.1, 0.3)) -> tuple[Federation, float, float, float]:
    """Three clients of one coefficient, with calligraphic L, L_F and mu_F."""
    f = random_federation(seed, sizes=(2, 1), d=1, rows=(2, 2, 2))
    f = replace(f, X=[x * s for x, s in zip(f.X, scale, strict=True)], gamma=f.gamma * tie)
    values = np.linalg.eigvalsh(affine(f, f.gradient)[0])
    t = ties(f)
    return f, smoothness(f.p0, f.p, t.C1, t.C2, row_smoothnesses(f)), float(values[-1]), float(values[0])


@pytest.mark.parametrize("rho", [1.0, 0.3, 0.05])
def test_mean_squares_shrink_as_promised_and_sharp_steps_do_so_faster(rho: float) -> None:
    """The spectral radius of the exact second moments, against the rate; and the distance of y against its bound."""
    for seed, tie in ((0, 1.0), (1, 0.01), (2, 0.1)):
        f, ell, L_F, mu = ill_conditioned(seed, tie)
        true = {}
        for name, steps in STEPS.items():
            k = steps(ell, L_F, mu, rho)
            second, _ = moments(f, k)
            true[name] = 1 - np.max(np.abs(np.linalg.eigvals(second)))
            assert k.rate * (1 - 1e-9) <= true[name] <= 4 * k.rate
            start = np.tile(np.random.default_rng(3).normal(size=3), 3)
            state = np.outer(start, start).ravel()
            for t in range(200):
                square = np.trace(state.reshape(9, 9)[3:6, 3:6])
                assert square <= k.factor * (1 - k.rate) ** t * np.sum(start[:3] ** 2) * (1 + 1e-9)
                state = second @ state
        assert true["sharp"] > (2.0 if rho < 0.1 else 3.0) * true["theorem"]


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_steps_fulfil_the_conditions_of_the_proof(steps) -> None:
    rng = np.random.default_rng(4)
    for _ in range(500):
        ell = 10 ** rng.uniform(-3, 3)
        L_F = ell * 10 ** rng.uniform(-3, 1)
        mu, rho = L_F * 10 ** -rng.uniform(0, 9), 10 ** -rng.uniform(0, 4) if rng.uniform() < 0.9 else 1.0
        k = steps(ell, L_F, mu, rho)
        S = k.a1 * k.b2 + k.b1 * L_F * k.eta**2
        assert max(S / (2 * k.b1 * k.eta), ell * S / (k.b1 * k.a2), k.a1 + k.a2) <= 1 + 1e-12
        assert 0 < k.b1 == 1 - k.b2 * mu
        assert min(k.a1, k.a2, k.b2) > 0
        assert 0 < k.rate <= rho
        assert k.factor > 1
        assert k.iterations(1e-4) > 1


def test_theorem_43_as_printed() -> None:
    k = theorem(8.0, 3.0, 0.01, 0.1)
    eta, a2 = 1 / 32, 0.5
    a1 = np.sqrt(eta * 0.01 * 5)
    b2 = 1 / max(0.02, 4 * a1 / eta)
    np.testing.assert_allclose((k.eta, k.a1, k.a2, k.b1, k.b2), (eta, a1, a2, 1 - b2 * 0.01, b2), rtol=1e-14)
    assert theorem(1.0, 4.0, 0.01, 0.1).a2 == 0.125
    assert theorem(1.0, 1.0, 0.9, 0.1).a1 == 0.5


def test_sharp_steps_are_the_best_of_their_kind() -> None:
    """No other a_2 does notably better where the rate is small against rho; some five times Theorem 4.3's rate."""
    for rho in (0.3, 0.1, 0.01):
        for ratio in (1.0, 0.1):
            k = sharp(1.0, ratio, 1e-4, rho)
            assert 4.5 < k.rate / theorem(1.0, ratio, 1e-4, rho).rate < 5.7
            assert k.rate > 0.8 * np.sqrt(rho * 1e-4)


@pytest.mark.parametrize("paper", [True, False])
def test_rho_minimises_predicted_communications(paper: bool) -> None:
    p0, p, ell = 0.05, np.array([0.05, 0.2]), 10.0
    for mu in (1e-2, 1e-5):
        best = theory.refresh(ell, 5.0, mu, p0, p, paper=paper)

        def sent(rho, mu=mu):
            k = (theorem if paper else sharp)(ell, 5.0, mu, rho)
            c = theory.expected_communications(k, p0, p, 1e-4)
            assert c["refresh"] == pytest.approx(rho * c["iterations"])
            assert c["global"] == pytest.approx(p0 * c["iterations"])
            assert c["cluster"] == pytest.approx((1 - p0) * 0.2 * c["iterations"])
            return c["global"] + c["cluster"] + c["refresh"]

        grid = np.geomspace(1e-4, 1.0, 400)
        assert sent(best) <= 1.001 * min(map(sent, grid))
        rounds = p0 + (1 - p0) * 0.2
        assert 0.3 * rounds < best < 2 * rounds
    assert theory.refresh(ell, 5.0, 1e-2, 0.0, np.zeros(2)) == 1.0


def test_corollary_44_and_own_probabilities() -> None:
    t = ClusterTies.of(np.repeat([0, 1], 3), 2, [1.0, 1, 1, 20, 20, 20], None, 0.1)
    common = theory.choose_accelerated(t, 5.0, 8.0, 0.01, common=True, paper=True)
    p0, p = common_probabilities(t.C1, t.C2, 5.0)
    assert (common.p0, common.p[0], common.p[1]) == (p0, p, p)
    assert common.smoothness == pytest.approx(2.0 + 18.0 + 5.0)
    own = theory.choose_accelerated(t, 5.0, 8.0, 0.01)
    assert own.smoothness == pytest.approx(common.smoothness)
    assert own.p[0] < own.p[1] == pytest.approx(p)
    assert own.steps.rate > common.steps.rate
    assert "Theorem 4.3's proof" in own.why
    given = theory.choose_accelerated(t, 5.0, 8.0, 0.01, p0=0.2, p=0.3, rho=0.4)
    assert (given.p0, given.p.tolist(), given.steps.rho) == (0.2, [0.3, 0.3], 0.4)


def test_minibatches_shorten_the_run() -> None:
    L, L_row = np.array([4.0]), np.array([40.0])
    t = ClusterTies.of(np.zeros(3, int), 1, 1.0, None, 0.0)
    rates = [theory.choose_accelerated(t, batch_smoothness(L, L_row, b), 5.0, 1e-3).steps.rate for b in (1, 4, 16, 0)]
    assert rates == sorted(rates)


@pytest.mark.parametrize("alpha", [0.0, 1.0, 0.5])
@pytest.mark.parametrize("sizes", [(1,), (3,), (2, 2)])
@pytest.mark.parametrize("gamma", [0.0, 1.0])
@pytest.mark.parametrize("mu", [0.0, 1e-3])
def test_edges(alpha, sizes, gamma, mu) -> None:
    t = ClusterTies.of(np.repeat(np.arange(len(sizes)), sizes), len(sizes), gamma, None, alpha)
    c = theory.choose_accelerated(t, 3.0, 3.0 + gamma, mu)
    numbers = [c.p0, *c.p, *c.tau, c.steps.eta, c.steps.a1, c.steps.b1, c.steps.rho, c.mu, c.smoothness]
    assert np.all(np.isfinite(numbers))
    assert ("nothing is promised" in c.why) == (mu == 0.0)
    assert c.mu > 0


def test_bad_input() -> None:
    with pytest.raises(CoterieError, match="flat in some direction"):
        theorem(1.0, 1.0, 0.0, 0.1)
    with pytest.raises(CoterieError, match="flat in some direction"):
        sharp(1.0, 1.0, np.nan, 0.1)
    with pytest.raises(CoterieError, match="never stepped on"):
        theory.choose_accelerated(ClusterTies.of(np.zeros(2, int), 1, 1.0, None, 0.5), 1.0, 1.0, 0.1, p0=0.0, p=0.0)


def test_full_gradients_need_no_rows() -> None:
    """With all rows Lemma 4.2 holds with L in place of L~."""
    f = random_federation(9)
    t = ties(f)
    ell = smoothness(f.p0, f.p, t.C1, t.C2, smoothnesses(f))
    theta, x = np.random.default_rng(5).normal(size=(2, 6, 2))
    spread = sum(c * np.sum((f.oracle_41(theta, x, *o) - f.gradient(x)) ** 2) for c, *o in f.outcomes())
    assert spread <= 2 * ell * divergence(f, theta, x)
