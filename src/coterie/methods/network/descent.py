"""Proximal Newton: minimise the quadratic model with the penalty, go there or part of the way, and ask again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.errors import CoterieError
from coterie.methods.network.exact import Exact, Place
from coterie.methods.network.model import minimise
from coterie.numerics.kernels import Floats

EXCHANGES = 200
"""Exchanges at most: a count far too high takes dozens."""
ROUNDING = 1e-13
STIFF = 1e4
"""How much stiffer than the clients the augmented term may be at the start of a model."""
SHORTEST = 1e-10
"""Share of a step that is tried last."""


@dataclass(frozen=True)
class Descent:
    """Where it ended, the duals and the residual there, and how many exchanges it took."""

    here: Place
    U: Floats
    kkt: float
    exchanges: int


@np.errstate(over="ignore", invalid="ignore")  # a step that overflows is halved
def descend(at: Exact, x: Floats, Z: Floats, dual: Floats, kkt: float) -> Descent:
    """Go from (x, Z), with duals of F as they are in ``Optimum``, to where the residual is at most ``kkt``.

    A step counts where F falls by a part of what the model promised, or where the residual halves: near the optimum F
    is known to rounding only, and models are solved only as well as they are worth.
    """
    here, exchanges = at.ask(x, Z), 1
    if not np.isfinite(here.value):
        raise CoterieError("The means overflow at the offsets given: an offset is the logarithm of a size.")
    U, sigma = at.feasible(dual * here.weight, here), 0.0
    best = off = at.kkt(here, U)
    while off > kkt:
        model = at.model(here)
        goal = minimise(
            model, U, min(max(sigma, model.sigma), STIFF * model.sigma), max(min(0.1 * off, off**1.5), 0.2 * kkt)
        )
        sigma, U = goal.sigma, goal.U
        dx, dz = goal.x - here.x, goal.Z - here.Z
        promised = float(model.gx @ dx + np.sum(model.gz * dz))
        promised += at.penalty(goal.Z, here.weight) - at.penalty(here.Z, here.weight)
        t = 1.0
        while True:
            if exchanges >= EXCHANGES or t < SHORTEST:
                return Descent(here, U, at.kkt(here, U), exchanges)
            there, exchanges = at.ask(here.x + t * dx, here.Z + t * dz), exchanges + 1
            new = at.kkt(there, U)
            falls = there.value <= here.value + 1e-4 * t * promised + ROUNDING * (1.0 + abs(here.value))
            if falls or new <= 0.5 * best:
                break
            t *= 0.5 if np.isfinite(there.value) else 0.1
        here, off, best = there, new, min(best, new)
    return Descent(here, U, off, exchanges)
