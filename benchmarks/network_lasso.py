"""Logistic losses tied along a graph, solved exactly: against CVXPY with Clarabel at 50 clients, alone at 1,000.

1,000 clients x 50 rows x 10 columns in five hidden groups, 10 nearest neighbours, at three lambdas: one that finds the
groups, one at which clients begin to part, one at which all are apart. The slowest counts.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import numpy as np

from benchmarks.measure import Row, median_seconds
from coterie.engines import InProcess
from coterie.methods.networks.optimum import Optimum, optimum, path
from coterie.objectives.glm import GLM
from coterie.relations.network import Network
from coterie.relations.parameter_layout import Layout

NORMS = (1, 2, np.inf)
LAMBDAS = (1e-4, 1e-5, 1e-6)
KKT, SECONDS, EQUAL = 1e-6, 20.0, 1e-6


def table(n: int, rows: int = 50, d: int = 10) -> tuple[GLM, Network]:
    """Clients in five groups and the graph of their coefficients, seen with noise."""
    rng = np.random.default_rng(0)
    theta = rng.normal(size=(5, d))[rng.integers(0, 5, n)] + 0.1 * rng.normal(size=(n, d))
    X = rng.normal(size=(n * rows, d))
    X[:, 0] = 1.0
    eta = np.sum(X * np.repeat(theta, rows, axis=0), axis=1)
    y = (rng.uniform(size=len(eta)) < 1.0 / (1.0 + np.exp(-eta))).astype(np.float64)
    starts = np.arange(n) * rows
    glm = GLM(X, y, np.zeros(len(y)), np.ones(len(y)), starts, starts + rows, "binomial")
    return glm, Network.nearest(theta + 0.3 * rng.normal(size=theta.shape), min(10, n - 1))


def by_cvxpy(glm: GLM, network: Network, lam: float, p: float, layout: Layout) -> float:
    """The minimum as Clarabel finds it."""
    import cvxpy as cp

    n, rows = len(glm), glm.stops[0] - glm.starts[0]
    X, y = glm.X.reshape(n, rows, -1), glm.y.reshape(n, rows)
    x, Z = cp.Variable(max(layout.d1, 1)), cp.Variable((n, layout.d2))
    M = layout.M.toarray() if layout.d1 else np.zeros((layout.d, 1))
    N, total = layout.N.toarray(), 0
    for i in range(n):
        eta = (X[i] @ M) @ x + (X[i] @ N) @ Z[i]
        total += cp.sum(cp.logistic(eta)) - y[i] @ eta
    i, j = network.edges.T
    penalty = lam * cp.sum(cp.norm(Z[i] - Z[j], "inf" if p == np.inf else p, axis=1))
    problem = cp.Problem(cp.Minimize(total / (n * rows) + penalty))
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    return float(problem.value)


def timed(function: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = perf_counter()
    function()
    return perf_counter() - start


def against_cvxpy() -> list[Row]:
    """Objectives at 50 clients, all columns personal and six of ten."""
    glm, network = table(50)
    out = []
    for layout, what in ((Layout.columns(10, np.arange(10)), "personal"), (Layout.columns(10, np.arange(6)), "shared")):
        for p in NORMS:
            found: dict[str, float] = {}

            def ours(p: float = p, layout: Layout = layout, found: dict[str, float] = found) -> None:
                found["ours"] = optimum(InProcess(glm), network, 1e-3, p, layout=layout, kkt=1e-8).value

            seconds = median_seconds(ours)
            theirs = timed(
                lambda p=p, layout=layout, found=found: found.update(cvxpy=by_cvxpy(glm, network, 1e-3, p, layout))
            )
            apart = abs(found["ours"] - found["cvxpy"]) / found["cvxpy"]
            columns = "10 personal columns" if what == "personal" else "6 personal columns, 4 shared"
            reached = f"{theirs / seconds:.0f} times, objectives {apart:.0e} apart"
            out.append(
                Row(
                    f"Network lasso, logistic, 50 clients x 50 rows, {columns}, p = {p}",
                    f"{seconds:.3f} s",
                    f"CVXPY with Clarabel {theirs:.1f} s",
                    reached,
                    f"{EQUAL:.0e} apart",
                    apart <= EQUAL,
                )
            )
    return out


def large() -> list[Row]:
    """1,000 clients, from nothing; and a whole path."""
    glm, network = table(1000)
    layout, out = Layout.columns(10, np.arange(10)), []
    for p in NORMS:
        found: list[tuple[float, Optimum]] = []
        for lam in LAMBDAS:
            at: dict[str, Optimum] = {}
            seconds = timed(
                lambda p=p, lam=lam, at=at: at.update(o=optimum(InProcess(glm), network, lam, p, layout=layout))
            )
            found.append((seconds, at["o"]))
        slowest, worst = max(s for s, _ in found), max(o.kkt for _, o in found)
        groups = ", ".join(str(int(o.groups.max()) + 1) for _, o in found)
        out.append(
            Row(
                f"Network lasso, logistic, 1,000 clients x 50 rows x 10 columns, p = {p}, lambda 1e-4, 1e-5, 1e-6",
                f"{slowest:.1f} s, the slowest",
                "-",
                f"KKT residual {worst:.0e}; {groups} groups; {max(o.exchanges for _, o in found)} exchanges",
                f"{SECONDS:.0f} s, {KKT:.0e}",
                slowest <= SECONDS and worst <= KKT,
            )
        )
    along: dict[str, int] = {}
    seconds = timed(lambda: along.update(k=len(path(InProcess(glm), network, layout=layout, steps=20).at)))
    out.append(
        Row(
            f"The same, p = 2: a path of {along['k']} lambdas over a factor 10,000",
            f"{seconds:.1f} s",
            *("-",) * 3,
            None,
        )
    )
    return out


def run() -> list[Row]:
    return against_cvxpy() + large()
