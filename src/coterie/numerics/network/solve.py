"""Which of the two solvers works when: turns of growing length, so that neither can cost more than the other twice."""

from __future__ import annotations

from coterie.numerics.kernels import Floats
from coterie.numerics.network.merge import Certified, certify
from coterie.numerics.network.newton import newton
from coterie.numerics.network.problem import Problem
from coterie.numerics.network.relaxed import Relaxed

FIRST = {1.0: 60, 2.0: 60, float("inf"): 400}
"""Iterations of the splitting, for each p, before Newton's method has its first turn: most problems are solved by then.

For p = inf the faces of the dual balls change at nearly every Newton step until the end is near."""
PRODUCTS = 4
"""Hessian products that take about as long as one iteration of the splitting."""


def solve(problem: Problem, Z: Floats, U: Floats, gap: float, iterations: int) -> tuple[Certified, int]:
    """From Z and a feasible U to a certified pair; and the iterations that it took, Newton's steps among them."""
    best, turn, done = certify(problem, U, Z), FIRST[problem.p], 0
    if best.gap <= gap:
        return best, 0
    splitting = Relaxed(problem, Certified(Z, U, best.gap))
    while best.gap > gap and done < iterations:
        before = splitting.done
        best = splitting.improve(best, gap, min(turn, iterations - done))
        done += splitting.done - before
        if best.gap > gap and done < iterations:
            entry = best.gap
            best, steps = newton(problem, best, 3.0 * splitting.rho, gap, PRODUCTS * turn)
            done += steps
            if best.gap < 0.1 * entry:
                splitting.restart(best)
        turn *= 2
    return best, done
