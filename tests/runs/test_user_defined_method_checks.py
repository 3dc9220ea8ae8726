"""A method of the user's own by its import path: trained, compared, resumed, reported, and what it may lack."""

from __future__ import annotations

import re
import sys
import types
from dataclasses import replace

import numpy as np
import pytest

from coterie import load
from coterie.errors import CoterieError
from coterie.evidence.training_comparison import compare
from coterie.methods.registry import TRAINED, trained_method
from coterie.report.training_answer_and_notes import headline
from coterie.report.training_page import write_report
from coterie.runs.config import Config
from coterie.runs.loop_and_callbacks import callbacks
from coterie.runs.training import train
from coterie.runs.training_problem import TrainingProblem
from tests.messages import names
from tests.trained import result_of

MODULE = '''
from dataclasses import dataclass
from typing import ClassVar
import numpy as np
from coterie.errors import CoterieError
from coterie.federation import work
from coterie.methods.local_training.rounds import ask_first_models
from coterie.methods.stepwise import Stepwise

@work
def pull(site, x, eta, lam):
    z = site.state.get("z", np.tile(x, (len(site), 1)))
    z = z - eta * (site.objective.gradient(z) / site.objective.sizes()[:, None] + lam * (z - x))
    site.state["z"] = z
    return {"z": z, "n": np.ones(len(site))}

@work
def own(site, x):
    return {"z": site.state.get("z", np.tile(x, (len(site), 1)))}

@dataclass(frozen=True)
class Mine(Stepwise):
    """Own models, pulled to their mean.

    More of it.
    """
    lam: float
    eta: float = 0.5
    layers: list[str] = ()
    seed: int = -1

    def __post_init__(self):
        if self.lam < 0:
            raise CoterieError("lam must not be negative.")
        1 / (self.eta - 99)

    def init(self, fed):
        assert self.seed >= 0
        return {"t": 0, "status": "running", "x": ask_first_models(fed, {}, [self.seed], None).models[0]}

    def step(self, fed, state):
        sums = fed.total(pull, x=state["x"], eta=self.eta, lam=self.lam)
        return state | {"t": state["t"] + 1, "x": sums["z"] / sums["n"]}

    def models(self, fed, state):
        return fed.ask(own, x=state["x"])["z"]

@dataclass
class Plain:
    """A method without a base, a seed or anything to set."""
    known_groups: ClassVar[bool] = True

    def init(self, fed):
        return {"t": 0, "status": "running", "k": fed.clients.k}

    def run(self, fed, stops, state):
        for t in stops:
            yield state | {"t": t}

    def models(self, fed, state):
        return np.zeros((1, 650))

class NoData:
    init = run = models = None

@dataclass
class NoRun:
    def init(self, fed): ...
    def step(self, fed, state): ...
    def models(self, fed, state): ...

@dataclass
class NoStep(Stepwise):
    def init(self, fed): ...
    def models(self, fed, state): ...

class Wrong(Plain):
    def models(self, fed, state):
        return np.zeros((3, 2))

class NoState(Plain):
    def init(self, fed):
        return {"x": 1}

class Forgets(Stepwise):
    def init(self, fed):
        return {"t": 0, "status": "running"}
    def step(self, fed, state):
        return {"x": 1}
    def models(self, fed, state):
        return np.zeros((1, 650))

class Nan(Plain):
    def models(self, fed, state):
        return np.full((1, 650), np.nan)

class OddKeys(Plain):
    def init(self, fed):
        return {"t": 0, "status": "running", "seen": {1: "one"}}

class OddMessage(Plain):
    def init(self, fed):
        fed.total(own, x={1: 0.1})

Wrong, NoState, Forgets = dataclass(Wrong), dataclass(NoState), dataclass(Forgets)
Nan, OddKeys, OddMessage = dataclass(Nan), dataclass(OddKeys), dataclass(OddMessage)
number = 3
'''
NAME = "own_methods_of_tests"
MINE = f"{NAME}:Mine"
DATA = {"partition": "rotated", "clients": 12, "rows": 360}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder that is not on the path until a configuration in it is read."""
    (tmp_path / f"{NAME}.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, NAME, types.ModuleType(NAME))  # what is imported goes in the end
    del sys.modules[NAME]
    return tmp_path


def config(folder, **sections):
    return Config.of({"data": DATA, "run": {"rounds": 4}, **sections}, folder)


def trained(folder, name=MINE, setting=None, **sections):
    described = config(folder, **sections)
    return train(TrainingProblem.of(described, 0), name, {"lam": 0.1} if setting is None else setting)


def test_its_fields_are_hyper_parameters_and_the_code_s_own_values_enter_the_hash(folder):
    found = trained_method(MINE, folder)
    assert found.user_defined and found.summary == "Own models, pulled to their mean"
    assert list(found.hyper_parameters) == ["lam", "eta", "layers"]
    assert found.defaults == {"eta": 0.5}
    assert found.settings({"lam": [0.1, 0.2], "layers": ["a", "b"]}) == [
        {"eta": 0.5, "lam": lam, "layers": ["a", "b"]} for lam in (0.1, 0.2)
    ]
    assert found.make(7, lam=0.1, layers=["a"]).seed == 7
    described = config(folder, method={"name": MINE, "lam": 0.1})
    assert described.document()["methods"] == {MINE: {"eta": 0.5, "lam": 0.1}}
    assert not TRAINED["fedavg"].user_defined


def test_is_trained_and_resumed_with_the_numbers_of_a_run_never_cut(folder, tmp_path):
    described = config(folder, method={"name": MINE, "lam": 0.1}, run={"rounds": 4, "checkpoint_every": 1})
    problem, seen = TrainingProblem.of(described, 0), []

    def dies(look):
        seen.append(look.round)
        if look.round == 2:
            raise ZeroDivisionError

    module = types.ModuleType("dying_callback")
    module.dies = dies
    sys.modules["dying_callback"] = module
    watching = callbacks(config(folder, run={"callbacks": ["dying_callback:dies"]}))
    del sys.modules["dying_callback"]
    with pytest.raises(CoterieError, match="raises ZeroDivisionError"):
        train(problem, MINE, {"lam": 0.1}, watching, tmp_path)
    resumed = train(problem, MINE, {}, [], tmp_path, resume=True)
    straight = train(problem, MINE, {"lam": 0.1})
    np.testing.assert_array_equal(resumed.theta, straight.theta)
    assert seen == [1, 2] and straight.setting == {"eta": 0.5, "lam": 0.1}
    result_of(problem, straight).save(tmp_path)
    assert load(tmp_path, folder).method == MINE


def test_models_that_are_no_numbers_are_trouble_and_are_not_recommended(folder):
    run = trained(folder, f"{NAME}:Nan", {})
    assert re.search(names(f"{NAME}:Nan no client finite numbers round 4"), run.trouble)
    result = compare(config(folder), [f"{NAME}:Nan"])
    assert result.best != f"{NAME}:Nan" and result.table["diverged"][f"{NAME}:Nan"] == 1
    alone = replace(result, runs={run.method: [run]})
    assert "has no finite" in headline(alone)


def test_what_cannot_travel_or_be_saved_is_said_of_the_method(folder, tmp_path):
    problem = TrainingProblem.of(config(folder), 0)
    assert train(problem, f"{NAME}:OddKeys", {}).rounds == 4
    with pytest.raises(CoterieError, match=names(f"state '{NAME}:OddKeys' text keys 1")):
        train(problem, f"{NAME}:OddKeys", {}, [], tmp_path)
    with pytest.raises(CoterieError, match=names(f"'{NAME}:OddMessage' init 'z' one row")):
        train(problem, f"{NAME}:OddMessage", {})


def test_is_compared_chosen_and_reported(folder, tmp_path):
    described = config(folder, methods={MINE: {"lam": [0.01, 10.0]}, "all": {"eta": 0.3}})
    result = compare(described, ["fedavg", MINE])
    assert set(result.runs) == {"local", "pooled", "fedavg", MINE}
    assert result.tried == {MINE: 2}
    assert "eta=0.3" in result.table["chosen"][MINE]
    write_report(result, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert MINE in page and "Own models, pulled to their mean" in page


def test_known_groups_are_its_clusters_where_it_asks_for_them(folder):
    run = trained(folder, f"{NAME}:Plain", {})
    assert run.rounds == 4 and run.theta.shape == (1, 650)
    with pytest.raises(CoterieError, match="Plain needs known groups"):
        trained(folder, f"{NAME}:Plain", {}, data={"clients": 4, "rows": 100})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Mne", names("'Mne' mean 'Mine'")),
        ("number", "is no dataclass"),
        ("NoData", "is no dataclass"),
        ("NoRun", names("lacks run(fed stops state derive coterie.methods.stepwise.Stepwise")),
        ("NoStep", "lacks step"),
        ("", names("import path package.module:name")),
    ],
)
def test_what_it_lacks_is_said(folder, name, message):
    with pytest.raises(CoterieError, match=message) as found:
        config(folder, method={"name": f"{NAME}:{name}"})
    assert str(found.value).endswith((".", "?"))


def test_a_module_that_is_not_there_or_a_name_without_one(folder):
    with pytest.raises(CoterieError, match=names("method 'no_such_module:Mine' imported module")):
        config(folder, method={"name": "no_such_module:Mine"})
    with pytest.raises(CoterieError, match=names("method train 'mine' package.module:Class")):
        config(folder, method={"name": "mine"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs a value of lam"),
        ({"lam": -1}, "Mine: lam must not be negative"),
        ({"lamb": 1}, names("hyper-parameter 'lamb' mean 'lam'")),
        ({"lam": 1, "eta": 99}, "cannot be made: it raises ZeroDivisionError"),
        ({"lam": 1, "seed": 3}, "has no hyper-parameter 'seed'"),
    ],
)
def test_wrong_hyper_parameters(folder, options, message):
    with pytest.raises(CoterieError, match=message):
        config(folder, method={"name": MINE, **options})
    if not options:
        with pytest.raises(CoterieError, match=message):  # before anything is trained
            compare(config(folder), [MINE])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Wrong", names("models 12 650 numbers float64 3 2")),
        ("NoState", names("states init t rounds status")),
        ("Forgets", "raises KeyError in run .*: 't'"),
    ],
)
def test_what_it_gives_is_checked_while_it_runs(folder, name, message):
    with pytest.raises(CoterieError, match=message):
        trained(folder, f"{NAME}:{name}", {})


def trained_of(folder, body, base="Plain"):
    """Train a method M of this body, made of another one."""
    text = f"from typing import *\nfrom coterie.federation import Ragged\n@dataclass\nclass M({base}):\n    {body}\n"
    (folder / f"{NAME}.py").write_text(MODULE + text)
    return trained(folder, f"{NAME}:M", {})


@pytest.mark.filterwarnings("ignore")
def test_models_that_are_no_numbers_have_no_accuracy(folder):
    scores = trained_of(folder, "def models(self, fed, state): return np.full((1, 650), np.nan)").scores
    assert np.isnan(scores.accuracy).all()
    assert scores.rule.by == "loss"


RUN, INIT, MODELS = (f"def {c}: " for c in ("run(self, fed, stops, state)", "init(self, fed)", "models(self, f, s)"))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (RUN + "return iter(())", 'must give a state for each of stops .* "running"; it gives none for t = 1'),
        (RUN + "return [state | {'t': t} for t in stops][:2]", "gives none for t = 3"),
        (RUN + "return [state | {'t': t} for t in stops[1:]]", names("t 2 1 asked")),
        (RUN + "return [state for t in stops]", names("t 0 1 asked")),
        (RUN + "return [state | {'t': 9, 'status': 'bad'}]", "gives t = 9 where t = 1"),
        (RUN + "return [state | {'status': 'bad'} for t in range(5)]", "it gives one more"),
        (RUN + "return [state | {'t': None}]", names("states run t whole number None")),
        (RUN + "return [state | {'t': np.array([1])}]", names("whole number array([1]")),
        (RUN + "return [state | {'t': True}]", "is a whole number, not True"),
        (RUN + "return [state | {'t': 1, 'status': None}]", names("states run t status")),
        (INIT + "return {'t': 'a', 'status': 'running'}", names("states init t whole number 'a'")),
        (INIT + "return {'t': 3, 'status': 'running'}", names("t 0 init 3")),
        (MODELS + "return Ragged.of([np.zeros(3)] * 12)", names("650 numbers 12 rows [3] float64")),
        (MODELS + "return Ragged.of([np.zeros(650)] * 2)", r"it gives 2 rows of \[650\]"),
    ],
)
def test_states_that_are_too_few_or_say_another_round_are_refused(folder, body, message):
    with pytest.raises(CoterieError, match=message):
        trained_of(folder, body)


def test_a_run_may_end_early_where_something_is_wrong_and_rounds_may_be_numpy_s(folder):
    run = trained_of(folder, RUN + "return [state | {'t': np.int64(1)}, state | {'t': 1, 'status': 'broke'}]")
    assert (run.rounds, run.status) == (1, "broke") and "broke; its models are those of round 1" in run.trouble


def test_models_may_be_ragged(folder):
    assert len(trained_of(folder, MODELS + "return Ragged.of([np.zeros(650)] * 12)").theta) == 12


SAYS = INIT + "return {{'t': 0, 'status': 'running', {}}}"


@pytest.mark.parametrize(
    "odd",
    [
        *(
            "'quarantined': {'a': 1}",
            "'quarantined': np.array([3])",
            "'quarantined': np.full(12, -1)",
            "'failed': ['x']",
        ),
        *("'failed': [12]", "'failed': np.zeros(12, int)", "'failed': None", "'group': 'A'", "'group': np.zeros(12)"),
        *("'group': [[1], [2, 3]]", "'why': 'late'", "'quarantined': np.full(12, 0.5)"),
    ],
)
def test_names_in_states_that_mean_something_else_are_its_own_affair(folder, odd):
    run = trained_of(folder, SAYS.format(odd))
    assert run.rounds == 4 and run.quarantined == {} and run.failed == [] and run.group is None


def test_names_in_states_that_mean_what_they_mean_here_are_read(folder):
    labels = TrainingProblem.of(config(folder), 0).data.labels
    left = "'quarantined': np.arange(12) // 10, 'failed': np.array([2]), 'group': np.arange(12)"
    run = trained_of(folder, SAYS.format(left + ", 'why': ['late'] * 12"))
    assert run.quarantined == {labels[i]: (1, "the method left it out") for i in (10, 11)}
    assert run.failed == [labels[2]] and run.group.tolist() == list(range(12))
    del sys.modules[NAME]
    run = trained_of(folder, SAYS.format(left + ", 'why': np.arange(12) // 11"))
    assert [why for _, why in run.quarantined.values()] == ["the method left it out", "its steps diverged"]


def test_a_module_of_the_same_name_in_another_folder_is_refused(folder, tmp_path):
    trained_method(MINE, folder)
    other = tmp_path / "other"
    other.mkdir()
    assert trained_method(MINE, other).user_defined  # there is none, so it is the first one's
    (other / f"{NAME}.py").write_text(MODULE)
    with pytest.raises(CoterieError, match=rf"has imported {NAME} from '.*': start a new process for it, or rename"):
        trained_method(MINE, other)
    described = config(other)
    assert described.load(f"{NAME}:number", "The model") == 3  # whose text is the same
    (other / f"{NAME}.py").write_text(MODULE.replace("number = 3", "number = 4"))
    with pytest.raises(CoterieError, match=names("model start new process rename")):
        described.load(f"{NAME}:number", "The model")
    (other / f"{NAME}.py").unlink()
    (other / NAME).mkdir()
    (other / NAME / "__init__.py").write_text("")
    with pytest.raises(CoterieError, match=names("start new process rename")):
        trained_method(f"{NAME}.part:Mine", other)
    del sys.modules[NAME]
    sys.path.insert(0, str(folder))  # is found first, though nothing was imported before
    (other / f"{NAME}.py").write_text(MODULE)
    with pytest.raises(CoterieError, match=names("start new process rename")):
        trained_method(MINE, other)


@pytest.mark.parametrize("quoted", [False, True])
@pytest.mark.parametrize(
    ("kind", "listed"),
    [
        *((k, True) for k in ("list", "list[int]", "List[int]", "tuple[int, ...]", "Optional[list]", "list | None")),
        *((k, True) for k in ("Sequence[int]", "None | Sequence[Tuple[int, str]]", "Union[list[int], tuple]")),
        *((k, False) for k in ("float", "Optional[float]", "float | None", "int | Sequence[int]", "dict[str, list]")),
    ],
)
def test_a_list_is_a_choice_but_for_fields_that_are_lists(folder, kind, listed, quoted):
    first = f"ks: {kind!r} = None" if quoted else f"ks: {kind} = None"
    trained_of(folder, first)
    assert trained_method(f"{NAME}:M", folder).several("ks", [1, 2]) is not listed


def test_hyper_parameters_for_all_may_be_those_of_it_alone(folder):
    described = config(folder, method={"name": MINE}, methods={"all": {"lam": 0.3}})
    assert described.given(MINE) == {"lam": 0.3}
    with pytest.raises(CoterieError, match=names("method hyper-parameter 'lamb'")):
        config(folder, method={"name": MINE, "lam": 1}, methods={"all": {"lamb": 0.3}})


@pytest.mark.parametrize("path", ["softmx", "sofmax"])
def test_a_model_s_name_that_is_nearly_right_needs_no_torch_to_be_put_right(folder, path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [n for n in sys.modules if n.startswith("coterie.objectives.deep")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(CoterieError, match=f"no model called '{path}'. Did you mean 'softmax'"):
        trained(folder, "fedavg", {}, model={"path": path})
