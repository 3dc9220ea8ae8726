"""Splits against a slow literal twin."""

import numpy as np
import pytest

from coterie.data.clients import Clients
from coterie.data.labels import label_ids
from coterie.data.splits import split_rows
from coterie.errors import CoterieError
from coterie.numerics.keyed_random import uniform, uniform_rows


def make(counts, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(counts)), counts)
    n = len(labels)
    return Clients.from_arrays(rng.normal(size=(n, 2)), rng.normal(size=n), labels)


def share(n, fraction, coin):
    take = int(np.floor(n * fraction + coin))
    if n >= 3:
        take = max(take, 1)
    return min(take, max(n - 1, 0))


def twin(clients, fraction, seed, repeat, order=None):
    """One client after the other, its rows sorted."""
    test = np.zeros(len(clients.y), dtype=bool)
    for i in range(len(clients)):
        rows = list(range(clients.starts[i], clients.stops[i]))
        once = repeat if order is None else 0
        take = share(len(rows), fraction, uniform(seed, "split-share", clients.ids[i], once, 1)[0, 0])
        u = uniform_rows(seed, "split", clients.ids[i], repeat, [len(rows)])
        if order is None:
            chosen = sorted(rows, key=lambda r: u[r - rows[0]])[:take]
        else:
            chosen = sorted(rows, key=lambda r: (order[r], r))[len(rows) - take :]
        test[chosen] = True
    return test


COUNTS = np.array([1, 2, 2, 3, 4, 10, 57, 1, 2, 100, 5, 5, 0 + 7])


@pytest.mark.parametrize("fraction", [0.01, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("repeat", [0, 1, 4])
def test_rows_are_the_twin_s(fraction, repeat):
    clients = make(COUNTS)
    assert np.array_equal(split_rows(clients, fraction, 7, repeat), twin(clients, fraction, 7, repeat))


def test_latest_rows_are_the_twin_s():
    clients = make(COUNTS)
    order = np.random.default_rng(1).integers(0, 9, len(clients.y))
    assert np.array_equal(split_rows(clients, 0.3, 7, 2, order=order), twin(clients, 0.3, 7, 2, order))


def test_no_test_row_is_earlier_than_a_training_row():
    clients = make(COUNTS)
    order = np.random.default_rng(1).normal(size=len(clients.y))
    test = split_rows(clients, 0.3, 0, order=order)
    for i in range(len(clients)):
        at = slice(clients.starts[i], clients.stops[i])
        if test[at].any():
            assert order[at][~test[at]].max() < order[at][test[at]].min()


def test_the_expected_share_is_the_fraction_however_few_rows_a_client_has():
    for n in (2, 4, 5, 7):
        clients = make([n] * 4000)
        shares = [split_rows(clients, 0.25, 3, r).mean() for r in range(5)]
        assert np.mean(shares) == pytest.approx(0.25, abs=0.005)


def test_every_row_has_the_same_chance():
    clients = make([8] * 3000)
    hits = sum(split_rows(clients, 0.25, 1, r).reshape(3000, 8).mean(axis=0) for r in range(8)) / 8
    assert hits == pytest.approx(np.full(8, 0.25), abs=0.012)


def test_repeats_and_seeds_differ_and_calls_do_not():
    clients = make(COUNTS)
    first = split_rows(clients, 0.25, 0, 0)
    assert np.array_equal(first, split_rows(clients, 0.25, 0, 0))
    assert not np.array_equal(first, split_rows(clients, 0.25, 0, 1))
    assert not np.array_equal(first, split_rows(clients, 0.25, 1, 0))


def test_a_client_s_split_does_not_depend_on_the_others():
    rng = np.random.default_rng(0)
    y = rng.normal(size=40)
    labels = np.repeat(["d", "a", "c", "b"], 10)
    whole = Clients.from_arrays(np.ones((40, 1)), y, labels)
    some = Clients.from_arrays(np.ones((20, 1)), y[:20], labels[:20])
    test = dict(zip(whole.y.tolist(), split_rows(whole, 0.3, 5, 1), strict=True))
    assert [test[v] for v in some.y.tolist()] == split_rows(some, 0.3, 5, 1).tolist()


def group_twin(clients, fraction, seed, repeat, groups):
    """Whole groups, each at home in the client of its first row; clients left bare get their last one back."""
    labels = sorted(set(groups))
    u = {g: uniform(seed, "split", label_ids(np.array([g])), repeat, 1)[0, 0] for g in labels}
    codes = clients.codes
    home = {g: codes[list(groups).index(g)] for g in labels}
    chosen = set()
    for i in range(len(clients)):
        mine = sorted((g for g in labels if home[g] == i), key=u.get)
        take = share(len(mine), fraction, uniform(seed, "split-share", clients.ids[i], repeat, 1)[0, 0])
        chosen |= set(mine[:take])
    back = set()
    for i in range(len(clients)):
        here = [g for g, c in zip(groups, codes, strict=True) if c == i]
        if here and set(here) <= chosen:
            back.add(max(here, key=u.get))
    chosen -= back
    return np.array([g in chosen for g in groups])


@pytest.mark.parametrize("crossed", [False, True], ids=["nested", "crossed"])
@pytest.mark.parametrize("repeat", [0, 1, 2, 3])
def test_groups_are_the_twin_s(crossed, repeat):
    clients = make(COUNTS)
    n = len(clients.y)
    rng = np.random.default_rng(4)
    groups = rng.integers(0, 30, n) if crossed else clients.codes * 1000 + rng.integers(0, 6, n)
    test = split_rows(clients, 0.4, 2, repeat, groups=groups)
    assert np.array_equal(test, group_twin(clients, 0.4, 2, repeat, groups))
    assert not set(groups[test]) & set(groups[~test])
    trained = np.bincount(clients.codes, weights=~test, minlength=len(clients))
    assert np.all(trained > 0)


def test_clients_left_without_rows_by_a_subset_are_allowed():
    clients = make(COUNTS)
    some = clients.subset(clients.codes % 2 == 0)
    assert np.array_equal(split_rows(some, 0.25, 0), twin(some, 0.25, 0, 0))
    assert split_rows(some, 0.25, 0, groups=np.arange(len(some.y))).shape == some.y.shape
    assert split_rows(some, 0.25, 0, order=np.arange(len(some.y))).shape == some.y.shape


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"fraction": 0}, "between 0 and 1, not 0"),
        ({"fraction": 1.0}, "between 0 and 1, not 1"),
        ({"order": [1] * 6, "groups": [1] * 6}, "not both"),
    ],
)
def test_bad_arguments(arguments, match):
    with pytest.raises(CoterieError, match=match):
        split_rows(make([3, 3]), **({"fraction": 0.25, "seed": 0} | arguments))
