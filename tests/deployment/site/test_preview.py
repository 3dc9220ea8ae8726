"""What would leave a site, found before anything does."""

from __future__ import annotations

import re
import sys

import pytest

from coterie import federation
from coterie.deployment import logs, toml_files
from coterie.deployment.coordinator.run import run
from coterie.deployment.federation_toml import Config
from coterie.deployment.site.preview import LocalTransport, _without_stand_ins, preview
from coterie.deployment.site.receiver import BOOK, SiteReceiver
from coterie.deployment.site.site_toml import Member
from tests.deployment.sites import FORMULA, LENIENT, build, home, say, tables, task

EXACT = {"program": "hierarchical", "task": {"formula": FORMULA}, "options": {"covariance": "isotropic"}}


def look(folder, program=EXACT, **options):
    return preview(home(folder, "basel"), program, run, **options)


@pytest.mark.parametrize("client", [None, "ward"])
def test_everything_that_leaves_is_listed_and_nothing_is_kept(client, tmp_path):
    build(tmp_path)
    before = sorted(p.name for p in home(tmp_path, "basel").iterdir())
    task = {"formula": FORMULA} | ({} if client is None else {"client": client})
    found = look(tmp_path, EXACT | {"task": task})
    assert found.ended == ""
    assert found.leaving[0].kind == "open"
    sums = [item for item in found.leaving if item.kind == "total"]
    assert sums and all(item.covers >= 40 and item.bytes > 0 for item in sums)
    silent = {item.work for item in sums if not item.values}
    assert all(
        work.startswith("methods.tree.variance_uncertainty:") for work in silent
    )  # what clients keep to themselves
    asked = [item for item in found.leaving if item.kind == "ask"]
    assert asked and all(item.covers == (40 if client is None else 20) for item in asked)
    assert sorted(p.name for p in home(tmp_path, "basel").iterdir()) == before


def test_groups_that_are_too_small_are_refused(tmp_path):
    build(tmp_path)
    found = look(tmp_path, min_group=41)
    refused = [text for item in found.leaving for text in item.refused]
    assert "would tell of too few rows" in refused[0]
    assert "would tell of too few rows" in found.ended


def test_numbers_as_labels_are_hidden_by_stand_ins(tmp_path):
    frames = {name: frame.assign(patient=frame.index % 4 + 10) for name, frame in tables().items()}
    build(tmp_path, frames, labels=("ward", "kind", "patient"))
    found = look(tmp_path, EXACT | {"task": {"formula": FORMULA, "client": "patient"}})
    assert found.ended == ""


def test_a_program_that_cannot_run_says_why(tmp_path):
    build(tmp_path)
    found = look(tmp_path, EXACT | {"task": {"formula": "score ~ weight"}})
    assert "weight" in found.ended


OWN = """
from coterie.federation import work

@work
def rows_of_basel(site):
    return {"rows": site.objective.counts.astype(float)}

def stops(fed):
    fed.total(rows_of_basel)
    raise ValueError("no such thing")

def quits(fed):
    fed.total(rows_of_basel)
    raise SystemExit("bye")
"""


