"""Async-L2GD's theory, by enumerating coins: unbiasedness, Proposition 3.3, Theorem 3.5, Corollary 3.6, rounds."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.methods.clustered_l2gd import theory
from coterie.methods.clustered_l2gd import theory as rates
from coterie.relations.clusters import ClusterTies
from tests.reference.l2gd_oracles import Federation, random_federation

EDGES = {
    "own": {},
    "no cluster rounds": {"p": np.zeros(3)},
    "one cluster without": {"p": np.array([0.3, 0.0, 0.6])},
    "no global rounds": {"p0": 0.0},
}


def ties(f: Federation) -> ClusterTies:
    return ClusterTies(f.gamma, f.alpha, f.clusters)


def federation(edge: str, seed: int = 0, **kind) -> Federation:
    """Without global rounds nothing may be tied across clusters."""
    f = random_federation(seed, **kind, **EDGES[edge])
    return replace(f, alpha=np.zeros(3)) if edge == "no global rounds" else f


def smoothnesses(f: Federation) -> np.ndarray:
    """Largest curvature of each cluster's clients."""
    bound = 0.25 if f.family == "binomial" else 1.0
    own = np.array([bound * np.linalg.eigvalsh(x.T @ x)[-1] for x in f.X])
    return np.array([own[f.clusters == j].max() for j in range(f.k)])


def divergence(f: Federation, a: np.ndarray, b: np.ndarray) -> float:
    """Bregman divergence of F, ``D(a, b)``."""

    def value(theta):
        own, network = f.averages(theta)
        total = 0.0
        for i, j in enumerate(f.clusters):
            eta = f.X[i] @ theta[i]
            loss = 0.5 * (f.y[i] - eta) ** 2 if f.family == "gaussian" else np.logaddexp(0, eta) - f.y[i] * eta
            total += loss.sum() + f.gamma[i] / 2 * (1 - f.alpha[j]) * np.sum((theta[i] - own[j]) ** 2)
            total += f.gamma[i] / 2 * f.alpha[j] * np.sum((theta[i] - network) ** 2)
        return total

    return value(a) - value(b) - np.sum(f.gradient(b) * (a - b))


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
@pytest.mark.parametrize("edge", EDGES)
def test_the_estimator_is_unbiased(edge: str, family: str) -> None:
    f = federation(edge, family=family)
    theta = np.random.default_rng(1).normal(size=(6, 2))
    mean = sum(chance * f.oracle_32(theta, *coins) for chance, *coins in f.outcomes())
    exact = f.gradient(theta)
    assert np.abs(mean - exact).max() < 1e-14 * np.abs(exact).max()
    np.testing.assert_array_equal(theory.fractions(f.p0, f.p), f.tau)


@pytest.mark.parametrize("edge", EDGES)
def test_proposition_33_and_expected_smoothness_hold(edge: str) -> None:
    rng = np.random.default_rng(2)
    for seed, family in itertools.product(range(12), ["gaussian", "binomial"]):
        f = federation(edge, seed, family=family)
        t, L = ties(f), smoothnesses(f)
        ell = theory.smoothness(f.p0, f.p, t.C1, t.C2, L)
        assert ell <= theory.smoothness(f.p0, f.p, t.C1, t.C2, L.max())
        for scale in (0.01, 1.0, 10.0):
            a, b = scale * rng.normal(size=(2, 6, 2))
            spread = sum(c * np.sum((f.oracle_32(a, *x) - f.oracle_32(b, *x)) ** 2) for c, *x in f.outcomes())
            (psi_a, phi_a), (psi_b, phi_b) = f.pulls(a), f.pulls(b)
            loss = [f.grad_f(i, a[i]) - f.grad_f(i, b[i]) for i in range(6)]
            squares = [
                np.bincount(f.clusters, np.sum(np.square(v), axis=1)) for v in (phi_a - phi_b, psi_a - psi_b, loss)
            ]
            bound = rates.noise(f.p0, f.p, *squares)
            assert spread <= bound * (1 + 1e-12)
            assert bound <= 2 * ell * divergence(f, a, b) * (1 + 1e-9)


