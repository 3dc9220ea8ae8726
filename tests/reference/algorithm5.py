"""Algorithm 5 of paper 003, corrected, by the package's own kernels: a fixed penalty, and exact Z-steps.

The matrix ``H + rho B'B`` of masses H is the same in all iterations, and factored once.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csc_array
from scipy.sparse.linalg import splu

from coterie.numerics.network.edge_penalty_problem import Certified, Problem, certify
from coterie.numerics.network.prox import CHECK, Relaxed


def algorithm5(problem: Problem, rho: float, gap: float, iterations: int) -> Certified:
    """From Z = V and U = 0 to a certified pair, in so many iterations at most."""
    U = np.zeros((len(problem.edges), problem.V.shape[1]))
    best, done = certify(problem, U, problem.V), 0
    state = Relaxed(problem, Certified(problem.V, U, best.gap), rho)
    n, m, (i, j) = len(problem.V), len(problem.edges), problem.edges.T
    rows, columns = np.concatenate([i, j, i, j, np.arange(n)]), np.concatenate([i, j, j, i, np.arange(n)])
    values = np.concatenate([np.full(2 * m, rho), np.full(2 * m, -rho), problem.H[:, 0, 0]])
    factors = splu(csc_array((values, (rows, columns)), shape=(n, n)), permc_spec="MMD_AT_PLUS_A")
    while best.gap > gap and done < iterations:
        for _ in range(min(CHECK, iterations - done)):
            state.Z += factors.solve(state.residual(1.0))
            done += 1
        best = certify(problem, state.U, state.Z, best=best)
    return best
