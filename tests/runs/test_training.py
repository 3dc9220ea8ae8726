"""Runs from a configuration: resumed is straight, broken clients are named, early stop, callbacks, saved models."""

from __future__ import annotations

import sys
import types
from dataclasses import replace

import numpy as np
import pytest

from coterie import load
from coterie.errors import CoterieError
from coterie.evidence.training_comparison import compare
from coterie.methods.group_sgd import GroupSGD
from coterie.methods.registry import TRAINED
from coterie.report.training_answer_and_notes import notes
from coterie.results import saved_results as store
from coterie.runs.config import Config
from coterie.runs.loop_and_callbacks import Callback, callbacks
from coterie.runs.training import FILE, train
from coterie.runs.training_problem import TrainingProblem
from tests.messages import names
from tests.trained import result_of

METHODS = ["local", "pooled", "fedavg", "ditto", "pfedme", "ifca", "scaffold", "apfl"]
METHODS += ["group-models", "similarity-network", "weighted-averaging", "bias-correction", "async-l2gd", "async-al2sgd"]


def config(**sections):
    """Twelve clients in four groups, softmax, six rounds."""
    base = {"data": {"partition": "rotated", "clients": 12, "rows": 360}, "run": {"rounds": 6, "evaluate_every": 2}}
    return Config.of({name: base.get(name, {}) | sections.get(name, {}) for name in {**base, **sections}})


@pytest.fixture(scope="module")
def problem():
    return TrainingProblem.of(config(), 0)


class Fault(Exception):
    """A machine that dies."""


class Dies(Callback):
    def __init__(self, after):
        self.after, self.ended = after, False

    def look(self, look):
        if look.round == self.after:
            raise Fault

    def end(self):
        self.ended = True


def numbers(run, engine="inprocess"):
    """What must not depend on where a run was cut; of bytes behind a wire some are for the checkpoints."""
    kept = (lambda k: "bytes" not in k) if engine == "loopback" else bool
    return [{k: v for k, v in p.items() if k != "seconds" and kept(k)} for p in run.curve]


@pytest.mark.parametrize(("name", "engine"), [*((name, "inprocess") for name in METHODS), ("ditto", "loopback")])
def test_a_run_that_was_killed_goes_on_as_if_it_had_not(problem, name, engine, tmp_path):
    often = replace(problem, config=config(run={"checkpoint_every": 1}, engine={"kind": engine}))
    straight = train(often, name, {})
    dies = Dies(4)
    with pytest.raises(Fault):
        train(often, name, {}, [dies], tmp_path)
    assert dies.ended  # a writer is closed, whatever happens
    resumed = train(often, name, {}, [], tmp_path, resume=True)
    np.testing.assert_array_equal(resumed.theta, straight.theta)
    assert numbers(resumed, engine) == numbers(straight, engine)
    assert [p["round"] for p in straight.curve] == [2, 4, 6]


def test_rounds_can_be_made_more(problem, tmp_path):
    short = replace(problem, config=config(run={"rounds": 3}))
    longer = replace(problem, config=config(run={"rounds": 6}))
    assert numbers(train(short, "ditto", {}, [], tmp_path))[-1]["round"] == 3
    resumed, straight = train(longer, "ditto", {}, [], tmp_path, resume=True), train(longer, "ditto", {})
    np.testing.assert_array_equal(resumed.theta, straight.theta)
    assert numbers(resumed) == numbers(straight)
    with pytest.raises(CoterieError, match=names("run.rounds 6 3 Rounds")):
        train(short, "ditto", {}, [], tmp_path, resume=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": {"name": "ditto", "lam": 3.0}}, names("methods.ditto.lam 0.1 3.0")),
        ({"model": {"ridge": 0.5}}, r"model.ridge \(0.0 there, 0.5 here\)"),
        ({"run": {"strict": True}}, names("run.strict False True")),
    ],
)
def test_a_checkpoint_of_another_configuration_is_refused_by_the_key_that_differs(problem, tmp_path, change, message):
    train(problem, "ditto", {}, [], tmp_path)
    with pytest.raises(CoterieError, match=message):
        train(replace(problem, config=config(**change)), "ditto", {}, [], tmp_path, resume=True)


