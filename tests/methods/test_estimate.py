"""Constants that are known, found from noisy gradients; standard errors that cover; the same over a federation."""

import numpy as np
import pytest

from coterie.engines.inprocess import InProcess
from coterie.errors import CoterieError
from coterie.methods.collaboration import bending, estimate
from coterie.methods.collaboration.collaborators import Collaborators
from coterie.methods.collaboration.constants import constants
from coterie.methods.collaboration.metric import Metric
from coterie.methods.collaboration.sampled import Sampled, sampled
from coterie.objectives.glm import GLM
from coterie.objectives.quadratic import NoisyQuadratic

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
    zeta2, m = estimate.similarity(own, exact(copies))
    np.testing.assert_allclose(zeta2.value, [25.0, 0.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(m.value, [0.0, 0.25, 0.0], atol=1e-12)
    other = A0 + np.array([[0.0, 2.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, -1.0]])
    delta = bending.dissimilarity(X, own, exact(np.stack([gradients(other, 7.0), gradients(A0, 1.0)])))
    np.testing.assert_allclose(delta.value, [2.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(bending.delta_of(A0, np.stack([other, A0])), [2.0, 0.0], atol=1e-12)
    L, mu = bending.smoothness(X, own)
    assert (L.value, mu.value) == pytest.approx((4.0, 1.0))


def test_fewer_directions_see_less():
    line = X[:, :1] * [1.0, 0.0, 0.0]
    L, mu = bending.smoothness(line, exact(line @ A0.T))
    assert (L.value, mu.value) == pytest.approx((1.0, 1.0))
    delta = bending.dissimilarity(line, exact(line @ A0.T), exact((line @ np.diag([1.0, 9.0, 9.0]))[None]))
    np.testing.assert_allclose(delta.value, 0.0, atol=1e-12)


def test_standard_errors_cover():
    """z-scores over 400 runs: centred, and of about unit spread."""
    rng = np.random.default_rng(0)
    true = {"zeta2": 25.0, "m": 0.0, "delta": 2.0, "L": 4.0, "mu": 1.0, "sigma2": 3 * 0.8**2}
    other = gradients(A0 + np.diag([0.0, 0.0, 2.0]), 0.0) * 1.0
    z = {name: [] for name in true}
    for _ in range(400):
        own = noisy(gradients(A0, 0.0), 0.8, 20, rng)
        shifted = noisy(gradients(A0, SHIFT)[None], 0.8, 20, rng)
        bent = noisy(other[None], 0.8, 20, rng)
        zeta2, _ = estimate.similarity(own, shifted)
        found = {"zeta2": zeta2, "delta": bending.dissimilarity(X, own, bent)}
        found["L"], found["mu"] = bending.smoothness(X, own)
        found["sigma2"] = estimate.noise(own)[0]
        for name, e in found.items():
            z[name].append((np.ravel(e.value)[0] - true[name]) / np.ravel(e.se)[0])
    for name in ("delta", "L", "mu"):
        assert abs(np.mean(z[name])) < 0.5, name
        assert 0.7 < np.std(z[name]) < 1.3, name
    assert abs(np.mean(z["zeta2"])) < 0.6
    assert 0.5 < np.std(z["zeta2"]) < 1.6
    assert abs(np.mean(z["sigma2"])) < 0.6


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
    sigma2, growth = estimate.noise(sampled(drawn))
    assert sigma2.value == pytest.approx(6.0, abs=4 * sigma2.se)
    assert growth.value == pytest.approx(0.3, abs=4 * growth.se)
    assert sigma2.se < 0.3 and growth.se < 0.02


def test_one_point_says_nothing_of_m():
    one = exact(np.array([[1.0, 0.0, 0.0]]))
    zeta2, m = estimate.similarity(one, exact(np.array([[[1.0, 2.0, 0.0]]])))
    assert (zeta2.value[0], m.value[0]) == (4.0, 0.0)
    with pytest.raises(CoterieError, match="two different points"):
        bending.smoothness(np.zeros((1, 3)), one)
    with pytest.raises(CoterieError, match="two sampled gradients"):
        sampled(np.zeros((1, 1, 3)))


def test_a_federation_of_noisy_quadratics():
    A = np.stack([A0, A0, 1.5 * A0, A0 + np.diag([0.0, 1.0, 0.0])])
    b = np.array([[0.0, 0, 0], [3.0, 0, 4.0], [0.0, 0, 0], [0.0, 0, 0]])
    fed = InProcess(NoisyQuadratic(A, b, sigma=0.5), seed=3)
    who = Collaborators.of_one(0, 4)
    found = constants(fed, Metric(np.full(D, 0.5), np.eye(D)), who, samples=200, reach=3.0)
    near = {"zeta2": (0, 25.0), "m": (1, 0.25), "delta": (2, 1.0)}
    for name, (pair, value) in near.items():
        e = getattr(found, name)
        assert e.value[pair] == pytest.approx(value, abs=5 * e.se[pair] + 0.02 * value), name
    assert found.L.value[0] == pytest.approx(4.0, abs=5 * found.L.se[0])
    assert found.mu.value[0] == pytest.approx(1.0, abs=5 * found.mu.se[0])
    for e in (found.sigma2, found.others_sigma2):
        assert np.all(np.abs(e.value - 0.75) < 5 * e.se)


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
    found = constants(fed, Metric(np.array([1.0, -1.0]), np.eye(2)), who, samples=samples)
    here = [slice(s, s + rows) for s in starts]
    left = [y[h] - Z[h] @ np.linalg.lstsq(Z[h], y[h], rcond=None)[0] for h in here]
    row = np.array([np.sum((Z[h] * e[:, None]) ** 2) / rows for h, e in zip(here, left, strict=True)])
    assert np.all(np.abs(found.sigma2.value - row) < 3.0 * found.sigma2.se + 0.1 * row)
    pair = who.starts[0]
    assert who.who[pair] == 1
    assert found.zeta2.value[pair] == pytest.approx(4.0, abs=3.0)
    same = found.zeta2.value[pair + 1]
    assert same < 0.3 and found.zeta2.se[pair] > 0.0
    H = [Z[h].T @ Z[h] / rows for h in here]
    if not samples:
        np.testing.assert_allclose(found.L.value, [np.linalg.eigvalsh(h)[-1] for h in H], rtol=1e-6)
        np.testing.assert_allclose(found.mu.value, [np.linalg.eigvalsh(h)[0] for h in H], rtol=1e-6)
        exact_delta = [np.linalg.norm(H[k] - H[i], 2) for i, k in zip(who.main[who.of], who.who, strict=True)]
        np.testing.assert_allclose(found.delta.value, exact_delta, rtol=1e-6)


def test_sites_and_blocks_change_nothing():
    rng = np.random.default_rng(5)
    A, b = np.stack([A0] * 9), rng.normal(size=(9, D))
    who = Collaborators.of_all((np.ones((9, 9)) - np.eye(9)) / 8)
    one, other = (
        constants(InProcess(NoisyQuadratic(A, b, 0.3), seed=2, block=block), Metric.plain(D), who, samples=5)
        for block in (4096, 4)
    )
    for name in ("sigma2", "zeta2", "m", "delta", "L"):
        np.testing.assert_allclose(getattr(one, name).value, getattr(other, name).value, rtol=1e-9, atol=1e-12)
