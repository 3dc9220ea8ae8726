"""Torch models from a configuration: layouts by layer name, broken clients, devices, models that come back."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

from torch import nn

from coterie import load
from coterie.engines import InProcess
from coterie.errors import CoterieError
from coterie.evidence.training_comparison import compare
from coterie.evidence.training_selection import chosen
from coterie.methods.group_sgd import GroupSGD
from coterie.objectives.deep import Deep
from coterie.results.net_predictions import mean_models
from coterie.runs.config import Config
from coterie.runs.model_objective import layers
from coterie.runs.training import train
from coterie.runs.training_problem import TrainingProblem
from tests.cli.harness import coterie
from tests.messages import names
from tests.trained import result_of


def config(**sections):
    """Eight clients in four groups, a small perceptron, three rounds."""
    base = {
        "data": {"partition": "rotated", "clients": 8, "rows": 240},
        "model": {"path": "mlp", "args": {"sizes": [64, 8, 10]}},
        "run": {"rounds": 3},
    }
    return Config.of({name: base.get(name, {}) | sections.get(name, {}) for name in {**base, **sections}})


def norm():
    """A user's own model, with statistics."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))


@pytest.mark.soak
def test_every_method_that_can_be_used_runs_on_a_torch_model():
    settled = config(layout={"personal": ["head*"]}, run={"rounds": 2})
    names = chosen(TrainingProblem.of(settled, 0), ["all"])
    assert {"fedper", "fedrep", "group-sgd", "group-models", "scaffold", "apfl", "ifca"} <= set(names)
    assert "fedbn" not in names  # no layer normalises
    result = compare(settled, names)
    assert np.isfinite(result.table["loss" if result.score == "loss" else "accuracy"]).all()
    assert not result.table["diverged"].any()


def test_resumed_is_straight_with_layers_that_stay_at_home(tmp_path):
    problem = TrainingProblem.of(config(layout={"personal": ["head*"]}, model={"dtype": "float64"}), 0)
    straight = train(problem, "fedper", {})
    short = replace(problem, config=replace(problem.config, run=problem.config.run | {"rounds": 1}))
    train(short, "fedper", {}, [], tmp_path)
    resumed = train(problem, "fedper", {}, [], tmp_path, resume=True)
    np.testing.assert_array_equal(resumed.theta, straight.theta)


def test_statistics_stay_at_home_and_fedbn_is_in():
    settled = config(model={"path": f"{__name__}:norm", "args": {}}, methods={"fedbn": {"personal": ["2.*"]}})
    problem = TrainingProblem.of(settled, 0)
    run = train(problem, "fedavg", {})
    kept = np.ptp(run.theta, axis=0) > 0
    assert 0 < kept.sum() <= 17  # two statistics of eight units, and their count
    assert train(problem, "fedbn", {"personal": ["2.*"]}).status == "running"


def spoiled(problem, value=np.nan):
    part = problem.data.train
    X = np.array(part.X)
    X[part.starts[2]] = value
    return replace(problem, data=replace(problem.data, train=replace(part, X=X)))


def test_a_new_client_trains_what_is_not_shared(tmp_path):
    problem = TrainingProblem.of(config(layout={"personal": ["head*"]}), 0)
    run = train(problem, "fedper", {})
    result_of(problem, run).save(tmp_path)
    part = problem.data.test
    adapted = load(tmp_path).adapt(part.X[:9], part.y[:9], steps=3)
    shared = sum(n for name, n in problem.objective.names.items() if not name.startswith("head"))
    np.testing.assert_allclose(adapted.models[0, :shared], run.theta[0, :shared], atol=1e-6)
    assert np.any(adapted.models[0, shared:] != run.theta[:, shared:].mean(axis=0))


def test_a_client_with_broken_rows_is_left_out_and_named():
    problem = spoiled(TrainingProblem.of(config(), 0))
    run = train(problem, "ditto", {})
    assert run.status == "running"
    assert run.quarantined == {problem.data.labels[2]: (1, "its data give no gradient")}
    assert np.isfinite(run.scores.summary()["loss"])
    strict = replace(problem, config=config(run={"strict": True}))
    ended = train(strict, "ditto", {})
    assert ended.failed == [problem.data.labels[2]]
    assert "ended by step 1" in ended.trouble


