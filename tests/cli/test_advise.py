"""`coterie advise`: who collaborates with whom, on a terminal and in files."""

import pandas as pd
import pytest

import coterie as package
from tests.cli.harness import coterie, files, table

ARGUMENTS = ["advise", "table.csv", "--formula", "score ~ hours", "--client", "school"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    table().to_csv("table.csv", index=False)
    return tmp_path


def test_shows_every_client_and_says_what_was_found(folder):
    ran = coterie(*ARGUMENTS, "--cluster", "sector")
    assert (ran.code, ran.err) == (0, "")
    for school in ("ash", "birch", "cedar", "elm", "fir", "oak"):
        assert f"  {school} " in ran.out
    for column in ("rows", "speed-up", "predicted gain", "measured gain", "alone", "together", "pooled"):
        assert column in ran.out
    assert "On held-out rows the mean squared error is" in ran.out
    assert files(folder) == {"table.csv"}


def test_the_collaborators_of_one_client():
    ran = coterie(*ARGUMENTS, "--for", "oak", "--splits", "0")
    assert "oak itself" in ran.out
    assert "Weights of mean losses: they add up to 1." in ran.out
    assert "measured" not in ran.out
    assert "There is no school 'oka' in the table. Did you mean 'oak'?" in coterie(*ARGUMENTS, "--for", "oka").message


def test_a_client_for_whom_nobody_is_chosen(folder):
    """A table's clients that all stay alone; and clients of nets, of whom it is told what each method gives them."""
    apart = pd.DataFrame({"school": [school for school in "abc" for _ in range(200)], "hours": [*range(100)] * 6})
    slope, noise = apart["school"].map({"a": -9e3, "b": 0.0, "c": 9e3}), pd.Series([0.0, 1.0, 2.0] * 200)
    apart.assign(score=slope * (1.0 + apart["hours"]) + noise).to_csv("apart.csv", index=False)
    ran = coterie("advise", "apart.csv", *ARGUMENTS[2:], "--splits", "0", "--for", "a")
    assert (ran.code, "1.000\nWeights" in ran.out) == (0, True)
    run = '[data]\nsource = "digits"\nclients = 4\nrows = 100\n[model]\npath = "softmax"\n[run]\nrounds = 1\n'
    (folder / "net.toml").write_text(run)
    ran = coterie("advise", "net.toml", "--for", "3", "--out", "out.csv")
    rows = ran.out.split("\n\n")[-2].splitlines()[2:]
    assert ran.code == 0 and rows[0].split()[0] == "3" and rows[1].startswith("Mean") and "intervals" not in ran.out
    ran = coterie("advise", "net.toml", "--for", "9", "--out", "none.csv")
    assert ran.code == 2 and "There is no client '9'" in ran.err and "On held-out rows" in ran.out
    assert files(folder) == {"table.csv", "apart.csv", "net.toml", "out.csv"}


@pytest.mark.parametrize("end", ["csv", "parquet"])
def test_the_tables_in_files_are_those_of_the_library(end):
    ran = coterie(*ARGUMENTS, "--splits", "3", "--seed", "3", "--out", f"a.{end}", "--pairs", f"b.{end}")
    assert ran.out.endswith(f"Written to a.{end}.\nWritten to b.{end}.\n")
    expected = package.advise(table(), "score ~ hours", "school", splits=3, seed=3)
    frame = package.read_table(f"a.{end}").set_index("school")
    pd.testing.assert_frame_equal(frame, expected.clients, rtol=1e-9, check_dtype=False)
    pd.testing.assert_frame_equal(package.read_table(f"b.{end}"), expected.weights, rtol=1e-9, check_dtype=False)


@pytest.mark.parametrize("width", [40, 60, 100])
def test_a_narrow_terminal_loses_no_client(monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    ran = coterie(*ARGUMENTS)
    said, table_lines = ran.out.split("\n\n")[0], ran.out.split("\n\n")[1].splitlines()
    assert said == "Read 60 rows of 6 schools from table.csv."
    assert max(map(len, table_lines)) <= width
    assert "  school" in table_lines[1] + table_lines[0]
    assert "birch" in ran.out


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["--collaborators", "0"], "collaborators must be a whole number from 1"),
        (["--within", "cluster"], "name a cluster column (--cluster)"),
        (["--family", "poison"], "Did you mean 'poisson'"),
        (["--out", "there.txt"], "none of the extensions .csv"),
        (["--pairs", "there.txt"], "none of the extensions .csv"),
        (["--out", "table.csv"], "'table.csv' is the table itself"),
        (["--pairs", "table.csv"], "'table.csv' is the table itself"),
        (["--out", "both.csv", "--pairs", "both.csv"], "--out and --pairs both name 'both.csv'"),
        (["--test-fraction", "nan"], "test_fraction must be a number between 0 and 1, not nan"),
    ],
    ids=["collaborators", "within", "family", "out", "pairs", "over itself", "pairs over itself", "one file", "share"],
)
def test_bad_options(folder, arguments, fragment):
    assert fragment in coterie(*ARGUMENTS, *arguments).message
    assert files(folder) == {"table.csv"}


def test_one_client_only():
    table(school="ash").to_csv("table.csv", index=False)
    assert "There is only one client" in coterie(*ARGUMENTS).message