def test_expected_smoothness_is_tight_somewhere() -> None:
    """Clusters with equal averages, and ``alpha = tau (1 - alpha)``: the triangle inequality loses nothing."""
    f = random_federation(0, sizes=(2, 2), d=1, p0=0.3, p=np.array([0.2, 0.2]))
    f = replace(f, gamma=np.ones(4), alpha=np.full(2, f.tau[0] / (1 + f.tau[0])), y=[np.zeros(len(y)) for y in f.y])
    a, b = np.array([[1.0], [-1.0], [1.0], [-1.0]]), np.zeros((4, 1))
    spread = sum(c * np.sum((f.oracle_32(a, *x) - f.oracle_32(b, *x)) ** 2) for c, *x in f.outcomes())
    (psi, phi), loss = f.pulls(a), [f.grad_f(i, a[i]) for i in range(4)]
    squares = [np.bincount(f.clusters, np.sum(np.square(v), axis=1)) for v in (phi, psi, loss)]
    assert spread == pytest.approx(rates.noise(f.p0, f.p, *squares), rel=1e-13)
    alone = replace(f, X=[0.0 * x for x in f.X])  # no losses: only the ties are left
    spread = sum(c * np.sum(alone.oracle_32(a, *x) ** 2) for c, *x in alone.outcomes())
    t = ties(alone)
    assert spread == pytest.approx(
        2 * theory.smoothness(f.p0, f.p, t.C1, t.C2, 0.0) * divergence(alone, a, b), rel=0.01
    )


def affine(f: Federation, oracle) -> tuple[np.ndarray, np.ndarray]:
    """Matrix and constant of an estimator that is affine in theta."""
    n = f.X[0].shape[1] * len(f.X)
    shape = (len(f.X), f.X[0].shape[1])
    constant = oracle(np.zeros(shape)).ravel()
    return np.stack([oracle(e.reshape(shape)).ravel() - constant for e in np.eye(n)], axis=1), constant


@pytest.mark.parametrize("edge", EDGES)
def test_mean_squared_distance_stays_under_every_bound(edge: str) -> None:
    """The exact second moment of the error over all coins, step by step, for squares, whose mu is 0."""
    f = federation(edge, seed=3, rows=(1, 1, 1, 1, 1, 2))
    t = ties(f)
    H, c = affine(f, f.gradient)
    optimum = np.linalg.solve(H, -c)
    mu = np.linalg.eigvalsh(H)[0]
    assert 1e-6 < mu < np.linalg.eigvalsh(H)[-1] / 10
    ell = theory.smoothness(f.p0, f.p, t.C1, t.C2, smoothnesses(f))
    estimators = [(chance, affine(f, lambda x, coins=coins: f.oracle_32(x, *coins))) for chance, *coins in f.outcomes()]
    noise = [(chance, A, A @ optimum + b) for chance, (A, b) in estimators]
    (psi, phi), loss = f.pulls(optimum.reshape(6, 2)), [f.grad_f(i, o) for i, o in enumerate(optimum.reshape(6, 2))]
    squares = [np.bincount(f.clusters, np.sum(np.square(v), axis=1)) for v in (phi, psi, loss)]
    sigma2, exact = rates.noise(f.p0, f.p, *squares), rates.noise(f.p0, f.p, *squares, exact=True)
    assert exact == pytest.approx(sum(chance * g @ g for chance, _, g in noise), rel=1e-12)
    assert exact <= sigma2 * (1 + 1e-12)

    def run(eta, steps):
        M, r, out = np.outer(optimum, optimum), -optimum, []
        for s in range(steps):
            out.append(np.trace(M))
            e = eta(s)
            P = [(chance, np.eye(12) - e * A, e * g) for chance, A, g in noise]
            M = sum(w * (B @ M @ B.T - np.outer(B @ r, g) - np.outer(g, B @ r) + np.outer(g, g)) for w, B, g in P)
            r = sum(w * (B @ r - g) for w, B, g in P)
        return np.array(out)

    start, at = optimum @ optimum, np.arange(300)
    for eta in (0.5 / ell, 0.1 / ell):
        seen = run(lambda s, eta=eta: eta, 300)
        assert np.all(seen <= rates.bound(at, eta, mu, sigma2, start) * (1 + 1e-12))
        sharp = rates.bound(at, eta, mu, exact, start, ell)
        assert np.all(seen <= sharp * (1 + 1e-12))
        assert sharp[-1] <= rates.bound(at, eta, mu, exact, start)[-1]
    seen = run(lambda s: 0.9 / ell, 300)
    assert np.all(seen <= rates.bound(at, 0.9 / ell, mu, exact, start, ell) * (1 + 1e-12))
    seen = run(lambda s: float(rates.schedule(s, ell, mu)), 300)
    assert np.all(seen <= rates.scheduled_bound(at, ell, mu, exact, start) * (1 + 1e-12))