@pytest.mark.parametrize(("name", "says"), [("stops", "ValueError: no such thing"), ("quits", "SystemExit: bye")])
def test_what_left_before_a_program_of_one_s_own_raised_is_shown(name, says, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    build(tmp_path)
    own = home(tmp_path, "basel")
    (own / "program_of_basel.py").write_text(OWN)
    Member("basel", "data.csv", allow=("program_of_basel",), disclosure=LENIENT).write(own)
    monkeypatch.delitem(sys.modules, "program_of_basel", raising=False)
    monkeypatch.setattr(federation, "_WORK", dict(federation._WORK))
    found = look(tmp_path, {"program": f"program_of_basel:{name}", "task": {"formula": FORMULA}})
    monkeypatch.delitem(sys.modules, "program_of_basel")
    assert found.ended == f"The program raised {says}"
    assert [(item.kind, item.answers) for item in found.leaving] == [("open", 1), ("total", 1)]


def test_what_ended_a_program_names_neither_the_drawer_nor_stand_ins(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    frames = tables()
    frames["basel"].loc[3, "age"] = None
    build(tmp_path, frames, min_group=1)
    ended = look(tmp_path).ended
    assert ended.startswith("basel cannot take part (Its table does not fit")
    assert not re.search("bern|chur", ended)
    ended = look(tmp_path, {"program": "elsewhere_of_basel:nope", "task": {"formula": FORMULA}}).ended
    assert "cannot be imported" in ended and f"'{home(tmp_path, 'basel')}'" in ended and "preview-" not in ended


ENDS = {
    "bern, m, n cannot take part (x)": "m cannot take part (x)",
    "bern, m, n cannot take part (bern, n: x; m: y)": "m cannot take part (a stand-in: x; m: y)",
    "At bern, its work failed": "At a stand-in, its work failed",
    "Site 'n': no": "A stand-in: no",
    "Site 'm': of n rows, n-1: no": "Site 'm': of n rows, n-1: no",
}


@pytest.mark.parametrize(("text", "says"), ENDS.items())
def test_stand_ins_are_named_for_what_they_are(text, says):
    assert _without_stand_ins(text, "m", ["bern", "n"]) == says
    assert _without_stand_ins(text, "m", []) == text


FACTORY = """
import numpy as np
from coterie.objectives.softmax import Softmax

def make(path, site, classes):
    rng = np.random.default_rng(len(site))
    y = np.arange(60) % classes
    starts = np.array([0, 25])
    X = rng.normal(size=(60, 4))
    return Softmax.of(X, y, starts, np.array([25, 60]), classes=classes), [f"{site}-{i}" for i in range(2)]
"""


def test_training_at_home_is_shown_by_its_updates(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    own = tmp_path / "basel"
    own.mkdir()
    (own / "softmax_of_basel.py").write_text(FACTORY)
    Config("toy", "nvflare", sites=("basel", "bern")).write(own)
    Member("basel", allow=("softmax_of_basel:make",)).write(own)
    task = {"factory": "softmax_of_basel:make", "options": {"classes": 3}}
    program = {"program": "fedavg", "task": task, "options": {"rounds": 3, "eta": 0.1, "B": 10}}
    found = preview(own, program, run)
    assert found.ended == ""
    assert any(item.answers >= 3 and item.covers in (25, 60) for item in found.leaving)


VIEW = "coterie.deployment.coordinator.identifiability:view"
RULES = {
    "works that may leave as sums": {"total": ("coterie.methods.*",)},
    "a guard": {"privacy": {"clip": 1.0, "noise": 1.0, "epsilon": 5.0}},
    "rows of a group": {"min_group": 41},
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_what_the_site_refuses_is_refused_in_a_preview_with_the_same_words(rule, tmp_path):
    if "privacy" in rule:
        pytest.importorskip("dp_accounting")
    build(tmp_path)
    own = home(tmp_path, "basel")
    Member("basel", "data.csv", **rule, disclosure=LENIENT).write(own)
    before = sorted(own.iterdir())
    found = look(tmp_path)
    assert sorted(own.iterdir()) == before
    (sums,) = [item for item in found.leaving if item.kind == "total"]
    host = SiteReceiver(own)
    say(host, kind="open", run="r", task=task(tmp_path), seed=0)
    exchange = {"exchange": [1, 1], "counted": [0, 0], "rows": None, "by": None, "message": {"p": 5}}
    assert sums.refused == [say(host, kind="total", run="r", work=VIEW, **exchange)["refused"]]
    assert sums.answers == 0 and sums.refused[0].removeprefix("Site 'basel': ").rstrip(".") in found.ended


def test_a_preview_shows_what_a_site_then_sends(tmp_path):
    build(tmp_path)
    own, program = home(tmp_path, "basel"), EXACT | {"task": {"formula": "score ~ age"}}
    shown = {(item.kind, item.work): item.values for item in look(tmp_path, program).leaving if item.kind != "open"}
    toml_files.write(tmp_path / "coordinator" / "runs" / "r" / "run.toml", program)
    run(
        LocalTransport({f.name: SiteReceiver(f).receive for f in (tmp_path / "sites").iterdir()}),
        tmp_path / "coordinator",
        "r",
    )
    sent = [line for line in logs.read(own / "log.jsonl") if line["kind"] != "open"]
    assert shown == {(line["kind"], line["work"]): line["values"] for line in sent}


NOISY = {"clip": 1.0, "noise": 2.0}


def test_a_preview_of_private_sums_spends_nothing_of_what_is_left(tmp_path, monkeypatch):
    pytest.importorskip("dp_accounting")
    from coterie.engines.privacy import Event, epsilon

    monkeypatch.setattr(sys, "path", list(sys.path))
    own = tmp_path / "basel"
    own.mkdir()
    (own / "private_of_basel.py").write_text(FACTORY)
    Config("toy", "nvflare", sites=("basel", "bern"), privacy=NOISY | {"hide": "site"}).write(own)
    budget = epsilon({Event(2.0): 4}, 1e-5)
    Member("basel", allow=("private_of_basel:make",), privacy=NOISY | {"epsilon": budget}).write(own)
    options = {"rounds": 3, "eta": 0.1, "B": 10}
    program = {"program": "fedavg", "task": {"factory": "private_of_basel:make", "options": {"classes": 3}}}
    for _ in range(2):  # looking costs nothing
        assert preview(own, program | {"options": options}, run).ended == ""
        assert not (own / BOOK).exists()
    SiteReceiver(own)._guard._write({Event(2.0): 2}, b"")
    book = (own / BOOK).read_bytes()
    found = preview(own, program | {"options": options}, run)
    (sums,) = [item for item in found.leaving if item.work.endswith(":clipped")]
    assert sums.answers == 2 and "privacy budget is spent" in sums.refused[0]
    assert "privacy budget is spent" in found.ended
    assert (own / BOOK).read_bytes() == book
