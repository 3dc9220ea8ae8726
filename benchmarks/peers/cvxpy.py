"""CVXPY with Clarabel, its own preparation of the problem included."""

from __future__ import annotations

from importlib.metadata import version

import numpy as np

from benchmarks.peers.protocol import Answer, Problem

NAME = "CVXPY"
SOLVES = ("clustering",)


def release() -> str:
    return f"{version('cvxpy')} with Clarabel {version('clarabel')}"


def fit(problem: Problem) -> Answer:
    import cvxpy as cp
    from scipy.sparse import csr_array

    s, V, edges = problem.settings, problem.arrays["V"], problem.arrays["edges"]
    rows = np.repeat(np.arange(len(edges)), 2)
    B = csr_array((np.tile([1.0, -1.0], len(edges)), (rows, edges.ravel())), shape=(len(edges), len(V)))
    Z = cp.Variable(V.shape)
    objective = 0.5 * cp.sum_squares(Z - V) + s["weight"] * cp.sum(cp.norm(B @ Z, 2, axis=1))
    cp.Problem(cp.Minimize(objective)).solve(solver=cp.CLARABEL, tol_gap_rel=s["gap"], tol_gap_abs=1e-12)
    apart = np.linalg.norm(B @ Z.value, axis=1).sum()
    return Answer(float(0.5 * ((Z.value - V) ** 2).sum() + s["weight"] * apart))