def test_a_checkpoint_of_other_rows_or_none_is_refused(problem, tmp_path):
    with pytest.raises(CoterieError, match="There is no file"):
        train(problem, "ditto", {}, [], tmp_path, resume=True)
    with pytest.raises(CoterieError, match="no folder to resume from"):
        train(problem, "ditto", {}, resume=True)
    train(problem, "ditto", {}, [], tmp_path)
    with pytest.raises(CoterieError, match=names("data.fingerprint data.seed 0 1")):
        train(TrainingProblem.of(problem.config, 1), "ditto", {}, [], tmp_path, resume=True)
    (tmp_path / FILE).write_bytes(b"something else")
    with pytest.raises(CoterieError, match=names("read begin")):
        train(problem, "ditto", {}, [], tmp_path, resume=True)


UNTIMED = {"seconds": 0, "compiling": 0}


def test_looking_changes_nothing(problem):
    seldom, often = (replace(problem, config=config(run={"evaluate_every": n})) for n in (6, 1))
    one, many = train(seldom, "ifca", {}), train(often, "ifca", {})
    np.testing.assert_array_equal(one.theta, many.theta)
    assert one.ledger | UNTIMED == many.ledger | UNTIMED


def test_methods_see_the_same_rows_and_pooled_holds_them_all(problem):
    n = len(problem.data.train.y)
    assert problem.pooled.counts.tolist() == [n]
    assert problem.objective.counts.sum() == n
    assert problem.engine(TRAINED["fedavg"]).clients.k == 1
    assert problem.engine(TRAINED["group-sgd"]).clients.k == 4


def test_rows_that_choose_are_training_rows(problem):
    inner = problem.inside().data
    rows = lambda part: {row.tobytes() for row in part.X}  # noqa: E731
    train_rows, test_rows = rows(problem.data.train), rows(problem.data.test)
    assert rows(inner.train) | rows(inner.test) == train_rows
    assert (rows(inner.train) | rows(inner.test)) & test_rows == set()
    assert len(inner.train.y) + len(inner.test.y) == len(problem.data.train.y)


def test_early_stop_keeps_the_best_models_by_rows_held_back(problem):
    settled = config(run={"rounds": 400, "patience": 6, "evaluate_every": 1}, data={"validation": 0.5})
    run = train(replace(problem, config=settled), "local", {"eta": 2.0})
    assert run.status == "stopped"
    assert 7 <= run.rounds < 400
    values = [p["validation"] for p in run.curve]
    assert max(values) > max(values[-6:]) or values.index(max(values)) == len(values) - 7
    assert run.kept == values.index(max(values)) + 1 < run.rounds


def test_the_best_round_is_kept_without_an_early_stop_and_named(problem):
    """As many rounds as the best one has end at its models; the page names it, and what is said of a failed run."""
    best = {"run": {"rounds": 20, "keep": "best"}, "data": {"validation": 0.5}, "method": {"name": "local", "eta": 2.0}}
    run = train(replace(problem, config=config(**best)), "local", {"eta": 2.0})
    values = [p["validation"] for p in run.curve]
    assert run.rounds == 20 > run.kept == run.curve[int(np.argmax(values))]["round"]
    shorter = config(**best | {"run": {"rounds": run.kept, "keep": "best"}})
    again = train(replace(problem, config=shorter), "local", {"eta": 2.0})
    assert again.kept == run.kept and "validation" in again.curve[0]
    np.testing.assert_array_equal(again.theta, run.theta)
    assert replace(run, status="diverged by step 21").trouble.endswith(f"its models are those of round {run.kept}.")
    last = train(replace(problem, config=config(run={"rounds": 20})), "local", {"eta": 2.0})
    assert last.kept == 20 and "validation" not in last.curve[0]
    several = config(**best | {"run": {"rounds": 5, "keep": "best", "seeds": 2}})
    found = compare(several, ["local"])
    one, other = found.runs["local"]
    said = f"local: the models kept are those of rounds {one.kept} of 5, {other.kept} of 5 (seeds 0, 1), best on rows"
    assert any(note.startswith(said) for note in notes(found))


