"""glum: generalised linear models, without a penalty."""

from __future__ import annotations

from importlib.metadata import version

import numpy as np

from benchmarks.peers.protocol import Answer, Problem

NAME = "glum"
SOLVES = ("glm",)


def release() -> str:
    return version("glum")


def fit(problem: Problem) -> Answer:
    from glum import GeneralizedLinearRegressor

    s, table = problem.settings, problem.table()
    model = GeneralizedLinearRegressor(family="binomial", alpha=0)
    model.fit(table[s["columns"]], table[s["outcome"]])
    beta = [float(model.intercept_), *map(float, model.coef_)]
    eta = beta[0] + table[s["columns"]].to_numpy() @ np.array(beta[1:])
    return Answer(float(np.sum(table[s["outcome"]] * eta - np.logaddexp(0.0, eta))), beta)
