"""Intervals of gains, who loses, and what a choice costs, on losses whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import polygamma

from coterie.evidence.comparison import _trigamma_inverse, interval, losing, over_clients, statistic
from coterie.evidence.table_comparison import TableComparison, paths
from coterie.families import BINOMIAL, GAUSSIAN

CLUSTERS, CLIENTS, SPLITS, ROWS = 9, 5, 5, 12


def held(rng, gain, tests=3, noise=1.0):
    """Sums of paired gains (splits, m) over ``tests`` of each client's rows, which splits share."""
    rows = gain[:, None] + noise * rng.normal(size=(len(gain), ROWS))
    drawn = rng.random((SPLITS, *rows.shape)).argsort(axis=2) < tests
    return np.where(drawn, rows, 0.0).sum(axis=2)


def compared(losses, above=(), tests=3, family=GAUSSIAN, columns=1, splits=SPLITS):
    weight = np.full((splits, next(iter(losses.values())).shape[1]), float(tests))
    return TableComparison(losses, weight, weight, dict.fromkeys(losses, 0.0), family, 0.25, columns, above)


def of_clusters(seed):
    """A comparison of gains that differ between clusters, with a long tail, and the clusters of its clients."""
    rng = np.random.default_rng(seed)
    cluster = np.repeat(np.arange(CLUSTERS), CLIENTS)
    gain = rng.gamma(2.0, size=CLUSTERS)[cluster] + 0.5 * rng.normal(size=len(cluster))
    zero = np.zeros((SPLITS, len(cluster)))
    return {"better": zero, "pooled": held(rng, gain)}, cluster


@pytest.mark.parametrize(("named", "least", "most"), [(True, 0.91, 0.99), (False, 0.4, 0.85)], ids=["named", "not"])
def test_intervals_are_over_clusters_that_are_named(named, least, most):
    covered = []
    for seed in range(400):
        losses, cluster = of_clusters(seed)
        _, low, high, _ = compared(losses, (cluster,) * named).gain("better", "pooled")
        covered.append(low <= 2.0 <= high)
    assert least <= np.mean(covered) <= most


def test_what_moves_all_clients_of_a_split_is_between_splits():
    """A model that all clients of a split share moves every gain of it alike, which clients do not tell."""
    rng, ratio, covered = np.random.default_rng(0), 1 / 3, {True: 0, False: 0}
    for _ in range(400):
        moved = rng.normal(size=30) / 30 + np.zeros((SPLITS, 30))
        table = rng.normal() * np.sqrt(ratio / (1 + ratio))  # of all splits, as rows that they share make it
        value = moved.sum(axis=1) + 0.5 * (table + rng.normal(size=SPLITS) * np.sqrt(1 / (1 + ratio)))
        for counted in covered:
            _, low, high = interval(value, moved - moved.mean(axis=1, keepdims=True), 1.0, ratio * counted)
            covered[counted] += low <= 0.0 <= high
    assert covered[True] / 400 >= 0.92 > covered[False] / 400


def test_a_long_tail_makes_its_side_longer():
    tail = np.random.default_rng(1).exponential(size=12)
    value, low, high = over_clients(tail)
    assert value == pytest.approx(tail.mean()) and high - value > 1.2 * (value - low)
    assert over_clients(-tail) == pytest.approx((-value, -high, -low))
    assert np.isnan(over_clients(tail[:1])[1:]).all()


def test_influences_are_the_jackknifes():
    rng = np.random.default_rng(2)
    n, d = rng.normal(size=7), rng.uniform(1.0, 9.0, 7)
    value, moved = statistic(n[:, None], d[:, None])
    without = [(n.sum() - a) / (d.sum() - b) for a, b in zip(n, d, strict=True)]
    np.testing.assert_allclose(moved, (value - np.array(without)) * 6 / 7)


@pytest.mark.parametrize(("family", "one"), [(GAUSSIAN, 2.0), (BINOMIAL, 0.5)], ids=["gaussian", "binomial"])
def test_methods_that_coincide_may_differ_by_what_parameters_cost(family, one):
    loss = np.full((SPLITS, 20), 6.0)  # 2 a row
    gain, low, high, better = compared({"a": loss, "pooled": loss}, family=family, columns=3).gain("a", "pooled")
    assert gain == better == 0.0
    assert (low, high) == pytest.approx((-3 * one / (20 * 9), 3 * one / (20 * 9)))  # 9 training rows a client
    assert compared({"pooled": loss}).behind("pooled") == (0.0, 0.0, 0.0)


