"""Results on disk: exact round trips, crashes at every step, files that are damaged, newer or not ours."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import coterie
from coterie.errors import CoterieError
from coterie.report.fit_page import write_report
from coterie.results import saved_fit as store
from coterie.results.fit_result import FitResult
from coterie.results.saved_values import Shelf, plain, unplain
from tests.messages import names
from tests.results import factory


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
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
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
        log_likelihood=float("nan"), offset="exposure", model=replace(result.model, client_cov=None),
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
