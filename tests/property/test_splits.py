"""Laws of splits for any sizes of clients, fractions, seeds and labels."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.data.clients import Clients
from coterie.data.splits import split_rows

counts = st.lists(st.integers(1, 30), min_size=1, max_size=25)
fractions = st.floats(0.001, 0.999)
seeds = st.integers(0, 2**40)


def make(sizes, shuffle=None):
    labels = np.repeat([f"c{i}" for i in range(len(sizes))], sizes)
    y = np.arange(len(labels), dtype=float)
    if shuffle is not None:
        order = np.random.default_rng(shuffle).permutation(len(sizes))
        rows = np.concatenate([np.flatnonzero(labels == f"c{i}") for i in order])
        labels, y = labels[rows], y[rows]
    return Clients.from_arrays(y[:, None], y, labels)


@settings(deadline=None)
@given(counts, fractions, seeds, st.integers(0, 50))
def test_every_client_trains_and_gives_its_share(sizes, fraction, seed, repeat):
    clients = make(sizes)
    test = split_rows(clients, fraction, seed, repeat)
    given_up = np.add.reduceat(test, clients.starts)
    n = clients.counts
    assert test.shape == clients.y.shape
    assert np.all(given_up < n)
    assert np.all(given_up[n >= 3] >= 1)
    assert np.all(np.abs(given_up - n * fraction)[(n * fraction >= 1) & (n * fraction <= n - 1)] <= 1)


@settings(deadline=None)
@given(counts, fractions, seeds, st.integers(0, 2**32 - 1))
def test_the_order_of_clients_in_the_table_does_not_matter(sizes, fraction, seed, shuffle):
    a, b = make(sizes), make(sizes, shuffle)
    assert np.array_equal(a.y, b.y)
    assert np.array_equal(split_rows(a, fraction, seed, 1), split_rows(b, fraction, seed, 1))


@settings(deadline=None)
@given(counts, fractions, seeds, st.data())
def test_groups_stay_together_and_every_client_trains(sizes, fraction, seed, data):
    clients = make(sizes)
    n = len(clients.y)
    people = data.draw(st.integers(1, n))
    groups = np.array(data.draw(st.lists(st.integers(0, people), min_size=n, max_size=n)))
    test = split_rows(clients, fraction, seed, 0, groups=groups)
    assert not set(groups[test]) & set(groups[~test])
    assert np.all(np.add.reduceat(~test, clients.starts) >= 1)


@settings(deadline=None)
@given(counts, fractions, seeds, st.data())
def test_what_is_held_out_by_order_is_the_latest(sizes, fraction, seed, data):
    clients = make(sizes)
    n = len(clients.y)
    order = np.array(data.draw(st.lists(st.integers(0, 9), min_size=n, max_size=n)))
    test = split_rows(clients, fraction, seed, 0, order=order)
    for a, b in zip(clients.starts, clients.stops, strict=True):
        assert (~test[a:b]).any()
        if test[a:b].any():
            assert order[a:b][test[a:b]].min() >= order[a:b][~test[a:b]].max()
