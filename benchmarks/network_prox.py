"""The network prox to a relative gap of 1e-6: seconds, against CVXPY with Clarabel and against Algorithm 5's ADMM.

Clients of ten hidden groups in ten dimensions, tied to their ten nearest neighbours. Weak: hardly anybody merges;
middle: many do, not all; strong: groups have become one, or nearly.

The ADMM is that of tests/reference/network_prox_twin.py (NumPy, and SciPy's sparse LU, factored once), with the rho of
a grid that needs fewest iterations, which nobody knows beforehand; its gap, from its Z or from what its U gives, is
looked at every ten iterations, as ours is, and that is not counted in its time. "compiled" is the same ADMM with the
same rho by our kernels (tests/reference/algorithm5.py) and our certificate, for which merged clients are set equal.
"""

from __future__ import annotations

import resource
import runpy
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.measure import Row, median_seconds
from coterie.numerics.network.edge_penalty_problem import Problem, relative_gap
from coterie.numerics.network.prox import network_prox

REFERENCE = Path(__file__).parents[1] / "tests" / "reference"
twin = runpy.run_path(str(REFERENCE / "network_prox_twin.py"))
algorithm5 = runpy.run_path(str(REFERENCE / "algorithm5.py"))["algorithm5"]

INF = float("inf")
LAMBDAS = {2: (0.1, 0.3, 1.0), 1: (0.02, 0.06, 0.3), INF: (0.1, 0.5, 3.0)}
LARGE = {2: 0.3, 1: 0.06, INF: 0.3}
RHOS, MOST = (0.2, 0.4, 0.8, 1.6, 3.2), 1000
GAP, GOAL_CVXPY, GOAL_ADMM = 1e-6, 50.0, 5.0
LARGE_GAP, GOAL_SECONDS, GOAL_GIGABYTES = 1e-4, 120.0, 4.0


def network(n: int, groups: int = 10, q: int = 10, k: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """V and the edges of its graph of k nearest neighbours."""
    from scipy.spatial import cKDTree

    rng = np.random.default_rng(0)
    V = rng.normal(size=(groups, q))[rng.integers(0, groups, n)] + 0.5 * rng.normal(size=(n, q))
    near = cKDTree(V).query(V, k + 1)[1][:, 1:]
    pairs = np.stack([np.repeat(np.arange(n), k), near.ravel()], axis=1)
    return V, np.unique(np.sort(pairs, axis=1), axis=0)


def by_admm(problem: Problem, rho: float, most: int) -> tuple[int, float]:
    """Iterations of the ADMM until the gap is reached, and seconds that they took."""
    B = twin["differences"](len(problem.V), problem.edges)
    start = time.perf_counter()
    steps, seconds = twin["admm"](problem.V, problem.edges, problem.weight, problem.p, rho), 0.0
    for i in range(1, most + 1):
        Z, U = next(steps)
        if i % 10 == 0:
            seconds += time.perf_counter() - start
            free = problem.V - B.T @ U
            if min(relative_gap(problem, Z, U, free), relative_gap(problem, free, U, free)) <= GAP:
                return i, seconds
            start = time.perf_counter()
    return most, seconds


def best_admm(problem: Problem) -> tuple[float, int, float]:
    """The rho with fewest iterations, how many, and the seconds of a second run with it."""
    most, best = MOST, RHOS[-1]
    for rho in RHOS:
        n, _ = by_admm(problem, rho, most)
        most, best = (n, rho) if n < most else (most, best)
    return best, *by_admm(problem, best, MOST)


def by_cvxpy(V: np.ndarray, edges: np.ndarray, weight: float, p: float) -> float:
    """Seconds of CVXPY with Clarabel, its own preparation included."""
    import cvxpy as cp

    B = twin["differences"](len(V), edges)
    start = time.perf_counter()
    Z = cp.Variable(V.shape)
    tied = cp.sum(cp.norm(B @ Z, p, axis=1))
    problem = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(Z - V) + weight * tied))
    problem.solve(solver=cp.CLARABEL, tol_gap_rel=GAP, tol_gap_abs=1e-12)
    return time.perf_counter() - start


def row(V: np.ndarray, edges: np.ndarray, weight: float, p: float, strength: str) -> Row:
    """All three sides on one problem."""
    before = median_seconds(lambda: network_prox(V, edges, weight, p, GAP))
    problem = Problem.of(V, edges, weight, p, None)
    rho, n, theirs = best_admm(problem)
    compiled = median_seconds(lambda: algorithm5(problem, rho, GAP, MOST))
    ours = 0.5 * (before + median_seconds(lambda: network_prox(V, edges, weight, p, GAP)))
    clarabel = by_cvxpy(V, edges, weight, p)
    found = network_prox(V, edges, weight, p, GAP)
    values = len(np.unique(found.Z, axis=0)) if p == 2 else np.mean([len(np.unique(z)) for z in found.Z.T])
    return Row(
        f"network prox, N = {len(V):,}, p = {p}, {strength} lambda {weight:g}: {values:.0f} values",
        f"{1e3 * ours:.0f} ms, {found.iterations} iterations, gap {found.gap:.0e}",
        f"CVXPY {clarabel:.1f} s; ADMM, sparse LU, rho = {rho:g}, {n} iterations: {1e3 * theirs:.0f} ms; "
        f"compiled {1e3 * compiled:.0f} ms",
        f"{clarabel / ours:.0f}; {theirs / ours:.1f}; {compiled / ours:.1f} times",
        f"{GOAL_CVXPY:.0f} and {GOAL_ADMM:.0f} times",
        clarabel / ours >= GOAL_CVXPY and theirs / ours >= GOAL_ADMM,
    )


def large(n: int = 100_000) -> list[Row]:
    """Seconds and the process's peak memory at many clients."""
    V, edges = network(n, groups=50)
    rows = []
    for p, weight in LARGE.items():
        start = time.perf_counter()
        found = network_prox(V, edges, weight, p, LARGE_GAP)
        seconds = time.perf_counter() - start
        gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e9 if sys.platform == "darwin" else 1e6)
        rows.append(
            Row(
                f"network prox, N = {n:,}, {len(edges):,} edges, p = {p}, lambda {weight:g}",
                f"{seconds:.0f} s, {found.iterations} iterations, gap {found.gap:.0e}",
                "-",
                f"{seconds:.0f} s, {gigabytes:.1f} GB",
                f"{GOAL_SECONDS:.0f} s, {GOAL_GIGABYTES:.0f} GB",
                bool(found.gap <= LARGE_GAP and seconds <= GOAL_SECONDS and gigabytes <= GOAL_GIGABYTES),
            )
        )
    return rows


def run() -> list[Row]:
    """A row for each p and strength, and the large ones."""
    rows = large()
    V, edges = network(1000)
    for p, weights in LAMBDAS.items():
        for weight, strength in zip(weights, ("weak", "middle", "strong"), strict=True):
            rows.append(row(V, edges, weight, p, strength))
    return rows
