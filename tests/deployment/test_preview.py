"""What would leave a site, found before anything does."""

from __future__ import annotations

import sys

import pytest

from coterie.deployment.config import Config, Member
from coterie.deployment.preview import preview
from coterie.deployment.run import run
from tests.deployment.sites import FORMULA, build, home, tables

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
    assert sums and all(item.covers >= 40 and item.values and item.bytes > 0 for item in sums)
    asked = [item for item in found.leaving if item.kind == "ask"]
    assert asked and all(item.covers == (40 if client is None else 20) for item in asked)
    assert sorted(p.name for p in home(tmp_path, "basel").iterdir()) == before


def test_groups_that_are_too_small_are_refused(tmp_path):
    build(tmp_path)
    found = look(tmp_path, min_group=41)
    refused = [text for item in found.leaving for text in item.refused]
    assert "does not answer about 40 rows" in refused[0]
    assert "does not answer about 40 rows" in found.ended


def test_numbers_as_labels_are_hidden_by_stand_ins(tmp_path):
    frames = {name: frame.assign(patient=frame.index % 4 + 10) for name, frame in tables().items()}
    build(tmp_path, frames, labels=("ward", "kind", "patient"))
    found = look(tmp_path, EXACT | {"task": {"formula": FORMULA, "client": "patient"}})
    assert found.ended == ""


def test_a_program_that_cannot_run_says_why(tmp_path):
    build(tmp_path)
    found = look(tmp_path, EXACT | {"task": {"formula": "score ~ weight"}})
    assert "weight" in found.ended


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
