"""Runs of local steps against loops over steps, clients and rows."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.numerics import keyed_random
from coterie.numerics.keyed_random import key, whole
from coterie.objectives.glm import GLM
from coterie.objectives.gradient_steps import Draws, Momentum, descend, full_gradient, katyusha
from coterie.objectives.quadratic import Quadratic, closed_form_steps, eigenbasis, quadratic_ranks
from tests.messages import names

COUNTS = (0, 1, 2, 5, 9)


def glm(family="gaussian", d=3, seed=0):
    rng = np.random.default_rng(seed)
    stops = np.cumsum(COUNTS)
    n = stops[-1]
    y = (
        rng.poisson(2.0, n)
        if family == "poisson"
        else rng.integers(0, 2, n)
        if family == "binomial"
        else rng.normal(size=n)
    )
    X, offset, weights = rng.normal(size=(n, d)), rng.normal(size=n), rng.uniform(0.0, 2.0, n)
    return GLM(X, y.astype(float), offset, weights, stops - np.array(COUNTS), stops, family)


def row_gradient(o, r, theta):
    eta = o.offset[r] + sum(a * b for a, b in zip(o.X[r], theta, strict=True))
    mean = {"gaussian": lambda e: e, "binomial": lambda e: 1 / (1 + np.exp(-e)), "poisson": np.exp}[o.family.name](eta)
    return o.weights[r] * (mean - o.y[r]) * o.X[r]


def estimate(o, i, theta, draws, step):
    """The gradient a step sees: all rows, or the keyed ones, scaled."""
    lo, n = o.starts[i], o.stops[i] - o.starts[i]
    if n == 0:
        return np.zeros_like(theta)
    if not draws.size:
        return sum(row_gradient(o, r, theta) for r in range(lo, lo + n))
    u = keyed_random.uniform(3, "rows", np.arange(len(o)), draws.first[i] + step, draws.size)[i]
    return n / draws.size * sum(row_gradient(o, lo + int(v * n), theta) for v in u)


def draws_of(size):
    return Draws(keyed_random.starts(3, "rows", np.arange(len(COUNTS))), np.array([0, 4, 9, 2, 7]), size)


@pytest.mark.parametrize("size", [0, 1, 3])
@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_descend(family, size):
    o, draws = glm(family), draws_of(size)
    theta = np.random.default_rng(1).normal(size=(5, 3))
    step, steps = np.linspace(0.001, 0.01, 5), np.array([3, 0, 4, 1, 6])
    expected = theta.copy()
    for i in range(5):
        for s in range(steps[i]):
            expected[i] -= step[i] * estimate(o, i, expected[i], draws, s)
    np.testing.assert_allclose(descend(o, theta, step, steps, draws), expected, rtol=1e-12)


@pytest.mark.parametrize("size", [0, 2])
@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_katyusha(family, size):
    o, draws, rng = glm(family), draws_of(size), np.random.default_rng(1)
    x, y, z, h = rng.normal(size=(4, 5, 3))
    m, scale, steps = Momentum(0.2, 0.3, 0.9, 0.01, 0.002), rng.uniform(1, 2, 5), np.array([3, 2, 0, 1, 5])
    found = katyusha(o, x, y, z, h, m, scale, steps, draws)
    for i in range(5):
        for s in range(steps[i]):
            theta = 0.2 * z[i] + 0.3 * x[i] + 0.5 * y[i]
            change = estimate(o, i, theta, draws, s) - estimate(o, i, x[i], draws, s)
            y[i] = theta - 0.002 * (h[i] + scale[i] * change)
            z[i] = 0.9 * z[i] + 0.1 * theta + 0.01 / 0.002 * (y[i] - theta)
    np.testing.assert_allclose(found, (y, z), rtol=1e-11)


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_full_gradient(family):
    o, theta = glm(family), np.random.default_rng(1).normal(size=(5, 3))
    expected = [estimate(o, i, theta[i], Draws(np.empty(0), np.empty(0)), 0) for i in range(5)]
    np.testing.assert_allclose(full_gradient(o, theta), expected, rtol=1e-12, atol=1e-14)


def test_an_objective_without_rows_has_none_to_draw():
    q = Quadratic(np.eye(2)[None], np.ones((1, 2)))
    with pytest.raises(CoterieError, match=names("no rows draw leave batch")):
        descend(q, np.zeros((1, 2)), np.ones(1), np.ones(1, dtype=int), Draws(np.zeros(1, np.uint64), np.zeros(1), 2))


@pytest.mark.parametrize("d", [2, 3, 8])
def test_a_run_in_closed_form_is_its_steps(d):
    """Clients with no row, fewer rows than columns, and more."""
    o, theta = glm(d=d), np.random.default_rng(1).normal(size=(5, d))
    basis = eigenbasis(o, int(quadratic_ranks(o).max()))
    step, steps = np.linspace(0.001, 0.02, 5), np.array([3, 4, 40, 1, 1000])
    expected = descend(o, theta, step, steps, draws_of(0))
    found = closed_form_steps(theta, basis["values"], basis["vectors"], basis["goal"], step, steps)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-13)
    assert basis["values"].shape == (5, min(9, d))


def test_keyed_numbers_in_compiled_code_are_those_outside():
    ids = np.array([0, 5, 2**63 + 11], dtype=np.uint64)
    starts = keyed_random.starts(9, "rows", ids)
    for step in (0, 1, 10**12):
        u = keyed_random.uniform(9, "rows", ids, step, 50)
        for i in range(3):
            at = np.uint64(key(starts[i], step))
            assert int(at) == int(keyed_random.keys(9, "rows", ids, step)[i])
            assert [whole(at, draw, 7) for draw in range(50)] == [int(v * 7) for v in u[i]]
