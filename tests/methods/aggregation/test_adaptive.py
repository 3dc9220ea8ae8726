"""Adaptive weights, by bias and noise, against what they should be."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.methods.aggregation.rules import Adaptive, Aggregator, Received
from coterie.methods.collaboration.collaborators import Collaborators
from tests.messages import names
from tests.methods.aggregation.collaboration_loop import Noisy, run

D = 3


def after(rule, who, own, g, steps=1, sigma=0.0, age=None, seed=0, state=None, first=0):
    """Weights after some steps of the same gradients with noise."""
    rng, P = np.random.default_rng(seed), len(g)
    state = rule.init(len(who.main), len(who.tau), D) if state is None else state
    for t in range(first, first + steps):
        noisy = g + np.reshape(sigma, (-1, 1)) * rng.normal(size=g.shape)
        mine = own + 0.5 * float(np.max(sigma) > 0.0) * rng.normal(size=own.shape)
        ages = np.zeros(P, np.int64) if age is None else age
        pairs = Received(who.pair_main, noisy, np.ones(P, bool), ages, mine, t)
        weights, state = rule(pairs, who.tau, state)
    return weights, state


def test_by_bias_without_bias_weights_go_by_variance():
    """``tau_k`` is proportional to ``1 / sigma_k^2`` where all biases are zero (C.2, the noise alone)."""
    who, own = Collaborators.of_one(0, 4), np.array([[1.0, 0.0, 0.0]])
    sigma = np.array([0.5, 1.0, 2.0])
    rule = Adaptive(memory=0.999, spread=1e3)
    weights, _ = after(rule, who, own, np.repeat(own, 3, axis=0), 4000, sigma)
    np.testing.assert_allclose(weights, sigma**-2 / np.sum(sigma**-2), atol=0.02)


def test_by_bias_the_closest_are_listened_to_in_a_long_run():
    who, own = Collaborators.of_one(0, 4), np.zeros((1, D))
    g = np.array([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0], [5.0, 0.0, 0.0]])
    weights, _ = after(Adaptive(spread=1e-6), who, own, g, 300, [0.5, 0.5, 0.5])
    np.testing.assert_allclose(weights, [1.0, 0.0, 0.0], atol=1e-3)


def test_those_that_do_not_answer_or_do_not_count_change_nothing():
    who, own = Collaborators.of_one(0, 4, tau=[0.5, 0.5, 0.0]), np.array([[1.0, 0.0, 0.0]])
    g = np.array([[1.0, 0.1, 0.0], [1.0, 0.2, 0.0], [1e200, 1e200, 0.0]])
    rule = Adaptive()
    weights, state = after(rule, who, own, g, 20, 0.1)
    assert np.isfinite(weights).all()
    assert weights[2] == 0.0
    _, later = after(rule, who, own, g, 5, 0.1, np.array([1, 1, 0]), state=state, first=20)
    np.testing.assert_array_equal(state["adaptive pairs g"], later["adaptive pairs g"])


def test_numbers_too_large_to_square_are_left_out_or_kept_finite():
    who, own = Collaborators.of_one(0, 3), np.array([[1.0, 0.0, 0.0]])
    weights, _ = after(Adaptive(), who, own, np.array([[1.0, 0.0, 0.0], [1e200, 0.0, 0.0]]), 3)
    assert np.isfinite(weights).all()
    assert weights[0] > 0.0


def test_resuming_is_running_on():
    A, x_star = np.tile(np.eye(D), (4, 1, 1)), np.random.default_rng(0).normal(size=(4, D))
    who, rules = Collaborators.of_one(0, 4), Aggregator([Adaptive()])
    straight, _ = run(who, Noisy(A, x_star, 0.3, 5), np.ones((1, D)), 40, 0.05, 0.7, 0.1, rules)
    gradients = Noisy(A, x_star, 0.3, 5)
    x, state = run(who, gradients, np.ones((1, D)), 17, 0.05, 0.7, 0.1, rules)
    x, _ = run(who, gradients, x, 23, 0.05, 0.7, 0.1, rules, state)
    np.testing.assert_array_equal(x, straight)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"memory": 1.0}, names("memory number 0 below 1")),
        ({"spread": 0.0}, names("spread number above 0")),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(CoterieError, match=words):
        Adaptive(**options)
