"""The package's methods on the noisy quadratic against the exact recursion of its expected loss."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.engines import InProcess
from coterie.methods.aggregation.rules import Aggregator
from coterie.methods.collaboration.collaborators import Collaborators
from coterie.methods.collaboration.metric_and_similarity import Metric
from coterie.methods.weighted_averaging_and_bias_correction import BiasCorrection, WeightedAveraging
from coterie.objectives.quadratic import NoisyQuadratic
from papers.paper_004.exact import loss
from papers.paper_004.noisy_quadratic import Curve

LISTENING = {"aggregator": Aggregator()}


@pytest.mark.parametrize(
    ("d", "listening"),
    [
        (1, {}),
        (2, {}),
        (2, {"aggregator": Aggregator()}),
        pytest.param(1, {"aggregator": Aggregator()}, marks=pytest.mark.soak),
    ],
)
@pytest.mark.parametrize(
    ("kind", "alpha"),
    [("alone", 0.0), *((kind, alpha) for kind in ("wga", "bc from zero", "bc") for alpha in (5 / 6, 0.5))],
)
def test_the_noisy_quadratic_has_the_expected_loss_of_the_exact_recursion(kind, d, alpha, listening):
    """500 main clients that differ in their ids only, each with five collaborators of its own, are 500 runs."""
    R, N, sigma, eta, beta, times = 500, 5, 3.0, 0.05, 0.1, [1, 2, 5, 20, 60]
    A0, A1 = ([[1.0]], [[2.0]]) if d == 1 else ([[2.0, 0.5], [0.5, 1.0]], [[1.0, -0.3], [-0.3, 3.0]])
    A0, A1, x0, x1, start = np.array(A0), np.array(A1), np.zeros(d), np.full(d, 2.0), np.full(d, 1.5)
    A = np.concatenate([np.tile(A0, (R, 1, 1)), np.tile(A1, (R * N, 1, 1))])
    b = np.concatenate([np.tile(A0 @ x0, (R, 1)), np.tile(A1 @ x1, (R * N, 1))])
    who = Collaborators(np.arange(R), np.repeat(np.arange(R), N), R + np.arange(R * N), np.full(R * N, 1 / N))
    exchange = dict(pairs=who, metric=Metric.plain(d), batch=1, **listening)
    if kind.startswith("bc"):
        first = "zero" if kind.endswith("zero") else "sample"
        method = BiasCorrection(**exchange, alpha=alpha, eta=eta, beta=beta, first=first)
    else:
        method, first, beta = WeightedAveraging(**exchange, alpha=alpha, eta=eta), "zero", 0.0
    fed = InProcess(NoisyQuadratic(A, b, sigma), seed=5)
    expected = loss(Curve(A0, A1, x0, x1, sigma, N, eta, alpha, beta, start, int(first == "sample")), times)
    for state, at in zip(method.run(fed, times, method.init(fed, np.tile(start, (R, 1)))), expected, strict=True):
        seen = 0.5 * np.einsum("mi,ij,mj->m", state["x"] - x0, A0, state["x"] - x0)
        assert abs(seen.mean() - at) < 3.0 * seen.std(ddof=1) / np.sqrt(R)
