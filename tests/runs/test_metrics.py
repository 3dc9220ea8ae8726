"""Metrics of all clients at once against scikit-learn's, client by client and over all rows."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit, softmax
from sklearn import metrics as sk

from coterie.errors import CoterieError
from coterie.evidence.comparison import statistic
from coterie.evidence.training_comparison import compare
from coterie.evidence.training_selection import pick
from coterie.report import training_page
from coterie.results.saved_results import load
from coterie.results.training_result import train as fitted
from coterie.runs.config import Config
from coterie.runs.metrics import LOSS, METRICS, Answers, measure, need_outcomes
from coterie.runs.scores_over_clients import Rule, Scores
from coterie.runs.training import train
from coterie.runs.training_problem import TrainingProblem

M = 16
COUNTS = np.random.default_rng(1).integers(1, 14, M)
OWNER = np.repeat(np.arange(M), COUNTS)
N = len(OWNER)


def answers(K, weighted=True, seed=0):
    """Outcomes of K classes with scores of them, some tied; K = 1: two classes by their log odds; K = 0: numbers."""
    rng = np.random.default_rng(seed)
    w = rng.integers(1, 4, N).astype(float) if weighted else np.ones(N)
    if K == 0:
        y = np.where(OWNER % 7 == 3, 0.1, np.round(rng.normal(size=N), 1))
        return Answers(y, y + rng.normal(size=N), w, OWNER, M)
    y = rng.integers(0, max(K, 2), N) * (OWNER % 5 > 0)  # a fifth of the clients have one class
    z = np.round(rng.normal(size=(N, K)), 1)
    return Answers(y, z[:, 0] if K == 1 else z, w, OWNER, M)


def by_scikit_learn(name, y, z, w):
    """The metric of some rows by scikit-learn's own function; NaN where it has none."""
    if METRICS[name].classes:
        p = np.stack([1 - expit(z), expit(z)], axis=1) if z.ndim == 1 else softmax(z, axis=1)
        found, K = p.argmax(axis=1), p.shape[1]
        if z.ndim == 1:
            found = (z > 0).astype(int)
    match name:
        case "accuracy" | "f1_micro":
            micro = sk.f1_score(y, found, average="micro", sample_weight=w)
            assert micro == pytest.approx(sk.accuracy_score(y, found, sample_weight=w))
            return micro
        case "balanced_accuracy":
            return sk.recall_score(y, found, average="macro", labels=np.unique(y), sample_weight=w)
        case "f1":
            return sk.f1_score(y, found, sample_weight=w, zero_division=0.0) if y.any() else np.nan
        case "f1_macro":
            return sk.f1_score(y, found, average="macro", sample_weight=w)
        case "log_loss":
            return sk.log_loss(y, p, sample_weight=w, labels=np.arange(K))
        case "auc":
            some = [k for k in range(K) if 0 < (y == k).sum() < len(y)]
            score = z if z.ndim == 1 else z[:, 1] - z[:, 0]
            if K == 2:
                return sk.roc_auc_score(y, score, sample_weight=w) if some else np.nan
            return np.mean([sk.roc_auc_score(y == k, p[:, k], sample_weight=w) for k in some]) if some else np.nan
        case "r2":
            return sk.r2_score(y, z, sample_weight=w) if len(y) > 1 and np.ptp(y) > 0 else np.nan
        case "mae":
            return sk.mean_absolute_error(y, z, sample_weight=w)
        case "mse":
            return sk.mean_squared_error(y, z, sample_weight=w)


CASES = [
    (name, K)
    for name, metric in METRICS.items()
    for K in ((1, 2, 5) if metric.classes else (0,))
    if name != "dice" and (name, K) != ("f1", 5)
]


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.parametrize(("name", "K"), CASES)
def test_a_metric_is_scikit_learns_client_by_client_and_over_all_rows(name, K):
    of = answers(K)
    found = measure([name], of, np.ones(M, dtype=bool), np.zeros(M, dtype=bool))[name]
    each = [by_scikit_learn(name, of.y[i == OWNER], of.outputs[i == OWNER], of.weight[i == OWNER]) for i in range(M)]
    np.testing.assert_allclose(found.clients, each, atol=1e-12)
    assert np.isnan(each).any() == bool(METRICS[name].without)
    whole = by_scikit_learn(name, of.y, of.outputs, of.weight)
    assert statistic(found.over, found.under)[0] == pytest.approx(whole, abs=1e-12)


