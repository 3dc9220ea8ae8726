"""Pictures for notebooks: every kind, of the numbers that the result has, and a sentence where there are none."""

from __future__ import annotations

import re
import sys

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.errors import CoterieError
from coterie.evidence.training_comparison import compare
from coterie.report import fit_figures
from coterie.report.matplotlib_plots import colours
from coterie.results.training_result import TrainingResult
from tests.messages import names
from tests.results import factory
from tests.runs.test_training import config


@pytest.fixture(autouse=True)
def _closed():
    with plt.rc_context({"backend": "agg"}):
        yield
    plt.close("all")


@pytest.fixture(scope="module")
def usual():
    return factory.world(clients=40, D=np.diag([1.0, 0.2])).result


@pytest.fixture(scope="module")
def nets():
    found = compare(config(run={"seeds": 2}), ["fedavg", "ditto", "group-models"], models=True)
    return TrainingResult.of(found, "group-models")


def test_gains_are_those_of_the_clients(usual) -> None:
    ax = usual.plot.gains()
    points = ax.collections[0].get_offsets()
    np.testing.assert_array_equal(points, usual.client_gains[["rows", "gain_over_local"]])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("rows of the school (logarithmic)", "gain (squared error)")
    pooled = usual.plot.gains(over="pooled", ax=ax)
    assert pooled is ax
    np.testing.assert_array_equal(ax.collections[1].get_offsets()[:, 1], usual.client_gains["gain_over_pooled"])


def test_clients_have_their_intervals(usual) -> None:
    ax = usual.plot.clients("x")
    line, _, (bars,) = ax.containers[0]
    order = usual.client_coefficients["x"].sort_values().index
    np.testing.assert_allclose(line.get_ydata(), usual.client_coefficients["x"][order])
    half = 1.96 * usual.client_std_errors["x"][order]
    seen = np.array([part[:, 1] for part in bars.get_segments()])
    np.testing.assert_allclose(np.diff(seen, axis=1).ravel(), 2 * half)
    assert ax.get_ylabel() == "y for one more of x"


def test_coefficients_and_methods(usual) -> None:
    ax = usual.plot.coefficients()
    assert [t.get_text() for t in ax.get_yticklabels()] == ["x"]
    assert ax.containers[0][0].get_xdata() == pytest.approx([usual.model.root[1]])
    ax = usual.plot.methods()
    first = ax.containers[0][0].get_xdata()[0]
    assert first == usual.comparison["gain_over_local"][usual.comparison["loss_rows"].idxmin()]


def test_points_stand_clear_of_the_frame_and_rows_are_whole() -> None:
    table = pd.DataFrame({"c": np.repeat(np.arange(250), 4), "x": np.tile(np.arange(4.0), 250)})
    table["y"] = np.random.default_rng(0).normal(size=len(table)) + np.repeat(
        np.random.default_rng(1).normal(size=250), 4
    )
    fit = coterie.fit(table, "y ~ x", "c", splits=3)
    for ax in (fit.plot.methods(), fit.plot.coefficients()):
        at = ax.containers[0][0].get_ydata()
        assert ax.get_ylim() == (at.max() + 0.5, -0.5)
    assert all(float(tick).is_integer() for tick in fit.plot.gains().get_xticks())
    clients = fit.plot.clients()
    assert clients.get_xlabel() == "200 of 250 c groups, in order"
    (figure,) = [
        one for one in fit_figures.gain_figures(fit) if one.title == "Gain over local models, by number of rows"
    ]
    assert re.findall(r'class="tick"[^>]*text-anchor="middle">([^<]*)<', figure.svg) == ["3", "4", "5"]


def test_calibration_is_of_probabilities() -> None:
    world = factory.world(clients=20, rows=100, family="binomial", loss="log loss")
    x, y = world.result.plot.calibration(table=world.table).lines[-1].get_data()
    assert len(x) == 10 and np.all(np.diff(x) > 0.0)
    # The model is off the truth by little: 200 rows a tenth, so a standard error is .035 at most.
    assert np.abs(x - y).max() < 4 * 0.036
    assert np.mean(y) == pytest.approx(world.table["y"].mean(), abs=1e-9)


def test_residuals_and_network_of_a_fit() -> None:
    table = factory.world(clients=12, levels=()).table
    ties = {"space": "model", "k": 2, "lam": 0.1}
    fit = coterie.fit(table, "y ~ x", "school", method="similarity-network", network=ties, splits=0)
    assert len(fit.plot.network().lines) == fit.model.info["network"]["ties"]
    np.testing.assert_array_equal(fit.plot.residuals().lines[-1].get_xydata().T, fit.fit_check["qq"])


def test_nets(nets) -> None:
    curves = nets.plot.curves()
    assert [line.get_label() for line in curves.lines] == list(nets.comparison.index)
    assert "megabytes" in nets.plot.curves("bytes").get_xlabel()
    evidence = nets.evidence
    ends = nets.plot.clients().collections
    assert sum(len(one.get_offsets()) for one in ends[::2]) == sum(evidence.clients(n).size for n in evidence.runs)
    heights = [bar.get_height() for bar in nets.plot.gains("fedavg").patches]
    gain = (evidence.clients("group-models") - evidence.clients("fedavg")).mean(axis=0)
    np.testing.assert_allclose(heights, np.sort(gain))
    together = np.isfinite(np.ma.filled(nets.plot.groups().images[0].get_array(), np.nan))
    assert together.sum() == sum(np.bincount(nets.group) ** 2)
    shown = nets.plot.methods().containers[0][0].get_xdata()
    np.testing.assert_array_equal(shown, nets.comparison[evidence.score])


def test_what_cannot_be_drawn_is_said(usual, nets, monkeypatch) -> None:
    for draw, words in (
        (lambda: usual.plot.gains("others"), "local pooled others"),
        (lambda: usual.plot.clients("X"), "no term X"),
        (lambda: usual.plot.network(), "network similarity-network"),
        (lambda: usual.plot.calibration(), "probabilities gaussian"),
        (lambda: usual.plot.residuals(), "residuals rows"),
        (lambda: nets.plot.gains("pooled!"), "gains over pooled!"),
        (lambda: nets.plot.curves("hours"), "rounds bytes hours"),
    ):
        with pytest.raises(CoterieError, match=names(words)):
            draw()
    with pytest.raises(AttributeError, match=r"no picture 'curve'.*clients, curves"):
        _ = nets.plot.curve
    assert not hasattr(usual.plot, "__wrapped__")
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(CoterieError, match=names("matplotlib pip install plot")):
        usual.plot.gains()


def test_colours_are_those_of_a_light_page() -> None:
    assert (colours()["gain"], colours()["g7"]) == ("#0b6e63", "#3a8fb7")
