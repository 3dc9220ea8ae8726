"""What a report says of main clients and their collaborators."""

from __future__ import annotations

import numpy as np
import pandas as pd

import coterie
from coterie.report import collaboration
from coterie.report.html import render


def result(method, **rounds):
    rng = np.random.default_rng(0)
    x = rng.normal(size=120)
    df = pd.DataFrame({"site": np.repeat([f"s{i}" for i in range(6)], 20), "x": x, "y": x + rng.normal(size=120)})
    return coterie.fit(df, "y ~ x", "site", method=method, splits=0, rounds=rounds)


def test_averaging_says_weights_speedup_and_how_far_it_came():
    found = result("weighted-averaging", collaborators=3)
    (sentence,) = collaboration.sentences(found)
    assert "3 collaborators for each main client, alpha = " in sentence
    assert "predicted speed-up" in sentence
    assert "step size" not in sentence  # it was solved at once
    rows = dict(collaboration.table(found).rows)
    assert "exchanges until solved" in rows
    assert "steps" not in rows
    assert "step size, eta" not in rows
    assert rows["distance left, relative to the start's"] == "0"
    assert rows["collaborators of a main client"] == "3"
    assert "Main clients and their collaborators" in render(found)


def test_averaging_by_steps_says_their_size():
    found = result("weighted-averaging", steps=9)
    assert "step size" in collaboration.sentences(found)[0]
    assert dict(collaboration.table(found).rows)["steps"] == "9"


def test_correction_says_beta_and_what_is_kept():
    found = result("bias-correction", keep=0.25, steps=7)
    (sentence,) = collaboration.sentences(found)
    assert "25% of the bias kept" in sentence
    assert "speed-up" not in sentence
    assert dict(collaboration.table(found).rows)["steps"] == "7"


def test_other_methods_have_no_such_section():
    assert collaboration.sentences(result("pooled")) == []