def test_several_outputs_of_a_row():
    rng = np.random.default_rng(0)
    y, z = rng.normal(size=(2, N, 3))
    of = Answers(y, z, np.ones(N), OWNER, M)
    found = measure(["r2", "mae", "mse"], of, np.ones(M, dtype=bool), np.zeros(M, dtype=bool))
    for name, function in (("r2", sk.r2_score), ("mae", sk.mean_absolute_error), ("mse", sk.mean_squared_error)):
        assert statistic(found[name].over, found[name].under)[0] == pytest.approx(function(y, z))
    # the mean of each image's Dice coefficient is F1 averaged over "samples"; and each pixel is an outcome
    masks, logits = rng.integers(0, 2, (N, 2, 3)), rng.normal(size=(N, 1, 2, 3))
    masks[0], logits[0] = 0, -1.0
    of = Answers(masks, logits, np.ones(N), OWNER, M)
    found = measure(["dice", "auc"], of, np.ones(M, dtype=bool), np.zeros(M, dtype=bool))
    flat = masks.reshape(N, -1), (logits > 0).reshape(N, -1)
    dice = sk.f1_score(*flat, average="samples", zero_division=1.0)
    assert statistic(found["dice"].over, found["dice"].under)[0] == pytest.approx(dice)
    area = sk.roc_auc_score(masks.ravel(), logits.ravel())
    assert statistic(found["auc"].over, found["auc"].under)[0] == pytest.approx(area)


@pytest.mark.parametrize("name", ["auc", "f1", "balanced_accuracy", "f1_macro", "accuracy", "r2", "mae"])
def test_metrics_of_several_targets_are_the_mean_of_those_of_each(name):
    rng = np.random.default_rng(1)
    kind, w = (np.int64 if METRICS[name].classes else float), rng.integers(1, 4, N).astype(float)
    y, z = rng.normal(size=(2, N, 3))
    y = (y > 0).astype(kind) if METRICS[name].classes else y
    by_name = np.empty(N, dtype=[("a", kind), ("b", kind), ("c", kind)])
    for j, target in enumerate("abc"):
        by_name[target] = y[:, j]
    all_, none = np.ones(M, dtype=bool), np.zeros(M, dtype=bool)
    each = [by_scikit_learn(name, y[:, j], z[:, j], w) for j in range(3)]
    clients = [
        [by_scikit_learn(name, y[i == OWNER, j], z[i == OWNER, j], w[i == OWNER]) for j in range(3)] for i in range(M)
    ]
    for outcomes, of_one in ((y, "1"), (by_name, "b")):
        found = measure([name, f"{name}:{of_one}"], Answers(outcomes, z, w, OWNER, M), all_, none)
        assert statistic(*(getattr(found[name], part) for part in ("over", "under")))[0] == pytest.approx(np.mean(each))
        assert statistic(found[f"{name}:{of_one}"].over, found[f"{name}:{of_one}"].under)[0] == pytest.approx(each[1])
        np.testing.assert_allclose(found[f"{name}:{of_one}"].clients, np.array(clients)[:, 1], atol=1e-12)
        some = ~np.isnan(clients).all(axis=1)
        np.testing.assert_allclose(found[name].clients[some], np.nanmean(np.array(clients)[some], axis=1), atol=1e-12)
    if name == "accuracy":  # what a call says of a target that is not there
        with pytest.raises(CoterieError, match=r"target 'd', which outcomes have not. There are a, b, c"):
            need_outcomes(["accuracy:d"], "mine:loss", by_name)
    with pytest.raises(CoterieError, match="one number for each"):
        measure([name], Answers(by_name, z[:, :2], w, OWNER, M), all_, none)


