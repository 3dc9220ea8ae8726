"""Constants that are known, found from noisy gradients; standard errors that cover; the same over a federation."""

from dataclasses import replace

import numpy as np
import pytest

from coterie.engines.local_engines import InProcess
from coterie.errors import CoterieError
from coterie.methods.collaboration import theory
from coterie.methods.collaboration.collaborators import Collaborators
from coterie.methods.collaboration.metric_and_similarity import Metric
from coterie.objectives.glm import GLM
from coterie.objectives.quadratic import NoisyQuadratic
from papers.paper_004 import estimated_smoothness, sampled_gradients, tuning, wga_theory
from papers.paper_004.constants import estimate_constants, with_hessians
from papers.paper_004.sampled_gradients import Estimate, Sampled, sampled

D = 3
X = np.vstack([np.zeros(D), np.eye(D), -1.5 * np.eye(D), 3.0 * np.ones(D)])
A0 = np.diag([1.0, 2.0, 4.0])
SHIFT = np.array([3.0, 0.0, 4.0])


exact = Sampled.exact


def noisy(g, sigma, S, rng):
    """S samples at each point; sigma is the standard deviation of every coordinate."""
    return sampled(g[..., None, :] + sigma * rng.normal(size=(*g.shape[:-1], S, g.shape[-1])))


def gradients(A, shift):
    return X @ A.T + shift


