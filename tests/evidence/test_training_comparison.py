"""Comparisons over paired seeds: what is always in, intervals, what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from coterie.errors import CoterieError
from coterie.evidence.comparison import interval
from coterie.evidence.training_comparison import TrainingComparison, compare
from coterie.report import training_answer_and_notes as answer
from coterie.report import training_tables
from coterie.report.tables import render_text
from coterie.runs.config import Config
from coterie.runs.scores_over_clients import Rule, Scores
from coterie.runs.training import Trained, train
from coterie.runs.training_problem import TrainingProblem
from tests.messages import names
from tests.runs.test_training import config


@pytest.fixture(scope="module")
def result():
    return compare(config(run={"seeds": 3}, methods={"ditto": {"lam": [0.1, 50.0]}}), ["ditto", "ifca"])


def test_what_changes_nothing_is_refused_before_anything_is_trained(monkeypatch):
    monkeypatch.setattr("coterie.evidence.training_comparison.train", None)
    with pytest.raises(CoterieError, match=names("mu fedprox fedavg leave mu out")):
        compare(config(method={"name": "auto", "mu": 0.1}), ["auto"])
    with pytest.raises(CoterieError, match=names("checkpoint_every checkpoint folder leave checkpoint_every out")):
        compare(config(run={"checkpoint_every": 3}), ["fedavg"], alone=True)


@pytest.mark.parametrize(
    ("method", "given", "said"),
    [
        ("moon", {}, "'head*' head method moon"),
        ("fedproto", {"head": ["0*"]}, "'head*bias' bias method fedproto"),
        ("fedala", {"layers": ["1*", "conv*"]}, "'conv*' layers method fedala"),
        ("fedbn", {}, "No layer normalises"),
    ],
)
def test_patterns_of_every_method_are_held_to_the_layers_before_anything_is_trained(monkeypatch, method, given, said):
    monkeypatch.setattr("coterie.evidence.training_comparison.train", None)
    with pytest.raises(CoterieError, match=names(said)):
        compare(config(methods={method: given}), ["fedavg", method])


def test_local_and_pooled_are_always_in(result):
    assert list(result.runs) == ["local", "pooled", "ditto", "ifca"]
    assert [run.seed for run in result.runs["ditto"]] == [0, 1, 2]


def test_intervals_are_of_the_point_over_clients_and_seeds(result):
    difference = result.values("ditto") - result.values(result.best)
    value, low, high = result.interval("ditto", result.best)
    assert value == pytest.approx(difference.mean()) and low <= value <= high
    value, low, high = result.interval("ifca")
    assert value == pytest.approx(result.values("ifca").mean())
    scores, f, without = [run.scores for run in result.runs["ifca"]], result.config.data["test"], np.zeros((3, 4))
    for k, (one, group) in enumerate(zip(scores, result.groups, strict=True)):
        for g in range(4):
            without[k, g] = np.average(one.accuracy[group != g], weights=one.weight[group != g])
    moved = 0.75 * (result.values("ifca")[:, None] - without)  # the jackknife's, of the four groups that are known
    units = np.mean(4 / 3 * np.square(moved).sum(axis=1))
    excess = max(result.values("ifca").var(ddof=1) - units * (1 - f), 0.0) * (1 / 3 + f / (1 - f))
    half = np.sqrt(stats.t.ppf(0.975, 3) ** 2 * units * (f + (1 - f) / 3) + stats.t.ppf(0.975, 4) ** 2 * excess)
    longer(value, low, high, half)
    value, low, high = replace(result, drawn_anew=True).interval("ifca")  # clients and rows that no two seeds share
    excess = max(result.values("ifca").var(ddof=1) - units, 0.0) / 3
    half = np.sqrt(stats.t.ppf(0.975, 3) ** 2 * units / 3 + stats.t.ppf(0.975, 4) ** 2 * excess)
    longer(value, low, high, half)


def longer(value, low, high, half):
    """An interval is as long as Student's on one side, and as long or longer on the other, where the tail is."""
    low, high = value - low, high - value
    assert min(low, high) >= half * (1 - 1e-9) and (low == pytest.approx(half) or high == pytest.approx(half))


