"""GPBoost: its grouped random effects, with its defaults (for outcomes that are not Gaussian it has Laplace too)."""

from __future__ import annotations

from importlib.metadata import version

import numpy as np

from benchmarks.peers.protocol import Answer, Problem

NAME = "GPBoost"
SOLVES = ("two-levels", "many-clients", "binomial", "poisson", "sites")  # it has no correlated intercept and slope


def release() -> str:
    return version("gpboost")


def fit(problem: Problem) -> Answer:
    import gpboost

    s, table = problem.settings, problem.table()
    X = np.column_stack([np.ones(len(table)), table[s["columns"]]])
    labels = [table[s["levels"][: k + 1]].astype(str).agg(":".join, axis=1) for k in range(len(s["levels"]))]
    groups = np.column_stack([np.unique(label, return_inverse=True)[1] for label in labels])
    slopes = {}
    if s["slopes"]:
        slopes["group_rand_coef_data"] = np.column_stack([X[:, 1]] * groups.shape[1])
        slopes["ind_effect_group_rand_coef"] = list(range(1, groups.shape[1] + 1))
    likelihood = {"binomial": "bernoulli_logit"}.get(s["family"], s["family"])
    model = gpboost.GPModel(group_data=groups, likelihood=likelihood, num_parallel_threads=1, **slopes)
    model.fit(y=table[s["outcome"]].to_numpy(float), X=X)
    fixed = np.asarray(model.get_coef(format_pandas=False)).ravel()[: X.shape[1]]
    return Answer(-float(model.get_current_neg_log_likelihood()), [float(b) for b in fixed])