def test_without_noise_everything_is_exact():
    own = exact(gradients(A0, 0.0))
    copies = np.stack([gradients(A0, SHIFT), 1.5 * gradients(A0, 0.0), gradients(A0, 0.0)])
    zeta2, m = sampled_gradients.similarity(own, exact(copies))
    np.testing.assert_allclose(zeta2.value, [25.0, 0.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(m.value, [0.0, 0.25, 0.0], atol=1e-12)
    other = A0 + np.array([[0.0, 2.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, -1.0]])
    delta = estimated_smoothness.dissimilarity(X, own, exact(np.stack([gradients(other, 7.0), gradients(A0, 1.0)])))
    np.testing.assert_allclose(delta.value, [2.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(theory.delta_of(A0, np.stack([other, A0])), [2.0, 0.0], atol=1e-12)
    L, mu = estimated_smoothness.smoothness(X, own)
    assert (L.value, mu.value) == pytest.approx((4.0, 1.0))


def test_fewer_directions_see_less():
    line = X[:, :1] * [1.0, 0.0, 0.0]
    L, mu = estimated_smoothness.smoothness(line, exact(line @ A0.T))
    assert (L.value, mu.value) == pytest.approx((1.0, 1.0))
    delta = estimated_smoothness.dissimilarity(line, exact(line @ A0.T), exact((line @ np.diag([1.0, 9.0, 9.0]))[None]))
    np.testing.assert_allclose(delta.value, 0.0, atol=1e-12)


def runs(d, S, sigma, root, count, seed=0):
    """Estimates (values, standard errors) of ``count`` runs, and what is true, by name."""
    rng, x = np.random.default_rng(seed), np.vstack([np.zeros(d), np.eye(d), -1.5 * np.eye(d), 3.0 * np.ones(d)])
    A, shift, more = np.diag(np.linspace(1.0, 4.0, d)), np.zeros(d), np.zeros((d, d))
    shift[[0, -1]], more[-1, -1] = (3.0, 4.0), 2.0
    clean = np.stack([x @ A, x @ A + shift, 1.5 * x @ A, x @ (A + more)])
    true = {"zeta2": [25.0, 0.0], "m": [0.0, 0.25], "delta": [0.0, 2.0, 2.0], "L": [4.0], "mu": [1.0]}
    true["sigma2"] = [sigma**2 * np.sum(root**2)]
    found = {name: [] for name in true}
    for _ in range(count):
        all_ = sampled(clean[..., None, :] + sigma * rng.normal(size=(*clean.shape[:-1], S, d)) * root)
        own, others = all_[0], all_[1:]
        zeta2, m = sampled_gradients.similarity(own, others)
        L, mu = estimated_smoothness.smoothness(x, own)
        delta = estimated_smoothness.dissimilarity(x, own, others)
        got = {"zeta2": zeta2, "m": m, "delta": delta, "L": L, "mu": mu, "sigma2": sampled_gradients.noise(own)[0]}
        for name, e in got.items():
            found[name].append([np.ravel(part)[: len(true[name])] for part in e])
    return {name: np.array(values) for name, values in found.items()}, true


@pytest.mark.soak("10-10-0.8-root2")
@pytest.mark.parametrize(
    ("d", "S", "sigma", "root"),
    [(3, 20, 0.8, np.ones(3)), (3, 20, 0.8, np.array([0.3, 1.0, 2.0])), (10, 10, 0.8, np.ones(10))],
)
def test_intervals_of_two_standard_errors_cover_and_biases_are_small(d, S, sigma, root):
    """Also of noise that is not the same in all directions."""
    count = 300
    found, true = runs(d, S, sigma, root, count)
    for name, values in found.items():
        value, se, right = values[:, 0], values[:, 1], np.array(true[name])
        z = (value - right) / se
        assert np.all(np.mean(np.abs(z) < 2.0, axis=0) > 0.88), name
        assert np.all(np.mean(np.abs(z) < 3.0, axis=0) > 0.95), name
        inside = right > 0.0  # at 0 half of the estimates are 0
        assert np.all(np.abs(z.mean(axis=0))[inside] < 0.6), name
        spread = value.std(axis=0)[inside] / se.mean(axis=0)[inside]
        assert np.all((spread > 0.8) & (spread < 1.3)), name


def test_two_samples_are_enough_for_standard_errors():
    found, true = runs(3, 2, 0.4, np.ones(3), 200)
    for name, values in found.items():
        assert np.all(values[:, 1] > 0.0), name
        assert np.all(np.mean(np.abs(values[:, 0] - true[name]) < 3.0 * values[:, 1], axis=0) > 0.9), name


def test_copies_in_many_dimensions_have_no_delta():
    """The largest of many noisy numbers is far from 0: d = 20, and four samples."""
    rng, d = np.random.default_rng(8), 20
    x = np.vstack([np.zeros(d), np.eye(d)])
    own, copies = noisy(x.copy(), 1.0, 4, rng), noisy(np.stack([x + 1.0] * 50), 1.0, 4, rng)
    delta = estimated_smoothness.dissimilarity(x, own, copies)
    plain = np.linalg.norm(copies.g[:, 1:] - copies.g[:, :1] - own.g[1:] + own.g[:1], 2, axis=(1, 2))
    assert np.mean(plain / delta.se) > 3.0
    assert np.mean(delta.value < 2.0 * delta.se) > 0.9


@pytest.mark.parametrize(("d", "k", "S", "delta"), [(3, 3, 4, 2.0), (3, 3, 10, 2.0), (6, 6, 50, 1.0), (12, 4, 50, 3.0)])
def test_the_upper_bound_of_delta_covers_where_the_estimate_is_low(d, k, S, delta):
    """Random symmetric maps of known norm; in the last case 4 of 12 directions are looked at."""
    rng, n = np.random.default_rng(d), 40
    low, high = [], []
    for _ in range(12):
        near = rng.normal(size=d)
        x = np.vstack([np.zeros(d), near, near + np.linalg.qr(rng.normal(size=(d, d)))[0][:k]])
        more = rng.normal(size=(n, d, d))
        more += np.swapaxes(more, 1, 2)
        more *= delta / np.linalg.norm(more, 2, axis=(1, 2))[:, None, None]
        A = np.diag(np.linspace(1.0, 4.0, d))
        own, others = noisy(x @ A, 1.0, S, rng), noisy(x @ (A + more), 1.0, S, rng)
        low.append(estimated_smoothness.dissimilarity(x, own, others).value)
        high.append(estimated_smoothness.dissimilarity_at_most(x, own, others, k))
    assert np.mean(low) < 0.9 * delta
    assert np.mean(np.array(high) >= delta) >= 0.95
    many = noisy(x @ A, 1e-4, S, rng), noisy(x @ (A + more), 1e-4, S, rng)
    if k == d:  # without noise it is the norm
        np.testing.assert_allclose(estimated_smoothness.dissimilarity_at_most(x, *many, k), delta, rtol=0.01)
    else:
        found = estimated_smoothness.dissimilarity_at_most(x, *many, k)
        assert np.all(found >= delta) and np.all(found < 10.0 * delta)


def test_hessians_that_change_bound_delta_by_what_they_are_at_most():
    own, other = np.diag([1.0, 2.0]), np.diag([3.0, 2.0])
    np.testing.assert_allclose(theory.delta_at_most(own, other[None], own, other[None]), [2.0])
    np.testing.assert_allclose(theory.delta_at_most(own, other[None], 1.5 * own, 2.0 * other[None]), [6.0])


def test_the_least_line_that_dominates():
    own = exact(np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]))
    others = exact(
        np.stack([own.g * 1.5, own.g + np.array([0.0, 2.0]), own.g + np.array([[0.0, 1.0], [0.0, 3.0], [0.0, 2.0]])])
    )
    zeta2, m = sampled_gradients.dominating(own, others)
    np.testing.assert_allclose(zeta2, [0.0, 4.0, 9.0], atol=1e-12)
    np.testing.assert_allclose(m, [0.25, 0.0, 0.0], atol=1e-12)
    rng = np.random.default_rng(9)
    own, others = (
        noisy(gradients(A0, 0.0), 1.0, 5, rng),
        noisy(np.stack([gradients(1.3 * A0, SHIFT)] * 20), 1.0, 5, rng),
    )
    for sure in (0.0, 2.0):
        zeta2, m = sampled_gradients.dominating(own, others, sure)
        apart = others.apart(own)
        line = zeta2[:, None] + m[:, None] * np.maximum(own.square.value, 0.0)
        assert np.all(line >= (apart.value + sure * apart.se) * (1 - 1e-6))


def test_noise_is_taken_off_squared_distances():
    """Two copies with much noise: the plain distance is all noise, and the estimate is none."""
    rng = np.random.default_rng(1)
    plain, found = [], []
    for _ in range(300):
        own, other = noisy(gradients(A0, 0.0), 5.0, 10, rng), noisy(gradients(A0, 0.0)[None], 5.0, 10, rng)
        plain.append(np.mean(np.sum((own.g - other.g) ** 2, axis=-1)))
        apart = np.sum((own.g - other.g[0]) ** 2, axis=-1) - own.v - other.v[0]
        found.append(apart.mean())
    assert np.mean(plain) == pytest.approx(2 * 3 * 25 / 10, rel=0.1)
    assert abs(np.mean(found)) < 4 * np.std(found) / np.sqrt(300)


def test_noise_that_grows_with_the_gradient():
    """Appendix B: E|n|^2 = M |grad f|^2 + sigma^2."""
    rng = np.random.default_rng(2)
    g = gradients(A0, 0.0)
    size = np.sqrt((0.3 * np.sum(g**2, axis=1) + 6.0) / D)
    drawn = g[:, None, :] + size[:, None, None] * rng.normal(size=(len(g), 4000, D))
    sigma2, growth = sampled_gradients.noise(sampled(drawn))
    assert sigma2.value == pytest.approx(6.0, abs=4 * sigma2.se)
    assert growth.value == pytest.approx(0.3, abs=4 * growth.se)
    assert sigma2.se < 0.3 and growth.se < 0.02


def test_one_point_says_nothing_of_m():
    one = exact(np.array([[1.0, 0.0, 0.0]]))
    zeta2, m = sampled_gradients.similarity(one, exact(np.array([[[1.0, 2.0, 0.0]]])))
    assert (zeta2.value[0], m.value[0]) == (4.0, 0.0)
    with pytest.raises(CoterieError, match="two different points"):
        estimated_smoothness.smoothness(np.zeros((1, 3)), one)
    with pytest.raises(CoterieError, match="two sampled gradients"):
        sampled(np.zeros((1, 1, 3)))


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (np.zeros((4, 3)), "must be"),
        (np.zeros((0, 4, 3)), "must be"),
        (np.zeros((2, 1, 3)), "two sampled gradients"),
        (np.full((2, 2, 3), np.nan), "not finite"),
    ],
)
def test_samples_that_cannot_be(samples, words):
    with pytest.raises(CoterieError, match=words):
        sampled(samples)