def test_decreasing_steps_are_as_good_as_they_say() -> None:
    """The recursion of the theorem's proof with equality, far beyond the switch."""
    ell, mu, sigma2, square = 10.0, 0.3, 2.0, 5.0
    for t in range(5000):
        assert square <= rates.scheduled_bound(t, ell, mu, sigma2, 5.0) * (1 + 1e-12)
        eta = float(rates.schedule(t, ell, mu))
        square = (1 - eta * mu) * square + 2 * eta**2 * sigma2
    assert square > 0.2 * rates.scheduled_bound(5000, ell, mu, sigma2, 5.0)
    with pytest.raises(CoterieError, match="use a constant step"):
        rates.schedule(1, ell, 0.0)


def test_corollary_36_makes_the_three_terms_equal() -> None:
    rng = np.random.default_rng(4)
    for _ in range(50):
        C1, L = rng.exponential(size=2) + 0.01
        for C2 in (C1 * rng.uniform(), C1 + rng.exponential()):
            p0, p = theory.common_probabilities(C1, C2, L)
            terms = 2 * C1 / p0, 2 * C2 / (p0 + 2 * (1 - p0) * p), L / ((1 - p0) * (1 - p))
            if C2 > C1:
                np.testing.assert_allclose(terms, C1 + C2 + L, rtol=1e-12)
                assert theory.fractions(p0, np.array([p]))[0] == pytest.approx(C1 / C2)
            else:
                np.testing.assert_allclose([terms[0], terms[2]], 2 * C1 + L, rtol=1e-12)
                assert p == 0.0
                assert terms[1] <= 2 * C1 + L


def test_own_probabilities_minimise_33() -> None:
    """Against a grid over p_0 with, for every cluster, a grid over its p_j."""
    rng, grid = np.random.default_rng(5), np.linspace(0, 1, 401)
    for _ in range(40):
        k = int(rng.integers(1, 4))
        C1, C2 = rng.exponential(size=(2, k)) * rng.integers(0, 2, (2, k)) * [[1.0], [3.0]]
        L = rng.exponential(size=k) * 3
        p0, p = theory.own_probabilities(C1, C2, L)
        ell = theory.smoothness(p0, p, C1, C2, L)
        assert ell == pytest.approx(np.max(L + C1.max() + np.maximum(C1.max(), C2)), rel=1e-12)
        for q0 in (*rng.choice(grid[1:-1], 10), p0):
            each = [
                np.min(
                    np.maximum(
                        theory.over(2 * C2[j], q0 + 2 * (1 - q0) * grid), theory.over(L[j], (1 - q0) * (1 - grid))
                    )
                )
                for j in range(k)
            ]
            least = max(*each, float(theory.over(2 * C1.max(), q0)), 0.0)
            assert least >= ell * (1 - 1e-12)
            fixed = theory.own_probabilities(C1, C2, L, q0)
            found = theory.smoothness(*fixed, C1, C2, L)
            assert fixed[0] == q0
            assert found <= least * (1 + 1e-12)
            assert found >= 0.98 * least
        common = theory.common_probabilities(C1, C2, L)
        assert ell <= theory.smoothness(common[0], np.full(k, common[1]), C1, C2, L) * (1 + 1e-12)


def test_own_probabilities_need_fewer_rounds_at_equal_smoothness() -> None:
    C1, C2, L = np.array([0.25] * 5), np.array([0.1, 0.2, 1.056, 5.03, 10.0]), np.ones(5)
    p0, p = theory.own_probabilities(C1, C2, L)
    q0, q = theory.common_probabilities(C1, C2, L)
    np.testing.assert_allclose(p, [0, 0, 0.075, 0.445, 0.907], atol=5e-4)
    assert q == pytest.approx(p[-1])
    assert q0 == pytest.approx(p0)
    assert theory.smoothness(p0, p, C1, C2, L) == pytest.approx(theory.smoothness(q0, np.full(5, q), C1, C2, L))