def test_the_positive_class_of_f1_is_the_one_that_is_named(tmp_path):
    of = answers(1)
    found = measure(["f1"], replace(of, positive=0), np.ones(M, dtype=bool), np.zeros(M, dtype=bool))["f1"]
    whole = sk.f1_score(of.y, of.outputs > 0, pos_label=0, sample_weight=of.weight)
    assert statistic(found.over, found.under)[0] == pytest.approx(whole)
    result = fitted(rare(tmp_path, model={"metrics": ["f1"]}, run={"rounds": 1}), ["local"])
    assert any("F1 takes 1 for the positive class" in note for note in result.notes)
    assert np.isnan(result.clients["f1"]).tolist() == [True, True] + [False] * 6
    for more, says in (
        ({"metrics": ["f1"], "positive": 2}, "positive must be a class"),
        ({"metrics": ["auc"], "positive": 0}, "positive is of the metric f1"),
    ):
        with pytest.raises(CoterieError, match=says):
            fitted(rare(tmp_path, model=more), ["local"])


@pytest.mark.parametrize("K", [1, 5])
def test_a_clients_influence_on_auc_is_its_derivative_by_the_clients_weight(K):
    of = answers(K)
    found = measure(["auc"], of, np.ones(M, dtype=bool), np.zeros(M, dtype=bool))["auc"]
    size = np.bincount(OWNER, of.weight)
    moved = statistic(found.over, found.under)[1] * M / (M - 1) * (size.sum() - size) / size.sum()
    for i in range(0, M, 5):
        up, down = (
            by_scikit_learn("auc", of.y, of.outputs, of.weight * np.where(i == OWNER, 1 + h, 1)) for h in (1e-4, -1e-4)
        )
        assert moved[i] == pytest.approx((up - down) / 2e-4, abs=1e-8)


def test_models_that_are_not_finite_are_nan_and_clients_without_a_metric_are_left_out():
    of = answers(1)
    z = np.where(OWNER == 6, np.nan, of.outputs)
    lost = np.arange(M) == 7
    found = measure(["auc"], replace(of, outputs=z), ~lost & (np.arange(M) != 8), lost)["auc"]
    assert (
        np.isnan(found.clients[[6, 7, 8]]).all() and found.defined[[6, 7]].all() and not found.defined[[5, 8, 10]].any()
    )
    assert np.isnan(statistic(found.over, found.under)[0])
    metrics = measure(["auc"], of, np.ones(M, dtype=bool), np.zeros(M, dtype=bool))
    own = metrics["auc"].clients
    scores = Scores(np.ones(M), own, np.bincount(OWNER, of.weight), Rule("auc"), metrics)
    summary, some = scores.summary(), own[np.isfinite(own)]
    assert scores.standing == (True, pytest.approx(some.mean())) and len(some) < M
    assert summary["auc_clients"] == pytest.approx(some.mean()) and summary["auc_worst"] == some.min()
    assert summary["auc_10th"] == np.quantile(some, 0.1) and summary["auc_variance"] == pytest.approx(np.var(some))
    assert summary["auc_jain"] == pytest.approx(some.sum() ** 2 / (len(some) * (some**2).sum()))
    assert summary["auc"] == pytest.approx(sk.roc_auc_score(of.y, of.outputs, sample_weight=of.weight))


def rare(tmp_path, **more):
    """Eight clients, two of them without an outcome of the class that is rare; the others' directions differ."""
    rng = np.random.default_rng(0)
    X, client = rng.normal(size=(480, 3)).astype(np.float32), np.repeat(np.arange(8), 60)
    y = ((X[:, 0] + 0.5 * rng.normal(size=480) > 0.9) & (client > 1)).astype(np.int64)
    np.savez(tmp_path / "rare.npz", X=X, y=y, client=client)
    tables = {
        "data": {"source": "rare.npz", "partition": "given"},
        "model": {"path": "softmax", "metrics": ["auc", "log_loss", "loss"]},
        "run": {"rounds": 6},
    }
    return Config.of({name: tables.get(name, {}) | more.get(name, {}) for name in {*tables, *more}}, tmp_path)


