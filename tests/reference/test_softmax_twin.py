"""Multinomial losses, gradients and local steps against loops over clients, steps, rows and classes."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.numerics import keyed_random
from coterie.objectives.glm import GLM
from coterie.objectives.gradient_steps import Draws, Momentum, Walk, descend, full_gradient, katyusha
from coterie.objectives.mean_loss import expand, gradient, path, sizes, walk
from coterie.objectives.quadratic import NoisyQuadratic, Quadratic
from coterie.objectives.softmax import Softmax

COUNTS = (0, 1, 4, 7, 2)
K, P = 3, 4
FIRST = np.array([0, 4, 9, 2, 7])


def softmax(ridge=0.1, seed=0):
    """Clients with no row, few and many; the last one's rows all weigh nothing; some pixels are zero."""
    rng = np.random.default_rng(seed)
    stops = np.cumsum(COUNTS)
    n = stops[-1]
    X = rng.normal(size=(n, P)) * (rng.random((n, P)) < 0.7)
    w = rng.choice([0.0, 0.5, 1.0, 2.0], n)
    w[0], w[-2:] = 1.5, 0.0
    return Softmax.of(X, rng.integers(0, K, n), stops - np.array(COUNTS), stops, K, w, ridge)


def row(o, r, theta):
    """Loss and gradient of one row with its weight, from the textbook."""
    Theta = theta.reshape(P, K)
    e = [np.exp(sum(o.X[r, j] * Theta[j, c] for j in range(P))) for c in range(K)]
    p = [v / sum(e) for v in e]
    g = np.zeros((P, K))
    for j in range(P):
        for c in range(K):
            g[j, c] = (p[c] - (c == o.y[r])) * o.X[r, j] + o.ridge * Theta[j, c]
    return o.weights[r] * (-np.log(p[int(o.y[r])]) + o.ridge / 2 * theta @ theta), o.weights[r] * g.ravel()


def weight(o, i):
    return sum(o.weights[o.starts[i] : o.stops[i]])


def seen(o, i, theta, size, step):
    """The gradient of the mean loss that a step sees."""
    lo, n, W = o.starts[i], COUNTS[i], weight(o, i)
    if W == 0.0:
        return np.zeros(P * K)
    if not size:
        return sum(row(o, r, theta)[1] for r in range(lo, lo + n)) / W
    u = keyed_random.uniform(3, "rows", np.arange(5), FIRST[i] + step, size)[i]
    return sum(row(o, lo + int(v * n), theta)[1] for v in u) * n / size / W


def draws(size):
    return Draws(keyed_random.starts(3, "rows", np.arange(5)), FIRST, size)


def points(seed=1):
    return 0.5 * np.random.default_rng(seed).normal(size=(5, P * K))


