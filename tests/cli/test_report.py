"""`coterie report`: one page from a saved model."""

import shutil
from pathlib import Path

import pytest

from tests.cli.harness import coterie, files, with_model


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A table and a model of it, made once."""
    options = ["--client", "school", "--cluster", "sector", "--splits", "2"]
    return with_model(tmp_path_factory.mktemp("fitted"), "score ~ hours", *options)


@pytest.fixture
def model(fitted, tmp_path, monkeypatch):
    monkeypatch.chdir(shutil.copytree(fitted, tmp_path, dirs_exist_ok=True))
    return tmp_path / "model"


def test_is_the_page_that_fit_wrote(model):
    ran = coterie("report", "model", "--out", "page.html")
    assert (ran.code, ran.out, ran.err) == (0, "Report: page.html\n", "")
    assert Path("page.html").read_bytes() == (model / "report.html").read_bytes()


def test_a_model_json_and_the_usual_name(model):
    assert coterie("report", model / "model.json").out == "Report: report.html\n"
    assert Path("report.html").read_text(encoding="utf-8").lstrip().lower().startswith("<!doctype html>")


def test_a_page_is_written_over(model):
    Path("page.html").write_text('<meta name="generator" content="coterie">')
    assert coterie("report", model, "--out", "page.html").code == 0
    assert Path("page.html").stat().st_size > 1000


@pytest.mark.parametrize(
    ("out", "fragment"),
    [
        ("there/page.html", "there"),
        ("folder.html", "'folder.html': Is a directory"),
        (".", "'.' is a folder; name a file that ends in .html"),
        ("", "'--out': it is empty"),
        ("page.pdf", "'page.pdf' does not end in .html"),
        ("table.csv/page.html", "table.csv"),
    ],
    ids=["no folder", "folder", "here", "empty", "extension", "file as folder"],
)
def test_a_place_that_cannot_be_written(model, out, fragment):
    Path("folder.html").mkdir()
    before = files(model.parent)
    assert fragment in coterie("report", "model", "--out", out).message
    assert files(model.parent) == before
