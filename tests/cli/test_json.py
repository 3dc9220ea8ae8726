"""``--json`` of every command that prints a table: one document on the output, what is said on the error stream."""

import contextlib
import json

import pandas as pd
import pytest
from typer.main import get_command

from coterie.cli.main import app
from tests.cli.harness import coterie, with_model
from tests.docs.cli_page import commands

CALL = ("table.csv", "--formula", "score ~ hours", "--client", "school", "--splits", "1")
CASES = {
    "coterie fit": ((*CALL, "--method", "pooled", "--summary"), ("comparison", "method", "coefficients", "variances")),
    "coterie compare": ((*CALL, "--methods", "local"), ("comparison", "notes")),
    "coterie advise": ((*CALL, "--collaborators", "2"), ("clients", "weights", "sentences")),
    "coterie predict": (("model", "table.csv"), ("predictions", "sources", "rows")),
    "coterie methods": ((), ("methods", "not_here")),
    "coterie data list": ((), ("tables",)),
    "coterie data show": (("heart",), ("formula", "commands")),
}
ELSEWHERE = {"coterie doctor", *(f"coterie federation {name}" for name in ("budget", "check", "preview", "status"))}
"""Commands whose document is looked at in a file of their own."""
NO_TABLE = {"coterie report", "coterie export", "coterie data fetch", "coterie federation log"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return with_model(
        tmp_path_factory.mktemp("json"), "score ~ hours", "--client", "school", "--splits", 0, "--method", "pooled"
    )


def test_every_command_that_prints_a_table_has_the_option():
    known = dict(commands("coterie", get_command(app)))
    has = {name for name, command in known.items() if any(one.name == "as_json" for one in command.params)}
    assert has == {*CASES, *ELSEWHERE}
    without = {name for name in known if name not in has and not name.startswith("coterie federation")}
    assert without == {name for name in NO_TABLE if not name.startswith("coterie federation")}


@pytest.mark.parametrize("name", CASES)
def test_the_output_is_one_document(name, folder):
    arguments, keys = CASES[name]
    with contextlib.chdir(folder):
        ran = coterie(*name.split()[1:], *arguments, "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out, parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))
    assert set(keys) <= set(found), set(found)
    assert all(isinstance(found[key], (list, dict, str, int)) for key in keys)
    if name == "coterie fit":
        assert [row["term"] for row in found["coefficients"]] == ["(Intercept)", "hours"]
        assert {"local", "pooled"} <= {row["method"] for row in found["comparison"]}
    if name == "coterie predict":
        assert pd.DataFrame(found["predictions"]).shape[0] == found["rows"] == 60


def test_what_is_wrong_is_no_document(folder):
    with contextlib.chdir(folder):
        ran = coterie("compare", "none.csv", *CALL[1:], "--json")
    assert (ran.code, ran.out) == (2, "") and ran.err.startswith("Error: ")