def test_the_first_metric_judges_methods_settings_and_when_to_stop(tmp_path):
    config = rare(tmp_path, run={"rounds": 8, "patience": 2}, methods={"fedavg": {"eta": [1e-6, 0.5]}})
    result = fitted(config, ["fedavg"])
    table, found = result.comparison, result.evidence
    assert found.score == "auc" and table["auc"].is_monotonic_decreasing
    assert list(table.filter(regex="^(log_loss|loss)$")) == ["log_loss", "loss"] and "accuracy" not in table
    np.testing.assert_allclose(table["log_loss"], table["loss"], rtol=1e-6)  # the loss of a packaged net is the same
    assert (table["auc_low"] >= 0.0).all() and (table["auc_high"] <= 1.0).all() and (table["auc_counted"] == 6).all()
    problem = TrainingProblem.of(config, 0)
    judge = problem.inside()
    part, held = judge.data.test, judge.held
    owner = np.repeat(np.arange(8), part.stops - part.starts)
    y = np.concatenate([part.y[a:b] for a, b in zip(part.starts, part.stops, strict=True)])

    def over_clients(theta):  # the mean of clients' AUC on rows that were held back of the training rows
        z = held.outputs(np.broadcast_to(theta, (8, theta.shape[1])))
        return np.mean(
            [sk.roc_auc_score(own, (z[:, 1] - z[:, 0])[owner == i]) for i in range(8) if (own := y[owner == i]).any()]
        )

    settings = [{"eta": eta, "B": 10} for eta in (1e-6, 0.5)]
    tried = [over_clients(train(judge, "fedavg", one).theta) for one in settings]
    assert pick(judge, "fedavg") == settings[np.argmax(tried)]  # of tiny steps from 0, too, the direction tells
    run = train(problem, "fedavg", {"eta": 0.5})
    assert max(point["validation"] for point in run.curve) == pytest.approx(over_clients(run.theta))  # those it kept
    text = " ".join(training_page.render(found).split())
    assert "AUC: area under the ROC curve" in text and "higher is better; 6 of 8 clients count" in text
    assert "AUC is undefined for client 0, 1, with held-out rows of one class only" in text
    assert "Jain" in text and "has an AUC of" in result.reason
    assert result.clients["auc"].isna().tolist() == [True, True] + [False] * 6
    result.save(tmp_path / "saved")
    again = load(tmp_path / "saved").comparison
    assert again.equals(table)


def test_a_chosen_accuracy_judges_however_rare_a_class_is(tmp_path):
    found = compare(rare(tmp_path, model={"metrics": ["balanced_accuracy"]}), ["fedavg"])
    assert found.score == "balanced_accuracy" and found.others == ["loss"]
    assert compare(rare(tmp_path, model={"metrics": ["loss", "auc"]}), ["local"]).score == LOSS


@pytest.mark.parametrize(
    ("metrics", "loss", "y", "says"),
    [
        (["r2"], "cross_entropy", [0, 1], "r2 is of numbers, and the loss cross_entropy"),
        (["auc"], "mse", [0, 1], "auc needs outcomes that are classes"),
        (["auc"], "mine:focal", [0.5, 1.0], "auc needs outcomes that are classes"),
        (["dice"], "bce", [0.0, 1.0], "dice needs outcomes that are masks"),
        (
            ["mae"],
            "mine:two",
            np.zeros(2, dtype=[("a", "f4"), ("b", object)]),
            r"mae needs outcomes .*numbers of one shape",
        ),
        (["f1"], "cross_entropy", [0, 2], "f1 is of two classes, and outcomes have 3: take f1_macro"),
    ],
)
def test_metrics_that_outcomes_do_not_have(metrics, loss, y, says):
    with pytest.raises(CoterieError, match=says):
        need_outcomes(metrics, loss, np.array(y))


def test_wrong_metrics_are_refused_before_anything_is_trained(tmp_path):
    for wrong, says in (
        (["acu"], "metrics .* accuracy, balanced_accuracy, auc"),
        (["auc", "auc"], "metrics"),
        (["mse"], "mse is of numbers"),
    ):
        with pytest.raises(CoterieError, match=says):
            compare(rare(tmp_path, model={"metrics": wrong}), ["fedavg"])
    with pytest.raises(CoterieError, match="score and metrics"):
        rare(tmp_path, model={"metrics": ["auc"], "score": "mine:score"})
    of = answers(0)
    with pytest.raises(CoterieError, match="no classes of outcomes up to 3"):
        measure(["auc"], replace(of, y=np.full(N, 3)), np.ones(M, dtype=bool), np.zeros(M, dtype=bool))
    with pytest.raises(CoterieError, match="metrics of numbers need both alike"):
        measure(["mae"], answers(5), np.ones(M, dtype=bool), np.zeros(M, dtype=bool))
