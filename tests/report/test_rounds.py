"""A run over rounds in the report: what was chosen, what was sent, how the distance fell."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.report import rounds
from coterie.report.html import render
from tests.report.test_html import Reader


@pytest.fixture(scope="module")
def result():
    rng = np.random.default_rng(1)
    shop = np.repeat(np.arange(9), 12)
    x = rng.normal(size=shop.size)
    df = pd.DataFrame({"shop": shop, "town": shop % 3, "x": x, "y": shop / 3 + x + rng.normal(size=shop.size)})
    options = {"steps": 200, "coordinator": "peers", "network": "ring"}
    return coterie.fit(df, "y ~ x", "shop", "town", method="async-al2sgd", splits=1, gamma=5.0, lam=3.0, rounds=options)


def with_run(result, **changes):
    model = result.model
    info = model.info | {"rounds": model.info["rounds"] | changes}
    return replace(result, model=replace(model, info=info))


def test_the_section_says_what_happened(result):
    page = Reader(render(result))
    sent = result.model.info["rounds"]["communications"]
    for text in ("Over rounds", "calligraphic L", "Communications", "Distance left against communications"):
        assert text in page.text or text.lower() in page.text
    assert f"{sent['peers']['messages']:,} messages" in page.text
    assert "trace" not in page.text


def test_counts_stand_beside_what_was_expected(result):
    table = rounds.table(result)
    assert table.columns == ("", "this run", "expected")
    assert [row[0] for row in table.rows][2:] == [
        "communications between clusters", "communications within each cluster", "communications to refresh the anchor",
    ]  # fmt: skip
    assert rounds.sentences(result)[1].startswith("Communications: ")


@pytest.mark.parametrize(
    "changes",
    [
        {"promised": float("inf")},
        {"gap": float("nan"), "trace": [(5, float("nan"), 0, 0)]},
        {"gap": 0.0, "trace": [(1, 0.0, 0, 0)]},
        {"gap": 3e40, "trace": [(1, 3e40, 1, 0), (2, 3e40, 2, 0)], "status": "diverged by step 3"},
        {"p": [0.1, 0.2, 0.0], "tau": 1.0},
        {"p": {"from": 0.1, "to": 0.2}},
    ],
)
def test_odd_runs_are_drawn_too(result, changes):
    page = Reader(render(with_run(result, **changes)))
    assert "nan" not in page.text.lower().split()


def test_exact_methods_have_no_such_section(result):
    model = replace(result.model, info={})
    assert "Over rounds" not in render(replace(result, model=model))
    assert rounds.sentences(replace(result, model=model)) == []