def test_points_that_do_not_fit():
    own = exact(np.ones((4, 2)))
    with pytest.raises(CoterieError, match="same points"):
        sampled_gradients.similarity(own, exact(np.ones((1, 3, 2))))
    with pytest.raises(CoterieError, match="same points"):
        sampled_gradients.similarity(own, own)
    for x in (np.ones((3, 2)), np.full((4, 2), np.nan)):
        with pytest.raises(CoterieError, match="Points must be finite"):
            estimated_smoothness.smoothness(x, own)


def test_a_federation_that_cannot_be_asked():
    A, b = np.stack([A0] * 3), np.zeros((3, D))
    b[2, 1] = np.nan
    who, metric = Collaborators.of_one(0, 3), Metric.plain(D)
    fed = InProcess(NoisyQuadratic(A, b, 0.3))
    with pytest.raises(CoterieError, match="positions 2 have gradients that are not finite"):
        estimate_constants(fed, metric, who)
    for wrong, words in (
        ({"samples": 1}, "two at a point"),
        ({"reach": 0.0}, "reach"),
        ({"directions": 0}, "directions"),
    ):
        with pytest.raises(CoterieError, match=words):
            estimate_constants(fed, metric, who, **wrong)
    with pytest.raises(CoterieError, match="parameters"):
        estimate_constants(fed, Metric.plain(D + 1), who)


