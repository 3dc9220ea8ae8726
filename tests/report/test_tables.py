"""Tables as text and as HTML."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coterie.report import tables
from coterie.report.page import environment
from tests.results import factory


def test_the_comparison_is_sorted_and_marks_the_best() -> None:
    result = factory.world(clients=60).result
    table = tables.comparison_table(result)
    assert [row[0] for row in table.rows] == list(result.comparison.sort_values("loss_rows").index)
    assert table.rows[table.marked][0] == "hierarchical"
    local = next(row for row in table.rows if row[0] == "local")
    assert local[3] == "–"
    assert local[5] == "–"


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_text_fits_the_terminal_and_breaks_no_word(width) -> None:
    result = factory.world(clients=60).result
    text = tables.render_text(tables.comparison_table(result), width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text
    assert text.isascii()
    (marked,) = [line for line in text.splitlines() if line.startswith(">")]
    assert marked.startswith("> hierarchical")
    assert ("Not shown at this width" in text) == (width < 100)
    if width == 200:
        assert text.count("\n") == 10  # header, rule, six methods, note of two lines
    for method in factory.METHODS:
        assert f"{method} " in text


def test_labels_of_any_width_stay_aligned() -> None:
    table = tables.Table("t", ("name", "value"), (("学校", "1"), ("é", "22")), marked=1)
    from rich.cells import cell_len

    lines = tables.render_text(table).splitlines()
    assert len({cell_len(line) for line in lines[2:]}) == 1


def test_markup_in_labels_is_text() -> None:
    table = tables.Table("t", ("name", "value"), (("[bold]x[/bold]", "1"),))
    assert "[bold]x[/bold]" in tables.render_text(table)


def test_html_escapes_every_cell() -> None:
    bad = "<script>alert('&\"')</script>"
    table = tables.Table(bad, (bad, bad), ((bad, bad),), note=bad)
    html = environment().get_template("table.html").render(table=table)
    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 7  # the box is named too


def test_the_extremes_are_those_that_gain_and_lose_most() -> None:
    result = factory.world(clients=100).result
    table = tables.extremes_table(result, limit=3)
    gain = result.client_gains["gain_over_local"].sort_values(ascending=False)
    assert [row[0] for row in table.rows] == [str(v) for v in [*gain.index[:3], *gain.index[-3:]]]
    assert "The 3 schools that gain most and the 3 that gain least, of 100." in table.note
    few = tables.extremes_table(factory.world(clients=5, levels=()).result)
    assert len(few.rows) == 5
    assert few.columns[:2] == ("school", "rows")


def test_clients_that_were_not_tested_are_left_out_of_the_extremes() -> None:
    result = factory.world(clients=5).result
    gains = result.client_gains.copy()
    gains.loc[1002, ["gain_over_local", "gain_over_pooled"]] = np.nan
    assert len(tables.extremes_table(replace(result, client_gains=gains)).rows) == 4


@pytest.mark.parametrize("levels", [(3,), (200, 3)])
def test_coefficients_of_clusters_are_cut_and_the_table_says_so(levels) -> None:
    table = tables.cluster_table(factory.world(clients=400, levels=levels).result, limit=10, terms=1)
    assert table.note.startswith("The first ")
    assert ("10 of 203 clusters" in table.note) == (len(levels) == 2)
    assert "1 of 2 terms" in table.note


def test_variances_of_pairs_have_a_column_for_the_other_term() -> None:
    full = np.array([[4.0, -0.6], [-0.6, 0.25]])
    table = tables.variance_table(factory.world(D=full, levels=()).result.summary())
    assert table.columns == ("level", "term", "with", "s.d. or correlation", "(co)variance")
    assert table.rows[2] == ("client", "(Intercept)", "x", "−0.6000", "−0.6000")
