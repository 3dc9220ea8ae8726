"""`python -m papers`: what is listed, printed and written, and what is refused before any work."""

import contextlib
import io
import json

import numpy as np
import pytest

from papers import outcome, pictures
from papers.__main__ import main
from papers.registry import Experiment, experiments
from tests.cli.harness import files

SMALL = ["004/figure5", "--quick"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


def command(*arguments):
    """Exit code, output and error of the command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stop:
        main(arguments)
    return stop.value.code, out.getvalue(), err.getvalue()


def never(*_):
    raise AssertionError("the work was begun")


def test_an_interrupt_says_what_was_written(folder, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("papers.__main__.make", interrupted)
    assert command(*SMALL) == (130, "", "Interrupted: nothing was written.\n")


def test_without_a_name_all_are_listed(folder):
    code, out, err = command()
    assert (code, err) == (0, "")
    assert [e.name for e in experiments() if f"{e.name} " not in out] == []
    assert files(folder) == set()


def test_every_name_has_its_module():
    from importlib import import_module

    for experiment in experiments():
        assert callable(import_module(f"papers.paper_{experiment.name.replace('/', '.')}").run)


def test_paper_and_ours_are_printed_and_numbers_and_figure_written(folder):
    code, out, err = command(*SMALL, "--out", "figures/new")
    assert (code, err) == (0, "")
    there = {"figures", "figures/new", "figures/new/004-figure5.svg", "figures/new/004-figure5.json"}
    assert files(folder) == there
    assert "Written to figures/new/004-figure5.svg.\nWritten to figures/new/004-figure5.json.\n" in out
    assert (folder / "figures/new/004-figure5.svg").read_text().lstrip().startswith("<?xml")
    written = json.loads((folder / "figures/new/004-figure5.json").read_text())
    assert written["experiment"] == "004/figure5"
    assert written["settings"]["quick"] is True
    assert {"python", "coterie", "numpy"} <= set(written["versions"])
    assert written["numbers"]["largest_difference"] < 1e-6


def test_several_names_and_all_of_them(folder, monkeypatch):
    ran = []
    monkeypatch.setattr(Experiment, "run", lambda self, _: ran.append(self.name) or empty())
    assert command("004/mean", "001/table1")[0] == 0
    assert len(files(folder / "build/papers")) == 4
    monkeypatch.setattr("papers.__main__.make", lambda experiment, *_: ran.append(experiment.name))
    assert command("--all")[0] == 0
    assert ran == ["004/mean", "001/table1", *(e.name for e in experiments())]


def empty():
    return outcome.Outcome((), lambda: pictures.panels()[0], {}, {})


def test_the_same_bytes_every_time():
    def draw():
        figure, (axes,) = pictures.panels()
        axes.plot([1, 2], [3, 4], label="line")
        axes.legend()
        return figure

    assert outcome.render(draw) == outcome.render(draw)


def test_infinite_numbers_are_written_too():
    text = outcome.document("x", outcome.Outcome((), never, {}, {"a": np.array([1.0, np.inf])}), 1.0)
    assert json.loads(text)["numbers"]["a"] == [1.0, {"$": "float", "value": "inf"}]


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["001/tabel1"], "Did you mean '001/table1'"),
        (["001/table1", "xyz"], "There are 000/variance"),
        (["001/table1", "--seeds", "0"], "--seeds"),
        (["001/table1", "--out", "file"], "'file' is a file; --out names a folder."),
        (["001/table1", "--out", "file/below"], "cannot be made, because"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_refused_before_any_work(folder, monkeypatch, arguments, fragment):
    monkeypatch.setattr(Experiment, "run", never)
    (folder / "file").touch()
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert fragment in err and "Traceback" not in err
    assert files(folder) == {"file"}


def test_without_matplotlib_the_remedy_is_said(folder, monkeypatch):
    monkeypatch.setattr(Experiment, "run", never)
    monkeypatch.setattr(pictures, "find_spec", lambda name: None)
    assert "pip install" in command(*SMALL)[2]
    assert files(folder) == set()


def test_nothing_is_half_written(folder, monkeypatch):
    monkeypatch.setattr(Experiment, "run", lambda *_: empty())
    (folder / "build/papers/004-figure5.svg").mkdir(parents=True)
    before = files(folder)
    code, _, err = command(*SMALL)
    assert code == 2
    assert err.startswith("Error: 'build/papers/004-figure5.svg' cannot be written: ")
    assert files(folder) == before
