"""Partitions do what their names promise, and say in one sentence what they cannot do."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import beta, kstest

from coterie.data.images import rotated
from coterie.data.partition import (
    _owners,
    _shares,
    by_column,
    dirichlet,
    extended_dirichlet,
    iid,
    noisy,
    pathological,
    quantity,
    shards,
)
from coterie.errors import CoterieError

Y = np.arange(600) % 10


def by_class(partition, y):
    """Rows of each class at each client (m, K)."""
    out = np.zeros((len(partition.group), y.max() + 1), dtype=int)
    np.add.at(out, (partition.client, y[partition.row]), 1)
    return out


def test_shares_of_a_class_are_dirichlet():
    """A share of Dir(a, ..., a) over m clients is Beta(a, (m - 1) a)."""
    for alpha in (0.3, 1.0, 10.0):
        share = _shares(0, np.ones((4000, 5), dtype=bool), alpha, np.full(4000, 10**9), 0)[:, 0] / 1e9
        assert kstest(share, beta(alpha, 4 * alpha).cdf).pvalue > 0.01


def test_a_small_alpha_makes_clients_of_few_classes_and_a_large_one_alike():
    few, even = (by_class(dirichlet(Y, 10, alpha), Y) for alpha in (1e-3, 1e6))
    assert (few > 0).sum(axis=1).mean() < 3
    assert even.min() >= 5 and even.max() <= 7


def test_a_least_number_that_shares_never_give_is_reached_by_moving_rows():
    partition = dirichlet(Y, 60, 1e-300, least=10)  # each class goes to one client, and 50 of 60 have no class
    assert (np.bincount(partition.client) == 10).all()
    counts = np.bincount(dirichlet(Y, 60, 1e-300, least=2).client)
    assert counts.min() == 2 and np.sum(counts > 2) <= 10  # what is moved comes from those that have most


def test_labels_may_have_gaps_and_any_whole_type():
    for y in ([0, 10**12, 10**12, 0], np.array([0, 1, 1, 0], dtype=np.uint8), [0.0, 2.0, 2.0, 0.0]):
        assert dirichlet(y, 2, 1.0).row.shape == (4,)


def test_shards_are_cut_from_rows_sorted_by_class():
    found = by_class(shards(Y, 30, 2), Y)  # 60 shards of 10 rows, 6 to a class
    assert (found % 10 == 0).all() and (found.sum(axis=1) == 20).all()


@pytest.mark.parametrize(("m", "each"), [(20, 2), (10, 1), (7, 3), (33, 10)])
def test_pathological_clients_have_so_many_classes_each_divided_evenly(m, each):
    """NIID-Bench's #C = k: k classes a client, and rows of a class divided equally among those that have it."""
    y = np.random.default_rng(1).permutation(np.arange(2000) % 10)
    found = by_class(pathological(y, m, each, seed=3), y)
    assert ((found > 0).sum(axis=1) == each).all() and found.sum() == 2000
    for counts in found.T:
        assert np.ptp(counts[counts > 0]) <= 1
    assert found.tolist() != by_class(pathological(y, m, each, seed=4), y).tolist() or each == 10


def test_extended_dirichlet_shares_are_beta_among_the_clients_that_own_a_class():
    """Of o owners a share is Beta(a, (o - 1) a), and 0 for all others."""
    owned = np.zeros((3000, 6), dtype=bool)
    owned[:, [0, 2, 3, 5]] = True
    share = _shares(0, owned, 0.5, np.full(3000, 10**9), 0) / 1e9
    assert not share[:, [1, 4]].any() and kstest(share[:, 2], beta(0.5, 1.5).cdf).pvalue > 0.01
    found = by_class(extended_dirichlet(Y, 12, 1.0, each=3, seed=2), Y)
    assert ((found > 0).sum(axis=1) <= 3).all() and found.sum() == len(Y) and found.sum(axis=1).min() >= 1
    assert _owners(10, 12, 3, 2).sum(axis=0).tolist() == [3] * 12
    few = [by_class(extended_dirichlet(Y, 12, 1.0, each=3, seed=s), Y).sum(axis=1).std() for s in range(5)]
    many = [by_class(extended_dirichlet(Y, 12, 1000.0, each=3, seed=s), Y).sum(axis=1).std() for s in range(5)]
    assert np.mean(few) > np.mean(many)


def test_quantities_are_dirichlet_shares_of_all_rows():
    """A client's share is Beta(a, (m - 1) a) over seeds: mean 1/m, variance (m - 1) / (m^2 (m a + 1))."""
    share = np.array([np.bincount(quantity(900, 4, 0.7, seed=s).client, minlength=4)[0] / 900 for s in range(400)])
    assert kstest(share, beta(0.7, 2.1).cdf).pvalue > 0.01
    np.testing.assert_allclose([share.mean(), share.var()], [1 / 4, 3 / (16 * 3.8)], rtol=0.15)


def test_feature_noise_grows_with_the_client_and_goes_with_the_row():
    client, row = np.arange(4000) % 4, np.random.default_rng(0).permutation(4000)
    X = np.ones((4000, 2, 3), dtype=np.float32)
    found = noisy(X, client, row, 4, 0.8, 0)
    assert found.shape == X.shape and found.dtype == np.float32
    for i in range(4):  # NIID-Bench: Gau(sigma i / N), its variance
        np.testing.assert_allclose(found[client == i].var(), 0.8 * (i + 1) / 4, rtol=0.05)
    again = noisy(X[:10], client[:10], row[:10], 4, 0.8, 0)
    np.testing.assert_array_equal(again, found[:10])  # whichever rows are beside
    assert (noisy(X, client, row, 4, 0.8, 1) != found).all()


