"""Coins drawn ahead, and what they are put together to."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.methods.clustered_l2gd import cluster_rounds, fused_messages
from coterie.methods.clustered_l2gd.cluster_rounds import communications


def drawn(k, T, p=0.05, seed=0):
    return cluster_rounds.Coordinated(p).draw(seed, np.arange(T)), cluster_rounds.cluster_coins(
        seed, np.arange(T), np.full(k, p)
    )


def test_coins_do_not_depend_on_how_many_are_drawn_at_a_time():
    p = np.array([0.1, 0.6, 0.3])
    ((_, globally, locally),) = cluster_rounds.draw(4, 0, 100, cluster_rounds.Coordinated(0.2), p)
    parts = [
        part
        for lo in range(0, 100, 7)
        for part in cluster_rounds.draw(4, lo, min(7, 100 - lo), cluster_rounds.Coordinated(0.2), p)
    ]
    np.testing.assert_array_equal(np.concatenate([g for _, g, _ in parts]), globally)
    np.testing.assert_array_equal(np.concatenate([own for _, _, own in parts]), locally)


@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize("p", [0.05, 0.5, 0.9])
def test_segments_tell_the_same_story_as_the_coins(p, free):
    """Every cluster's local steps and rounds, told again step by step."""
    k, T = 4, 300
    globally, locally = drawn(k, T, p)
    told = np.full((T, k), "?", dtype="<U1")
    told[globally] = "G"
    for s in fused_messages.segments(globally, locally, 0, np.full(k, free)):
        for j in range(k):
            at = s.first
            told[at : at + s.before[j], j] = "C"
            at += s.before[j]
            assert free or not s.before[j]
            for steps, start, pulls in zip(s.steps[:, j], s.start[:, j], s.pulls[:, j], strict=True):
                if steps >= 0:
                    assert steps == 0 or start == at
                    told[at : at + steps, j] = "L"
                    told[at + steps : at + steps + pulls, j] = "C"
                    at += steps + pulls
                    assert free or pulls == 1
            assert s.rest[j] == 0 or s.restart[j] == at
            told[at : at + s.rest[j], j] = "L"
            assert at + s.rest[j] == s.last
    expected = np.where(globally[:, None], "G", np.where(locally, "C", "L"))
    np.testing.assert_array_equal(told, expected)


@pytest.mark.parametrize(("free", "exchanges"), [(False, 11_547), (True, 10_190)])
def test_131_clusters_with_own_schedules_need_few_exchanges(free, exchanges):
    """Aligned by ordinal, a segment needs as many as its busiest cluster; one for each event would be 27 times more."""
    globally, locally = drawn(131, 50_000)
    mask = np.full(131, free)
    asked = sum(len(s.steps) + 1 for s in fused_messages.segments(globally, locally, 0, mask))
    between, within = communications(globally, locally, mask, (True, np.ones(131, dtype=bool)))
    assert asked == exchanges
    assert between + within.sum() > 27 * asked
