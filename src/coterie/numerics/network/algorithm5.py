"""Algorithm 5 of seed 003, corrected: the alternating direction method with a fixed penalty.

The W-step is the prox of each p (the printed closed form is that of p = 2). The matrix ``H + rho B'B`` of the Z-step is
the same in all iterations: it is factored once where factors stay sparse, otherwise solved by conjugate gradients.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from coterie.numerics.kernels import Floats
from coterie.numerics.network.merge import Certified, certify
from coterie.numerics.network.newton import solve
from coterie.numerics.network.problem import Problem
from coterie.numerics.network.relaxed import CHECK, Relaxed

FACTORED = 3000
"""Clients up to which a k-NN graph is factored. Fill-in grows like n^2 there: 17 million entries and 28 s at 10,000."""
FLAT = 2.0
"""Edges for each client up to which any graph is: trees and grids fill in little."""
EXACT = 1e-10
"""Relative residual that counts as a solution of the Z-step."""


def algorithm5(
    problem: Problem, Z: Floats, U: Floats, gap: float, iterations: int, rho: float | None
) -> tuple[Certified, int]:
    """From Z and a feasible U to a certified pair; and the iterations that it took."""
    best, done = certify(problem, U, Z), 0
    state = Relaxed(problem, Certified(Z, U, best.gap), rho)
    step = z_step(problem, state.rho)
    while best.gap > gap and done < iterations:
        for _ in range(min(CHECK, iterations - done)):
            state.Z += step(state.residual(1.0))
            done += 1
        best = certify(problem, state.U, state.Z, best=best)
    return best, done


def z_step(problem: Problem, rho: float) -> Callable[[Floats], Floats]:
    """The solver of ``(H + rho B'B) X = R``."""
    n, m = len(problem.V), len(problem.edges)
    if problem.H.shape[1] == 1 and (n <= FACTORED or m <= FLAT * n):
        from scipy.sparse import csc_array
        from scipy.sparse.linalg import splu

        (i, j), one = problem.edges.T, np.full(m, rho)
        rows, columns = np.concatenate([i, j, i, j, np.arange(n)]), np.concatenate([i, j, j, i, np.arange(n)])
        values = np.concatenate([one, one, -one, -one, problem.H[:, 0, 0]])
        factors = splu(csc_array((values, (rows, columns)), shape=(n, n)), permc_spec="MMD_AT_PLUS_A")
        return lambda R: np.asarray(factors.solve(R))
    whole = np.ones(m), np.zeros((m, problem.V.shape[1])), np.ones((m, problem.V.shape[1]), dtype=np.bool_)
    near = problem.blocks(rho)

    def iterate(R: Floats) -> Floats:
        X = np.empty_like(R)
        solve(-R, problem.H, near, problem.edges, problem.p, rho, *whole, EXACT, 1000, X)
        return X

    return iterate
