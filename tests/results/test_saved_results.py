"""Results on disk: exact round trips, crashes at every step, files that are damaged, newer or not ours."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import sys
import types
import warnings
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import coterie
from coterie import load
from coterie.errors import CoterieError
from coterie.report.fit_page import write_report
from coterie.results import saved_results as store
from coterie.results.fit_result import FitResult
from coterie.results.saved_values import Shelf, plain, unplain
from coterie.runs.config import Config
from coterie.runs.training import train
from coterie.runs.training_problem import TrainingProblem
from coterie.user_code_digest import digest
from tests.messages import names
from tests.results import factory
from tests.trained import result_of


def same(a, b) -> bool:
    """Equal to the last bit and of the same type, for everything that a result holds."""
    if isinstance(a, pd.DataFrame):
        pd.testing.assert_frame_equal(a, b, check_exact=True)
        return True
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and all(map(same, a.ravel().tolist(), b.ravel().tolist()))
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if hasattr(a, "__dataclass_fields__"):
        names = ["fit_check" if f.name == "checked" else f.name for f in fields(a)]  # made on demand
        return all(same(getattr(a, name), getattr(b, name)) for name in names)
    return type(a) is type(b) and (a == b or (a != a and b != b))


def round_trip(result: FitResult, path: Path) -> FitResult:
    result.save(path)
    return coterie.load(path)


@pytest.mark.parametrize("levels", [(), (3,), (4, 2)])
@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_everything_comes_back(levels, family, tmp_path) -> None:
    result = factory.world(levels=levels, family=family).result
    again = round_trip(result, tmp_path / "model")
    assert same(result, again)
    pd.testing.assert_frame_equal(result.cluster_coefficients, again.cluster_coefficients)


def test_what_may_be_absent_may_be_absent(tmp_path) -> None:
    result = factory.world().result
    result = replace(
        result, design=None, local_coefficients=None, comparison=pd.DataFrame(), client_gains=pd.DataFrame(),
        log_likelihood=float("nan"), offset="exposure",
        settings={"gamma": float("inf"), "by": {1: 0.5, "1": 0.25}, "pair": (1, "b"), "n": np.int64(3)},
    )  # fmt: skip
    again = round_trip(result, tmp_path / "model")
    assert same(replace(result, settings={**result.settings, "n": 3}), again)


def test_a_report_of_the_model_before_does_not_stay_beside_the_new_one(tmp_path) -> None:
    folder, page = tmp_path / "model", tmp_path / "model" / "report.html"
    one, two = (factory.world(seed=seed).result for seed in (0, 1))
    one.save(folder)
    write_report(one, page)
    one.save(folder)
    assert page.is_file()  # of this very model
    write_report(one, folder / "other.html")
    two.save(folder)
    assert not page.exists() and (folder / "other.html").is_file()


@pytest.mark.parametrize("model", [True, False], ids=["beside a model", "without one"])
def test_a_page_that_is_not_coteries_own_stays(model, tmp_path) -> None:
    folder, page = tmp_path / "model", tmp_path / "model" / "report.html"
    one, two = (factory.world(seed=seed).result for seed in (0, 1))
    if model:
        one.save(folder)
        folder.joinpath("report.html").write_text("<html>mine</html>")
    else:
        folder.mkdir()
        write_report(one, page)
    text = page.read_bytes()
    two.save(folder)
    assert page.read_bytes() == text


def test_an_old_report_that_cannot_be_removed_is_said(tmp_path, monkeypatch) -> None:
    folder, page = tmp_path / "model", tmp_path / "model" / "report.html"
    one, two = (factory.world(seed=seed).result for seed in (0, 1))
    one.save(folder)
    write_report(one, page)
    unlink = Path.unlink

    def refuse(self, missing_ok=False):
        if self == page:
            raise PermissionError(1, "Operation not permitted")
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(CoterieError, match=names("model removed Operation permitted")):
        two.save(folder)
    assert same(coterie.load(folder), two)


texts = st.text(max_size=8)
numbers = st.one_of(st.integers(), st.floats(), st.booleans())
dates = st.one_of(st.dates(), st.datetimes(), st.datetimes().map(pd.Timestamp),
                  st.datetimes(timezones=st.just(dt.UTC)))  # fmt: skip
anything = st.one_of(texts, numbers, dates, st.none(), st.tuples(texts, st.integers()))


@given(st.lists(anything, min_size=1, max_size=6))
def test_labels_of_mixed_kinds_come_back(values) -> None:
    labels = np.empty(len(values), dtype=object)
    labels[:] = values
    shelf = Shelf()
    entry = json.loads(json.dumps(shelf.put("labels", labels), allow_nan=False))
    assert same(labels, Shelf.from_bytes(shelf.to_bytes()).get(entry))


@given(st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1)).map(lambda v: np.array(v, dtype=np.int64)),
    st.lists(st.integers(0, 2**64 - 1)).map(lambda v: np.array(v, dtype=np.uint64)),
    st.lists(st.floats()).map(lambda v: np.array(v, dtype=np.float64)),
    st.lists(st.booleans()).map(lambda v: np.array(v, dtype=bool)),
    st.lists(st.text()).map(lambda v: np.array(v, dtype=object)),
    st.lists(st.text(st.characters(exclude_characters="\0"), min_size=1), min_size=1).map(np.array),
    st.tuples(st.lists(st.integers(-(2**63), 2**63 - 1)), st.sampled_from(["s", "ms", "us", "ns", "D"])).map(
        lambda v: np.array(v[0], dtype=np.int64).astype(f"M8[{v[1]}]")),
))  # fmt: skip
def test_labels_of_one_kind_come_back(labels) -> None:
    shelf = Shelf()
    entry = json.loads(json.dumps(shelf.put("labels", labels), allow_nan=False))
    again = Shelf.from_bytes(shelf.to_bytes()).get(entry)
    assert again.dtype == labels.dtype
    np.testing.assert_array_equal(again, labels)


@given(st.recursive(anything, lambda inner: st.one_of(
    st.lists(inner, max_size=3), st.dictionaries(st.one_of(texts, st.integers(), st.just("$")), inner, max_size=3)
), max_leaves=8))  # fmt: skip
def test_settings_come_back(value) -> None:
    assert same(value, unplain(json.loads(json.dumps(plain(value), allow_nan=False))))


def test_what_json_cannot_hold_is_refused_and_nothing_is_written(tmp_path) -> None:
    result = replace(factory.world().result, settings={"callback": print})
    with pytest.raises(CoterieError, match=names("saved <built-in function print>")):
        result.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


class Crash(BaseException):
    """What a power cut looks like from inside."""


@pytest.mark.parametrize("step", range(9))
@pytest.mark.parametrize("name", ["replace", "fsync", "open", "unlink"])
def test_a_crash_leaves_the_old_model_or_the_new_one(name, step, tmp_path, monkeypatch) -> None:
    old, new = (factory.world(seed=s).result for s in (1, 2))
    old.save(tmp_path / "model")
    (tmp_path / "model" / "mine.txt").write_text("not coterie's")
    calls = iter(range(1000))
    original = getattr(os, name)

    def broken(*arguments, **options):
        if next(calls) == step:
            raise Crash
        return original(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, name, broken)
        try:
            new.save(tmp_path / "model")
            crashed = False
        except Crash:
            crashed = True
    found = coterie.load(tmp_path / "model")
    assert same(found, new) or (crashed and same(found, old))
    assert (tmp_path / "model" / "mine.txt").read_text() == "not coterie's"
    new.save(tmp_path / "model")  # the next save works, and tidies up
    assert same(coterie.load(tmp_path / "model"), new)
    assert len(list((tmp_path / "model").glob("*.safetensors"))) == 1


def test_a_first_save_that_crashes_leaves_no_model(tmp_path, monkeypatch) -> None:
    def broken(*_):
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", broken)
        with pytest.raises(Crash):
            factory.world().result.save(tmp_path / "model")
    assert list((tmp_path / "model").iterdir()) == []
    with pytest.raises(CoterieError, match=names("There coterie model it no model.json")):
        coterie.load(tmp_path / "model")


@pytest.fixture
def saved(tmp_path) -> Path:
    factory.world().result.save(tmp_path / "model")
    return tmp_path / "model"


def arrays_of(path: Path) -> Path:
    (found,) = path.glob("*.safetensors")
    return found


def edit(path: Path, change) -> None:
    document = json.loads((path / "model.json").read_text())
    change(document)
    (path / "model.json").write_text(json.dumps(document))


def test_a_newer_schema_gets_a_sentence(saved) -> None:
    edit(saved, lambda d: d.update(schema=store.SCHEMA + 1, version="9.0", model="something new"))
    with pytest.raises(CoterieError, match=names("saved coterie 9.0 newer format 2 Update")):
        coterie.load(saved)


def test_what_another_version_saved_is_not_called_damaged(saved) -> None:
    edit(saved, lambda d: (d.update(version="0.0.7"), d["result"].update(retired=1)))
    with pytest.raises(CoterieError, match=names("cannot be used Coterie 0.0.7 saved this is coterie")) as said:
        coterie.load(saved)
    assert "damaged" not in str(said.value)


@pytest.mark.parametrize("keep", [0, 1, 100, 1000, -1])
@pytest.mark.parametrize("which", ["json", "arrays"])
def test_a_file_that_is_cut_off_gets_a_sentence(which, keep, saved) -> None:
    file = saved / "model.json" if which == "json" else arrays_of(saved)
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CoterieError, match="is damaged"):
        coterie.load(saved)


@pytest.mark.parametrize("part", ["root", "root_cov", "client"])
def test_a_part_that_is_none_gets_a_sentence(part, saved) -> None:
    edit(saved, lambda d: d["result"]["model"].update({part: None}))
    with pytest.raises(CoterieError, match=f"is damaged: its {part} is missing"):
        coterie.load(saved)


def test_a_call_that_has_no_sections_gets_a_sentence(saved) -> None:
    edit(saved, lambda d: d["result"]["call"].update(model=0))
    with pytest.raises(CoterieError, match="is damaged: its call is of another kind"):
        coterie.load(saved)


def test_a_changed_bit_is_noticed(saved) -> None:
    data = bytearray(arrays_of(saved).read_bytes())
    data[-5] ^= 1
    arrays_of(saved).write_bytes(data)
    with pytest.raises(CoterieError, match=r"is damaged: .* is not what was saved"):
        coterie.load(saved)


def test_missing_arrays_are_named(saved) -> None:
    name = arrays_of(saved).name
    arrays_of(saved).unlink()
    with pytest.raises(CoterieError, match=f"cannot be read: No such file or directory .*{name}"):
        coterie.load(saved)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["result"].pop("model"),
        lambda d: d["result"]["model"].pop("root"),
        lambda d: d["result"]["model"].update(terms=["one"]),
        lambda d: d["result"]["model"].update(levels=5),
        lambda d: d["result"].pop("notes"),
        lambda d: d["result"]["comparison"].update(index=None),
        lambda d: d["result"]["design"].pop("formula"),
        lambda d: d["result"]["design"].update(formula="y ~ __import__('os').system('true')"),
        lambda d: d["arrays"].update(file="../../etc/passwd"),
        lambda d: d.update(schema="one"),
        lambda d: d.update(schema=0),
    ],
)
def test_a_document_that_was_edited_gets_a_sentence(change, saved) -> None:
    edit(saved, change)
    with pytest.raises(CoterieError):
        coterie.load(saved)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda p: None, "it does not exist"),
        (lambda p: p.write_text("x"), "it is not a directory"),
        (lambda p: p.mkdir(), "it has no model.json"),
        (lambda p: (p.mkdir(), (p / "model.json").write_text('{"format": "other"}')), "is not a coterie model"),
    ],
)
def test_what_is_not_a_model_is_not_loaded(make, sentence, tmp_path) -> None:
    make(tmp_path / "there")
    with pytest.raises(CoterieError, match=sentence):
        coterie.load(tmp_path / "there")


def test_half_a_character_in_a_document_is_damage(saved) -> None:
    """JSON can say it, and no page can be written with it."""
    file, text = saved / "model.json", (saved / "model.json").read_text()
    assert '"offset": null' in text
    file.write_text(text.replace('"offset": null', r'"offset": "\uD83D\uDE00"'))
    coterie.load(saved)  # both halves are one
    file.write_text(text.replace('"offset": null', r'"offset": "\ud800"'))
    with pytest.raises(CoterieError, match="is damaged"):
        coterie.load(saved)


@pytest.mark.parametrize("content", ['{"format": "other"}', "[1, 2]", "not json", ""])
def test_what_is_not_a_model_is_not_overwritten(content, tmp_path) -> None:
    (tmp_path / "model.json").write_text(content)
    with pytest.raises(CoterieError, match=names("coterie model left alone")):
        factory.world().result.save(tmp_path)
    assert (tmp_path / "model.json").read_text() == content
    assert len(list(tmp_path.iterdir())) == 1
    (tmp_path / "file").write_text("x")
    with pytest.raises(CoterieError, match=names("file model saved directory")):
        factory.world().result.save(tmp_path / "file")


def test_a_directory_can_be_moved(saved, tmp_path) -> None:
    shutil.move(saved, tmp_path / "elsewhere")
    assert coterie.load(tmp_path / "elsewhere").method == "hierarchical"


def test_no_pickle_is_written_or_read(saved) -> None:
    assert {f.suffix for f in saved.iterdir()} == {".json", ".safetensors"}
    source = "".join(p.read_text() for p in Path(store.__file__).parent.glob("*.py"))
    assert "import pickle" not in source


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
def saved_nets(tmp_path, monkeypatch):
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


def test_code_is_imported_only_if_the_caller_names_it(saved_nets, monkeypatch) -> None:
    out, code, mark, run = saved_nets
    trained = load(out, code)
    assert trained.client("1").shape == run.theta[0].shape
    for ask in (lambda: trained.predict(ROWS, "1"), lambda: trained.adapt(ROWS, np.zeros(3, int)),
                lambda: load(out, code, allow=["ownnet:loss"]).predict(ROWS, "1")):  # fmt: skip
        forget(monkeypatch)
        with pytest.raises(CoterieError, match=r"'ownnet:\w+' is code that is not coterie's, .* name it in the call"):
            ask()
    mark.unlink(missing_ok=True)
    assert len(load(out, code, allow=["ownnet:net", "ownnet:loss"]).predict(ROWS, "1")) == 3 and mark.exists()


def test_code_that_has_changed_is_refused_unless_the_caller_says_so(saved_nets, monkeypatch) -> None:
    out, code, _, _ = saved_nets
    both = ["ownnet:net", "ownnet:loss"]
    (code / "ownnet.py").write_text((code / "ownnet.py").read_text() + "# another line\n")
    with pytest.raises(CoterieError, match=r"not the code that was there .* changed=True"):
        load(out, code, allow=both).predict(ROWS, "1")
    assert len(load(out, code, allow=both, changed=True).predict(ROWS, "1")) == 3


def test_a_model_may_be_given_as_what_makes_it(saved_nets) -> None:
    out, code, _, _ = saved_nets
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
