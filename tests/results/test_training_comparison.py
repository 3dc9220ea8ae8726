"""Comparisons over paired seeds: what is always in, intervals, choices that see no test row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from coterie.errors import CoterieError
from coterie.results.training import comparison
from coterie.results.training.bench import Bench
from coterie.results.training.comparison import chosen, compare, pick
from coterie.results.training.scores import Scores
from tests.results.test_training import config


@pytest.fixture(scope="module")
def result():
    return compare(config(run={"seeds": 3}, methods={"ditto": {"lam": [0.1, 50.0]}}), ["ditto", "ifca"])


def test_local_and_pooled_are_always_in(result):
    assert list(result.runs) == ["local", "pooled", "ditto", "ifca"]
    assert [run.seed for run in result.runs["ditto"]] == [0, 1, 2]


def test_intervals_are_students_over_seeds(result):
    difference = result.values("ditto") - result.values(result.best)
    value, low, high = result.interval("ditto", result.best)
    expected = stats.t.interval(0.95, 2, difference.mean(), stats.sem(difference))
    assert value == pytest.approx(difference.mean())
    if np.ptp(difference):
        assert (low, high) == pytest.approx(expected)
    value, low, high = result.interval("ifca")
    scores = result.values("ifca")
    assert (low, high) == pytest.approx(stats.t.interval(0.95, 2, scores.mean(), stats.sem(scores)))


def test_the_table_is_that_of_the_runs(result):
    table = result.table
    assert table["accuracy"].is_monotonic_decreasing
    for name, runs in result.runs.items():
        assert table["accuracy"][name] == pytest.approx(np.mean([r.scores.summary()["accuracy"] for r in runs]))
    assert np.isnan(table["bytes"]["pooled"])
    assert table["bytes"]["ifca"] > table["bytes"]["ditto"] > table["bytes"]["local"]
    assert result.tried == {"ditto": 2}


def test_paired_seeds_share_rows_and_first_models(result):
    one = Bench.of(result.config, 1)
    assert one.data.fingerprint == Bench.of(result.config, 1).data.fingerprint
    again = compare(result.config, ["ditto"])
    np.testing.assert_array_equal(again.values("ditto"), result.values("ditto"))


def test_with_one_seed_clients_are_resampled():
    one = compare(config(), ["fedavg"])
    value, low, high = one.interval("fedavg", "pooled" if one.best == "pooled" else one.best)
    assert low <= value <= high
    assert one.interval(one.best, one.best) == (0.0, 0.0, 0.0)


def test_a_setting_is_chosen_without_test_rows(monkeypatch):
    settled = config(methods={"fedavg": {"eta": [1e-9, 0.3]}})
    bench = Bench.of(settled, 0)
    labels = bench.data.test.y
    spoiled = replace(bench, data=replace(bench.data, test=replace(bench.data.test, y=(labels + 1) % 10)))
    assert pick(bench.inside(), "fedavg") == pick(spoiled.inside(), "fedavg") == {"eta": 0.3, "B": 10}


def test_a_setting_that_diverges_is_not_chosen():
    bench = Bench.of(config(methods={"pfedme": {"alpha": [1e60, 0.05], "lam": [1e60, 1.0]}}), 0)
    with np.errstate(all="ignore"):
        assert pick(bench.inside(), "pfedme")["alpha"] == 0.05


def test_all_is_what_can_be_used():
    plain = chosen(Bench.of(config(), 0), ["all"])
    assert {"local", "pooled", "fedavg", "group-models"} <= set(plain)
    assert {"fedper", "fedbn", "group-sgd"} & set(plain) == set()
    layered = Bench.of(config(layout={"personal": ["1*"]}), 0)
    assert {"fedper", "fedrep", "group-sgd"} <= set(chosen(layered, ["all"]))
    ungrouped = Bench.of(config(data={"partition": "iid"}), 0)
    assert "group-models" not in chosen(ungrouped, ["all"])
    with pytest.raises(CoterieError, match="needs known groups"):
        compare(ungrouped.config, ["group-models"])


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({"personal": ["head*"]}, r"The layout's 'head\*' matches no layer of the model"),
        ({"personal": ["1*"], "shared": ["*"]}, "shared and personal"),
        ({"personal": ["1"], "shared": ["2"]}, "says nothing of '0'"),
    ],
)
def test_layouts_that_do_not_fit(layout, message):
    with pytest.raises(CoterieError, match=message):
        compare(config(layout=layout), ["fedper"])


def test_scores_leave_out_clients_without_sound_rows():
    loss, accuracy = np.array([1.0, 3.0, np.nan]), np.array([0.5, 0.25, np.nan])
    found = Scores(loss, accuracy, np.array([3.0, 1.0, 0.0])).summary()
    assert found["accuracy"] == pytest.approx((0.5 * 3 + 0.25) / 4)
    assert found["accuracy_clients"] == pytest.approx(0.375)
    assert found["accuracy_worst"] == 0.25
    assert found["accuracy_10th"] == pytest.approx(0.275)
    assert found["loss_worst"] == 3.0


def test_losses_are_judged_downwards(result, monkeypatch):
    monkeypatch.setattr(comparison.model, "scored", lambda _: False)
    by_loss = comparison.Comparison(result.config, result.runs, result.groups, {})
    assert by_loss.score == "loss"
    assert by_loss.best == min(by_loss.runs, key=lambda name: by_loss.values(name).mean())
    assert by_loss.table["loss"].is_monotonic_increasing