def test_early_stop_goes_on_from_a_checkpoint(problem, tmp_path):
    settled = config(run={"rounds": 6, "patience": 6, "evaluate_every": 1, "checkpoint_every": 1})
    waits = replace(problem, config=settled)
    straight = train(waits, "ditto", {})
    with pytest.raises(Fault):
        train(waits, "ditto", {}, [Dies(4)], tmp_path)
    resumed = train(waits, "ditto", {}, [], tmp_path, resume=True)
    np.testing.assert_array_equal(resumed.theta, straight.theta)
    assert numbers(resumed) == numbers(straight)


def test_a_run_that_ended_early_goes_on_where_it_ended(problem, tmp_path):
    short = config(run={"rounds": 40, "patience": 1, "evaluate_every": 1, "checkpoint_every": 1})
    waits = replace(problem, config=short)
    straight = train(waits, "ditto", {"eta": 5.0}, [], tmp_path)
    assert straight.status == "stopped" and straight.rounds < 40
    resumed = train(waits, "ditto", {"eta": 5.0}, [], tmp_path, resume=True)
    assert (resumed.rounds, resumed.status) == (straight.rounds, "stopped")
    assert numbers(resumed) == numbers(straight)


def test_without_rows_to_hold_out_it_is_said_first():
    alone = config(data={"partition": "iid", "clients": 30, "rows": 30})
    with pytest.raises(CoterieError, match=names("client row spare held")):
        train(TrainingProblem.of(alone, 0), "fedavg", {})


class Stops(Callback):
    def look(self, look):
        return look.round == 3


def test_a_callback_may_stop_a_run(problem):
    run = train(problem, "fedavg", {}, [Stops()])
    assert (run.rounds, run.status, run.trouble) == (3, "stopped", "")


def test_steps_that_are_too_long_end_a_run_and_say_so(problem):
    with np.errstate(all="ignore"):
        run = train(problem, "pfedme", {"alpha": 1e60, "lam": 1e60})
    assert "diverged by step 1" in run.trouble
    assert run.rounds == 0
    assert run.failed


def test_models_come_back_from_the_disk(problem, tmp_path):
    run = train(problem, "ditto", {})
    result_of(problem, run).save(tmp_path)
    saved = load(tmp_path)
    np.testing.assert_array_equal(saved.theta, run.theta)
    at = saved.labels.index("7")
    part = problem.data.test
    rows = slice(part.starts[at], part.stops[at])
    right = np.mean(saved.predict(part.X[rows], 7) == part.y[rows])
    assert right == pytest.approx(run.scores.accuracy[at])
    assert saved.configuration.fingerprint("ditto") == problem.config.fingerprint("ditto")
    with pytest.raises(CoterieError, match=names("client 'x' training adapt")):
        saved.predict(part.X[rows], "x")
    with pytest.raises(CoterieError, match=names("Rows predict values finite 3 rows")):
        saved.predict(np.full((3, 1, 8, 8), np.nan), "7")
    with pytest.raises(CoterieError, match=r"shape \(1, 8, 8\) each, not \(5,\)"):
        saved.predict(np.zeros((3, 5)), "7")
    with pytest.raises(CoterieError, match=names("Rows predict array rows shape")):
        saved.predict([[1.0], [1.0, 2.0]], "7")
    with pytest.raises(CoterieError, match=names("allow list import paths")):
        load(tmp_path, allow=3)
    assert not list(tmp_path.glob("*.pkl"))