@pytest.mark.parametrize(
    "name", ["similarity-network", "weighted-averaging", "bias-correction", "async-l2gd", "async-al2sgd"]
)
def test_a_strict_run_ends_where_a_client_is_left_out(name):
    problem = spoiled(TrainingProblem.of(config(run={"strict": True}), 0))
    ended = train(problem, name, {})
    assert ended.trouble and ended.rounds < 3
    if "async" not in name:  # whose coins' averages do not say whose gradient it was
        assert ended.failed == [problem.data.labels[2]] and "no gradient" in ended.trouble
    whole = train(TrainingProblem.of(config(run={"strict": True}), 0), name, {})
    assert whole.status == "running" and not whole.failed


def test_pooled_leaves_rows_of_broken_clients_out():
    problem = TrainingProblem.of(config(), 0)
    broken, part = spoiled(problem), problem.data.train
    assert broken.pooled.counts[0] == problem.pooled.counts[0] - (part.stops - part.starts)[2]
    run = train(broken, "pooled", {})
    assert (run.status, run.rounds) == ("running", 3)
    assert np.any(run.theta != broken.objective.start(0))


def test_where_nothing_can_be_judged_it_is_said_first():
    problem = TrainingProblem.of(config(), 0)
    nothing = replace(problem.data, test=replace(problem.data.test, X=problem.data.test.X * np.nan))
    with pytest.raises(CoterieError, match=names("client held-out rows finite")):
        train(replace(problem, data=nothing), "fedavg", {})


def test_a_batch_larger_than_a_clients_rows_and_clients_without_some_labels():
    settled = config(data={"partition": "shards", "shards": 1, "clients": 12, "rows": 36})
    assert train(TrainingProblem.of(settled, 0), "fedavg", {"B": 100}).status == "running"


def test_models_come_back_and_predict(tmp_path):
    problem = TrainingProblem.of(config(), 0)
    run = train(problem, "ditto", {})
    result_of(problem, run).save(tmp_path)
    saved = load(tmp_path)
    assert saved.theta.dtype == np.float32
    part = problem.data.test
    rows = slice(part.starts[0], part.stops[0])
    right = np.mean(saved.predict(part.X[rows], saved.labels[0]) == part.y[rows])
    assert right == pytest.approx(run.scores.accuracy[0])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"args": {"sizes": [10, 10]}}, "The model cannot take rows of shape"),
        ({"args": {"size": 3}}, "has no argument 'size'. Did you mean 'sizes'"),
        ({"device": "cuda:99"}, "cuda"),
        ({"path": "collections:OrderedDict", "args": {}}, "model"),
        ({"loss": "crossentropy"}, "loss"),
        ({"score": "crossentropy"}, "The score 'crossentropy' is no import path"),
        ({"path": "softmax", "args": {}, "clip": 1.0}, r"softmax has no use for clip of \[model\]"),
        ({"path": "softmax", "args": {}, "score": "accuracy", "device": "cuda"}, "no use for score, device"),
    ],
)
def test_models_that_do_not_fit(model, message):
    with pytest.raises(CoterieError, match=message):
        train(TrainingProblem.of(config(model=model), 0), "fedavg", {})


def test_a_layer_pattern_that_matches_nothing_lists_the_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = '[data]\npartition = "rotated"\nclients = 8\n[model]\npath = "mlp"\n[layout]\npersonal = ["haed*"]\n'
    (tmp_path / "c.toml").write_text(text + '[method]\nname = "fedper"\n')
    message = coterie("fit", "c.toml").message
    assert "'haed*'" in message and "matches no layer of the model" in message
    assert "head" in message