def test_a_federation_of_noisy_quadratics():
    A = np.stack([A0, A0, 1.5 * A0, A0 + np.diag([0.0, 1.0, 0.0])])
    b = np.array([[0.0, 0, 0], [3.0, 0, 4.0], [0.0, 0, 0], [0.0, 0, 0]])
    fed = InProcess(NoisyQuadratic(A, b, sigma=0.5), seed=3)
    who = Collaborators.of_one(0, 4)
    found = estimate_constants(fed, Metric(np.full(D, 0.5), np.eye(D)), who, samples=200, reach=3.0)
    near = {"zeta2": (0, 25.0), "m": (1, 0.25), "delta": (2, 1.0)}
    for name, (pair, value) in near.items():
        e = getattr(found, name)
        assert e.value[pair] == pytest.approx(value, abs=5 * e.se[pair] + 0.02 * value), name
    assert found.L.value[0] == pytest.approx(4.0, abs=5 * found.L.se[0])
    assert found.mu.value[0] == pytest.approx(1.0, abs=5 * found.mu.se[0])
    for e in (found.sigma2, found.others_sigma2):
        assert np.all(np.abs(e.value - 0.75) < 5 * e.se)
    exactly = with_hessians(found, fed, Metric.plain(D), who)
    np.testing.assert_allclose(exactly.delta.value, [0.0, 2.0, 1.0], atol=1e-12)
    assert (exactly.L.value[0], exactly.mu.value[0]) == pytest.approx((4.0, 1.0))
    for name in ("delta", "L", "mu"):
        seen, right = getattr(found, name), getattr(exactly, name)
        assert np.all(np.abs(seen.value - right.value) < 3.0 * seen.se), name
    loss = 0.5 * 0.25 * np.trace(A0)
    assert loss < found.loss()[0] < 4.0 * loss


@pytest.mark.parametrize("samples", [0, 400])
def test_rows_of_many_main_clients(samples):
    """sigma^2 by a loop over rows; from all rows, and from rows that are drawn."""
    rng = np.random.default_rng(4)
    n, rows = 5, 60
    Z = np.column_stack([np.ones(n * rows), rng.normal(size=n * rows)])
    theta = np.array([1.0, -1.0]) + np.array([[0, 0], [2, 0], [0, 0], [0, 1], [0, 0.0]])
    y = np.sum(Z * np.repeat(theta, rows, axis=0), axis=1) + rng.normal(size=n * rows)
    starts = np.arange(n) * rows
    glm = GLM(Z, y, np.zeros(n * rows), np.ones(n * rows), starts, starts + rows)
    fed = InProcess(glm, seed=1)
    who = Collaborators.of_all((np.ones((n, n)) - np.eye(n)) / (n - 1))
    found = estimate_constants(fed, Metric(np.array([1.0, -1.0]), np.eye(2)), who, samples=samples)
    here = [slice(s, s + rows) for s in starts]
    left = [y[h] - Z[h] @ np.linalg.lstsq(Z[h], y[h], rcond=None)[0] for h in here]
    row = np.array([np.sum((Z[h] * e[:, None]) ** 2) / rows for h, e in zip(here, left, strict=True)])
    assert np.all(np.abs(found.sigma2.value - row) < 3.0 * found.sigma2.se + 0.1 * row)
    pair = who.starts[0]
    assert who.pair_client[pair] == 1
    assert found.zeta2.value[pair] == pytest.approx(4.0, abs=3.0)
    same = found.zeta2.value[pair + 1]
    assert same < 0.3 and found.zeta2.se[pair] > 0.0
    H = [Z[h].T @ Z[h] / rows for h in here]
    if not samples:
        np.testing.assert_allclose(found.L.value, [np.linalg.eigvalsh(h)[-1] for h in H], rtol=1e-6)
        np.testing.assert_allclose(found.mu.value, [np.linalg.eigvalsh(h)[0] for h in H], rtol=1e-6)
        exact_delta = [
            np.linalg.norm(H[k] - H[i], 2) for i, k in zip(who.main[who.pair_main], who.pair_client, strict=True)
        ]
        np.testing.assert_allclose(found.delta.value, exact_delta, rtol=1e-6)


