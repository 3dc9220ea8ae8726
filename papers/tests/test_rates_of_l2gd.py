"""Promised against measured: Theorem 3.5's bound for Async-L2GD, and linear convergence of Async-AL2SGD+."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coterie.families import GAUSSIAN
from coterie.methods.clustered_l2gd import theory as rates
from coterie.methods.clustered_l2gd.fit import (
    OPTIMUM,
    distance_monitor,
    gap,
    gradients_at_optimum,
    plan_async_al2sgd,
    plan_async_l2gd,
)
from coterie.methods.clustered_l2gd.options import Options
from papers.paper_001.acceleration import setting


@pytest.fixture(scope="module")
def here():
    return setting()


def small():
    """Few rows, so that every f_i has mu = 0: the theorems hold with mu_F."""
    from tests.methods.known_clusters import table, ties_of

    return table(seed=3, d=4, rows=(1, 4)), ties_of


def gaps_of(plan, fed, stops):
    """How far from the optimum at every stop."""
    return [
        gap(state["observed"]) for state in replace(plan.method, monitor=distance_monitor(GAUSSIAN)).run(fed, stops)
    ]


@pytest.mark.soak("own-2", "equal-0")
@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("kind", ["equal", "own"])
def test_the_mean_of_many_runs_lies_under_the_bound(kind, batch):
    from coterie.engines import InProcess
    from coterie.methods.clustered_l2gd.fit import solve_exactly
    from coterie.methods.problem_and_estimates import GroupedProblem
    from coterie.relations.clusters import ClusterTree

    (glm, clusters), ties_of = small()
    ties = ties_of(kind, clusters)
    stops = [1, 3, 10, 30, 100, 300, 600]
    squares = []
    for seed in range(30):
        fed = InProcess(glm, clusters, seed=seed)
        tree = ClusterTree((np.zeros(5, dtype=np.int64),))
        solve_exactly(fed, GroupedProblem(tree, "gaussian", np.arange(4), None), ties)
        if not seed:
            about = plan_async_l2gd(fed, ties, Options(steps=600, batch=batch)).about
            start = gradients_at_optimum(fed, ties, OPTIMUM).start
        plan = plan_async_l2gd(fed, ties, Options(steps=600, batch=batch, seed=seed, eta=about["eta"]))
        squares.append([start * g**2 for g in gaps_of(plan, fed, stops)])
    mean, error = np.mean(squares, axis=0), np.std(squares, axis=0, ddof=1) / np.sqrt(len(squares))
    bound = rates.bound(stops, about["eta"], about["mu"], about["sigma2"], start)
    assert about["mu"] > 0
    assert np.all(mean - 3 * error <= bound)
    ball = rates.ball(about["eta"], about["mu"], about["sigma2"])
    assert 0.005 * ball < mean[-1] < ball  # the noise is there, and the bound is not vacuous


@pytest.mark.soak
def test_the_accelerated_method_converges_linearly_at_the_promised_rate(here):
    """Condition number 10,000, one row a step: to 1e-10, where the plain method stays in its noise ball."""
    fed = here.fed(0)
    plan = plan_async_al2sgd(fed, here.ties, Options(steps=150_000))
    stops = list(range(10_000, 150_001, 10_000))
    gaps = np.array(gaps_of(plan, fed, stops))
    assert here.kappa == pytest.approx(1e4, rel=1e-4)
    assert gaps[-1] < 1e-10
    falling = np.log(gaps[2:12])
    line = np.polyfit(stops[2:12], falling, 1)
    assert np.corrcoef(stops[2:12], falling)[0, 1] < -0.98
    promised = np.log(plan.about["promised"]) / 150_000  # factor included: a lower estimate of the rate's size
    assert line[0] < promised < 0

    fed = here.fed(0)
    plain = plan_async_l2gd(
        fed, here.ties, Options(steps=150_000, eta=plan_async_l2gd(fed, here.ties, Options()).about["eta"])
    )
    left = gaps_of(plain, fed, stops[:8])
    assert min(left[5:]) > 1e-2 and max(left[5:]) < 1.0
