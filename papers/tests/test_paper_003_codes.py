"""Paper 003, section V: Figures 5 and 6, and what the paper says of eq. (7)."""

from __future__ import annotations

import json

import numpy as np
import pytest

from coterie import CoterieError
from coterie.codecs import by_name
from coterie.data.datasets import fetch
from coterie.numerics.total_variation import pinned_tv
from papers import outcome
from papers.paper_003 import figure5, figure6
from papers.pictures import render


def made(figure):
    found = figure.run(outcome.Settings(quick=True))
    assert json.loads(outcome.document("003", found, 1.0))["numbers"]
    pytest.importorskip("matplotlib")
    assert b"<svg" in render(found.draw)
    return found.numbers


def test_figure5_clusters_make_differences_sparse_and_codes_short() -> None:
    numbers = made(figure5)
    assert numbers["nonzero"][0] == figure5.D
    assert numbers["nonzero"][1] <= 6
    assert len(np.unique(numbers["clustered"])) == figure5.K
    bits = numbers["bits"]
    assert bits["value and length of each run"][1] * 8 < bits["value and length of each run"][0]
    for name, (without, with_clusters) in bits.items():
        assert with_clusters < without or name in ("32 bits an element", "message of codec qsgd:4")
    sent = by_name("tv:3:gamma=0").encode(numbers["clustered"][None], 0, 0)
    assert 8 * len(sent.payload.values) == bits["message of codec tv:3, gamma 0"][1]
    np.testing.assert_allclose(sent.claimed[0], numbers["clustered"], atol=0.01)


def test_figure6_an_update_is_left_with_few_values_in_few_runs() -> None:
    pytest.importorskip("rdata")
    try:
        fetch("spambase")
    except CoterieError as e:
        pytest.skip(str(e))
    numbers = made(figure6)
    g, elements, size = numbers["gradient"], numbers["elements"], numbers["bytes"]
    assert len(np.unique(g)) == 57
    np.testing.assert_allclose(elements["gamma = 0"], g, rtol=1e-6)
    rms = np.sqrt(np.mean(g**2))
    assert np.abs(np.cumsum(g)).max() > 2.0 * rms  # so gamma is as asked
    np.testing.assert_allclose(elements["total variation"], pinned_tv(g, rms), rtol=2.0**-8, atol=1e-12)
    assert len(np.unique(elements["and k-means, k = 4"])) == 4
    assert len(np.unique(elements["and k-means, k = 3"])) == 3
    assert size["gamma = 0"] > 4 * size["total variation"] > 8 * size["and k-means, k = 4"]
    own, natural = (numbers["by_order"][k] for k in ("by the client's last gradient", "as they come"))
    assert own[0] < natural[0] and own[1] < natural[1] and own[2] < natural[2]


def test_eq_7_does_not_depend_on_the_step_size_or_the_point() -> None:
    """``(x - v) / eta`` with v from eq. (7), for any eta and x, is the prox of the gradient."""
    import cvxpy as cp

    rng = np.random.default_rng(0)
    for eta, gamma in ((0.1, 0.3), (2.0, 1.0)):
        g, x = rng.normal(size=12), rng.normal(size=12)
        y = cp.Variable(12)
        jumps = cp.norm1(cp.diff(y - x)) + cp.abs(y[-1] - x[-1])
        cp.Problem(cp.Minimize(g @ y + gamma * jumps + cp.sum_squares(y - x) / (2.0 * eta))).solve(
            solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12
        )
        np.testing.assert_allclose((x - y.value) / eta, pinned_tv(g, gamma), atol=1e-6)
