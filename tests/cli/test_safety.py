"""What the command never does: write over its own input, run what a model file says, complain of a closed pipe."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.harness import coterie, files, table


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with table.csv and a model of it."""
    monkeypatch.chdir(tmp_path)
    table().to_csv("table.csv", index=False)
    options = ["--client", "school", "--method", "hierarchical", "--splits", "0", "--out", "model"]
    assert coterie("fit", "table.csv", "--formula", "score ~ hours + level", *options).code == 0
    return tmp_path


@pytest.mark.parametrize("out", ["table.csv", "./table.csv", "model/../table.csv", "link.csv"])
def test_predictions_do_not_replace_their_table(folder, out):
    Path("link.csv").symlink_to("table.csv")
    before = Path("table.csv").read_bytes()
    assert "is the table itself" in coterie("predict", "model", "table.csv", "--out", out).message
    assert Path("table.csv").read_bytes() == before


@pytest.mark.parametrize("out", ["table.csv", "page.pdf", "model/model.json"])
def test_a_report_replaces_pages_only(folder, out):
    before = files(folder), Path("table.csv").read_bytes(), Path("model/model.json").read_bytes()
    assert "does not end in .html" in coterie("report", "model", "--out", out).message
    assert (files(folder), Path("table.csv").read_bytes(), Path("model/model.json").read_bytes()) == before


@pytest.mark.parametrize(
    "code",
    ["{__import__('os').mkdir('owned')}", "I(hours.__class__)", "log(__import__('os').mkdir('owned'))", "exec('1')"],
)
def test_a_formula_in_a_model_file_is_not_run(folder, code):
    path = Path("model/model.json")
    path.write_text(path.read_text().replace("score ~ hours + level", f"score ~ hours + level + {code}"))
    before = files(folder)
    assert "formula" in coterie("predict", "model", "table.csv", "--out", "a.csv").message
    assert files(folder) == before


def test_a_reader_that_goes_away_is_no_error(folder):
    read, write = os.pipe()
    os.close(read)
    program = Path(sys.executable).with_name("coterie")
    command = [program, "predict", "model", "table.csv"]
    run = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=120, cwd=folder)
    os.close(write)
    assert (run.returncode, run.stderr) == (141, "")