def test_where_no_loss_is_finite_the_answer_says_what_to_do(result):
    wild = {
        name: [replace(run, scores=replace(run.scores, loss=np.full(12, np.inf), rule=Rule())) for run in runs]
        for name, runs in result.runs.items()
    }
    diverged = replace(result, runs=wild)
    says = "finite loss on held-out rows: take smaller steps (eta), or scale the inputs."
    assert answer.headline(diverged) == f"No method has a {says}"
    assert answer.headline(replace(diverged, runs={"ditto": wild["ditto"]})) == f"ditto has no {says}"
    assert np.isinf(diverged.table["loss"]).all() and diverged.table["to_best_low"].isna().all()


def crossed(m, seeds, ratio, rng):
    """Scores of clients with effects of theirs, of seeds and of both; seeds' s.d. as a share of what clients add."""
    apart = ratio * np.sqrt(2.0 / m)
    scores = rng.normal(size=m) + rng.normal(0.0, apart, (seeds, 1)) + rng.normal(size=(seeds, m))
    value = scores.mean(axis=1)
    return value, (scores - value[:, None]) / m


@pytest.mark.parametrize(("m", "seeds", "ratio"), [(8, 1, 0.0), (8, 2, 0.0), (30, 2, 1.0), (8, 5, 3.0)])
def test_intervals_cover_means_of_other_clients_and_seeds(m, seeds, ratio):
    rng = np.random.default_rng(3)
    found = [crossed(m, seeds, ratio, rng) for _ in range(800)]
    ends = [interval(value, moved)[1:] for value, moved in found]
    covered = np.mean([low <= 0.0 <= high for low, high in ends])
    assert 0.91 <= covered <= 0.985  # a standard error is 0.008


@pytest.mark.parametrize("alike", [1.0, 0.5])
def test_more_seeds_do_not_widen_an_interval(alike):
    rng = np.random.default_rng(4)
    widths = {
        seeds: np.mean([np.ptp(interval(*crossed(12, seeds, 0.0, rng), alike)[1:]) for _ in range(200)])
        for seeds in (1, 2, 5)
    }
    assert widths[5] < widths[2] < 1.1 * widths[1]


def test_a_single_client_is_judged_over_seeds_alone():
    assert np.isnan(interval(np.array([0.5]), np.zeros((1, 1)))[1:]).all()
    assert np.ptp(interval(np.array([0.4, 0.6]), np.zeros((2, 1)))[1:]) > 0.0


def test_the_table_is_that_of_the_runs(result):
    table = result.table
    assert table["accuracy"].is_monotonic_decreasing and (table["loss_low"] <= table["loss"]).all()
    for name, runs in result.runs.items():
        assert table["accuracy"][name] == pytest.approx(np.mean([r.scores.summary()["accuracy"] for r in runs]))
    assert np.isnan(table["bytes"]["pooled"])
    assert table["bytes"]["ifca"] > table["bytes"]["ditto"] > table["bytes"]["local"]
    assert result.tried == {"ditto": 2}


def test_paired_seeds_share_rows_and_first_models(result):
    one = TrainingProblem.of(result.config, 1)
    assert one.data.fingerprint == TrainingProblem.of(result.config, 1).data.fingerprint
    again = compare(result.config, ["ditto"])
    np.testing.assert_array_equal(again.values("ditto"), result.values("ditto"))


def test_with_one_seed_the_interval_is_of_the_point_itself():
    one = compare(config(data={"partition": "dirichlet", "alpha": 0.3}), ["fedavg"])
    value, low, high = one.interval("fedavg")
    s = one.runs["fedavg"][0].scores
    assert np.ptp(s.weight) > 0 and value == pytest.approx(s.accuracy @ s.weight / s.weight.sum())
    m = len(s.weight)
    without = [np.average(np.delete(s.accuracy, i), weights=np.delete(s.weight, i)) for i in range(m)]
    half = stats.t.ppf(0.975, m - 1) * np.sqrt((m - 1) / m * np.square(value - np.array(without)).sum())  # jackknife
    assert low > 0.0 and high < 1.0
    longer(value, low, high, half)
    assert one.interval(one.best, one.best) == (0.0, 0.0, 0.0)


