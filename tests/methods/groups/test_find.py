"""Groups by updates: their number, one group where clients are alike, sketches and silhouettes."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.engines import InProcess, Loopback
from coterie.errors import CoterieError
from coterie.methods.fedavg import FedAvg
from coterie.methods.groups.evaluation import correctly_grouped
from coterie.methods.groups.find import alike, by_updates, silhouette, sketch
from coterie.objectives.holdout import halves, hold_out
from coterie.objectives.quadratic import Quadratic
from tests.messages import names
from tests.methods.groups.grouped_rows import federation, rows, softmax


def test_updates_tell_the_groups_and_their_number():
    fed, known = federation()
    found = by_updates(fed, np.zeros(15), eta=0.5, steps=30)
    assert found.k == 3 and correctly_grouped(found.labels, known) == 18
    assert max(found.score, key=found.score.get) == 3 and found.sizes.tolist() == [6, 6, 6]


def test_one_step_is_told_apart_from_several():
    """What all clients have in common hides the groups after one step, here because classes are not as frequent."""
    fed, known = federation(seed=5, n=8, each=8, wrong=0.5)
    w = list(FedAvg(eta=0.5, E=1).run(fed, [1]))[-1]["w"]
    one, many = (correctly_grouped(by_updates(fed, w, eta=0.5, steps=s, k=3).labels, known) for s in (1, 50))
    assert many >= 22 and many >= one


def test_clients_send_a_short_sketch_that_keeps_cosines():
    rng = np.random.default_rng(0)
    u = rng.normal(size=(20, 5000)) + 2.0 * rng.normal(size=(4, 5000))[np.arange(20) % 4]
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    s = sketch(u, 1024, seed=3)
    assert s.shape == (20, 1024)
    np.testing.assert_array_equal(s, sketch(u, 1024, seed=3))
    assert np.abs(s @ s.T - u @ u.T).max() < 5.0 / np.sqrt(1024)
    many = np.mean([sketch(u[:2], 64, seed) @ sketch(u[:2], 64, seed).T for seed in range(300)], axis=0)
    np.testing.assert_allclose(many, u[:2] @ u[:2].T, atol=0.03)
    assert sketch(u, 0) is u and sketch(u, 6000) is u
    fed, known = federation()
    found = by_updates(fed, np.zeros(15), eta=0.5, q=9, k=3)
    assert found.about["directions"].shape == (18, 9) and correctly_grouped(found.labels, known) >= 16


def test_clients_that_do_not_move_are_in_no_group():
    X, y, starts, stops, known = rows()
    stops = stops.copy()
    stops[4] = starts[4]
    fed = InProcess(softmax(X, y, starts, stops))
    found = by_updates(fed, np.zeros(15), eta=0.5, k=3)
    assert found.labels[4] == -1 and correctly_grouped(found.labels, known) == 17
    with pytest.raises(CoterieError, match="17 clients sent updates"):
        by_updates(fed, np.zeros(15), eta=0.5, k=17)


def test_sites_change_nothing():
    X, y, starts, stops, _ = rows()
    one = by_updates(InProcess(softmax(X, y, starts, stops)), np.zeros(15), eta=0.5, B=3, q=9, k=3)
    two = by_updates(Loopback(softmax(X, y, starts, stops), sites=3), np.zeros(15), eta=0.5, B=3, q=9, k=3)
    np.testing.assert_array_equal(one.labels, two.labels)


def test_clients_that_are_alike_are_one_group_as_often_as_promised():
    """The test is exact: of 40 federations of like clients 2 are split in the mean, and 6 or more once in 70."""
    every = (federation(groups=1, each=12, n=8, wrong=1.0, seed=s)[0] for s in range(40))
    found = [by_updates(fed, np.zeros(15), eta=0.5, k=(1, 2)) for fed in every]
    assert sum(one.k > 1 for one in found) <= 5
    for one in found:
        assert (one.k == 1) == (one.about["alike"] > 0.05) and set(one.score) == {2}
    assert min(one.about["alike"] for one in found) < 0.2 and max(one.about["alike"] for one in found) > 0.8


@pytest.mark.parametrize(("groups", "each"), [(2, 3), (3, 6), (4, 2)])
def test_few_clients_of_several_groups_are_not_taken_for_one(groups, each):
    fed, known = federation(groups=groups, each=each, n=30)
    found = by_updates(fed, np.zeros(15), eta=0.5)
    assert found.k == groups and correctly_grouped(found.labels, known) == len(known) and found.about["alike"] <= 0.05


def test_like_clients_of_unlike_sizes_are_alike():
    rng = np.random.default_rng(0)
    both = rng.normal(size=(300, 2, 12)) * np.geomspace(0.1, 3.0, 300)[:, None, None]
    both[:, :, 0] += 1.0  # what all have in common, which the noise of small clients hides
    both /= np.linalg.norm(both, axis=2, keepdims=True)
    assert 0.05 < alike(both) <= 1.0
    assert alike(both + 0.3 * rng.normal(size=(300, 1, 12))) <= 0.002
    assert alike(both[:2]) == 1.0 or alike(both[:2]) == 0.5  # of two pairings
    assert alike(np.zeros((5, 2, 3))) == 1.0


def test_halves_are_drawn_by_key_and_hold_every_row_once():
    X, y, starts, stops, _ = rows(each=2, n=7)
    stops[3] = starts[3] + 1
    whole = softmax(X, y, starts, stops)
    first, second = halves(whole, np.arange(6))
    np.testing.assert_array_equal(first.sizes() + second.sizes(), whole.sizes())
    assert first.sizes().tolist() == [3, 3, 3, 0, 3, 3] and not np.any(first.weights * second.weights)
    again = halves(softmax(X, y, starts[[2]], stops[[2]]), [2])[0]
    np.testing.assert_array_equal(again.weights[starts[2] : stops[2]], first.weights[starts[2] : stops[2]])
    kept = halves(hold_out(softmax, X, y, starts, stops), np.arange(6))
    assert sum(half.sizes() for half in kept).tolist() == [5, 5, 5, 1, 5, 5]


def test_losses_without_rows_have_no_halves():
    A = np.tile(np.eye(3), (6, 1, 1))
    fed = InProcess(Quadratic(A, np.repeat([[3.0, 0, 0], [0, 3.0, 0]], 3, axis=0)))
    found = by_updates(fed, np.zeros(3), eta=0.1, steps=5)
    assert found.k == 2 and found.about["alike"] is None


def test_a_silhouette_of_clients_drawn_may_miss_a_small_group():
    """One client among 3000 is not drawn with every seed; then there is one group only."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(3000, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    labels = (np.arange(3000) == 7).astype(np.int64)
    found = [silhouette(points, labels, seed) for seed in range(6)]
    assert -1.0 in found and max(found) > -1.0


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"eta": np.nan}, names("eta number above 0")),
        ({"eta": 0.5, "k": "four"}, names("k list whole numbers")),
        ({"eta": 0.5, "k": [2, 2.5]}, names("k list whole numbers")),
        ({"eta": 0.5, "w": np.zeros(14)}, names("common model 15 numbers")),
    ],
)
def test_what_updates_cannot_be_asked(how, says):
    with pytest.raises(CoterieError, match=says):
        by_updates(federation()[0], **{"w": np.zeros(15)} | how)