@pytest.mark.parametrize(
    ("sizes", "gamma", "alpha", "rounds"),
    [
        ((2, 3), 1.0, 0.0, "cluster"),  # C_1 = 0
        ((2, 3), 1.0, 1.0, "global"),  # C_2 = 0
        ((2, 3), 0.0, 0.5, "none"),
        ((1,), 1.0, 0.5, "none"),  # one client
        ((4,), 1.0, 0.5, "both"),  # one cluster
        ((1, 1), 1.0, 0.5, "global"),
    ],
)
@pytest.mark.parametrize("common", [False, True])
def test_edges(sizes, gamma, alpha, rounds, common: bool) -> None:
    clusters = np.repeat(np.arange(len(sizes)), sizes)
    c = theory.choose(ClusterTies.of(clusters, len(sizes), gamma, None, alpha), 3.0, common=common)
    assert (c.p0 > 0) == (rounds in ("global", "both"))
    assert np.any(c.p > 0) == (rounds == "cluster")  # with alpha = 1/2 global rounds serve the cluster's tie too
    assert np.isfinite(c.smoothness)
    assert c.eta == pytest.approx(0.5 / c.smoothness)
    assert np.all((c.tau >= 0) & (c.tau <= 1))
    assert "3.5" in c.why


def test_without_losses_or_ties_nothing_divides_by_zero() -> None:
    none = ClusterTies.of(np.array([0]), 1, 0.0, None, None)
    c = theory.choose(none, 0.0)
    assert (c.p0, c.p[0], c.eta, c.smoothness) == (0.0, 0.0, 0.0, 0.0)
    pulls = theory.choose(ClusterTies.of(np.zeros(3, int), 1, 2.0, None, 0.0), 0.0)
    assert pulls.p[0] == 1.0  # nothing to do at home
    assert pulls.smoothness == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"p": 0.1}, "Give p0 together with p"),
        ({"p0": 0.0, "p": 0.5}, "never stepped on"),
        ({"p0": 0.2, "p": 1.0}, "never stepped on"),
        ({"p0": 1.0}, "never stepped on"),
    ],
)
def test_bad_input(options, sentence: str) -> None:
    with pytest.raises(CoterieError, match=sentence):
        theory.choose(ClusterTies.of(np.array([0, 0, 1, 1]), 2, 1.0, None, 0.5), 5.0, **options)


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_batches_of_rows(batch: int, family: str) -> None:
    """Every draw of rows with replacement: mean, noise and expected smoothness."""
    f = random_federation(7, rows=(4,), family=family)
    n, rng = 4, np.random.default_rng(8)
    bound = 0.25 if family == "binomial" else 1.0
    for i in range(3):
        a, b = rng.normal(size=(2, 2))

        def draws(theta, i=i):
            each = np.array([f.row(i, r, theta) for r in range(n)])
            return np.array(
                [n / batch * each[list(ls)].sum(axis=0) for ls in itertools.product(range(n), repeat=batch)]
            )

        np.testing.assert_allclose(draws(a).mean(axis=0), f.grad_f(i, a), rtol=1e-12)
        rows = n * sum(np.sum(f.row(i, r, a) ** 2) for r in range(n))
        noise = rates.batch_noise(np.array(np.sum(f.grad_f(i, a) ** 2)), np.array(rows), batch)
        assert np.mean(np.sum(draws(a) ** 2, axis=1)) == pytest.approx(float(noise), rel=1e-12)
        L = bound * np.linalg.eigvalsh(f.X[i].T @ f.X[i])[-1]
        L_row = bound * n * np.max(np.sum(f.X[i] ** 2, axis=1))
        one = replace(f, gamma=0 * f.gamma)
        at, to = np.zeros((6, 2)), np.zeros((6, 2))
        at[i], to[i] = a, b
        spread = np.mean(np.sum((draws(a) - draws(b)) ** 2, axis=1))
        assert spread <= 2 * rates.batch_smoothness(L, L_row, batch) * divergence(one, at, to) * (1 + 1e-9)
    assert rates.batch_smoothness(L, L_row, 0) == L
