"""The help, the page made from it, and the options that were promised."""

import re
from pathlib import Path

import pytest
from typer.main import get_command

from coterie import __version__
from coterie.cli.main import app
from tests.cli.harness import coterie
from tests.docs.cli_page import commands, page

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
TABLE_OPTIONS = ["--formula", "--client", "--cluster", "--family", "--shared", "--offset", "--weights", "--missing"]
MODEL_OPTIONS = ["--covariance", "--cluster-variance", "--residual", "--reml", "--ml", "--gamma", "--lam", "--alpha"]
EVIDENCE_OPTIONS = ["--splits", "--test-fraction", "--order-by", "--split-by", "--seed", "--out"]
COMPARE = [*TABLE_OPTIONS, *MODEL_OPTIONS, *EVIDENCE_OPTIONS]
PROGRAM = ["--method", "--rounds", "--seed", "--splits", "--objective", "--objective-option", *TABLE_OPTIONS]
OPTIONS = {
    "fit": [*COMPARE, *PROGRAM, "--methods", "--resume", "--strict", "--name", "--timeout", "--json"],
    "compare": [*COMPARE, "--methods", "--report", "--name", "--timeout", "--json"],
    "predict": ["--interval", "--client", "--missing", "--keep", "--out"],
    "report": ["--out"],
    "export": ["--client", "--to", "--form", "--allow", "--code", "--force"],
    "methods": ["--model", "--engine", "--table"],
    "data": ["list", "show", "fetch"],
    "federation": [
        "init",
        "schema",
        "start-coordinator",
        "start-site",
        "check",
        "preview",
        "status",
        "log",
        "stop",
    ],
    "federation init": [
        "--engine",
        "--site",
        "--name",
        "--host",
        "--port",
        "--seed",
        "--schema",
        "--data",
        "--min-group",
    ],
    "federation schema": ["--label", "--category", "--unit", "--out"],
    "federation start-coordinator": ["--foreground"],
    "federation start-site": ["--site", "--foreground"],
    "federation check": ["--unite", "--timeout", "--json"],
    "federation preview": [*PROGRAM, "--min-group", "--json"],
    "federation status": ["--json"],
    "federation log": ["--name", "--last", "--json"],
}


def test_the_page_is_that_of_the_help():
    assert PAGE.read_text(encoding="utf-8") == page(), "python tests/docs/cli_page.py > docs/cli.md"


@pytest.mark.parametrize("command", OPTIONS)
def test_every_option_is_in_the_help(command):
    ran = coterie(*command.split(), "--help")
    assert (ran.code, ran.err) == (0, "")
    assert [option for option in OPTIONS[command] if option not in ran.out] == []


def test_no_help_has_words_in_brackets():
    """They are taken for colours, and not shown."""
    texts = {
        f"{name} {parameter.name}": parameter.help or ""
        for name, command in commands("coterie", get_command(app))
        for parameter in command.params
    }
    assert len(texts) > 100 and [name for name, text in texts.items() if "[" in text] == []


def test_without_a_command_it_is_the_help_that_is_shown():
    for arguments in ([], ["--help"], ["data"], ["federation"]):
        ran = coterie(*arguments)
        assert (ran.code, ran.err) == (0, "")
        assert "Usage" in ran.out


@pytest.mark.parametrize("arguments", [["fit"], ["federation", "init"], ["federation"], []], ids=" ".join)
def test_commands_that_are_not_meant_are_listed_alike_and_without_options(arguments):
    whole, some = (dict(commands("coterie", get_command(each))) for each in (app, app.meant(arguments)))
    assert {name: one.help for name, one in some.items()} == {name: one.help for name, one in whole.items()}
    meant = " ".join(["coterie", *arguments])
    for name, command in some.items():
        assert len(command.params) == (len(whole[name].params) if name == meant else 0)


def test_version():
    assert coterie("--version").out == f"coterie {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (["fitt"], ["No such command 'fitt'", "coterie --help"]),
        (["fit"], ["ROWS", "coterie fit --help"]),
        (["fit", "a.csv"], ["--formula"]),
        (["fit", "a.csv", "--formula", "y ~ x"], ["--client"]),
        (["fit", "a.csv", "--formul", "y ~ x", "--client", "c"], ["No such option", "--formula"]),
        (
            ["fit", "a.csv", "--formula", "y ~ x", "--client", "c", "--splits", "many"],
            ["--splits takes a whole number. See 'coterie fit --help'."],
        ),
        (["predict", "model", "a.csv", "--interval", "x"], ["--interval takes a number. See"]),
        (["fit", "a.csv", "--formula", "y ~ x", "--client"], ["--client", "requires an argument"]),
        (["fit", "a.csv", "b.csv", "--formula", "y ~ x", "--client", "c"], ["unexpected extra argument", "b.csv"]),
        (["compare", "a.csv", "--method", "local"], ["No such option", "--method"]),
        (["predict", "model"], ["TABLE"]),
        (["data", "lst"], ["No such command 'lst'", "list"]),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_said_in_one_line(arguments, fragments):
    message = coterie(*arguments).message
    for fragment in fragments:
        assert fragment in message


def test_no_text_is_taken_for_markup():
    """Of text in square brackets a terminal shows nothing."""
    for name, command in commands("coterie", get_command(app)):
        texts = [command.help, *(getattr(one, "help", None) for one in command.params)]
        assert not [text for text in texts if re.search(r"\[[a-z/#@]", text or "")], name