def test_units_are_the_coarsest_level_with_three():
    zero = {"pooled": np.zeros((1, 12))}
    fine, coarse = paths(np.repeat(np.arange(6), 2), [np.array([0, 0, 1, 1, 2, 2]), np.array([0, 0, 1])])
    np.testing.assert_array_equal(coarse, np.repeat([0, 1, 2], 4))
    np.testing.assert_array_equal(compared(zero, (fine, coarse), splits=1).units, coarse)
    np.testing.assert_array_equal(compared(zero, (fine, coarse // 2), splits=1).units, fine)
    np.testing.assert_array_equal(compared(zero, (coarse // 2,), splits=1).units, np.arange(12))


def test_clients_that_lose_are_named_and_nobody_else():
    rng, weight, wrong, found, tables = np.random.default_rng(3), np.full((SPLITS, 60), 3.0), 0, 0, 0
    for _ in range(200):
        gain = np.where(np.arange(60) < 4, -3.0, 0.3)
        named = losing(held(rng, gain), weight, 1 / 3)
        found, wrong = found + named[:4].sum(), wrong + named[4:].sum()
        tables += losing(held(rng, np.zeros(60)), weight, 1 / 3).any()
    assert found >= 0.8 * 800 and wrong <= 0.1 * found and tables <= 0.05 * 200 + 3 * 10**0.5


@pytest.mark.parametrize(("clients", "count"), [(30, 200), (3, 400)])
def test_three_splits_name_nobody_where_nobody_loses_and_clients_scatter_unequally(clients, count):
    """In 9 to 13 of 100 tables without ``UNEQUAL``, and with 3 clients 10 without ``UNSURE``."""
    rng, weight, tables = np.random.default_rng(5), np.ones((3, clients)), 0
    for _ in range(count):
        sd = np.sqrt(4.0 / rng.chisquare(4.0, clients))
        gains = sd * (rng.normal(size=clients) * (1 / 3) ** 0.5 + rng.normal(size=(3, clients)))
        tables += losing(gains, weight, 1 / 3).any()
    assert tables <= 0.07 * count


def test_few_splits_and_losses_that_are_no_numbers_name_nobody():
    rng = np.random.default_rng(4)
    sums, weight = held(rng, np.full(9, -50.0)), np.full((SPLITS, 9), 3.0)
    assert losing(sums, weight, 1 / 3).all() and losing(sums[:, :1], weight[:, :1], 1 / 3).all()
    assert not losing(sums[:2], weight[:2], 1 / 3).any()
    assert not losing(np.zeros((SPLITS, 9)), weight, 1 / 3).any()
    with np.errstate(invalid="ignore"):
        assert not losing(np.full((SPLITS, 9), -np.inf), weight, 1 / 3).any()
    fixed = np.stack([np.full(SPLITS, -1e-17), np.full(SPLITS, -1e-17), np.arange(SPLITS) - 1.0], axis=1)
    assert not losing(fixed, weight[:, :3], 1 / 3).any()  # no noise is no proof: a loss of rounding alone
    for value in (1e-4, 0.3, 5.0, 1e9):
        assert float(polygamma(1, _trigamma_inverse(value))) == pytest.approx(value, rel=1e-4)


def test_the_best_of_many_alike_looks_better_than_it_is_and_nested_it_does_not():
    rng, shown, nested = np.random.default_rng(5), [], []
    for _ in range(150):
        found = compared({f"m{k}": held(rng, np.ones(20)) for k in range(8)})
        shown.append(found.losses[found.best].sum() / found.weight.sum())
        nested.append(found.nested)
    error = np.std(nested) / len(nested) ** 0.5
    assert np.mean(shown) < 1.0 - 8 * error and abs(np.mean(nested) - 1.0) < 3 * error


def test_nested_is_a_literal_loop_and_nothing_for_one_client():
    rng = np.random.default_rng(6)
    losses, cluster = {f"m{k}": held(rng, np.ones(12)) for k in range(3)}, np.repeat(np.arange(4), 3)
    total = 0.0
    for left in range(4):
        chosen = min(losses, key=lambda name, left=left: losses[name][:, cluster != left].sum())
        total += losses[chosen][:, cluster == left].sum()
    assert compared(losses, (cluster,)).nested == pytest.approx(total / (12 * 3 * SPLITS))
    assert np.isnan(compared({name: loss[:, :1] for name, loss in losses.items()}).nested)