def outcomes(kind):
    """Rows of two clients whose targets are not one number each."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(24, 1, 4, 4) if kind == "map" else (24, 5, 3) if kind == "sequence" else (24, 6))
    X = X.astype(np.float32)
    y = {
        "labels": (X[:, :4] > 0).astype(np.int64) if X.ndim == 2 else None,
        "numbers": X[:, :3] * 2.0 if X.ndim == 2 else None,
        "column": X[:, :1] if X.ndim == 2 else None,
        "map": (X[:, 0] > 0).astype(np.int64) if kind == "map" else None,
        "sequence": (X[..., 0] > 0).astype(np.int64) if kind == "sequence" else None,
    }[kind]
    return X, y, np.repeat(["a", "b"], 12)


def outputs(kind):
    """A model for each of these."""

    class Steps(nn.Linear):
        def forward(self, x):
            return super().forward(x).transpose(1, 2)  # (rows, classes, steps)

    return {"labels": nn.Linear(6, 4), "numbers": nn.Linear(6, 3), "column": nn.Linear(6, 1)}.get(
        kind, nn.Conv2d(1, 3, 3, padding=1) if kind == "map" else Steps(3, 2)
    )


@pytest.mark.parametrize(
    ("kind", "loss", "shape"),
    [
        ("labels", "bce", (2, 4)),
        ("numbers", "mse", (2, 3)),
        ("column", "mse", (2, 1)),
        ("map", "cross_entropy", (2, 4, 4)),
        ("sequence", "cross_entropy", (2, 5)),
    ],
)
def test_targets_of_any_shape_are_trained_scored_and_predicted(tmp_path, kind, loss, shape):
    settled = Config.of(
        {
            "data": {"source": f"{__name__}:outcomes", "args": {"kind": kind}, "partition": "given"},
            "model": {"path": f"{__name__}:outputs", "args": {"kind": kind}, "loss": loss},
            "run": {"rounds": 2},
        }
    )
    problem = TrainingProblem.of(settled, 0)
    run = train(problem, "local", {})
    result_of(problem, run).save(tmp_path)
    saved, held = load(tmp_path, allow=[f"{__name__}:outputs"]), problem.data.test
    X, y = held.X[held.starts[1] : held.stops[1]], held.y[held.starts[1] : held.stops[1]]
    found = saved.predict(X, "b")
    assert saved.predict(X[:2], "b").shape == shape and saved.predict(X[:0], "b").shape == (0, *shape[1:])
    if loss == "mse":
        assert run.scores.loss[1] == pytest.approx(np.square(found - y).mean(), rel=1e-5)
    else:
        right = found == y if loss == "cross_entropy" else (found > 0) == (y > 0)
        assert run.scores.accuracy[1] == pytest.approx(right.mean())


def test_clients_that_were_left_out_have_no_part_in_adapting(tmp_path):
    problem = TrainingProblem.of(config(), 0)
    run = train(problem, "local", {})
    theta, group = np.array(run.theta), np.repeat([0, 1, 3], [3, 3, 2])
    theta[0], theta[4] = 50.0, np.nan
    labels = problem.data.labels
    broken = replace(
        run, theta=theta, group=group, quarantined={labels[0]: (1, "its steps diverged")}, failed=[labels[6]]
    )
    result_of(problem, broken).save(tmp_path)
    saved, part = load(tmp_path), problem.data.test
    groups, models = mean_models(saved)
    np.testing.assert_array_equal(groups, [0, 1, 3])
    np.testing.assert_allclose(models, [theta[1:3].mean(0), theta[[3, 5]].mean(0), theta[7]], rtol=1e-6)
    rows = slice(part.starts[7], part.stops[7])
    adapted = saved.adapt(part.X[rows], part.y[rows], by="mean")
    assert adapted.group[0] in (0, 1, 3)
    np.testing.assert_allclose(adapted.models[0], models[list(groups).index(adapted.group[0])], rtol=1e-6)
    nobody = replace(saved, evidence=replace(saved.evidence, runs={"local": [replace(saved.run, failed=list(labels))]}))
    with pytest.raises(CoterieError, match="Every client was left out"):
        nobody.adapt(part.X[rows], part.y[rows])


def restless():
    """A user's own model, that draws what no seed reaches."""

    class Restless(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(64, 10)

        def forward(self, x):
            return self.body(x.flatten(1)) * float(np.random.default_rng().uniform())

    return Restless()


@pytest.mark.filterwarnings("ignore:Two runs will not be alike")
def test_a_run_says_what_cannot_be_repeated():
    settled = config(model={"path": f"{__name__}:restless", "args": {}}, run={"rounds": 1})
    run = train(TrainingProblem.of(settled, 0), "fedavg", {})
    assert any("Two runs will not be alike" in note for note in run.notes)


def test_a_layout_shares_no_statistics_and_no_frozen_layers():
    def net():
        net = nn.Sequential(OrderedDict(body=nn.Linear(4, 3), norm=nn.BatchNorm1d(3), head=nn.Linear(3, 2)))
        net.body.bias.requires_grad_(False)
        return net

    objective = Deep.of(net, np.ones((4, 4)), np.arange(4) % 2, [0], [4])
    found = layers(config(layout={"personal": ["head*"]}), objective)
    assert found == {"shared": ("body.weight", "norm.weight", "norm.bias"), "personal": ("head*",)}
    GroupSGD(eta=0.1, shared=found["shared"]).init(InProcess(objective, np.zeros(1, dtype=np.int64)))


ready = nn.Linear(64, 10)


def test_a_module_by_its_path_is_to_be_made_by_a_function():
    with pytest.raises(CoterieError, match=names("ready' module already name function makes")):
        _ = TrainingProblem.of(config(model={"path": f"{__name__}:ready", "args": {}}), 0).objective
