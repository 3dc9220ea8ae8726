"""Lyu, Hanzely, Kolar (2022), section 6.2: scores of clients, the grid of strengths, learned variances."""

import numpy as np
import pytest

from coterie.engines.local_engines import InProcess
from coterie.methods import given_strengths
from coterie.runs.run_table_method import objective
from papers.paper_001 import donor, figure2
from papers.paper_001.responses import GRID, Scores, accuracy_table, over_grid, score
from papers.pictures import render


@pytest.fixture(scope="module")
def responses():
    """A small table like section 6.2's, split within clients."""
    return donor.simulated(0, quick=True)


def test_scores_are_those_of_every_client_by_itself(responses):
    test = responses.test
    theta = np.random.default_rng(0).normal(size=(len(test), 3)) * [1.0, 0.3, 0.3]
    loss, accuracy = responses.scores(theta)
    tested = np.flatnonzero(test.counts)
    assert len(loss) == len(accuracy) == len(tested)
    for at, i in enumerate(tested[:50]):
        rows = slice(test.starts[i], test.stops[i])
        p, y = 1.0 / (1.0 + np.exp(-test.X[rows] @ theta[i])), test.y[rows]
        assert loss[at] == pytest.approx(-np.mean(y * np.log(p) + (1 - y) * np.log(1 - p)), rel=1e-9)
        assert accuracy[at] == np.mean((p > 0.5) == y)


def test_a_fifth_of_the_rows_is_held_out_of_every_client(responses):
    train, test = responses.train.counts, responses.test.counts
    assert test.min() >= 1
    assert test.sum() / (train + test).sum() == pytest.approx(0.2, abs=0.01)


def test_cross_entropy_stops_at_a_hundred(responses):
    loss, _ = responses.scores(np.full((len(responses.test), 3), 1e6))
    assert loss.max() == 100.0
    assert responses.scores(np.full((len(responses.test), 3), np.nan))[0].max() == 100.0


def test_the_grid_is_that_of_the_paper():
    assert len(GRID) == 33
    np.testing.assert_allclose(np.log10(GRID[[0, 1, 2, -2, -1]]), [-2, -1.875, -1.75, 1.875, 2], atol=1e-12)


@pytest.mark.soak
def test_the_best_of_the_grid_is_its_lowest_average_and_learned_variances_are_as_good(responses):
    grid = GRID[::16]
    best, surface = over_grid(responses, grid, lambda _: None)
    assert best.loss.mean() == pytest.approx(surface.min(), rel=1e-9)
    assert surface[np.searchsorted(grid, best.info["gamma"]), np.searchsorted(grid, best.info["lam"])] == surface.min()
    at = {"gamma": best.info["gamma"], "lam": best.info["lam"]}
    theta = given_strengths.given(*federation(responses), **at).client
    assert responses.scores(theta)[0].mean() == pytest.approx(surface.min(), abs=1e-5)
    assert score(responses, "isotropic").loss.mean() < surface.min() + 0.001


def federation(data):
    return InProcess(objective(data.train, "binomial"), data.train.clusters, ids=data.train.ids), data.problem


def test_performance_ratios():
    ours = Scores(np.zeros(4), np.array([0.5, 0.6, 0.7, 0.8]), 0.0, {})
    other = Scores(np.zeros(4), np.array([0.5, 0.5, 0.9, 0.7]), 0.0, {})
    table = accuracy_table({"single": other, "grid": ours}, "")
    rows = {row[:2]: row for row in table.rows}
    assert rows["one model", "here"][-2:] == ("0.500", "0.750")
    assert rows["ours, grid's best", "here"][-2:] == ("1.000", "1.000")
    assert rows["one model", "paper"][-2:] == ("0.986", "–")


def test_figures_are_drawn():
    rng, grid = np.random.default_rng(0), GRID[::8]
    scores = {name: Scores(rng.exponential(0.3, 50), rng.random(50), 0.0, {"gamma": 1.0}) for name in donor.MODELS}
    compared = donor.Compared(100, 50, scores, rng.random((5, 5)))
    assert b"<svg" in render(lambda: donor.draw({"simulated": compared, "bank": compared}, grid))
    assert b"<svg" in render(lambda: figure2.draw({name: scores[name] for name in figure2.COLOURS}))
