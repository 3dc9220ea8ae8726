"""What clients are pulled to, in the user's words; who became equal along a network; and networks not chosen."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.report import method_section as sections
from coterie.report.fit_page import render
from tests.cli import harness


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return harness.table()


def text_of(page: str) -> str:
    """The part of the page about how far clients are pulled, and about the coefficients."""
    return page[page.index("How far schools are pulled") : page.index("How this was made")]


@pytest.mark.parametrize("method", ["pooled", "own-intercept", "local", "similarity-network"])
def test_methods_without_clusters_speak_of_the_model_of_all(table, method):
    options = {"network": {"k": 2, "lam": 0.001}} if method == "similarity-network" else {}
    result = coterie.fit(table, "score ~ hours", "school", "sector", method=method, splits=1, **options)
    text = text_of(render(result))
    assert "Coefficients of the clusters" not in text and "their sector" not in text and "its sector" not in text
    assert "of a sector" not in text and "global model" not in text
    assert ("the model of all schools" in text) == (method != "pooled")
    assert ("All schools have the same coefficients" in text) == (method == "pooled")


@pytest.mark.parametrize("method", ["clusterwise", "hierarchical"])
def test_methods_with_clusters_speak_of_them(table, method):
    world = table.assign(score=table["score"] + 9.0 * (table["sector"] == "town") + table["day"] % 2)
    result = coterie.fit(world, "score ~ hours", "school", "sector", method=method, splits=1)
    text = text_of(render(result))
    assert "Coefficients of the clusters" in text and "sector" in text and "the model of all schools" not in text


def test_the_report_names_everyone_in_every_group(table):
    edges = [("ash", "birch"), ("birch", "cedar"), ("elm", "fir")]
    network = {"edges": edges, "lam": np.inf}
    result = coterie.fit(table, "score ~ hours", "school", method="similarity-network", network=network, splits=0)
    (groups,) = sections.merged_tables(result)
    assert [row[1:] for row in groups.rows] == [("ash, birch and cedar", "3"), ("elm and fir", "2"), ("oak", "1")]
    merged = result.merged
    assert [row[0] for row in groups.rows] == [str(merged["ash"]), str(merged["elm"]), "alone"]
    assert "Who became equal" in render(result) and "ash, birch and cedar" in render(result)
    said = sections.method_section(result).sentences[1]
    assert said == "Who became equal, the largest groups first: ash, birch and cedar; elm and fir; 1 alone."


def test_many_groups_are_cut_and_the_table_says_so(table, monkeypatch):
    monkeypatch.setattr(sections, "SHOWN_GROUPS", 1)
    monkeypatch.setattr(sections, "SHOWN", 1)
    monkeypatch.setattr(sections, "NAMES", 1)
    monkeypatch.setattr(sections, "LARGEST", 1)
    network = {"edges": [("ash", "birch"), ("birch", "cedar"), ("elm", "fir")], "lam": np.inf}
    result = coterie.fit(table, "score ~ hours", "school", method="similarity-network", network=network, splits=0)
    (groups,) = sections.merged_tables(result)
    assert groups.rows[0][1] == "ash and 2 more" and groups.note.startswith("The 1 largest of 2 groups. ")
    assert sections.method_section(result).sentences[1].endswith("ash and 2 more; 1 more group; 1 alone.")


def test_where_nobody_is_equal_there_is_no_table(table):
    network = {"k": 2, "lam": 1e-9}
    result = coterie.fit(table, "score ~ hours", "school", method="similarity-network", network=network, splits=0)
    assert result.merged.nunique() == 6 and sections.merged_tables(result) == []
    assert (
        sections.method_section(result).sentences[0].endswith("no two are equal.")
        and len(sections.method_section(result).sentences) == 1
    )


@pytest.mark.parametrize("splits", [0, 1])
def test_a_network_that_was_not_chosen_is_said(table, splits):
    result = coterie.fit(table, "score ~ hours", "school", network={"k": 2, "lam": 1e-9}, splits=splits)
    assert result.method != "similarity-network" and result.merged is None
    (note,) = [note for note in result.notes if "similarity network" in note]
    assert ("was compared and not chosen" in note) == (splits == 1)
    assert "--method similarity-network" in note
    assert "The similarity network " in render(result)
    network = {"k": 2, "lam": 1.0}
    chosen = coterie.fit(table, "score ~ hours", "school", network=network, method="similarity-network", splits=0)
    assert not any("not chosen" in note for note in chosen.notes)
