"""What would leave a site, found before anything does."""

from __future__ import annotations

import pytest

from coterie.deployment.preview import preview
from coterie.deployment.programs import run
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
    build(tmp_path, {name: frame.assign(patient=frame.index % 4 + 10) for name, frame in tables().items()})
    found = look(tmp_path, EXACT | {"task": {"formula": FORMULA, "client": "patient"}})
    assert found.ended == ""


def test_a_program_that_cannot_run_says_why(tmp_path):
    build(tmp_path)
    found = look(tmp_path, EXACT | {"task": {"formula": "score ~ weight"}})
    assert "weight" in found.ended