def test_a_client_that_was_not_there_gets_the_groups_model_that_suits_it(problem, tmp_path):
    run = train(problem, "ifca", {"eta": 0.5})
    result_of(problem, run).save(tmp_path)
    saved, part = load(tmp_path), problem.data.test
    rows = slice(part.starts[0], part.stops[0])
    adapted = saved.adapt(part.X[rows], part.y[rows])
    models = np.stack([run.theta[run.group == g].mean(axis=0) for g in np.unique(run.group)])
    here = saved.objective(part.X[rows], part.y[rows])
    losses = [float(here.value(model[None])[0]) for model in models]
    np.testing.assert_allclose(adapted.models[0], models[int(np.argmin(losses))])
    with pytest.raises(CoterieError, match="needs one row at least"):
        saved.adapt(part.X[:0], part.y[:0])
    with pytest.raises(CoterieError, match=names("Rows adapt values finite 1 row")):
        saved.adapt(part.X[:1] * np.nan, part.y[:1])
    with pytest.raises(CoterieError, match=names("Outcomes adapt numbers array None")):
        saved.adapt(part.X[rows], None)
    with pytest.raises(CoterieError, match=names("Outcomes adapt values finite 1 row")):
        saved.adapt(part.X[:1], [np.nan])
    with pytest.raises(CoterieError, match="no option 'step'"):
        saved.adapt(part.X[rows], part.y[rows], step=3)
    with pytest.warns(UserWarning, match=names("diverge move nothing model group's")):
        saved.adapt(part.X[rows], part.y[rows], eta=1e308, steps=2)
    further = saved.adapt(part.X[rows], part.y[rows], eta=0.5, steps=20)
    assert here.value(further.models)[0] < min(losses)


def test_a_new_client_gets_the_model_of_a_known_group(problem, tmp_path):
    run = train(problem, "group-models", {"eta": 0.5})
    result_of(problem, run).save(tmp_path)
    saved, part = load(tmp_path), problem.data.test
    np.testing.assert_array_equal(saved.group, problem.data.group)
    for i in (0, 4, 11):
        rows = slice(part.starts[i], part.stops[i])
        adapted = saved.adapt(part.X[rows], part.y[rows])
        assert adapted.group[0] == problem.data.group[i]
        np.testing.assert_allclose(adapted.models[0], run.theta[i], rtol=1e-12)


def test_a_client_with_broken_rows_is_left_out_of_softmax(problem):
    part = problem.data.train
    X = np.array(part.X)
    X[part.starts[2] : part.stops[2]] = np.inf
    broken = replace(problem, data=replace(problem.data, train=replace(part, X=X)))
    run = train(broken, "fedavg", {})
    assert run.quarantined == {problem.data.labels[2]: (1, "its data give no gradient")}
    assert np.isfinite(run.theta).all()


@pytest.mark.parametrize("damage", ["arrays", "json", "nothing"])
def test_damaged_models_are_refused(problem, tmp_path, damage):
    if damage != "nothing":
        result_of(problem, train(problem, "fedavg", {})).save(tmp_path)
        file = next(tmp_path.glob("*.safetensors")) if damage == "arrays" else tmp_path / store.TRAINING.file
        file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(CoterieError, match="damaged" if damage != "nothing" else "no coterie model"):
        load(tmp_path)


@pytest.fixture
def trackers(monkeypatch):
    """What TensorBoard's and MLflow's packages offer, writing into a list."""
    told = []

    class Writer:
        def __init__(self, folder):
            told.append(("open", folder))

        def add_scalar(self, name, value, step):
            told.append((name, step))

        def close(self):
            told.append("closed")

    mlflow = types.ModuleType("mlflow")
    for name in ("set_experiment", "start_run", "log_params", "log_metrics", "end_run"):
        setattr(mlflow, name, lambda *a, _name=name, **k: told.append((_name, k.get("step"))))
    board = types.ModuleType("tensorboardX")
    board.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "tensorboardX", board)
    return told


