"""What a run's curve says of groups' own gradients, and looks at a bounded number of rows."""

from __future__ import annotations

import numpy as np
import pytest

import coterie
from coterie.engines import InProcess
from coterie.methods.group_sgd import GroupSGD
from coterie.methods.groups.group_gradients import Growth, bounded_gradient, look, point
from coterie.numerics import keyed_random
from coterie.objectives.gradient_steps import Draws
from coterie.objectives.mean_loss import gradient
from coterie.objectives.quadratic import Quadratic
from tests.methods.test_group_sgd import COUNTS, GROUP, WEIGHTS, softmax


def curve(b, rounds=61, every=10):
    """A curve of two groups whose clients want x = b (4, 2), the first coordinate shared."""
    fed, method = InProcess(Quadratic(np.tile(np.eye(2), (4, 1, 1)), b), [0, 0, 1, 1]), GroupSGD(eta=0.9, shared=("0",))
    states = method.run(fed, range(1, rounds, every))
    return [{"round": s["t"], **point(look(fed, method, s, R=0, rows=0))} for s in states]


def test_groups_that_are_left_behind_are_named():
    apart = np.array([[1.0, 1.0], [1.0, 1.0], [-1.0, 2.0], [-1.0, 2.0]])
    found = Growth.of(curve(apart))
    assert found.stalled.all() and found.constant.min() > 1e6
    np.testing.assert_allclose(found.gradient[-1], 1.0, atol=1e-6)
    first, one, two = found.sentences()
    assert "M = " in first and "Group 1" in one and "Group 2" in two
    alike = Growth.of(curve(np.abs(apart)))
    assert not alike.stalled.any() and len(alike.sentences()) == 1
    assert alike.gradient[-1].max() < 1e-10


def test_a_curve_without_looks_says_nothing():
    assert point(None) == {} and Growth.of([{"round": 1, "loss": 0.3}]) is None


def test_noise_is_the_variance_of_the_groups_own_stochastic_gradient():
    o, B, R = softmax(COUNTS, 3), 2, 5
    fed, method = InProcess(o, GROUP, WEIGHTS, seed=3), GroupSGD(eta=0.2, shared=("0", "4"), B=B)
    state = method.init(fed)
    found = look(fed, method, state, R=R, rows=0)
    keys, theta = keyed_random.starts(3, "look", fed.clients.ids), np.asarray(method.models(fed, state))
    drawn = np.array([gradient(o, theta, Draws(keys, np.full(7, r), B)) for r in range(R)])
    for g in range(3):
        here = WEIGHTS[g == GROUP]
        each = drawn[:, g == GROUP].var(axis=0, ddof=1).sum(axis=1)
        assert found["group_noise"][g] == pytest.approx(here**2 @ each / here.sum() ** 2)


@pytest.mark.parametrize("rows", [1, 4, 10**6])
def test_clients_with_more_rows_are_looked_at_in_drawn_ones(rows):
    o = softmax(COUNTS, 3)
    keys, zero, theta = keyed_random.starts(1, "look", np.arange(7, dtype=np.uint64)), np.zeros(7, int), np.ones((7, 9))
    found, many = bounded_gradient(o, theta, keys, rows), np.asarray(o.sizes()) > rows
    whole, drawn = gradient(o, theta, Draws(keys, zero)), gradient(o, theta, Draws(keys, zero, min(rows, 99)))
    np.testing.assert_allclose(found, np.where(many[:, None], drawn, whole), rtol=1e-12, atol=1e-15)
    assert many.any() == (rows < 10**6)


def test_groups_that_are_found_are_looked_at_like_known_ones():
    rows = {"partition": "rotated", "clients": 12, "rows": 600}
    found = coterie.fit("digits", coterie.Torch("softmax"), method="found-groups", partition=rows, rounds=1)
    groups = len(set(found.group.tolist()))
    looked = found.run.curve[-1]
    assert groups > 1 and all(looked[f"growth_{g + 1}"] >= 0.0 for g in range(groups))
