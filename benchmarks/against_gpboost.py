"""100,000 clients of 10 rows, intercept and slope, Gaussian, diagonal D: GPBoost against coterie."""

from __future__ import annotations

import time

import numpy as np

from benchmarks.measure import Row, median_seconds, skipped
from coterie.data.clients import Clients
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.relations.clusters import ClusterTree
from coterie.runs.run_table_method import run as fit_method
from papers.simulate import tree

WORK = "100,000 clients x 10 rows, intercept and slope, Gaussian, diagonal D"
GOAL = 10.0


def run() -> list[Row]:
    """Maximum likelihood on both sides; coterie with everything from arrays on, GPBoost's fit alone."""
    try:
        import gpboost
    except ImportError:
        return [skipped(WORK, "gpboost is not installed (extra: bench)")]
    table, _ = tree(clients=100_000, rows=10, columns=1, seed=1)
    X = np.column_stack([np.ones(len(table)), table["x1"]])
    y, labels = table["y"].to_numpy(), table["client"].to_numpy()

    def ours():  # type: ignore[no-untyped-def]
        clients = Clients.from_arrays(X, y, labels)
        problem = GroupedProblem(ClusterTree(), "gaussian", np.arange(2), 0)
        return fit_method("hierarchical", clients, problem, {"covariance": "diagonal", "reml": False})[0]

    seconds = median_seconds(ours)
    likelihood = ours().log_likelihood
    start = time.perf_counter()
    codes = np.unique(labels, return_inverse=True)[1]
    model = gpboost.GPModel(
        group_data=codes, group_rand_coef_data=X[:, 1], ind_effect_group_rand_coef=[1], likelihood="gaussian"
    )
    model.fit(y=y, X=X)
    theirs = time.perf_counter() - start
    their_likelihood = -float(model.get_current_neg_log_likelihood())
    ratio = theirs / seconds
    return [
        Row(
            WORK,
            f"{seconds:.2f} s, log-likelihood {likelihood:.3f}",
            f"GPBoost {theirs:.1f} s, {their_likelihood:.3f}",
            f"{ratio:.0f} times faster",
            f"{GOAL:.0f} times",
            ratio >= GOAL and likelihood >= their_likelihood - 1e-3,
        )
    ]