def test_tensorboard_and_mlflow_are_told(problem, trackers):
    watching = callbacks(config(run={"tensorboard": "logs", "mlflow": "digits"}))
    train(problem, "fedavg", {}, watching)
    assert ("open", "logs/fedavg-seed0") in trackers
    assert [step for name, step in (t for t in trackers if isinstance(t, tuple)) if name == "accuracy"] == [2, 4, 6]
    assert [step for name, step in (t for t in trackers if isinstance(t, tuple)) if name == "log_metrics"] == [2, 4, 6]
    assert trackers[-2:] == ["closed", ("end_run", None)]


@pytest.mark.parametrize(("key", "what"), [("tensorboard", "TensorBoard"), ("mlflow", "MLflow")])
def test_a_tracker_that_is_not_installed_is_asked_for(monkeypatch, key, what):
    for name in ("tensorboardX", "tensorboard.summary", "tensorboard", "mlflow"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(CoterieError, match=f"{what} is asked for and not installed: pip install"):
        callbacks(config(run={key: "x"}))


def told(look):
    """A callback by import path."""
    return look.round == 2


def test_own_callbacks_by_import_path(problem):
    path = f"{__name__}:told"
    run = train(problem, "fedavg", {}, callbacks(config(run={"callbacks": [path]})))
    assert run.rounds == 2


def fails(look):
    raise RuntimeError("no")


class Half:
    """A callback with one method."""

    def look(self, look):
        return look.round == 3


class Needs(Half):
    def __init__(self, what):
        self.what = what


def test_callbacks_that_fail_lack_methods_or_are_none(problem):
    def of(name):
        return callbacks(config(run={"callbacks": [f"{__name__}:{name}"]}))

    assert train(problem, "fedavg", {}, of("Half")).rounds == 3
    with pytest.raises(CoterieError, match=r"The callback '.*:fails' raises RuntimeError in look: no\."):
        train(problem, "fedavg", {}, of("fails"))
    with pytest.raises(CoterieError, match="does not take these args"):
        of("Needs")
    with pytest.raises(CoterieError, match="is no function"):
        of("METHODS")


def test_what_no_theorem_covers_is_noted_with_the_run():
    from coterie.evidence.training_comparison import TrainingComparison
    from coterie.report.training_answer_and_notes import notes
    from coterie.runs.config import Config
    from coterie.runs.training import train
    from coterie.runs.training_problem import TrainingProblem

    small = {"data": {"clients": 4, "rows": 200}, "run": {"rounds": 1}}
    config = Config.of(small | {"method": {"name": "l2gd", "lam": 2.0}})
    run = train(TrainingProblem.of(config, 0), "l2gd", config.given("l2gd"))
    (said,) = run.notes
    assert run.status == "running" and "eta tau lam = 2, beyond the mean" in said
    assert f"l2gd: {said}" in notes(TrainingComparison(config, {"l2gd": [run]}, [None], {}))


def test_what_is_measured_changes_nothing(problem, monkeypatch):
    looked = train(problem, "group-models", {"B": 8})
    private = TrainingProblem.of(config(privacy={"clip": 1.0, "noise": 1.0}), 0)
    assert all(p["noise_4"] > 0.0 and p["gradient_1"] > 0.0 for p in looked.curve)
    assert not any("gradient" in p for p in train(private, "group-models", {}).curve)
    monkeypatch.delattr(GroupSGD, "measure")
    blind = train(problem, "group-models", {"B": 8})
    np.testing.assert_array_equal(looked.theta, blind.theta)
    assert looked.ledger | UNTIMED == blind.ledger | UNTIMED
    assert not any("gradient" in p for p in blind.curve)
