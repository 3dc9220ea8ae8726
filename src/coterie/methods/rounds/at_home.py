"""What clients do before, and between stretches of, the rounds of Algorithms 1 and 2."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.federation import Federation, Site, Work, work
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


@dataclass(frozen=True)
class Look:
    """What clients tell where a run stops.

    Attributes
    ----------
    work : callable
        Its rows hold "far", whether parameters are no longer finite, and are finite themselves.
    message : dict
    """

    work: Work = far
    message: dict[str, Any] = field(default_factory=dict)


def stop(fed: Federation, look: Look, last: int, *averages: Floats) -> State:
    """What is known when step ``last`` ends a stretch: the sums of a look, and whether parameters or averages diverged.

    Where they did, all clients are back at the mark before it, and were seen there.
    """
    sums, sound = fed.total(look.work, **look.message), all(np.isfinite(mean).all() for mean in averages)
    if sound and (not sums or float(sums["far"]) == 0.0):
        return {"status": "running", "seen": dict(sums)}
    fed.restore(MARK)
    return {"status": f"diverged by step {last}", "seen": dict(fed.total(look.work, **look.message))}
