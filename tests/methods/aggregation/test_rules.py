"""Trimmed means and centred clipping: what bad senders cannot do, and what is refused."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from coterie.engines import InProcess
from coterie.errors import CoterieError
from coterie.methods.aggregation.rules import Aggregator, Clipped, Mean, Received, Trimmed, Trust
from coterie.methods.collaboration.collaborators import Collaborators
from coterie.methods.collaboration.metric_and_similarity import Metric
from coterie.methods.weighted_averaging_and_bias_correction import BiasCorrection, WeightedAveraging
from coterie.objectives.quadratic import NoisyQuadratic
from tests.messages import names
from tests.methods.aggregation.collaboration_loop import Noisy, run

D, N = 3, 8
CHOICES = [Trimmed(0.25), Clipped(), Clipped(2.0, 3)]


def one_step(g, weights=None):
    who = Collaborators.of_one(0, len(g) + 1)
    n = len(g)
    return Received(who.pair_main, g, np.ones(n, bool), np.zeros(n, np.int64), np.zeros((1, g.shape[1])), 0), who.tau


@pytest.mark.parametrize("rule", CHOICES)
def test_two_of_eight_move_it_by_no_more_than_the_others_spread(rule):
    rng = np.random.default_rng(0)
    g = rng.normal(size=(N, D))
    for size in (1e3, 1e150, 1.7e308):
        bad = g.copy()
        bad[:2] = size * np.array([[1.0, -1.0, 1.0], [-1.0, 1.0, 1.0]])
        pairs, tau = one_step(bad)
        found, _ = rule(pairs, tau, rule.init(1, len(tau), D))
        assert np.all(np.abs(found) < np.abs(g).max() + 0.5)


@pytest.mark.parametrize("rule", [*CHOICES, Mean()])
def test_one_collaborator_is_heard_as_it_is(rule):
    pairs, tau = one_step(np.array([[1.0, -2.0, 3.0]]))
    found, _ = rule(pairs, tau, rule.init(1, len(tau), D))
    np.testing.assert_allclose(found, pairs.g)


SENDERS = ["flip", "garbage", "constant", "nan"]


def clients(sender):
    """A main client, six honest collaborators and two that are not: A, b and sigma."""
    rng, n = np.random.default_rng(1), N + 1
    A, b, sigma = np.tile(np.eye(D), (n, 1, 1)), rng.normal(size=(n, D)), np.full(n, 0.3)
    b[0] = 0.0
    if sender == "flip":
        A[-2:] *= -1.0
    elif sender == "constant":
        A[-2:], b[-2:], sigma[-2:] = 0.0, 5.0, 0.0
    elif sender == "nan":
        sigma[-2:] = np.nan
    else:
        sigma[-2:] = 1e4
    return A, b, sigma


def losses(method, **options):
    """The loss of the main client over the last third of a run, for each kind of bad senders, side by side (4,)."""
    m = len(SENDERS)
    of, who = np.divmod(np.arange(m * (N + 1)), N + 1)
    here = who > 0
    pairs = Collaborators(np.flatnonzero(~here), of[here], np.flatnonzero(here), np.full(m * N, 1 / N))
    run = method(pairs=pairs, metric=Metric.plain(D), eta=0.05, **options)
    objective = NoisyQuadratic(*(np.concatenate(part) for part in zip(*map(clients, SENDERS), strict=True)))
    fed = InProcess(objective, np.zeros(m * (N + 1), dtype=np.int64))
    states = run.run(fed, range(400, 801, 5), run.init(fed, np.full((m, D), 2.0)))
    return np.mean([np.sum(s["x"] ** 2, axis=1) / 2 for s in states], axis=0)


@cache
def losses_alone():
    return losses(WeightedAveraging, alpha=0.0)


@pytest.mark.soak("rules0", "rules1", "rules2")
@pytest.mark.parametrize(
    "rules", [*(Aggregator(combine=c) for c in CHOICES), Aggregator([Trust(window=25)], Clipped())]
)
def test_bias_correction_with_them_ends_below_working_alone(rules):
    found = losses(BiasCorrection, aggregator=rules, alpha=N / (N + 1), beta=0.005)
    assert [sender for sender, below in zip(SENDERS, found < losses_alone(), strict=True) if not below] == []


@pytest.mark.parametrize("rule", [Mean(), *CHOICES])
def test_the_methods_are_the_loop(rule):
    """Algorithms 2 and 3 word by word, on gradients without noise."""
    A, b, _ = clients("flip")
    objective = NoisyQuadratic(A, b, np.zeros(N + 1))
    x_star = np.linalg.solve(objective.A, objective.b[:, :, None])[:, :, 0]
    start, who = np.full((1, D), 2.0), Collaborators.of_one(0, N + 1)
    exchange = {"pairs": who, "metric": Metric.plain(D), "aggregator": Aggregator(combine=rule)}
    for beta in (None, 0.1):
        given = {**exchange, "alpha": 0.6, "eta": 0.05}
        method = WeightedAveraging(**given) if beta is None else BiasCorrection(**given, beta=beta)
        fed = InProcess(objective, np.zeros(N + 1, dtype=np.int64))
        (state,) = method.run(fed, [40], method.init(fed, start))
        x, _ = run(who, Noisy(objective.A, x_star, 0.0, 0), start, 40, 0.05, 0.6, beta, Aggregator(combine=rule))
        np.testing.assert_allclose(state["x"], x, rtol=1e-10)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Trimmed(0.6), "from 0 to 0.5, not 0.6"),
        (lambda: Trimmed(float("nan")), "from 0 to 0.5"),
        (lambda: Clipped(0.0), names("radius number above 0")),
        (lambda: Clipped(steps=0), names("steps whole number 1 0")),
    ],
)
def test_bad_options(make, words):
    with pytest.raises(CoterieError, match=words):
        make()
