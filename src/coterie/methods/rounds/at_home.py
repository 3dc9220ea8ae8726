"""What clients do before, and between stretches of, the rounds of Algorithms 1 and 2."""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.federation import Federation, Site, work
from coterie.numerics.kernels import Floats
from coterie.objectives.glm import GLM
from coterie.objectives.spectrum import ranks, spectrum

Reply = dict[str, Any]
State = dict[str, Any]
MARK = "settled"
"""Where clients return to after a divergence."""


@work
def shape(site: Site) -> Reply:
    """Each client's number of parameters, the rank of its quadratic (0: no closed form), and whether it is a GLM."""
    m, objective = len(site), site.objective
    rank, rows = ranks(objective), isinstance(objective, GLM)
    return {"dim": np.full(m, objective.dim), "rank": rank, "rows": np.full(m, rows)}


@work
def start(site: Site, gamma: Floats, rank: int, w: Any = 0.0) -> Reply:
    """theta_i = w (d,), zero by default; where steps are to be taken in closed form, the client's eigenbasis."""
    site.state["theta"], site.state["gamma"] = np.full((len(site), site.objective.dim), w), gamma
    if rank:
        for name, value in spectrum(site.objective, rank).items():
            site.state[name] = value
    return {}


@work
def far(site: Site) -> Reply:
    """Whether a client's parameters are still finite (0) or not (1)."""
    theta: Floats = site.state["theta"]
    return {"far": 1.0 - np.isfinite(theta).all(axis=1)}


def diverged(fed: Federation, *averages: Floats) -> bool:
    """Whether some client's parameters, or averages, are not finite; then all return to where they were at the mark."""
    sums, sound = fed.total(far), all(np.isfinite(mean).all() for mean in averages)
    if sound and (not sums or float(sums["far"]) == 0.0):
        return False
    fed.restore(MARK)
    return True
