"""The prox of a similarity network: clients pulled together along edges, solved to a certified duality gap.

``min_Z 1/2 sum_i (z_i - v_i)' H_i (z_i - v_i) + sum_e weight_e ||z_i - z_j||_p`` is the Z-step of paper 003
(Algorithm 5). Its dual has a vector ``U_e`` on every edge, in the ball of the dual norm with radius ``weight_e``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.numerics.arrays import Floats
from coterie.numerics.network.edge_norms import project_all
from coterie.numerics.network.newton import newton
from coterie.numerics.network.problem import Certified, Problem, certify
from coterie.numerics.network.splitting import Relaxed
from coterie.options import Option, checked

FIRST = {1.0: 60, 2.0: 60, float("inf"): 400}
"""Iterations of the splitting, for each p, before Newton's method has its first turn: most problems are solved by then.

For p = inf the faces of the dual balls change at nearly every Newton step until the end is near."""
PRODUCTS = 4  # Hessian products that take about as long as one iteration of the splitting


@dataclass(frozen=True)
class Proximal:
    """A solution of the network prox and its certificate."""

    Z: Floats  # (n, q): clients that have merged have equal rows
    # (M, q): U with ||U_e|| <= weight_e in the dual norm and H (V - Z) = B'U, the sum over each client's edges with the
    # sign of its end, as far as the gap says
    dual: Floats
    # (primal - dual) / primal, from this Z and this U; primal counts as 1e-20 of ||V||_H^2 / 2 at least, so that rows
    # of V that differ by rounding do not ask for more than there is
    gap: float
    iterations: int


@checked
def network_prox(
    V: npt.ArrayLike,
    edges: npt.ArrayLike,
    weight: npt.ArrayLike,
    p: float = 2,
    gap: Annotated[float, Option("Stop when (primal - dual) / primal is at most this.", low=0.0)] = 1e-6,
    *,
    metric: npt.ArrayLike | None = None,
    start: Proximal | None = None,
    iterations: Annotated[int, Option("Stop after so many.", low=1)] = 100_000,
) -> Proximal:
    """Minimise ``1/2 sum_i (z_i - v_i)' H_i (z_i - v_i) + sum_e weight_e ||z_i - z_j||_p`` over Z.

    V (n, q) has a row for each client; ``edges`` (M, 2) are pairs of clients, each once; ``weight`` is one for all or
    (M,), lambda part of it; ``metric`` are positive masses (n,) or symmetric positive definite matrices H (n, q, q), by
    default the identity. ``start`` is a former solution on the same edges, also for other weights, V or metric.

    The alternating direction method, relaxed and with rough Z-steps, takes turns with semismooth Newton steps on the
    augmented Lagrangian. A CoterieError for numbers that are not finite, edges that name unknown clients, tie a client
    to itself or come twice, negative weights, shapes that do not fit.
    """
    problem = Problem.of(V, edges, weight, p, metric)
    U = np.zeros((len(problem.edges), problem.V.shape[1]))
    Z = problem.V.copy()
    if start is not None:
        if start.dual.shape != U.shape or start.Z.shape != Z.shape:
            raise CoterieError("The start is of another network: its clients, edges and columns must be those of now.")
        U, Z = start.dual.copy(), start.Z.copy()
        project_all(U, problem.p, problem.weight)
    tied = problem.weight > 0.0
    found, done = _take_turns(problem.of_edges(tied), Z, U[tied], gap, iterations)
    U[tied] = found.U
    return Proximal(found.Z, U, found.gap, done)


def _take_turns(problem: Problem, Z: Floats, U: Floats, gap: float, iterations: int) -> tuple[Certified, int]:
    """From Z and a feasible U to a certified pair; and the iterations that it took, Newton's steps among them.

    Turns of the splitting and of Newton's method grow in length, so that neither costs more than the other twice.
    """
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
