"""What the command never does: write over its own input, run what a model file says, complain of a closed pipe."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coterie import CoterieError, load
from coterie import files as files_of
from coterie.cli import outputs
from tests.cli.harness import coterie, files, with_model


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A table and a model of it, made once."""
    options = ["--client", "school", "--method", "hierarchical", "--splits", "0"]
    return with_model(tmp_path_factory.mktemp("fitted"), "score ~ hours + level", *options)


@pytest.fixture
def folder(fitted, tmp_path, monkeypatch):
    """A folder with table.csv and a model of it."""
    monkeypatch.chdir(shutil.copytree(fitted, tmp_path, dirs_exist_ok=True))
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


FIT = ["--formula", "score ~ hours", "--client", "school", "--splits", "1"]
WRITERS = {
    "compare": ["compare", "table.csv", *FIT, "--out", "mine.csv"],
    "advise": ["advise", "table.csv", *FIT, "--out", "mine.csv"],
    "pairs": ["advise", "table.csv", *FIT, "--pairs", "mine.csv"],
    "predict": ["predict", "model", "table.csv", "--out", "mine.csv"],
    "parquet": ["predict", "model", "table.csv", "--out", "mine.parquet"],
    "report": ["report", "model", "--out", "mine.html"],
    "fetch": ["data", "fetch", "heart", "--out", "mine.csv"],
    "fit": ["fit", "table.csv", *FIT, "--out", "mine"],
}


@pytest.mark.parametrize("name", WRITERS)
def test_only_what_coterie_wrote_is_replaced_without_force(folder, name):
    file = folder / ("mine/report.html" if name == "fit" else WRITERS[name][-1])
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine,too\n1,2\n")
    before = files(folder)
    assert "coterie did not write it" in coterie(*WRITERS[name]).message
    assert file.read_text() == "mine,too\n1,2\n"
    assert files(folder) == before
    for more in (["--force"], []):  # then it is coterie's
        assert coterie(*WRITERS[name], *more).code == 0
    assert b"mine,too" not in file.read_bytes()


@pytest.mark.parametrize("name", ["compare", "pairs", "predict", "fetch"])
def test_a_table_that_only_looks_like_coteries_is_kept(folder, name):
    coterie(*WRITERS[name])
    file = folder / WRITERS[name][-1]
    changed = file.read_text().replace("\n", ",\n", 1).replace(",\n", ",remark\n", 1)  # a column of the user's own
    file.write_text(changed)
    assert "or it was changed since" in coterie(*WRITERS[name]).message
    assert file.read_text() == changed


def test_a_command_replaces_its_own_tables_alone(folder):
    coterie(*WRITERS["compare"])
    assert "coterie did not write it" in coterie(*WRITERS["predict"]).message
    assert coterie(*WRITERS["compare"]).code == 0


def test_without_a_place_to_remember_force_is_asked_for(folder, monkeypatch):
    Path("busy").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "busy"))
    assert coterie(*WRITERS["predict"]).code == 0
    assert "--force" in coterie(*WRITERS["predict"]).message


def test_another_model_json_is_replaced_if_forced_to(folder):
    Path("mine").mkdir()
    Path("mine/model.json").write_text("[]")
    assert "coterie did not write it" in coterie(*WRITERS["fit"]).message
    assert Path("mine/model.json").read_text() == "[]"
    assert coterie(*WRITERS["fit"], "--force").code == 0
    assert coterie("predict", "mine", "table.csv", "--out", "b.csv").code == 0


@pytest.mark.parametrize("name", ["compare", "advise", "pairs", "predict"])
@pytest.mark.parametrize("out", ["./table.csv", "link.csv", "hard.csv"])
def test_no_command_writes_over_its_own_input_even_if_forced_to(folder, name, out):
    Path("link.csv").symlink_to("table.csv")
    os.link("table.csv", "hard.csv")
    before = Path("table.csv").read_bytes()
    assert "is the table itself" in coterie(*WRITERS[name][:-1], out, "--force").message
    assert Path("table.csv").read_bytes() == before


def test_a_file_of_edges_is_an_input_too(folder):
    Path("edges.csv").write_text("a,b\nash,birch\nbirch,cedar\n")
    before = Path("edges.csv").read_bytes()
    arguments = ["compare", "table.csv", *FIT, "--out", "edges.csv", "--force"]
    if "--network" in coterie("compare", "--help").out:
        assert "another input" in coterie(*arguments, "--network", "edges=edges.csv").message
    assert Path("edges.csv").read_bytes() == before


def test_a_folder_of_training_results_is_replaced_and_no_other(folder):
    Path("small.toml").write_text("[run]\nrounds = 1\n")
    Path("out").mkdir()
    Path("out/metrics.csv").write_text("mine")
    assert "'out/metrics.csv' is there already" in coterie("fit", "small.toml", "--out", "out").message
    Path("out/metrics.csv").unlink()
    Path("out/training.json").write_text("{}")
    assert "'out/training.json' is there already" in coterie("fit", "small.toml", "--out", "out").message


@pytest.mark.parametrize("there", [True, False])
def test_a_model_that_another_command_wrote_meanwhile_is_kept(folder, there):
    """The other ends while this one writes its report: into a new folder, or into one that both found."""
    result, out = load("model"), Path("model" if there else "new")
    outputs.OUTPUTS.clear()
    outputs.need_room(out / "model.json", [], True, lambda _: True)
    report = type(result).report

    def meanwhile(self, path):
        report(self, path)
        if not there:
            shutil.copytree("model", out)

    if there:
        (out / "model.json").write_text((out / "model.json").read_text() + " ")
    before = files(folder), (Path("model") / "model.json").read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(result), "report", meanwhile)
        with pytest.raises(CoterieError, match=rf"^Another command wrote to '{out}' meanwhile: name another folder, "):
            outputs.write_fit(result, out, False)
    after = {name for name in files(folder) if there or not name.startswith("new")}
    assert (after, (Path("model") / "model.json").read_bytes()) == before
    with files_of.alone(Path("model")), pytest.raises(CoterieError, match="Another command wrote"):
        outputs.OUTPUTS.clear()
        outputs.write_fit(result, Path("model"), False)
