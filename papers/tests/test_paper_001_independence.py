"""Lyu, Hanzely, Kolar (2022), section 4: who communicates when, on a hard instance with several clusters."""

import numpy as np
import pytest

from coterie.methods.clustered_l2gd.theory import smoothness
from papers.outcome import Settings
from papers.paper_001 import independence
from papers.paper_001.independence import Spent, instance, spend
from papers.pictures import render


def test_the_hard_instance_is_hard():
    hard, alike = instance("hard"), instance("alike")
    assert hard.L.max() / hard.L.min() > 30
    assert np.ptp(alike.L) < 0.5 * alike.L.max()
    assert hard.ties.C2.max() / hard.ties.C2.min() > 1000
    assert hard.L.max() / hard.mu > 1000


def test_together_is_the_least_of_3_3_without_rounds_within():
    here = instance("hard")
    p0, none = here.together()["p0"], np.zeros(5)
    least = smoothness(p0, none, here.ties.C1, here.ties.C2, here.L.max())
    for other in (0.9 * p0, 0.5 * (1.0 + p0)):
        assert smoothness(other, none, here.ties.C1, here.ties.C2, here.L.max()) > least


@pytest.mark.soak
def test_messages_are_those_of_all_for_a_global_round_and_of_the_cluster_for_one_within():
    here = instance("hard")
    one = spend(here, "al2sgd", 0, here.together())
    assert one.reached
    assert one.within == 0
    assert one.messages == 40 * one.globally
    own = spend(here, "al2sgd", 0, {})
    assert own.reached
    assert own.globally < 0.6 * one.globally
    assert 40 * own.globally < own.messages < 40 * own.globally + 40 * own.within


def test_what_was_not_reached_costs_more():
    near, far = Spent(9.0, 10.0, 20.0, 1.0, 1e-5, True), Spent(9.0, 10.0, 20.0, 1.0, 0.5, False)
    assert near.cost(0.1) == pytest.approx(12.0)
    assert far.cost(0.1) > 100.0 * near.cost(0.1)


def test_the_experiment_in_small(monkeypatch):
    monkeypatch.setitem(independence.TARGETS, "al2sgd", 0.1)
    made = independence.run(Settings(seeds=1, quick=True))
    assert [row[1] for row in made.tables[0].rows] == list(independence.WAYS.values())
    assert b"<svg" in render(made.draw)
