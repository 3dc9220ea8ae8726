"""Code of a user's own in saved models: taken from the call alone, and only if it is that of the training."""

from __future__ import annotations

import json
import sys
import types
import warnings
from contextlib import suppress
from functools import partial

import numpy as np
import pytest

import coterie
from coterie import load
from coterie.errors import CoterieError
from coterie.methods.code_digest import digest
from coterie.results import saved_training as store
from coterie.runs.config import Config
from coterie.runs.training import train
from coterie.runs.training_problem import TrainingProblem
from tests.messages import names
from tests.trained import result_of

torch = pytest.importorskip("torch")

MODULE = """
from torch import nn
from torch.nn import functional as F

from pathlib import Path

Path({mark!r}).write_text("imported")  # what importing it does

def net(width):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, 10))

def loss(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")
"""
DATA = {"clients": 2, "rows": 80}


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """A folder of models of a user's own, made in another process as it were, and the file of their code."""
    code, out, mark = tmp_path / "code", tmp_path / "out", tmp_path / "mark"
    code.mkdir()
    (code / "ownnet.py").write_text(MODULE.format(mark=str(mark)))
    monkeypatch.setattr(sys, "path", [*sys.path])
    own = {"path": "ownnet:net", "args": {"width": 3}, "loss": "ownnet:loss"}
    problem = TrainingProblem.of(Config.of({"data": DATA, "model": own, "run": {"rounds": 1}}, code), 0)
    run = train(problem, "fedavg", {})
    result_of(problem, run).save(out)
    forget(monkeypatch)
    mark.unlink()
    yield out, code, mark, run
    forget(monkeypatch)


def forget(monkeypatch) -> None:
    """As in a new process."""
    sys.modules.pop("ownnet", None)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not p.endswith("code")])


ROWS = np.zeros((3, 1, 8, 8), np.float32)


def test_code_is_imported_only_if_the_caller_names_it(saved, monkeypatch) -> None:
    out, code, mark, run = saved
    trained = load(out, code)
    assert trained.client("1").shape == run.theta[0].shape
    for ask in (lambda: trained.predict(ROWS, "1"), lambda: trained.adapt(ROWS, np.zeros(3, int)),
                lambda: load(out, code, allow=["ownnet:loss"]).predict(ROWS, "1")):  # fmt: skip
        forget(monkeypatch)
        with pytest.raises(CoterieError, match=r"'ownnet:\w+' is code that is not coterie's, .* name it in the call"):
            ask()
    mark.unlink(missing_ok=True)
    assert len(load(out, code, allow=["ownnet:net", "ownnet:loss"]).predict(ROWS, "1")) == 3 and mark.exists()


def test_code_that_has_changed_is_refused_unless_the_caller_says_so(saved, monkeypatch) -> None:
    out, code, _, _ = saved
    both = ["ownnet:net", "ownnet:loss"]
    (code / "ownnet.py").write_text((code / "ownnet.py").read_text() + "# another line\n")
    with pytest.raises(CoterieError, match=r"not the code that was there .* changed=True"):
        load(out, code, allow=both).predict(ROWS, "1")
    assert len(load(out, code, allow=both, changed=True).predict(ROWS, "1")) == 3


def test_a_model_may_be_given_as_what_makes_it(saved) -> None:
    out, code, _, _ = saved
    sys.path.insert(0, str(code))
    from ownnet import net

    trained = load(out, model=net, allow=["ownnet:loss"])
    assert len(trained.predict(ROWS, "1")) == 3
    with pytest.raises(CoterieError, match=names("'ownnet:net' not code")):
        load(out, model=torch.nn.Linear, allow=["ownnet:loss"]).predict(ROWS, "1")
    with pytest.raises(CoterieError, match=names("allow list import paths")):
        load(out, allow="ownnet:net")


CELL = """
import torch
def makes(width): return torch.nn.Linear(width, 2)
def others(width): return torch.nn.Linear(width, 3)
class Net(torch.nn.Module):
    def forward(self, x): return x + 1
class Other(torch.nn.Module):
    def forward(self, x): return x + 2
"""


