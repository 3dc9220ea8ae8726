"""The pinned total-variation prox, d = 10^6: seconds, against the corrected Algorithm 4, and agreement with CVXPY.

The ADMM is that of tests/reference/pinned_tv_twin.py (NumPy, and SciPy's banded Cholesky, factored once), until it is
within 1e-5 of the solution, with the rho of a grid that needs fewest iterations on part of the vector: nobody knows it
beforehand. Both are timed in turn.
"""

from __future__ import annotations

import runpy
import time
from pathlib import Path

import numpy as np

from benchmarks.measure import Row, median_seconds
from coterie.numerics.total_variation import pinned_tv

TWIN = Path(__file__).parents[1] / "tests" / "reference" / "pinned_tv_twin.py"
admm = runpy.run_path(str(TWIN))["admm"]

D, FEWER, GAMMAS, RHOS, NEAR = 10**6, 20_000, (0.1, 1.0, 5.0), (1.0, 2.0, 3.0, 5.0, 7.0, 10.0), 1e-5
GOAL_SECONDS, GOAL_RATIO, GOAL_APART = 0.150, 50.0, 1e-6


def until_near(g: np.ndarray, gamma: float, rho: float, most: int = 5000) -> tuple[int, float]:
    """Iterations of the ADMM, and seconds that they took."""
    q, y, seconds, steps = pinned_tv(g, gamma), g, 0.0, admm(g, gamma, rho)
    for i in range(1, most + 1):
        start = time.perf_counter()
        y = next(steps)
        seconds += time.perf_counter() - start
        if np.linalg.norm(y - q) <= NEAR * np.linalg.norm(q):
            return i, seconds
    return most, seconds


def best_rho(g: np.ndarray, gamma: float) -> float:
    """The one of the grid with fewest iterations."""
    most, best = 5000, RHOS[0]
    for rho in RHOS:
        n, _ = until_near(g, gamma, rho, most)
        most, best = (n, rho) if n < most else (most, best)
    return best


def from_cvxpy(n: int = 200) -> float:
    """The largest difference from CVXPY over small cases, relative to the largest element."""
    import cvxpy as cp

    rng, worst = np.random.default_rng(3), 0.0
    for i in range(n):
        g = rng.normal(size=int(rng.integers(1, 41))) + rng.choice([0.0, 3.0, -3.0])
        g = [g, np.round(g), np.cumsum(g), g * (rng.random(len(g)) < 0.3)][i % 4]
        g, gamma = g / (np.abs(g).max() or 1.0), float(rng.choice([0.01, 0.1, 0.5, 1.0, 3.0, 30.0]))
        q = cp.Variable(len(g))
        jumps = cp.abs(q[-1]) + (cp.norm1(cp.diff(q)) if len(g) > 1 else 0.0)
        problem = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(q - g) + gamma * jumps))
        problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-13, tol_gap_rel=1e-13, tol_feas=1e-13)
        worst = max(worst, float(np.abs(pinned_tv(g, gamma) - q.value).max()))
    return worst


def run() -> list[Row]:
    """A row for each gamma, in units of the noise, and one for CVXPY."""
    g, rows = np.random.default_rng(0).normal(size=D), []
    for gamma in GAMMAS:
        rho = best_rho(g[:FEWER], gamma)
        before = median_seconds(lambda gamma=gamma: pinned_tv(g, gamma))
        n, theirs = until_near(g, gamma, rho)
        ours = 0.5 * (before + median_seconds(lambda gamma=gamma: pinned_tv(g, gamma)))
        rows.append(
            Row(
                f"pinned TV prox, d = {D:,}, gamma = {gamma:g} x noise",
                f"{1e3 * ours:.0f} ms, {1e9 * ours / D:.0f} ns an element",
                f"corrected ADMM, rho = {rho:g}, {n:,} iterations: {theirs:.1f} s",
                f"{theirs / ours:.0f} times",
                f"{GOAL_RATIO:.0f} times, {1e3 * GOAL_SECONDS:.0f} ms",
                theirs / ours >= GOAL_RATIO and ours <= GOAL_SECONDS,
            )
        )
    apart = from_cvxpy()
    rows.append(
        Row("pinned TV prox, 200 small cases", "exact", "CVXPY, Clarabel", f"{apart:.0e} apart", "1e-6", apart <= 1e-6)
    )
    return rows
