"""The page of methods that were trained."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

import coterie
from coterie.errors import CoterieError
from coterie.evidence.training_comparison import compare
from coterie.report import training_answer_and_notes as answer
from coterie.report import training_figures, training_page, training_tables
from coterie.report.tables import render_text
from tests.runs.test_training import config


@pytest.fixture(scope="module")
def result():
    return compare(config(run={"seeds": 2}), ["fedavg", "ditto", "ifca", "group-models"])


def test_the_page_stands_alone_and_is_repeated(result):
    page = training_page.render(result)
    assert page == training_page.render(result)
    assert not re.search(r"(?:src|href)=\"(?!data:)", page)
    assert page.count("<script") == 1
    assert len(page) < 500_000
    HTMLParser().feed(page)
    for name in result.runs:
        assert name in page
    assert result.fingerprint in page
    assert page.count("<svg") == page.count("</svg>")


def test_every_method_has_a_line_and_dots(result):
    over_rounds, over_bytes = training_figures.curves(result)
    assert all(f"<title>{name}:" in over_rounds.svg for name in result.runs)
    assert "<title>pooled:" not in over_bytes.svg
    assert "pooled, with all rows in one place" in over_bytes.caption
    dots = training_figures.dots(result)
    assert dots.svg.count("<circle") == len(result.runs) * 2 * 12


def test_who_is_with_whom(result):
    square = training_figures.square(result, "ifca")
    assert square is not None
    assert square.svg.count('class="with"') == 12
    assert square.svg.count('class="edge"') == 3
    table = training_tables.confusion_table(result, "ifca")
    assert sum(int(cell) for row in table.rows for cell in row[1:]) == 12
    assert table.note.count(".") >= 3
    unknown = replace(result, groups=[None, None])
    assert training_tables.confusion_table(unknown, "ifca").note == "No groups are known."


def test_the_groups_own_gradients_are_drawn_and_printed(result):
    seen = training_tables.growths(result)
    assert list(seen) == ["group-models"]
    table = training_tables.growth_table("group-models", seen["group-models"])
    assert all(title in training_page.render(result) for title in table.columns)
    assert [row[0] for row in table.rows] == [f"group {g}" for g in range(1, 5)]
    figure = training_figures.gradients("group-models", seen["group-models"])
    assert figure.svg.count('class="curve') >= 5
    assert sum("squared gradient of the sum" in note for note in answer.notes(result)) == 1


def test_the_table_in_a_terminal(result):
    text = render_text(training_tables.comparison_table(result), 160)
    assert text.count("\n> ") == 1
    assert "all rows" in text
    assert f"Configuration {result.fingerprint}" in " ".join(text.split())


def test_the_answer_says_what_may_be_as_good(result):
    text = answer.headline(result)
    assert text.startswith(f"{result.best} has an accuracy of ")
    assert all(name in text for name in answer.as_good(result))


def test_one_method_alone(result):
    alone = replace(result, runs={"ditto": result.runs["ditto"]})
    page = training_page.render(alone)
    assert "What was trained" in page
    assert "against" not in training_tables.comparison_table(alone).columns[2]


def test_what_went_wrong_is_said(result):
    run = result.runs["ditto"][0]
    broken = replace(
        run, quarantined={"<7>": (3, "its data give no gradient")}, status="diverged by step 4", failed=["2"]
    )
    page = training_page.render(replace(result, runs={**result.runs, "ditto": [broken, result.runs["ditto"][1]]}))
    assert "Seed 0: ditto left out, for its data give no gradient, client &lt;7&gt;." in page
    assert "diverged by step 4 (client 2)" in page


def test_keys_that_changed_nothing_are_not_listed():
    X, y = np.random.default_rng(0).normal(size=(48, 2)), np.arange(48) % 2
    rows = {"X": X, "y": y, "client": np.repeat([0, 1, 2, 3], 12), "split": np.tile(["train", "train", "test"], 16)}
    found = coterie.fit(rows, coterie.Torch("softmax"), method="fedavg", rounds=2).evidence
    said = dict(training_page.sections(found))
    assert [key for key, _ in said["data"]] == ["source", "rows", "partition", "given split"]
    dealt = coterie.fit(
        {"X": X, "y": y},
        coterie.Torch("softmax"),
        partition={"partition": "dirichlet", "clients": 2},
        rounds={"rounds": 2, "patience": 1},
        method="fedavg",
    )
    keys = [key for key, _ in dict(training_page.sections(dealt.evidence))["data"]]
    assert keys == ["source", "rows", "partition", "clients", "alpha", "least", "test", "validation"]


def test_a_run_that_ended_before_its_first_round(result):
    run = result.runs["ditto"][0]
    ended = replace(run, curve=[run.curve[0] | {"round": 0}], status="diverged by step 1", rounds=0)
    assert "diverged by step 1" in training_page.render(replace(result, runs={"ditto": [ended, ended]}))


def test_a_page_that_cannot_be_written(result, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CoterieError, match="cannot be written"):
        training_page.write_report(result, tmp_path / "file" / "r.html")
