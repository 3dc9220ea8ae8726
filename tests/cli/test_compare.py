"""`coterie compare`: only the evidence."""

import numpy as np
import pandas as pd
import pytest

import coterie as package
from tests.cli.harness import changed, coterie, files, table

ARGUMENTS = ["compare", "table.csv", "--formula", "score ~ hours", "--client", "school"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    table().to_csv("table.csv", index=False)
    return tmp_path


def test_shows_every_method_and_keeps_no_model(folder):
    ran = coterie(*ARGUMENTS, "--cluster", "sector")
    assert (ran.code, ran.err) == (0, "")
    for method in ("local", "pooled", "own-intercept", "clusterwise", "single-cluster", "hierarchical"):
        assert f" {method} " in ran.out
    assert ran.out.count("\n> ") == 1
    assert files(folder) == {"table.csv"}


@pytest.mark.parametrize("out", ["out.csv", "out.parquet"])
def test_the_table_in_a_file_is_that_of_the_library(out):
    ran = coterie(*ARGUMENTS, "--splits", "2", "--seed", "3", "--out", out)
    assert ran.out.endswith(f"Written to {out}.\n")
    expected = package.compare(table(), "score ~ hours", "school", splits=2, seed=3)
    frame = package.read_table(out).set_index("method")
    assert list(frame.columns) == list(expected.columns)
    pd.testing.assert_frame_equal(frame.drop(columns="seconds"), expected.drop(columns="seconds"), rtol=1e-9)


def test_rounds_are_a_number_as_in_python():
    ran = coterie(*ARGUMENTS, "--splits", "1", "--methods", "fedavg", "--rounds", "3", "--out", "out.csv")
    assert ran.code == 0
    expected = package.compare(table(), "score ~ hours", "school", splits=1, methods="fedavg", rounds=3)
    found = package.read_table("out.csv").set_index("method")["loss_rows"]
    np.testing.assert_allclose(found["fedavg"], expected.loc["fedavg", "loss_rows"], rtol=1e-9)


def test_a_seed_repeats_and_another_differs():
    def losses(seed):
        coterie(*ARGUMENTS, "--seed", seed, "--out", "out.csv")
        return pd.read_csv("out.csv")["loss_rows"].to_numpy()

    np.testing.assert_array_equal(losses(1), losses(1))
    assert not np.allclose(losses(1), losses(2))


def test_a_configuration_of_a_table_and_methods_by_name(folder):
    (folder / "call.toml").write_text(
        '[data]\nsource = "table.csv"\nclient = "school"\n[model]\nformula = "score ~ hours"\n[evidence]\nsplits = 1\n'
    )
    ran = coterie("compare", "call.toml", "--methods", "hierarchical,fedavg", "--out", "t.csv", "--report", "r.html")
    assert (ran.code, ran.err) == (0, "")
    assert list(pd.read_csv("t.csv")["method"]) == ["local", "pooled", "hierarchical", "fedavg"]
    assert "Which model is best for every" in (folder / "r.html").read_text()
    ran = coterie("fit", "call.toml", "--out", "model")
    assert (ran.code, ran.err) == (0, "")
    for option in ("--resume", "--strict"):
        assert f"leave out {option}" in coterie("fit", "call.toml", option).message
    expected = package.fit(package.read_table("table.csv", ["school"]), "score ~ hours", "school", splits=1)
    pd.testing.assert_frame_equal(package.load("model").client_coefficients, expected.client_coefficients)


def test_a_report_in_a_folder_that_is_not_there_is_refused_before_any_work(folder):
    ran = coterie(*ARGUMENTS, "--report", "nowhere/r.html", "--out", "t.csv")
    assert ran.code == 2 and "there is no folder" in ran.message
    assert not (folder / "t.csv").exists()


def test_given_strengths_are_compared_too():
    ran = coterie(*ARGUMENTS, "--gamma", "0.1,1,10", "--splits", "2")
    assert ran.code == 0
    assert " given-strengths " in ran.out


def test_what_was_left_out_is_said():
    table(**changed("hours", [3, 8], None)).to_csv("gaps.csv", index=False)
    ran = coterie(*ARGUMENTS[:1], "gaps.csv", *ARGUMENTS[2:], "--missing", "drop", "--splits", "1")
    assert "Note: 2 of 60 rows were left out: column 'hours' has missing values" in ran.out


def test_a_narrow_terminal_loses_no_method(monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    ran = coterie(*ARGUMENTS, "--cluster", "sector")
    said, _, shown = ran.out.partition("\n\n")
    assert said == "Read 60 rows of 6 schools in 2 sectors from table.csv."
    assert max(map(len, shown.split("Note: ")[0].splitlines())) <= 50
    assert "single-cluster" in ran.out


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["--splits", "0"], "A comparison needs at least one split"),
        (["--family", "poison"], "Did you mean 'poisson'"),
        (["--out", "there.txt"], "none of the extensions .csv"),
        (["--test-fraction", "nan"], "test_fraction must be a number between 0 and 1, not nan"),
    ],
    ids=["splits", "family", "out", "share"],
)
def test_bad_options(folder, arguments, fragment):
    assert fragment in coterie(*ARGUMENTS, *arguments).message
    assert files(folder) == {"table.csv"}


def test_one_row_for_each_client_cannot_be_compared(folder):
    table(school=np.arange(60)).to_csv("table.csv", index=False)
    message = coterie(*ARGUMENTS, "--out", "out.csv").message
    assert "No client has a row to spare for a test" in message
    assert files(folder) == {"table.csv"}
