"""`coterie methods`: the table of methods, one in detail, and why one does not apply."""

import pytest

from coterie.cli.list_methods_and_data import runs_on
from coterie.methods.registry import FITTED, METHODS, TRAINED
from tests.cli.harness import coterie, table


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "240")
    table().to_csv("table.csv", index=False)


def test_every_method_has_a_line():
    ran = coterie("methods")
    assert (ran.code, ran.err) == (0, "")
    shown = [line.split()[0] for line in ran.out.splitlines()[2:]]
    assert shown == list(METHODS)


@pytest.mark.parametrize(("model", "some"), [("table", FITTED), ("torch", TRAINED)])
def test_those_of_a_model_and_why_others_are_not(model, some):
    ran = coterie("methods", "--model", model)
    lines = ran.out.splitlines()[2:]
    left = [line for line in lines if line.startswith("Not here: ")]
    assert [line.split()[0] for line in lines[: -len(left)]] == list(some)
    assert len(left) == len(METHODS) - len(some)


def test_no_cell_is_empty_in_silence():
    for method in METHODS.values():
        kinds = {"table": method.fits, "torch": method.trains}
        assert [kind for kind, runs in kinds.items() if not runs] == list(method.not_for)
        assert runs_on(method) and method.paper and not method.paper.startswith("Method")


def test_one_in_detail_has_its_paper_and_options():
    out = coterie("methods", "ditto").out
    for text in ("Li, Hu, Beirami, Smith (2021)", "lam (a number from 0; 0.1 by default)", "For: tables and nets."):
        assert text in out
    assert "use 'cluster-l2gd'" in coterie("methods", "hierarchical", "--model", "torch").out


def test_why_one_does_not_apply_to_a_table():
    arguments = ["methods", "--table", "table.csv", "--formula", "score ~ hours", "--client", "school"]
    ran = coterie(*arguments)
    assert "Not here: Method 'clusterwise' needs clusters" in ran.out
    assert "\n  clusterwise " not in ran.out and "\n  hierarchical " in ran.out
    ran = coterie(*arguments, "--cluster", "sector")
    assert "\n  clusterwise " in ran.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dito"], "Did you mean 'ditto'"),
        (["--table", "table.csv"], "Missing option '--formula'"),
        (["--table", "none.csv", "--formula", "y ~ x", "--client", "a"], "none.csv"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_line(arguments, message):
    assert message in coterie("methods", *arguments).message