def test_clients_with_names_are_the_same_in_every_seed():
    rng = np.random.default_rng(0)
    loss, weight = 9.0 + rng.normal(size=(2, 3)), np.full(3, 4.0)
    settled = config(run={"seeds": 2})
    settled = replace(settled, data=settled.data | {"partition": "given"})
    labels = [("a", "b", "c"), ("b", "c", "a")]
    runs = [
        Trained("fedavg", {}, k, None, Scores(loss[k], None, weight, Rule()), [], "running", 1, labels=labels[k])
        for k in range(2)
    ]
    found = TrainingComparison(settled, {"fedavg": runs}, [None, None], {})
    aligned = np.stack([loss[0], loss[1][[2, 0, 1]]])
    moved = (aligned - aligned.mean(axis=1, keepdims=True)) / 3
    value, low, high = found.interval("fedavg")
    ratio = settled.data["test"] / (1.0 - settled.data["test"])  # of rows that the two seeds share
    assert (value, low, high) == pytest.approx(interval(loss.mean(axis=1), moved, 1.0, ratio))


def scored(greater):
    return config(
        model={"path": "mlp", "args": {"sizes": [64, 10]}, "score": f"{__name__}:far", "greater_is_better": greater},
        run={"rounds": 2},
    )


def far(outputs, targets):
    """An error of one's own, which is far from 0 to 1."""
    return 50.0 + (outputs.argmax(1) - targets).abs().double()


def nothing(outputs, targets):
    """A score that is defined for no row."""
    return 0.0 * outputs[:, 0] + float("nan")


@pytest.mark.soak("False")
@pytest.mark.parametrize("greater", [True, False])
def test_a_score_that_is_no_number_judges_nothing_and_is_named(greater):
    pytest.importorskip("torch")
    asked = scored(greater)
    model = asked.model | {"score": f"{__name__}:nothing"}
    options = {"fedavg": {"eta": [1e-9, 0.1]}}
    given = replace(asked, model=model, run=asked.run | {"rounds": 4, "patience": 2}, options=options)
    plain = replace(given, model=model | {"score": None, "greater_is_better": None, "loss": f"{__name__}:cross"})
    result, by_loss = compare(given, ["fedavg"]), compare(plain, ["fedavg"])
    assert result.score == "loss" and result.best == by_loss.best == result.table["loss"].idxmin()
    assert result.table["nothing"].isna().all() and result.table["chosen"].equals(by_loss.table["chosen"])
    assert (result.table["loss"] == by_loss.table["loss"]).all()
    text = render_text(training_tables.comparison_table(result), 200)
    assert "No method's nothing is a number for all clients: methods are ordered by their loss." in text
    assert any("the nothing of fedavg is not a number at client" in note for note in answer.notes(result))


