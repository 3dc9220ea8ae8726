"""Mean losses, their gradients, Hessians and local paths, against loops over clients, steps and rows."""

from __future__ import annotations

import itertools
from math import exp, log1p

import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.numerics import keyed_random
from coterie.numerics.arrays import full
from coterie.objectives.glm import GLM
from coterie.objectives.gradient_steps import Draws, Walk
from coterie.objectives.mean_loss import expand, path, sizes, walk
from coterie.objectives.quadratic import NoisyQuadratic, Quadratic

COUNTS = (0, 1, 4, 7, 2)
FAMILIES = ["gaussian", "binomial", "poisson"]


def glm(family, d=3, seed=0):
    """Clients with no row, few and many; the last one's rows all weigh nothing."""
    rng = np.random.default_rng(seed)
    stops = np.cumsum(COUNTS)
    n = stops[-1]
    y = {"gaussian": rng.normal(size=n), "binomial": rng.integers(0, 2, n), "poisson": rng.poisson(2.0, n)}[family]
    X, offset, w = rng.normal(size=(n, d)), 0.3 * rng.normal(size=n), rng.choice([0.0, 0.5, 1.0, 2.0], n)
    w[0], w[-2:] = 1.5, 0.0
    return GLM(X, y.astype(float), offset, w, stops - np.array(COUNTS), stops, family)


def row(o, r, theta):
    """Loss, gradient and Hessian of one row, without its weight, from the textbook."""
    e = float(o.offset[r] + o.X[r] @ theta)
    value, mean, curved = {
        "gaussian": lambda: ((o.y[r] - e) ** 2 / 2, e, 1.0),
        "binomial": lambda: (log1p(exp(e)) - o.y[r] * e, 1 / (1 + exp(-e)), exp(e) / (1 + exp(e)) ** 2),
        "poisson": lambda: (exp(e) - o.y[r] * e, exp(e), exp(e)),
    }[o.family.name]()
    return value, (mean - o.y[r]) * o.X[r], curved * np.outer(o.X[r], o.X[r])


def rows(o, i):
    return range(o.starts[i], o.stops[i])


def weight(o, i):
    return sum(o.weights[r] for r in rows(o, i))


def mean_gradient(o, i, theta):
    if weight(o, i) == 0.0:
        return np.zeros(len(theta))
    return sum(o.weights[r] * row(o, r, theta)[1] for r in rows(o, i)) / weight(o, i)


def drawn_gradient(o, i, theta, at):
    """Of the rows ``at`` of client i: (1 / |at|) sum_r n w_r grad_r / W."""
    n = len(rows(o, i))
    if weight(o, i) == 0.0:
        return np.zeros(len(theta))
    return sum(n * o.weights[o.starts[i] + r] * row(o, o.starts[i] + r, theta)[1] for r in at) / len(at) / weight(o, i)


def draws(size, first=(0, 4, 9, 2, 7)):
    return Draws(keyed_random.starts(3, "rows", np.arange(len(COUNTS))), np.array(first), size)


@pytest.mark.parametrize("family", FAMILIES)
def test_sizes(family):
    o = glm(family)
    np.testing.assert_allclose(sizes(o), [weight(o, i) for i in range(5)])
    assert sizes(Quadratic(np.eye(2)[None], np.ones((1, 2)))).tolist() == [1.0]


@pytest.mark.parametrize("family", FAMILIES)
def test_expand(family):
    o, theta = glm(family), np.random.default_rng(1).normal(size=(5, 3)) * 0.5
    value, g, A = expand(o, theta)
    for i in range(5):
        W = weight(o, i) or 1.0
        each = [(o.weights[r], *row(o, r, theta[i])) for r in rows(o, i)]
        np.testing.assert_allclose(value[i], sum(w * f for w, f, _, _ in each) / W, rtol=1e-12)
        np.testing.assert_allclose(g[i], mean_gradient(o, i, theta[i]), rtol=1e-11, atol=1e-14)
        expected = sum((w * H for w, _, _, H in each), np.zeros((3, 3))) / W
        np.testing.assert_allclose(full(A)[i], expected, rtol=1e-11, atol=1e-14)


def test_expand_of_quadratics():
    rng = np.random.default_rng(0)
    root, b, x = rng.normal(size=(4, 2, 2)), rng.normal(size=(4, 2)), rng.normal(size=(4, 2))
    A = root @ root.transpose(0, 2, 1)
    value, g, H = expand(Quadratic(A, b), x)
    for i in range(4):
        np.testing.assert_allclose(value[i], x[i] @ A[i] @ x[i] / 2 - b[i] @ x[i])
        np.testing.assert_allclose(g[i], A[i] @ x[i] - b[i])
        np.testing.assert_allclose(full(H)[i], A[i])