@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_value_and_gradient(ridge):
    o, theta = softmax(ridge), points()
    value = [sum(row(o, r, theta[i])[0] for r in range(o.starts[i], o.stops[i])) for i in range(5)]
    g = [sum((row(o, r, theta[i])[1] for r in range(o.starts[i], o.stops[i])), np.zeros(P * K)) for i in range(5)]
    np.testing.assert_allclose(o.value(theta), value, rtol=1e-12)
    np.testing.assert_allclose(o.gradient(theta), g, rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(full_gradient(o, theta), g, rtol=1e-11, atol=1e-14)
    np.testing.assert_array_equal(o.gradient(theta[2]), o.gradient(np.tile(theta[2], (5, 1))))
    np.testing.assert_allclose(sizes(o), [weight(o, i) for i in range(5)])


def test_a_binary_one_is_a_logistic_regression():
    """Of the difference of the two columns."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 3)), rng.integers(0, 2, 30)
    starts, stops = np.array([0, 12]), np.array([12, 30])
    o = Softmax.of(X, y, starts, stops)
    theta = rng.normal(size=(2, 6))
    glm = GLM(X, y.astype(float), np.zeros(30), np.ones(30), starts, stops, "binomial")
    difference = theta.reshape(2, 3, 2)[:, :, 1] - theta.reshape(2, 3, 2)[:, :, 0]
    np.testing.assert_allclose(o.value(theta), glm.value(difference), rtol=1e-12)
    g = o.gradient(theta).reshape(2, 3, 2)
    np.testing.assert_allclose(g[:, :, 1], full_gradient(glm, difference), rtol=1e-11)
    np.testing.assert_allclose(g[:, :, 0], -g[:, :, 1], rtol=1e-11)


def test_far_out_nothing_overflows():
    o = Softmax.of([[1.0], [1.0]], [0, 1], [0], [2], 2)
    theta = np.array([[1e4, -1e4]])
    np.testing.assert_allclose(o.value(theta), 2e4)
    np.testing.assert_allclose(o.gradient(theta), [[1.0, -1.0]])


@pytest.mark.parametrize("size", [0, 1, 3])
def test_mean_gradients_and_paths(size):
    o, theta, rng = softmax(), points(), np.random.default_rng(2)
    expected = [seen(o, i, theta[i], size, 0) for i in range(5)]
    np.testing.assert_allclose(gradient(o, theta, draws(size)), expected, rtol=1e-11, atol=1e-14)
    shift, eta = rng.normal(size=(5, P * K)), rng.uniform(0, 0.1, 5)
    found = path(o, theta, shift, np.eye(P * K), eta, 3, draws(size))
    for i in range(5):
        x, total = theta[i].copy(), np.zeros(P * K)
        for s in range(3):
            g = seen(o, i, x, size, s)
            total += g / 3
            x -= eta[i] * (g - shift[i])
        np.testing.assert_allclose(found[i], total, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("size", [0, 2])
def test_walk(size, fresh):
    o, theta, anchor = softmax(), points(), points(2)
    eta, steps = np.linspace(0.1, 0.4, 5), np.array([3, 0, 4, 1, 6])
    found = walk(o, theta, Walk(eta, steps, draws(size), anchor, 0.7, fresh=fresh))
    for i in range(5):
        x = theta[i].copy()
        for s in range(steps[i]):
            x -= eta[i] * (seen(o, i, x, size, s if fresh else 0) + 0.7 * (x - anchor[i]))
        np.testing.assert_allclose(found[i], x, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("size", [0, 2])
@pytest.mark.parametrize("held", [False, True])
def test_walk_with_a_correction_and_parameters_that_stay(size, held):
    o, theta, anchor, shift = softmax(), points(), points(2), points(3)
    eta, steps, on = np.linspace(0.1, 0.4, 5), np.array([3, 0, 4, 1, 6]), np.arange(P * K) % 3 > 0
    found = walk(o, theta, Walk(eta, steps, draws(size), anchor, 0.7, shift, on if held else None))
    for i in range(5):
        x = theta[i].copy()
        for s in range(steps[i]):
            move = eta[i] * (seen(o, i, x, size, s) + shift[i] + 0.7 * (x - anchor[i]))
            x -= np.where(on, move, 0.0) if held else move
        np.testing.assert_allclose(found[i], x, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_losses_of_rows(ridge):
    o, theta = softmax(ridge), points()
    owner = np.repeat(np.arange(5), o.counts)
    rows = np.concatenate([np.arange(o.starts[i], o.stops[i]) for i in range(5)])
    found = o.row_losses(theta)
    expected = []
    for i, r in zip(owner, rows, strict=True):
        p = np.exp(o.X[r] @ theta[i].reshape(P, K))
        expected.append(-np.log(p[int(o.y[r])] / p.sum()))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    value = np.bincount(owner, found * o.weights[rows], minlength=5) + sizes(o) * ridge * (theta**2).sum(axis=1) / 2
    np.testing.assert_allclose(o.value(theta), value, rtol=1e-12)


@pytest.mark.parametrize("size", [0, 2])
def test_descend_and_katyusha(size):
    o, rng = softmax(), np.random.default_rng(1)
    step, steps, scale = np.linspace(0.01, 0.05, 5), np.array([3, 2, 0, 1, 5]), rng.uniform(1, 2, 5)
    x, y, z, h = (points(seed) for seed in range(4))
    descended = x.copy()
    m = Momentum(0.2, 0.3, 0.9, 0.01, 0.002)
    found, walked = katyusha(o, x, y, z, h, m, scale, steps, draws(size)), descend(o, x, step, steps, draws(size))
    for i in range(5):
        W = weight(o, i)
        for s in range(steps[i]):
            descended[i] -= step[i] * W * seen(o, i, descended[i], size, s)
            theta = 0.2 * z[i] + 0.3 * x[i] + 0.5 * y[i]
            change = W * (seen(o, i, theta, size, s) - seen(o, i, x[i], size, s))
            y[i] = theta - 0.002 * (h[i] + scale[i] * change)
            z[i] = 0.9 * z[i] + 0.1 * theta + 0.01 / 0.002 * (y[i] - theta)
    np.testing.assert_allclose(found, (y, z), rtol=1e-10)
    np.testing.assert_allclose(walked, descended, rtol=1e-11)


@pytest.mark.parametrize("size", [0, 2])
@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_walks_of_glms_are_steps_along_their_gradients(family, fresh, size):
    rng = np.random.default_rng(0)
    stops = np.cumsum(COUNTS)
    y, w = rng.integers(0, 2, stops[-1]).astype(float), rng.uniform(0.5, 2, stops[-1])
    w[-2:] = 0.0
    o = GLM(rng.normal(size=(stops[-1], 3)), y, np.zeros(len(y)), w, stops - np.array(COUNTS), stops, family)
    theta, anchor, steps = rng.normal(size=(5, 3)), rng.normal(size=(5, 3)), np.array([3, 0, 4, 1, 6])
    eta = np.linspace(0.05, 0.1, 5)
    found = walk(o, theta, Walk(eta, steps, draws(size), anchor, 0.7, fresh=fresh))
    check_walk(o, theta, anchor, eta, steps, size, fresh, found)


def test_walks_of_quadratics_are_steps_along_their_gradients():
    rng = np.random.default_rng(0)
    A, b = np.eye(2) + rng.uniform(0, 0.3, (5, 2, 2)), rng.normal(size=(5, 2))
    A = (A + A.transpose(0, 2, 1)) / 2
    theta, anchor, eta, steps = rng.normal(size=(5, 2)), rng.normal(size=(5, 2)), np.full(5, 0.1), np.arange(5)
    for o in (Quadratic(A, b), NoisyQuadratic(A, b, 0.3)):
        for fresh in (True, False):
            found = walk(o, theta, Walk(eta, steps, draws(0), anchor, 0.7, fresh=fresh))
            check_walk(o, theta, anchor, eta, steps, 0, fresh, found)


def check_walk(o, theta, anchor, eta, steps, size, fresh, found):
    at, start = theta.copy(), draws(size)
    for s in range(steps.max()):
        now = Draws(start.keys, start.first + (s if fresh else 0), size)
        g = gradient(o, at, now)
        for i in np.flatnonzero(steps > s):
            at[i] -= eta[i] * (g[i] + 0.7 * (at[i] - anchor[i]))
    np.testing.assert_allclose(found, at, rtol=1e-12)


def test_predictions_and_accuracy():
    o, theta = softmax(), points()
    found, at = o.predict(theta), 0
    for i in range(5):
        right = 0.0
        for r in range(o.starts[i], o.stops[i]):
            c = int(np.argmax(o.X[r] @ theta[i].reshape(P, K)))
            assert found[at] == c
            right += o.weights[r] * (c == o.y[r])
            at += 1
        expected = right / weight(o, i) if weight(o, i) else np.nan
        np.testing.assert_allclose(o.accuracy(theta)[i], expected)
    assert at == len(found)


def test_smoothness_bounds_the_curvature_and_is_met():
    """At theta = 0 with two classes the bound is the curvature itself; elsewhere and with more it is above."""
    o = softmax()
    L, rng = o.smoothness(), np.random.default_rng(3)
    for _ in range(20):
        a, b = rng.normal(size=(2, 5, P * K))
        change = gradient(o, a, draws(0)) - gradient(o, b, draws(0))
        assert (np.linalg.norm(change, axis=1) <= L * np.linalg.norm(a - b, axis=1) * (1 + 1e-12)).all()
    X = rng.normal(size=(9, 2))
    two = Softmax.of(X, rng.integers(0, 2, 9), [0], [9], 2, ridge=0.2)
    eps = 1e-5
    H = [(two.gradient(eps * e) - two.gradient(-eps * e))[0] / (2 * eps) / 9 for e in np.eye(4)]
    np.testing.assert_allclose(np.linalg.eigvalsh(H)[-1], two.smoothness()[0], rtol=1e-8)


def test_views_of_clients():
    o, theta = softmax(), points()
    rows = np.array([3, 1, 3, 0])
    np.testing.assert_array_equal(o.take(rows).gradient(theta[rows]), o.gradient(theta)[rows])
    assert len(o.take(slice(1, 3))) == 2 and o.take(rows).counts.tolist() == [7, 1, 7, 0]


def test_it_has_no_hessian():
    with pytest.raises(CoterieError, match="Softmax has no Hessians"):
        expand(softmax(), points())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"y": [0, 3]}, "whole numbers from 0 to 1, unlike 3:"),
        ({"y": [0, -1]}, "whole numbers from 0 to 1, unlike -1:"),
        ({"y": [0, 0.5]}, "whole numbers from 0 to 1, unlike 0.5:"),
        ({"y": [0, np.nan]}, "whole numbers from 0 to 1, unlike nan:"),
        ({"y": ["a", "b"]}, "whole numbers from 0 to 1"),
        ({"y": [0, 1, 1]}, "one label and one weight"),
        ({"X": [[1.0], [np.nan]]}, "must be finite"),
        ({"weights": [1.0, -1.0]}, "must be finite"),
        ({"ridge": np.inf}, "must be finite"),
        ({"stops": [3]}, "row ranges"),
    ],
)
def test_what_is_no_objective_is_named(change, sentence):
    right = {"X": [[1.0], [2.0]], "y": [0, 1], "starts": [0], "stops": [2], "classes": 2}
    assert Softmax.of(**right).dim == 2
    with pytest.raises(CoterieError, match=sentence):
        Softmax.of(**(right | change))
