"""Trust: who is found harmful and who is not, over seeds; steps without an answer; resuming."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.engines import InProcess
from coterie.errors import CoterieError
from coterie.methods.aggregation.rules import Aggregator, Received, Trust
from coterie.methods.collaboration.collaborators import Collaborators
from coterie.methods.collaboration.metric_and_similarity import Metric
from coterie.methods.weighted_averaging_and_bias_correction import WeightedAveraging
from coterie.objectives.quadratic import NoisyQuadratic
from tests.messages import names
from tests.methods.aggregation.collaboration_loop import Noisy, run

N, D = 8, 4
BAD = (6, 7, 8)


def flip(g, rng, x):
    return -g


def constant(g, rng, x):
    return 0.0 * g + 3.0


def thrice(g, rng, x):
    return 3.0 * g


def garbage(g, rng, x):
    return 1e5 * rng.normal(size=g.shape)


def watched(trust, sender=None, sigma=0.3, zeta=1.0, windows=6, seed=0, beta=0.01, start=2.0, eta=0.02):
    """Who is dropped at the end of each window (windows, N), and x."""
    rng = np.random.default_rng(seed)
    x_star = zeta * rng.normal(size=(N + 1, D))
    x_star[0] = 0.0
    A = np.tile(np.diag(np.linspace(0.5, 1.0, D)), (N + 1, 1, 1))
    gradients = Noisy(A, x_star, sigma, seed, dict.fromkeys(BAD, sender) if sender else None)
    who, rules, state = Collaborators.of_one(0, N + 1), Aggregator([trust]), None
    x, dropped = np.full((1, D), start), []
    for _ in range(windows):
        x, state = run(who, gradients, x, trust.window, eta, 0.8, beta, rules, state)
        dropped.append(state["trust again"] > state["t"])
    return np.array(dropped), x


@pytest.mark.soak("2.0-3.0", "0.0-0.3", "2.0-0.0", "0.0-3.0")
@pytest.mark.parametrize("sigma", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("start", [0.0, 2.0])
def test_shifted_copies_of_the_main_client_are_kept(sigma, start):
    for seed in range(2):
        for zeta in (0.0, 30.0):
            dropped, _ = watched(Trust(window=40), sigma=sigma, zeta=zeta, windows=20, seed=seed, start=start)
            assert not dropped.any()


@pytest.mark.parametrize("sender", [flip, constant, thrice])
def test_delta_finds_who_bends_another_way(sender):
    for seed in range(4):
        dropped, _ = watched(Trust(window=50), sender, sigma=0.1, seed=seed)
        assert dropped[-1].tolist() == [False] * 5 + [True] * 3


def test_nothing_is_said_of_flipped_signs_before_x_moves():
    """All that changes is noise."""
    for seed in range(4):
        dropped, _ = watched(Trust(), flip, sigma=1.0, zeta=0.0, windows=20, seed=seed, eta=1e-5)
        assert not dropped.any()


def test_a_slightly_larger_one_is_kept():
    dropped, _ = watched(Trust(), lambda g, rng, x: 1.4 * g, sigma=0.1)
    assert not dropped.any()


def test_garbage_never_moves_x():
    _, without = watched(Trust(), None, sigma=0.3)
    _, x = watched(Trust(), garbage, sigma=0.3)
    assert np.linalg.norm(x - without) < 0.5


def test_direction_drops_who_pulls_the_other_way_and_only_when_asked():
    trust = Trust(direction=True, multiple=10.0)
    for seed in range(4):
        dropped, _ = watched(trust, flip, sigma=0.3, zeta=0.0, windows=1, seed=seed, beta=None)
        assert dropped[-1].tolist() == [False] * 5 + [True] * 3
    dropped, _ = watched(Trust(multiple=10.0), flip, sigma=0.3, zeta=0.0, windows=4, beta=None)
    assert not dropped.any()


def test_who_behaves_again_comes_back():
    """Flipped signs for three windows, then none: back after the pause."""
    count = iter(range(10**6))

    def once(g, rng, x):
        return -g if next(count) < 3 * 3 * 50 else g

    dropped, _ = watched(Trust(pause=4, memory=0.5), once, sigma=0.3, windows=25)
    assert dropped[2, -3:].all()
    assert not dropped[-1].any()
    assert not dropped[:, :5].any()


def test_answers_of_the_past_are_no_evidence():
    """Whoever answers too seldom in a window is not judged in it."""
    who, trust = Collaborators.of_one(0, 3), Trust(window=10)
    rng = np.random.default_rng(0)
    state = trust.init(1, 2, 2)
    for t in range(60):
        x = np.full((1, 2), 5.0 - 0.1 * t)
        own = x + 0.01 * rng.normal(size=(1, 2))
        pairs = Received(who.pair_main, np.repeat(-x, 2, axis=0), np.ones(2, bool), np.array([0, t % 10]), own, t)
        weights, state = trust(pairs, who.tau, state)
    assert weights.tolist() == [0.0, 0.5]


def objective(groups):
    """Main clients 0, ..., groups - 1, and three collaborators of each, of whom the last flips signs."""
    rng, n = np.random.default_rng(0), 4 * groups
    A, sigma = np.tile(np.eye(2), (n, 1, 1)), np.full(n, 0.1)
    b = rng.normal(size=(n, 2))
    A[4 * np.arange(groups) + 3] *= -1.0
    return NoisyQuadratic(A, b, sigma)


def test_many_main_clients_with_the_method_and_resuming():
    groups = 5
    main = 4 * np.arange(groups)
    of = np.repeat(np.arange(groups), 3)
    who = Collaborators(main, of, (main[:, None] + [1, 2, 3]).ravel(), np.full(3 * groups, 1 / 3))
    rules = Aggregator([Trust(window=25, direction=True)])
    method = WeightedAveraging(pairs=who, metric=Metric.plain(2), aggregator=rules, alpha=0.5, eta=0.05)
    fed = InProcess(objective(groups), np.zeros(4 * groups, dtype=np.int64))
    start = np.full((groups, 2), 4.0)
    half, straight = method.run(fed, [60, 125], method.init(fed, start))
    again = {name: np.array(v) if isinstance(v, np.ndarray) else v for name, v in half.items()}
    (resumed,) = method.run(fed, [125], again)
    np.testing.assert_array_equal(resumed["x"], straight["x"])
    dropped = (straight["trust again"] > 125).reshape(groups, 3)
    assert dropped[:, 2].all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"window": 3}, names("window whole number 4")),
        ({"pause": 0}, names("pause whole number 1")),
        ({"multiple": 0.0}, names("multiple number above 0")),
        ({"errors": 0.0}, names("errors number 1")),
        ({"size": 1.0}, names("size number above 1")),
        ({"memory": 1.0}, names("memory number 0 below 1")),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(CoterieError, match=words):
        Trust(**options)


def test_who_is_found_harmful_again_is_dropped_for_longer():
    trust = Trust(window=20, pause=2, direction=True, memory=0.0)
    dropped, _ = watched(trust, lambda g, rng, x: 0.0 * g + 10.0, sigma=0.3, windows=60, beta=None, zeta=0.0)
    edges = np.flatnonzero(np.diff(dropped[:, -1].astype(int)))
    lengths = np.diff(edges)[::2]
    assert len(lengths) == 3
    assert np.all(np.diff(lengths) > 0)
    assert np.all(np.diff(edges)[1::2] == 1)  # back for a window at a time