def cross(outputs, targets):
    """The cross-entropy as a loss of one's own, of which no accuracy is known."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(outputs, targets, reduction="none")


def test_a_score_of_one_s_own_has_its_name_and_no_bounds():
    pytest.importorskip("torch")
    for greater, judged in ((None, "loss"), (False, "far"), (True, "far")):
        result = compare(scored(greater), ["fedavg"])
        assert result.score == judged
        table = result.table
        assert (table["far"] > 40.0).all() and (table["far_high"] > table["far"]).all() and "loss" in table
        assert "accuracy" not in table
        assert table[judged].iloc[0] == (table[judged].max() if greater else table[judged].min())
        if greater is not None:
            assert (table["far_worst"] < table["far"]).all() == greater
        text = render_text(training_tables.comparison_table(result), 200)
        assert "far (95% interval)" in text and "loss (95% interval)" in text and "accuracy" not in text
        assert ("greater_is_better" in text) == (greater is None)
        assert f"has a {judged} of" in answer.headline(result)


def test_rare_outcomes_are_judged_by_the_loss_beside_balanced_accuracy(tmp_path):
    from sklearn.metrics import balanced_accuracy_score

    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3)).astype(np.float32)
    y = (X[:, 0] + 0.5 * rng.normal(size=400) > 1.9).astype(np.int64)
    np.savez(tmp_path / "rare.npz", X=X, y=y, client=np.repeat(np.arange(8), 50))
    tables = {"data": {"source": "rare.npz", "partition": "given"}, "run": {"rounds": 10}}
    result = compare(Config.of(tables, tmp_path), ["fedavg"])
    assert result.score == "loss" and result.rule.common == pytest.approx(1.0 - y.mean())
    table = result.table
    assert table["loss"].is_monotonic_increasing and {"accuracy", "balanced_accuracy"} <= set(table)
    problem, run = TrainingProblem.of(result.config, 0), result.runs["fedavg"][0]
    again = train(problem, "fedavg", run.setting)
    theta = np.broadcast_to(again.theta, (8, again.theta.shape[1]))
    part = problem.data.test
    rows = np.concatenate([np.arange(a, b) for a, b in zip(part.starts, part.stops, strict=True)])
    right = balanced_accuracy_score(part.y[rows], problem.held.predict(theta))
    assert table["balanced_accuracy"]["fedavg"] == pytest.approx(right)
    text = render_text(training_tables.comparison_table(result), 240)
    assert "balanced accuracy, % (95% interval)" in text and "ordered by their loss" in " ".join(text.split())


def test_clients_that_no_score_has_are_named():
    scores = Scores(np.array([1.0, np.nan, np.inf]), None, np.array([3.0, 0.0, 2.0]), Rule())
    run = Trained("fedavg", {}, 0, None, scores, [], "running", 1, labels=("a", "b", "c"))
    none, wild = answer.unscored(run)
    assert "no score has client b" in none and "not finite at client c" in wild


@pytest.mark.parametrize("name", ["fedper", "fedrep", "group-penalty"])
def test_a_method_with_personal_layers_needs_a_layout_and_others_have_no_use_for_one(name):
    with pytest.raises(CoterieError, match=names(f'{name} [layout] personal = ["head*"]')):
        compare(config(), [name])
    with pytest.raises(CoterieError, match=names("local pooled fedavg [layout] fedper")):
        compare(config(layout={"personal": ["head*"]}), ["fedavg"])


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({"personal": ["head*"]}, r"'head\*', as \[layout\] says, matches no layer of the model"),
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


def test_intervals_of_a_loss_that_cannot_be_negative_end_at_0(result):
    runs = {
        "fedavg": [
            Trained("fedavg", {}, k, None, Scores(np.array([0.1, high]), None, np.ones(2), Rule()), [], "running", 1)
            for k, high in enumerate((0.2, 4.0))
        ]
    }
    own = replace(result.config, model=result.config.model | {"path": "mlp", "loss": f"{__name__}:cross"})
    assert TrainingComparison(result.config, runs, [None, None], {}).interval("fedavg")[1] == 0.0
    assert TrainingComparison(own, runs, [None, None], {}).interval("fedavg")[1] < 0.0


@pytest.mark.parametrize(("unit", "kept"), [("client", "ditto"), ("row", "dp-sgd")])
def test_all_leaves_out_what_privacy_refuses_and_says_so(unit, kept):
    found = compare(config(run={"rounds": 1}, privacy={"clip": 1.0, "noise": 1.0, "unit": unit}), ["all"])
    out = ["scaffold", "ifca", "cfl", "found-groups", "group-penalty", "similarity-network"]
    assert kept in found.runs and not set(out) & set(found.runs)
    note = next(note for note in answer.notes(found) if "[privacy]" in note)
    assert all(name in note for name in out) and kept not in note


@pytest.mark.parametrize("name", ["scaffold", "ifca", "cfl"])
def test_a_method_that_privacy_refuses_is_refused_by_name(name):
    with pytest.raises(CoterieError, match=names(f"{name} privacy ditto")):
        compare(config(privacy={"clip": 1.0, "noise": 1.0}), [name])
