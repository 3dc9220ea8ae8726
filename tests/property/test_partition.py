"""Laws of partitions for any labels, clients, concentrations and seeds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.data.partition import by_column, dirichlet, iid, shards

labels = st.lists(st.sampled_from([0, 1, 2, 3, 9]), min_size=1, max_size=120).map(np.array)
clients = st.integers(1, 30)
seeds = st.integers(0, 2**40)
fractions = st.sampled_from([0.0, 0.001, 0.2, 0.5, 0.999])
alphas = st.sampled_from([1e-300, 1e-6, 0.01, 0.1, 1.0, 100.0, 1e12])


def check(partition, y, m, fraction):
    """Every row once, sorted by client, a share of every client's rows held out; X and y in step."""
    n = len(y)
    np.testing.assert_array_equal(np.sort(partition.row), np.arange(n))
    partitioned = partition.take(np.arange(n), y)
    counts = np.bincount(partition.client, minlength=m)
    held = partitioned.test.stops - partitioned.test.starts
    assert len(partitioned.group) == m
    assert np.all(held <= np.maximum(counts - 1, 0))
    assert np.all(held[counts > 1] >= 1) if fraction else not held.any()
    inside = (counts * fraction >= 1) & (counts * fraction <= counts - 1)
    assert np.all(np.abs(held - counts * fraction)[inside] <= 1)
    trained = partition.row[: partition.trained], partition.row[partition.trained :]
    for part, rows in zip((partitioned.train, partitioned.test), trained, strict=True):
        np.testing.assert_array_equal(part.starts, np.r_[0, part.stops[:-1]])
        assert part.stops[-1] == len(part.y) == len(part.X)
        np.testing.assert_array_equal(part.X, rows)
        np.testing.assert_array_equal(part.y, y[rows])
    owner = np.repeat(np.arange(m), partitioned.train.stops - partitioned.train.starts)
    np.testing.assert_array_equal(owner, partition.client[: partition.trained])
    return counts


@settings(deadline=None)
@given(labels, clients, alphas, st.integers(1, 4), seeds, fractions)
def test_dirichlet_gives_every_row_once_and_every_client_its_least(y, m, alpha, least, seed, fraction):
    m = min(m, len(y) // least)
    if m:
        partition = dirichlet(y, m, alpha, least, seed, fraction)
        assert check(partition, y, m, fraction).min() >= least
        again = dirichlet(y, m, alpha, least, seed, fraction)
        np.testing.assert_array_equal(partition.row, again.row)
        np.testing.assert_array_equal(partition.client, again.client)


@settings(deadline=None)
@given(labels, clients, st.integers(1, 4), seeds, fractions)
def test_shards_are_of_one_size_and_few_classes(y, m, each, seed, fraction):
    m = min(m, len(y) // each)
    if m:
        partition = shards(y, m, each, seed, fraction)
        counts = check(partition, y, m, fraction)
        assert counts.max() - counts.min() <= each
        # a shard of `size` rows meets at most 1 + (classes that end inside it); all shards together meet few
        kinds = [len(np.unique(y[partition.row[partition.client == i]])) for i in range(m)]
        assert sum(kinds) <= m * each + len(np.unique(y)) - 1


@settings(deadline=None)
@given(st.integers(1, 200), clients, seeds, fractions, st.integers(1, 5))
def test_iid_is_even_in_rows_and_groups(n, m, seed, fraction, groups):
    m = min(m, n)
    partition = iid(n, m, seed, fraction, groups)
    counts = check(partition, np.zeros(n, dtype=int), m, fraction)
    sizes = np.bincount(partition.group, minlength=groups)
    assert counts.max() - counts.min() <= 1 and sizes.max() - sizes.min() <= 1


@settings(deadline=None)
@given(st.lists(st.sampled_from(["b", "a", "10", "é"]), min_size=1, max_size=60), seeds, fractions)
def test_a_column_names_its_clients(column, seed, fraction):
    partition = by_column(column, seed, fraction)
    check(partition, np.arange(len(column)), len(partition.names), fraction)
    assert partition.names == tuple(sorted(set(column)))
    assert [partition.names[i] for i in partition.client] == [column[r] for r in partition.row]


@pytest.mark.parametrize("make", [lambda y, s: dirichlet(y, 5, 0.5, 1, s), lambda y, s: shards(y, 5, 2, s)])
def test_another_seed_deals_otherwise(make):
    y = np.arange(200) % 10
    assert not np.array_equal(make(y, 0).row, make(y, 1).row)