def test_a_single_row_is_trained_on():
    partitioned = by_column(["a", "b", "b"], test_fraction=0.9).take(np.arange(3.0), np.arange(3.0))
    assert (partitioned.train.stops - partitioned.train.starts).tolist() == [1, 1]
    assert (partitioned.test.stops - partitioned.test.starts).tolist() == [0, 1]
    assert partitioned.classes == 0 and partitioned.names == ("a", "b")


def test_outcomes_that_are_images_are_no_classes():
    partitioned = iid(6, 2).take(np.zeros((6, 2, 2), dtype=np.uint8), np.ones((6, 2, 2), dtype=np.uint8))
    assert partitioned.classes == 0 and partitioned.train.y.dtype == np.uint8 and partitioned.train.X.shape == (4, 2, 2)


def test_groups_see_images_at_their_angles():
    images = np.random.default_rng(0).integers(0, 255, (40, 5, 5), dtype=np.uint8)
    partitioned = rotated(images, np.arange(40) % 4, 8, (0, 90))
    sides = partitioned.train, partitioned.test
    client = np.concatenate([np.repeat(np.arange(8), p.stops - p.starts) for p in sides])
    for r, image in enumerate(np.concatenate([partitioned.train.X, partitioned.test.X])):
        np.testing.assert_array_equal(image, np.rot90(images[partitioned.row[r]], partitioned.group[client[r]]))
    assert partitioned.classes == 4 and partitioned.train.X.dtype == np.uint8


BAD = [
    (lambda: dirichlet(Y, 5, -0.1), "alpha must be a number above 0, not -0.1"),
    (lambda: dirichlet(Y, 5, 0), "alpha must be a number above 0"),
    (lambda: dirichlet(Y, 5, np.nan), "alpha must be a number above 0, not nan"),
    (lambda: dirichlet(Y, 5, np.inf), "alpha must be a number above 0"),
    (lambda: dirichlet(Y, 5, "0.1"), "alpha must be a number above 0"),
    (lambda: dirichlet(Y, 601, 1.0), "600 rows are not enough for 601 clients with 1 each: ask for 600 clients"),
    (lambda: dirichlet(Y, 5, 1.0, least=121), "600 rows are not enough for 5 clients with 121 each: .* 4 clients or f"),
    (lambda: dirichlet(Y, 5, 1.0, least=0), "least must be a whole number from 1"),
    (lambda: dirichlet(["a", "b"], 1, 1.0), "whole numbers from 0, unlike a in data row 1: code classes"),
    (lambda: dirichlet([0, 0.5], 1, 1.0), "whole numbers from 0, unlike 0.5 in data row 2"),
    (lambda: dirichlet([0, np.nan], 1, 1.0), "whole numbers from 0, unlike nan in data row 2"),
    (lambda: dirichlet([0, -1], 1, 1.0), "whole numbers from 0, unlike -1 in data row 2"),
    (lambda: dirichlet([[0, 1]], 1, 1.0), "one whole number for each row"),
    (lambda: dirichlet([], 1, 1.0), "one whole number for each row"),
    (lambda: shards(Y, 301, 2), "600 rows are not enough for 301 clients with 2 each"),
    (lambda: iid(3, 4), "3 rows are not enough for 4 clients"),
    (lambda: iid(3, 0), "clients must be a whole number from 1"),
    (lambda: iid(3, True), "clients must be a whole number from 1"),
    (lambda: iid(3, 1, test_fraction=1.0), "test_fraction must be a number from 0 and below 1, not 1"),
    (lambda: iid(3, 1, test_fraction=-0.1), "test_fraction must be a number from 0 and below 1"),
    (lambda: by_column([]), "column of clients has no rows"),
    (lambda: by_column(["a", None]), "column of clients is empty in 1 row \\(data row 2\\)"),
    (
        lambda: iid(2, 1).take(np.array([[0.0], [np.nan]]), [0, 1]),
        "X has values that are not finite in 1 row \\(data row 2\\)",
    ),
    (lambda: iid(2, 1).take(np.zeros((2, 1)), [0, np.inf]), "y has values that are not finite in 1 row"),
    (lambda: iid(2, 1).take(np.zeros((3, 1)), [0, 1]), "X has 3 rows; the partition has 2"),
    (lambda: rotated(np.zeros((4, 2, 3)), [0, 1, 0, 1], 2), "must be square"),
    (lambda: rotated(np.full((4, 2, 2), np.nan), [0, 1, 0, 1], 2), "not finite in 4 rows"),
    (lambda: rotated(np.zeros((4, 2, 2)), [0, 1, 0, 1], 2, ()), "rotations must be angles"),
    (
        lambda: rotated(np.zeros((4, 2, 2)), [0, 1, 0, 1], 3),
        "each trains and tests on one",
    ),
]


@pytest.mark.parametrize(("call", "sentence"), BAD)
def test_what_cannot_be_dealt_is_said(call, sentence):
    with pytest.raises(CoterieError, match=sentence):
        call()
