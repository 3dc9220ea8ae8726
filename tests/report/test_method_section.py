"""What a report says of a run over rounds, and of main clients and their collaborators."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.report.fit_page import render
from coterie.report.method_section import method_section
from tests.report.test_fit_page import Reader


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
    table = method_section(result).tables[0]
    assert table.columns == ("", "this run", "expected")
    assert [row[0] for row in table.rows][2:] == [
        "communications between clusters", "communications within each cluster", "communications to refresh the anchor",
    ]  # fmt: skip
    assert method_section(result).sentences[1].startswith("Communications: ")


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
    assert method_section(replace(result, model=model)) is None


def collaborating(method, **rounds):
    rng = np.random.default_rng(0)
    x = rng.normal(size=120)
    df = pd.DataFrame({"site": np.repeat([f"s{i}" for i in range(6)], 20), "x": x, "y": x + rng.normal(size=120)})
    return coterie.fit(df, "y ~ x", "site", method=method, splits=0, rounds=rounds)


def test_averaging_says_weights_speedup_and_how_far_it_came():
    found = collaborating("weighted-averaging", collaborators=3)
    (sentence,) = method_section(found).sentences
    assert "3 collaborators for each main client, alpha = " in sentence
    assert "predicted speed-up" in sentence
    assert "step size" not in sentence  # it was solved at once
    rows = dict(method_section(found).tables[0].rows)
    assert "exchanges until solved" in rows
    assert "steps" not in rows
    assert "step size, eta" not in rows
    assert rows["distance left, relative to the start's"] == "0"
    assert rows["collaborators of a main client"] == "3"
    assert "Main clients and their collaborators" in render(found)


def test_averaging_by_steps_says_their_size():
    found = collaborating("weighted-averaging", steps=9)
    assert "step size" in method_section(found).sentences[0]
    assert dict(method_section(found).tables[0].rows)["steps"] == "9"


def test_correction_says_beta_and_what_is_kept():
    found = collaborating("bias-correction", keep=0.25, steps=7)
    (sentence,) = method_section(found).sentences
    assert "25% of the bias kept" in sentence
    assert "speed-up" not in sentence
    assert dict(method_section(found).tables[0].rows)["steps"] == "7"


def test_other_methods_have_no_such_section():
    assert method_section(collaborating("pooled")) is None
