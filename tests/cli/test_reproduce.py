"""`coterie reproduce`: what is listed, printed and written, and what is refused before any work."""

import json

import numpy as np
import pytest

from coterie.reproduce import outcome, pictures
from coterie.reproduce.registry import Experiment, experiments
from tests.cli.harness import coterie, files

SMALL = ["reproduce", "001/table1", "--seeds", "1", "--quick"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


def never(*_):
    raise AssertionError("the work was begun")


def test_without_a_name_all_are_listed(folder):
    ran = coterie("reproduce")
    assert (ran.code, ran.err) == (0, "")
    assert [e.name for e in experiments() if f"{e.name} " not in ran.out] == []
    assert files(folder) == set()


@pytest.mark.parametrize("experiment", experiments(), ids=lambda e: e.name)
def test_every_name_has_its_module(experiment):
    from importlib import import_module

    assert callable(import_module(f"coterie.reproduce.{experiment.module}").run)


def test_paper_and_ours_are_printed_and_numbers_and_figure_written(folder):
    ran = coterie(*SMALL, "--json", "t.json", "--out", "figures/new")
    assert (ran.code, ran.err) == (0, "")
    assert "at m = 10 rows" in ran.out and "at m = 100 rows" in ran.out
    assert "3.460 (0.689)" in ran.out and "> ours, exact" in ran.out
    assert files(folder) == {"t.json", "figures", "figures/new", "figures/new/001-table1.svg"}
    assert "Written to figures/new/001-table1.svg.\nWritten to t.json.\n" in ran.out
    assert (folder / "figures/new/001-table1.svg").read_text().lstrip().startswith("<?xml")
    written = json.loads((folder / "t.json").read_text())
    assert written["experiment"] == "001/table1"
    assert written["settings"]["seeds"] == [0]
    assert {"python", "coterie", "numpy"} <= set(written["versions"])
    average = written["numbers"]["m=10"]["distance"]["our"]["average"]
    assert f"{average[0]:.3f} (" in ran.out


def test_the_same_bytes_every_time(folder):
    def figure():
        return outcome.render(draw)

    def draw():
        figure, (axes,) = pictures.panels()
        axes.plot([1, 2], [3, 4], label="line")
        axes.legend()
        return figure

    assert figure() == figure()


def test_infinite_numbers_are_written_too():
    text = outcome.document("x", outcome.Outcome((), never, {}, {"a": np.array([1.0, np.inf])}), 1.0)
    assert json.loads(text)["numbers"]["a"] == [1.0, {"$": "float", "value": "inf"}]


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["001/tabel1"], "Did you mean '001/table1'"),
        (["xyz"], "There are 000/variance"),
        (["001/table1", "--seeds", "0"], "--seeds must be at least 1."),
        (["001/table1", "--seeds", "few"], "--seeds takes a whole number."),
        (["001/table1", "--out", "file"], "'file' is a file; --out names a folder."),
        (["001/table1", "--out", "file/below"], "cannot be made, because"),
        (["001/table1", "--out", ""], "it is empty; name a file or folder."),
        (["001/table1", "--json", "there"], "'there' is a folder; --json names a file."),
        (["001/table1", "--json", "nowhere/a.json"], "There is no folder 'nowhere' to write 'a.json' to."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_refused_before_any_work(folder, monkeypatch, arguments, fragment):
    monkeypatch.setattr(Experiment, "run", never)
    (folder / "file").touch()
    (folder / "there").mkdir()
    assert fragment in coterie("reproduce", *arguments).message
    assert files(folder) == {"file", "there"}


def test_without_matplotlib_the_remedy_is_said(folder, monkeypatch):
    monkeypatch.setattr(Experiment, "run", never)
    monkeypatch.setattr(pictures, "find_spec", lambda name: None)
    assert "pip install 'coterie[papers]'" in coterie(*SMALL).message
    assert files(folder) == set()


def test_nothing_is_half_written(folder, monkeypatch):
    monkeypatch.setattr(Experiment, "run", lambda *_: outcome.Outcome((), lambda: pictures.panels()[0], {}, {}))
    (folder / "build/reproduce/001-table1.svg").mkdir(parents=True)
    before = files(folder)
    ran = coterie(*SMALL, "--json", "t.json")
    assert ran.code == 2
    assert ran.err.startswith("Error: 'build/reproduce/001-table1.svg' cannot be written: ")
    assert files(folder) == before
