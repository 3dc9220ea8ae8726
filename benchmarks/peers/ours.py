"""coterie: the whole call, from the table on; for convex clustering and averaging from arrays on."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.peers.protocol import Answer, Problem

NAME = "coterie"


def release() -> str:
    import coterie

    return coterie.__version__


def fit(problem: Problem) -> Answer:
    if "outcome" not in problem.settings:
        return averaging(problem) if problem.name == "averaging" else clustering(problem)
    return glm(problem) if problem.name == "glm" else mixed(problem)


def mixed(problem: Problem) -> Answer:
    import coterie

    s = problem.settings
    *clusters, client = s["levels"]
    options = {"shared": [] if s["slopes"] else s["columns"], "covariance": s["covariance"], "family": s["family"]}
    options |= {"reml": False} if s["family"] == "gaussian" else {}
    formula = f"{s['outcome']} ~ {' + '.join(s['columns'])}"
    found = coterie.fit(problem.table(), formula, client, clusters, method="hierarchical", splits=0, **options)
    return Answer(found.log_likelihood, list(found.global_coefficients["estimate"]))


def glm(problem: Problem) -> Answer:
    import coterie

    s, table = problem.settings, problem.table()
    formula = f"{s['outcome']} ~ {' + '.join(s['columns'])}"
    found = coterie.fit(table, formula, "airport", family=s["family"], method="pooled", splits=0)
    beta = found.global_coefficients["estimate"].to_numpy()
    eta = beta[0] + table[s["columns"]].to_numpy() @ beta[1:]
    return Answer(float(np.sum(table[s["outcome"]] * eta - np.logaddexp(0.0, eta))), list(beta))


def clustering(problem: Problem) -> Answer:
    from coterie.numerics.network.prox import network_prox

    s, V, edges = problem.settings, problem.arrays["V"], problem.arrays["edges"]
    found = network_prox(V, edges, s["weight"], 2, s["gap"])
    return Answer(loss(V, edges, s["weight"], found.Z))


def loss(V: np.ndarray, edges: np.ndarray, weight: float, Z: np.ndarray) -> float:
    """What convex clustering minimises."""
    apart = np.linalg.norm(Z[edges[:, 0]] - Z[edges[:, 1]], axis=1)
    return 0.5 * float(((Z - V) ** 2).sum()) + weight * float(apart.sum())


def averaging(problem: Problem) -> Answer:
    from coterie.engines import InProcess
    from coterie.methods.fedavg import FedAvg
    from coterie.objectives.deep import Deep
    from coterie.objectives.deep.nets import mlp

    s, a = problem.settings, problem.arrays
    order = np.argsort(a["client"], kind="stable")
    stops = np.searchsorted(a["client"][order], np.arange(s["clients"]), side="right")
    objective: Any = Deep.of(mlp, a["X"][order], a["y"][order], np.r_[0, stops[:-1]], stops)
    fed, method = InProcess(objective, threads=1), FedAvg(eta=s["eta"], B=s["batch"])
    state = method.init(fed)
    for _ in range(s["rounds"]):
        state = method.step(fed, state)
    test = Deep.of(mlp, a["X_test"], a["y_test"], [0], [len(a["y_test"])])
    return Answer(float(test.accuracy(state["w"])[0]))
