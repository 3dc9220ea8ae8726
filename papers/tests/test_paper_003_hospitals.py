"""Section VII's hospitals: groups that conflict, a network that finds them, and how methods are judged."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

pytest.importorskip("torch", reason="networks need the extra torch")

from coterie.engines.local_engines import InProcess
from coterie.methods.networks.similarity import Similarity
from coterie.objectives.deep import Deep
from coterie.objectives.deep.nets import unet
from papers.paper_003 import nodules, segmentation, steps
from papers.paper_003.hospitals import (
    DATA,
    FREE,
    HEADS,
    OURS,
    WARMED,
    Sites,
    compared,
    evidence,
    numbers,
    picture,
    sent,
    sent_table,
    settled,
    table,
    trials,
)

SOME = settled(trials(segmentation.OWN, segmentation.BODY), segmentation.CHOSEN)


def few(*names: str):
    return {name: SOME[name] for name in names}


def small(seed: int) -> Sites:
    """Every other site of a study of segmentation, and the middles of its images."""
    sites, middle = segmentation.sites(seed), slice(8, 16)
    own = np.isin(sites.client, list(sites.group)[::2])
    X, y = (values[own, :, middle, middle] for values in (sites.X, sites.y))
    return Sites(X, y, sites.client[own], dict(list(sites.group.items())[::2]))


def quiet(_: str) -> None:
    """Nobody is told."""


def test_masks_are_bright_dark_or_seen_the_other_way_round():
    sites = segmentation.sites(3)
    sign = [
        np.sign(np.corrcoef(sites.X[own].ravel(), sites.y[own].ravel())[0, 1])
        for own in (sites.client == name for name in sites.group)
    ]
    assert list(sites.group.values()) == [0] * 4 + [1] * 4 + [2] * 4
    assert sign[:4] == [1.0] * 4 and sign[4:8] == [-1.0] * 4
    assert not set(sites.group) & set(segmentation.sites(4).group)


def test_the_network_of_data_ties_sites_of_a_group():
    sites = segmentation.sites(103)
    starts = sites.each * np.arange(12)
    clients = Deep.of(partial(unet, channels=(4,)), sites.X, sites.y, starts, starts + 2, loss="bce")
    network = Similarity.of(DATA).network(InProcess(clients))
    assert network.against(np.array(list(sites.group.values())))["inside"] > 0.9


def test_methods_are_compared_by_the_front_and_gains_are_over_sites_and_seeds():
    some = few("pooled", OURS)
    found = compared(small, segmentation.NET, some, 1, [7, 8], quiet)
    assert found.score.endswith("losses:dice") and found.clients(OURS).shape == (2, 6)
    gain = found.interval(OURS, "pooled")
    assert gain[1] <= gain[0] <= gain[2]
    assert [row[0] for row in table("Dice", found, "Dice").rows] == list(some)
    assert np.shape(numbers(found)[OURS]["score"]) == (2, 6)
    assert picture(found, "Segmentation", "Dice").axes


@pytest.mark.soak
def test_nodules_are_judged_by_average_precision_on_the_rows_that_the_front_held_out():
    sites = nodules.sites(5)
    result = few("pooled")["pooled"].fit(sites, nodules.NET, 1, 5)
    run = nodules.precision(result, sites, 5)
    assert run.scores.rule.by == "average precision" and run.scores.score.shape == (12,)
    assert np.isfinite(run.scores.score).all() and (run.scores.score <= 1.0).all()
    assert run.scores.weight.tolist() == [20.0] * 12


@pytest.mark.soak
def test_the_codec_sends_fewer_bytes_on_the_link():
    link = sent(small(7), segmentation.NET, SOME, 1, 7)
    names = [row[0] for row in sent_table(link).rows]
    assert names == list(link) and link[names[1]]["bytes_up"] < 0.4 * link[OURS]["bytes_up"]  # the network's too


def test_every_method_is_given_seven_settings_and_the_penalties_go_with_the_best_step(monkeypatch):
    def score(trial, *_):
        return -abs(trial.steps["eta"] - 0.5) - abs(trial.steps.get("lam", 0.3) - 0.3)

    monkeypatch.setattr(steps, "score", score)
    for name, trial in trials(segmentation.OWN, segmentation.BODY).items():
        tried = steps.choose(trial, small(7), segmentation.NET, 1, evidence, 7, quiet)
        assert len({tuple(setting.items()) for setting in tried.settings}) == 7
        assert tried.best == ({"eta": 0.5, "lam": 0.3} if trial.pulls else {"eta": 0.5}), name


def test_a_run_without_a_model_has_no_score():
    trial = SOME["local"].at({"eta": 1e30})
    assert steps.score(trial, small(7), segmentation.NET, 1, evidence, 7) == float("-inf")


@pytest.mark.soak("network of FedPer's heads, heads", "network of data, free heads")
@pytest.mark.parametrize("name", [HEADS, FREE, WARMED])
def test_heads_of_a_site_are_its_own(name):
    sites = small(8)
    found = SOME[name].at({"eta": 1.0, "lam": 1e-4}).fit(sites, segmentation.NET, 3, 8)
    first, last = found.theta[[0, 5]]
    assert np.array_equal(first[:36], last[:36]) == (name != FREE) and not np.array_equal(first[-5:], last[-5:])
    assert found.run.rounds == (2 if name == WARMED else 3)