USES = {
    "save": lambda trained, to: trained.save(to), "report": lambda trained, to: trained.report(to / "report.html"),
    "comparison": lambda trained, to: trained.comparison, "notes": lambda trained, to: trained.notes,
    "predict": lambda trained, to: trained.predict(ROWS, "1"),
    "adapt": lambda trained, to: trained.adapt(ROWS, np.zeros(3, int)),
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_a_method_that_only_a_file_names_is_not_imported_whatever_is_done_with_it(packaged, tmp_path, use) -> None:
    (tmp_path / "strange.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\nclass Made: pass\n")
    document = json.loads((packaged / "training.json").read_text())
    name = document["result"]["method"]
    for keep in (True, False):
        changed = json.loads(json.dumps(document))
        changed["runs"]["strange:Made"] = changed["runs"][name] if keep else changed["runs"].pop(name)
        changed["result"]["method"] = name if keep else "strange:Made"
        (packaged / "training.json").write_text(json.dumps(changed))
        with suppress(CoterieError):
            USES[use](load(packaged, tmp_path), tmp_path / "again")
        assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("file", [None, "cell.py"])
def test_the_digest_is_of_the_code_not_of_its_file_alone(tmp_path, monkeypatch, file) -> None:
    path, modules = tmp_path / "cell.py", []
    path.write_text(CELL)
    for _ in range(2):
        monkeypatch.setitem(sys.modules, "cell", made := types.ModuleType("cell"))
        if file:
            made.__file__ = str(path)
        exec(compile(CELL, "cell", "exec"), vars(made))  # noqa: S102
        modules.append((made, {name: digest(vars(made)[name]) for name in ("makes", "others", "Net", "Other")}))
    (_, first), (cell, again) = modules
    assert first == again and len({*first.values()}) == 4
    assert digest(partial(cell.makes, 3)) == digest(partial(cell.makes, 3)) != digest(partial(cell.makes, 4))
    assert digest(lambda: cell.makes(3)) == digest(lambda: cell.makes(3)) != digest(lambda: cell.others(3))
    assert digest(lambda width=3: width) != digest(lambda width=4: width)
    assert digest(lambda *, width=3: width) != digest(lambda *, width=4: width)
    assert digest(torch.nn.Sequential(torch.nn.ReLU())) != digest(torch.nn.Sequential(torch.nn.Tanh()))


@pytest.fixture
def packaged(tmp_path):
    problem = TrainingProblem.of(Config.of({"data": DATA, "model": {"path": "mlp"}, "run": {"rounds": 1}}), 0)
    result_of(problem, train(problem, "fedavg", {})).save(tmp_path)
    return tmp_path


def test_models_of_the_package_need_no_word_of_the_caller(packaged) -> None:
    assert len(load(packaged).predict(ROWS, "1")) == 3
    with pytest.raises(CoterieError, match=names("package's 'mlp' needs no model= leave")):
        load(packaged, model=torch.nn.Linear)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"args": {"sizes": [64, 10**12, 10]}}, names("'mlp' size numbers saved")),
        ({"args": {"sizes": [1] * 10**5}}, names("'mlp' size numbers saved")),
        ({"args": {"sizes": [64, 2000, 10]}}, names("'mlp' 150,010 numbers 2,410 saved")),
        ({"path": "softmax"}, names("'softmax' 650 numbers 2,410 saved")),
        ({"args": {"sizes": ["os:system", 2]}}, names("sizes inputs outputs os:system")),
        ({"path": "coterie.objectives.deep.nets:torch.load", "args": {"f": "x"}}, "has no 'torch.load'"),
        ({"path": "coterie.objectives.deep.nets:OrderedDict"}, "has no 'OrderedDict'"),
        ({"path": "coterie.files:write"}, "is code that is not coterie's"),
        ({"loss": "os:system"}, "'os:system' is code that is not coterie's"),
        ({"score": "os:system"}, "'os:system' is code that is not coterie's"),
        ({"device": "meta"}, "There is no device 'meta'"),
        ({"momentum": "0.9"}, names("momentum [model] number")),
    ],
    ids=lambda v: str(v)[:40],
)  # fmt: skip
def test_what_a_file_says_of_a_model_is_checked_before_anything_is_made(packaged, model, message) -> None:
    document = json.loads((packaged / store.TRAINING.file).read_text())
    document["config"]["model"] |= model
    (packaged / store.TRAINING.file).write_text(json.dumps(document))
    with pytest.raises(CoterieError, match=message):
        load(packaged).predict(ROWS, "1")


def test_a_saved_method_of_a_user_s_own_is_not_imported_to_say_what_was_configured(packaged) -> None:
    document = json.loads((packaged / store.TRAINING.file).read_text())
    document["config"]["method"] = "os:system"
    (packaged / store.TRAINING.file).write_text(json.dumps(document))
    with pytest.raises(CoterieError, match=names("method 'os:system' code not coterie's")):
        load(packaged).configuration.fingerprint()


def test_a_file_that_never_ends_is_not_read(packaged) -> None:
    (packaged / store.TRAINING.file).unlink()
    (packaged / store.TRAINING.file).symlink_to("/dev/zero")
    with pytest.raises(CoterieError, match="not a regular file"):
        load(packaged)


def test_what_a_model_holds_is_compared_and_what_no_digest_sees_is_said(tmp_path) -> None:
    def of(width, *more):
        return lambda: torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.Linear(width, 2), *more[1:])

    X, y, client = np.eye(2, dtype=np.float32)[np.arange(24) % 2], np.arange(24) % 2, np.arange(24) % 3
    for k, more in enumerate([(), (object(),)]):
        made = coterie.fit((X, y), coterie.Torch(of(3, *more)), client, method="fedavg", rounds=1)
        made.save(out := tmp_path / str(k))
        assert [*json.loads((out / "training.json").read_text())["unseen"].values()] == [["more[0] (object)"]] * k
        if more:
            with pytest.warns(UserWarning, match=names("more object no digest")):
                assert load(out, model=of(3, *more)).predict(X, "1").shape == (24,)
        else:
            assert load(out, model=of(3)).predict(X, "1").shape == (24,)
        with pytest.raises(CoterieError, match=names("not the code")), warnings.catch_warnings(action="ignore"):
            load(out, model=of(4, *more)).predict(X, "1")
