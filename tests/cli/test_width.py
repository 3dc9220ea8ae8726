"""Sentences on a narrow terminal: no line is wider than it, no word is cut."""

import io
import re
import sys

import pytest

from coterie.cli.main import main
from coterie.methods.registry import METHODS
from tests.cli.harness import table


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys, "warnoptions", ["error"])
    table().to_csv("table.csv", index=False)

    def run(*arguments, code=0):
        out, err = Terminal(), Terminal()
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == code
        return out.getvalue(), err.getvalue()

    return run


FIT = ["fit", "table.csv", "--client", "school", "--splits", "2", "--formula"]


def test_what_a_fit_says(terminal):
    out, _ = terminal(*FIT, "score ~ hours")
    assert max(map(len, out.splitlines())) <= 40
    assert "Nothing was written: add --out DIR for\nthe model and its report.\n" in out


def test_what_is_wrong(terminal):
    _, err = terminal(*FIT, "score ~ houres", code=2)
    sentence = err[err.index("Error: ") :]
    assert max(map(len, sentence.splitlines())) <= 40
    expected = "Error: The formula uses 'houres', which is not a column. Did you mean 'hours'?"
    assert " ".join(sentence.split()) == expected


def test_names_of_methods_are_whole(terminal):
    out, _ = terminal("methods")
    lines = [line for line in out.splitlines() if not line.startswith("    ")]
    assert METHODS.keys() <= {line.split()[0] for line in lines if line.strip()}
    assert max(map(len, out.splitlines())) <= 40


@pytest.mark.parametrize("columns", [60, 80])
def test_help_has_names_and_options_whole(terminal, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    out = re.sub(r"\x1b\[[\d;]*m", "", terminal("fit", "--help")[0])  # colours
    assert "\N{HORIZONTAL ELLIPSIS}" not in out and "\\[" not in out
    assert "--objective-option" in out and "weighted-averaging" in re.sub(r"(?<=[a-z]-)\s+", "", out)


def test_a_summary_fits(terminal):
    out, _ = terminal(*FIT, "score ~ hours", "--summary", "--method", "hierarchical")
    table = out[out.index("AIC, BIC") : out.index("Intervals of s.d.")].splitlines()
    assert any("hours" in line for line in table) and max(map(len, table)) <= 40


def test_the_tables_to_try(terminal):
    out, _ = terminal("data", "list")
    assert max(map(len, out.splitlines()[1:])) <= 40  # the first holds bold letters
    assert "\N{HORIZONTAL ELLIPSIS}" not in out
    out, _ = terminal("data", "show", "heart")
    described, commands = out.split("To model it:")
    assert max(map(len, described.splitlines())) <= 40
    assert len(commands.strip().splitlines()) == 2  # to be copied whole