def test_sites_and_blocks_change_nothing():
    rng = np.random.default_rng(5)
    A, b = np.stack([A0] * 9), rng.normal(size=(9, D))
    who = Collaborators.of_all((np.ones((9, 9)) - np.eye(9)) / 8)
    one, other = (
        estimate_constants(InProcess(NoisyQuadratic(A, b, 0.3), seed=2, block=block), Metric.plain(D), who, samples=5)
        for block in (4096, 4)
    )
    for name in ("sigma2", "zeta2", "m", "delta", "L"):
        np.testing.assert_allclose(getattr(one, name).value, getattr(other, name).value, rtol=1e-9, atol=1e-12)


def clients(sigma=1.0):
    """A main client; two near copies, two far ones, a little bent one and a much bent one."""
    A = np.stack([A0] * 5 + [A0 + np.diag([0.0, 0.0, 0.05]), A0 + np.diag([4.0, 0.0, 0.0])])
    b = np.vstack([np.zeros(D), np.tile([0.05, 0.0, 0.02], (2, 1)), np.tile(SHIFT, (2, 1)), np.zeros((2, D))])
    return (
        InProcess(NoisyQuadratic(A, b, sigma), seed=3),
        Collaborators.of_one(0, 7),
        Metric(np.full(D, 0.5), np.eye(D)),
    )


def test_from_gradients_to_weights_and_steps():
    fed, who, metric = clients()
    found = estimate_constants(fed, metric, who, samples=200, reach=3.0)
    averaged, corrected = tuning.averaging(found, who, 1000), tuning.correction(found, who, 1000)
    tau = averaged.pairs.tau
    assert tau[2:4].max() < 1e-6 < tau[4]
    assert tau[5] < tau[4]  # the bent one has m = 1 x 0.9, and no zeta
    far = found.zeta2.value > 10.0
    assert far.tolist() == [False, False, True, True, False, False]
    assert 0.4 < averaged.alpha[0] < 6.0 / 7.0
    assert corrected.alpha[0] == pytest.approx(6.0 / 7.0, abs=0.02)
    np.testing.assert_allclose(corrected.pairs.tau, 1.0 / 6.0, rtol=0.2)
    assert np.all((corrected.eta > 0.0) & (corrected.eta <= 0.5 / found.L.value))
    assert np.all((corrected.beta > 0.0) & (corrected.beta < 1.0))
    short = tuning.averaging(found, who, 10)
    assert short.alpha[0] > averaged.alpha[0] and short.eta[0] > averaged.eta[0]


def test_weights_pay_for_m():
    """The bound at what is chosen is at most that of other weights, with m of the average."""
    fed, who, metric = clients()
    found = estimate_constants(fed, metric, who, samples=50, reach=3.0)
    L, mu, T = found.L.value, found.mu.value, 1000
    scale = L / (mu * T)
    rng = np.random.default_rng(1)

    def bound(alpha, tau):
        noise = found.others_sigma2.value + 2.0 * found.others_growth.value * found.zeta2.value
        a, z, m = scale * np.sum(tau**2 * noise), np.sum(tau * found.zeta2.value), np.sum(tau * found.m.value)
        return wga_theory.bound(alpha, scale * found.sigma2.value, a, z, m)[0] if alpha**2 * m < 1.0 else np.inf

    chosen = tuning.averaging(found, who, T)
    least = bound(chosen.alpha[0], chosen.pairs.tau)
    others = [bound(rng.uniform(), rng.dirichlet(np.full(6, 0.3))) for _ in range(3000)]
    assert least <= min(others) * (1.0 + 1e-6)


def test_corollary_5_3_leaves_out_who_curves_differently():
    fed, who, metric = clients()
    found = estimate_constants(fed, metric, who, samples=200, reach=3.0)
    keep = tuning.select(found, who, 300)
    assert keep.tolist() == [True, True, True, True, True, False]  # however far the copies are
    unsure = replace(found, delta=Estimate(found.delta.value, found.delta.se + 10.0))
    assert not tuning.select(unsure, who, 300).any()
    quiet = replace(found, sigma2=Estimate(np.zeros(1), np.zeros(1)))
    assert not tuning.select(quiet, who, 300).any()
    assert tuning.averaging(quiet, who, 300).alpha[0] == 0.0


def test_theory_needs_curvature_and_steps():
    fed, who, metric = clients()
    found = estimate_constants(fed, metric, who, samples=5)
    flat = replace(found, mu=Estimate(np.zeros(1), np.zeros(1)))
    with pytest.raises(CoterieError, match="flat in some direction"):
        tuning.averaging(flat, who, 10)
    unsure = replace(found, mu=Estimate(np.zeros(1), np.full(1, 0.2)))
    assert tuning.averaging(unsure, who, 10).eta[0] > 0.0
    for T in (0, np.nan):
        with pytest.raises(CoterieError, match="number of steps"):
            tuning.correction(found, who, T)
