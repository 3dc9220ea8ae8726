"""Groups that were found: how many are best by rows kept back, and how they match known ones."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.engines import InProcess
from coterie.errors import CoterieError
from coterie.methods.fedavg import FedAvg
from coterie.methods.groups.evaluation import by_held_out, correctly_grouped, held_loss
from coterie.methods.groups.find import Groups, by_updates, numbered
from coterie.objectives.holdout import HeldOut, hold_out
from tests.messages import names
from tests.methods.groups.grouped_rows import federation, keeping, rows, softmax


def test_rows_kept_back_are_each_in_one_part_and_drawn_by_key():
    X, y, starts, stops, _ = rows(n=10)
    both = hold_out(softmax, X, y, starts, stops, 0.3)
    assert (both.train.counts == 7).all() and (both.held.counts == 3).all()
    assert np.shares_memory(both.train.X, both.held.X)
    for i in (0, 5):
        parts = [o.X[o.starts[i] : o.stops[i], 1] for o in (both.train, both.held)]
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.sort(X[starts[i] : stops[i], 1]))
    again = hold_out(softmax, X, y, starts[[3]], stops[[3]], 0.3, ids=[3])
    np.testing.assert_array_equal(again.held.X[7:10], both.held.X[both.held.starts[3] : both.held.stops[3]])
    other = hold_out(softmax, X, y, starts, stops, 0.3, seed=1)
    assert not np.array_equal(other.held.X, both.held.X)


def test_few_rows_are_kept_back_with_care():
    X, y, *_ = rows(n=10)
    both = hold_out(softmax, X, y, [0, 0, 1, 3], [0, 1, 3, 6], 0.9)
    assert both.train.counts.tolist() == [0, 1, 1, 1] and both.held.counts.tolist() == [0, 0, 1, 2]
    with pytest.raises(CoterieError, match=names("0 1 not")):
        hold_out(softmax, X, y, [0], [5], 1.0)
    with pytest.raises(CoterieError, match="the same clients"):
        HeldOut(both.train, both.held.take(np.arange(2)))


def test_methods_see_the_rows_to_train_on_alone():
    X, y, starts, stops, _ = rows()
    both = hold_out(softmax, X, y, starts, stops)
    method = FedAvg(eta=0.5, E=3, B=4)
    one, two = (list(method.run(InProcess(o), [5]))[-1]["w"] for o in (both, both.train))
    np.testing.assert_array_equal(one, two)


def test_the_number_of_groups_by_rows_kept_back():
    fed, _ = keeping(n=40)
    found = by_updates(fed, np.zeros(15), eta=0.5, k=range(2, 6))
    chosen = by_held_out(fed, found.about["partitions"], rounds=30, eta=0.5, tau=5)
    assert chosen.k == 3 and set(chosen.score) == {1, 2, 3, 4, 5}


def test_one_group_is_chosen_where_clients_are_alike():
    X, y, starts, stops, _ = rows(groups=1, each=12, n=30, wrong=1.0)
    fed = InProcess(hold_out(softmax, X, y, starts, stops))
    found = by_updates(fed, np.zeros(15), eta=0.5, k=range(2, 5))
    assert by_held_out(fed, found.about["partitions"], rounds=30, eta=0.5, tau=5).k == 1


def test_losses_are_those_of_the_rows_kept_back():
    fed, _ = keeping()
    theta = np.random.default_rng(0).normal(size=(18, 15))
    X, y, starts, stops, _ = rows()
    o = hold_out(softmax, X, y, starts, stops, 0.3).held
    assert held_loss(fed, theta) == pytest.approx(o.value(theta).sum() / o.counts.sum())
    some = np.array([1, 4])
    assert held_loss(fed, theta, some) == pytest.approx(o.value(theta)[some].sum() / o.counts[some].sum())
    with pytest.raises(CoterieError, match=names("No rows kept back")):
        held_loss(federation()[0], theta)


def test_groups_are_numbered_and_matched():
    assert numbered(np.array([5, -1, 2, 5])).tolist() == [0, -1, 1, 0]
    found = Groups(numbered(np.array([1, 1, 0])))
    assert found.k == 2 and found.sizes.tolist() == [2, 1]
    assert correctly_grouped(np.array([1, 1, 0, 0]), np.array([0, 0, 1, 1])) == 4
    assert correctly_grouped(np.array([0, 0, 0, -1]), np.array([0, 0, 1, 1])) == 2
    assert correctly_grouped(np.array([-1]), np.array([0])) == 0
