"""The page of peers is that of what was measured, and each target's figure stands where the table says."""

from __future__ import annotations

import ast
import json
import re
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from benchmarks import against_base
from benchmarks.peers import page
from benchmarks.peers.problems import PROBLEMS
from benchmarks.peers.protocol import Problem

ROOT = Path(page.__file__).parents[2]
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?|\.\d+")


def numbers(text: str) -> set[str]:
    return {found.rstrip(",") for found in NUMBER.findall(text)}


def blocks(text: str) -> list[str]:
    """Rows of tables, items of lists and paragraphs, each on one line."""
    return [" ".join(block.split()) for block in re.split(r"\n(?=\||\* |- |\n)", text)]


@pytest.mark.parametrize("peer", page.PEERS)
def test_a_peer_is_short_and_can_be_read_without_its_package(peer, monkeypatch):
    module = import_module(f"benchmarks.peers.{peer}")
    source = Path(module.__file__).read_text("utf-8")
    assert source.count("\n") < 80
    assert set(module.SOLVES) <= set(PROBLEMS)
    tops = (node for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom))
    names = {(node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name for node in tops}
    packages = {name.partition(".")[0] for name in names}
    assert packages - set(sys.stdlib_module_names) <= {"benchmarks", "numpy"}


def test_at_least_nine_peers_were_measured():
    results = json.loads(page.RESULTS.read_text("utf-8"))
    assert len({row["peer"] for problem in results["problems"].values() for row in problem["rows"]}) >= 9
    assert list(results["problems"]) == list(PROBLEMS)


def test_the_page_is_up_to_date():
    assert page.PAGE.read_text("utf-8") == page.page(json.loads(page.RESULTS.read_text("utf-8"))), (
        "python -m benchmarks.peers.page"
    )


@pytest.mark.parametrize("row", page.TARGETS, ids=lambda row: row["what"])
def test_a_target_s_figure_stands_where_the_table_says(row):
    if "reached" not in row:
        assert not {"page", "test", "met"} & set(row)
        return
    assert ("met" in row) != (page.ratio(row) is not None)
    if "test" in row:
        file, _, name = row["test"].partition("::")
        assert f"def {name}(" in (ROOT / file).read_text("utf-8")
    elif "page" in row:
        (block,) = [b for b in blocks((ROOT / row["page"]).read_text("utf-8")) if row["near"] in b]
        assert numbers(row["reached"]) <= numbers(block)


def test_a_problem_is_what_was_saved(tmp_path):
    settings = {"outcome": "y", "levels": ["client"]}
    arrays = {"y": np.arange(3.0), "client": np.array(["a", "b", "b"]), "V": np.eye(2)}
    folder = Problem("small", "three rows", settings, arrays, {"objective": 0.1}).save(tmp_path)
    found = Problem.load(folder)
    assert (found.settings, found.agree, found.folder) == (settings, {"objective": 0.1}, str(folder))
    assert (folder / "table.csv").read_text() == "y,client\n0.0,a\n1.0,b\n2.0,b\n"
    np.testing.assert_array_equal(found.arrays["V"], np.eye(2))


def test_both_ratios_are_one_where_a_target_is_just_met():
    assert page.ratio({"at_least": [50, 50]}) == page.ratio({"at_most": [3, 3]}) == 1.0
    assert page.verdict({"reached": "19", "at_least": [19, 50]}) == "**not met**"
    assert page.verdict({"reached": "2", "at_most": [2, 3]}) == "met"
    assert page.verdict({}) == "not measured"


@pytest.mark.parametrize(("n", "place"), [(3, 0), (5, 0), (6, 0), (9, 1), (10, 1), (20, 5)])
def test_an_interval_is_that_of_the_sign_test(n, place):
    """Places as in tables of the sign test, such as Conover's (1999), at 5%: 0 of 5 is all that there is."""
    values = [float(v) for v in np.random.default_rng(n).permutation(n)]
    assert against_base.interval(values) == (place, n - 1 - place)


def test_a_base_that_is_the_same_tree_runs_all_the_same():
    against_base.COMMANDS["sum"] = ("x = list(range(100000))", "sum(x)")
    against_base.COMMANDS["broken"] = ("import no_such_module", "")
    try:
        name, *_, ratio, span, verdict = against_base.compared("sum", ROOT, ROOT, 3)
        assert name == "sum" and float(ratio) > 0.0 and " to " in span and verdict
        assert against_base.compared("broken", ROOT, ROOT, 3)[1] == "does not run at the base"
    finally:
        del against_base.COMMANDS["sum"], against_base.COMMANDS["broken"]
