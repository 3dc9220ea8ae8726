"""Rows of the registry for groups: split where clients disagree (CFL), and held together by penalties."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from coterie.methods.cfl import CFL
from coterie.methods.group_penalty import GroupPenalty
from tests.contract.baseline_cases import classes, training
from tests.contract.cases import Case, Problem, State, grouped, quadratic, streamed


def grouping(name: str, method: Any, problem: Any, rounds: int = 5, **fields: Any) -> Case:
    """A row for one method; results are every client's model and the groups, by who is with whom."""

    def stream(fed: Any, state: State | None = None, rounds: int = rounds) -> Iterator[State]:
        yield from training(method, fed, state, rounds)

    def finish(fed: Any, state: State) -> dict[str, Any]:
        found = {"theta": method.models(fed, state), "t": state["t"]}
        return found | ({"groups": len(state["w"])} if isinstance(method, CFL) else {"w": state["w"]})

    return streamed(name, stream, finish=finish, problem=problem, per_client=("theta",), **fields)


def personal_optimum(problem: Problem, lam: float = 0.6) -> dict[str, Any]:
    """Of ``sum_i n_i (f_i(z_i) + lam/2 |z_i - c_g|^2)`` with nothing shared, group by group."""
    q, n = problem.objective, problem.weights
    m, d = q.b.shape
    H = np.zeros((m * d, m * d))
    for i in range(m):
        H[i * d : (i + 1) * d, i * d : (i + 1) * d] = n[i] * q.A[i]
    pull = np.diag(n)
    for g in np.unique(problem.clusters):
        v = n * (problem.clusters == g)
        pull -= np.outer(v, v) / v.sum()
    best = np.linalg.solve(H + lam * np.kron(pull, np.eye(d)), (n[:, None] * q.b).ravel())
    return {"theta": best.reshape(m, d)}


GROUPING = [
    grouping("cfl", CFL(eta=0.2, eps1=0.3, eps2=0.3), quadratic, rounds=20),
    grouping("cfl-rows", CFL(eta=0.3, eps1=0.5, eps2=0.05, B=2), classes, random=True),
    grouping(
        "group-penalty",
        GroupPenalty(eta=0.2, lam=0.6, personal=("*",)),
        quadratic,
        to_optimum=80,
        optimum=personal_optimum,
    ),
    grouping(
        "group-penalty-rows",
        GroupPenalty(eta=0.1, lam=0.6, mu=0.5, margin=3.0, tau=3, B=2, C=0.5, personal=("1",)),
        partial(grouped),
        random=True,
    ),
]