@pytest.mark.parametrize("size", [0, 1, 3])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_path(family, size, steps):
    o, rng = glm(family), np.random.default_rng(1)
    theta, shift, P, eta = (
        rng.normal(size=(5, 3)),
        rng.normal(size=(5, 3)),
        rng.normal(size=(3, 3)),
        rng.uniform(size=5),
    )
    eta *= 0.02
    found = path(o, theta, shift, P, eta, steps, draws(size))
    for i in range(5):
        x, total = theta[i].copy(), np.zeros(3)
        for s in range(steps):
            u = keyed_random.uniform(3, "rows", np.arange(5), draws(size).first[i] + s, max(size, 1))[i]
            at = [int(v * COUNTS[i]) for v in u]
            g = drawn_gradient(o, i, x, at) if size else mean_gradient(o, i, x)
            total += g / steps
            x = x - eta[i] * P @ (g - shift[i])
        np.testing.assert_allclose(found[i], total, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [1, 2])
def test_over_all_draws_there_can_be_the_gradient_is_the_mean_loss_s(family, size):
    """Exactly: enumerated, each draw as likely as another; and the kernel's draws take every value about as often."""
    o, theta = glm(family), np.random.default_rng(2).normal(size=3) * 0.5
    for i in range(1, 4):
        every = [drawn_gradient(o, i, theta, at) for at in itertools.product(range(COUNTS[i]), repeat=size)]
        np.testing.assert_allclose(np.mean(every, axis=0), mean_gradient(o, i, theta), rtol=1e-10, atol=1e-13)
    T = 4000
    still = np.zeros((T, 3)), np.zeros((3, 3)), np.zeros(T), 1
    for i in range(1, 4):
        many = Draws(np.repeat(keyed_random.starts(8, "rows", [i]), T), np.arange(T), size)
        g = path(o.take(np.full(T, i)), np.tile(theta, (T, 1)), *still, many)
        error = 4.5 * g.std(axis=0) / np.sqrt(T)
        assert (np.abs(g.mean(axis=0) - mean_gradient(o, i, theta)) <= error + 1e-11).all()


def test_path_of_noisy_quadratics():
    rng = np.random.default_rng(0)
    root, b = rng.normal(size=(3, 2, 2)), rng.normal(size=(3, 2))
    A, sigma = root @ root.transpose(0, 2, 1), np.array([0.5, 1.0, 2.0])
    theta, shift, P = rng.normal(size=(3, 2)), rng.normal(size=(3, 2)), rng.normal(size=(2, 2))
    keys, first, eta = keyed_random.starts(5, "rows", [4, 5, 6]), np.array([7, 0, 2]), np.array([0.1, 0.02, 0.05])
    found = path(NoisyQuadratic(A, b, sigma), theta, shift, P, eta, 3, Draws(keys, first, 1))
    for i in range(3):
        x, total = theta[i].copy(), np.zeros(2)
        for s in range(3):
            u = keyed_random.uniform(5, "rows", [4, 5, 6], first[i] + s, 4)[i]
            noise = [np.sqrt(-2 * np.log(1 - u[j])) * np.cos(2 * np.pi * u[2 + j]) for j in range(2)]
            g = A[i] @ x - b[i] + sigma[i] * np.array(noise)
            total += g / 3
            x = x - eta[i] * P @ (g - shift[i])
        np.testing.assert_allclose(found[i], total, rtol=1e-11)


def test_quadratics_have_no_rows_to_draw():
    one = np.zeros((1, 2)), np.zeros((1, 2)), np.eye(2), np.ones(1)
    q = Quadratic(np.eye(2)[None], np.ones((1, 2)))
    for steps in (1, 2):
        with pytest.raises(CoterieError, match="no rows to draw from"):
            path(q, *one, steps, Draws(keyed_random.starts(0, "rows", [0]), np.zeros(1, int), 1))


@pytest.mark.parametrize("size", [0, 2])
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("kind", ["glm", "noisy"])
def test_walk_with_a_correction_and_parameters_that_stay(kind, size, shifted, held):
    rng, d = np.random.default_rng(4), 3
    o = glm("binomial")
    if kind == "noisy":
        root = rng.normal(size=(5, d, d))
        o = NoisyQuadratic(root @ root.transpose(0, 2, 1) / d, rng.normal(size=(5, d)), 0.3)
    theta, anchor, correction = rng.normal(size=(3, 5, d))
    shift, on = correction if shifted else None, np.array([1.0, 0.0, 1.0]) if held else None
    eta, steps = np.linspace(0.05, 0.2, 5), np.array([3, 0, 4, 1, 6])
    found = walk(o, theta, Walk(eta, steps, draws(size), anchor, 0.7, shift, on))
    for i in range(5):
        x = theta[i].copy()
        for s in range(steps[i]):
            now = draws(size)
            now = Draws(now.keys[i : i + 1], now.first[i : i + 1] + s, size)
            if kind == "noisy":
                g = o.take(np.array([i])).sample(x[None], now.keys, now.first)[0]
            elif size:
                u = keyed_random.uniform(3, "rows", np.arange(5), now.first[0], size)[i]
                g = drawn_gradient(o, i, x, [int(v * COUNTS[i]) for v in u])
            else:
                g = mean_gradient(o, i, x)
            for j in range(d):
                if not held or on[j]:
                    x[j] -= eta[i] * (g[j] + (correction[i, j] if shifted else 0.0) + 0.7 * (x[j] - anchor[i, j]))
        np.testing.assert_allclose(found[i], x, rtol=1e-10, atol=1e-13)
    if held:
        np.testing.assert_array_equal(found[:, 1], theta[:, 1])
