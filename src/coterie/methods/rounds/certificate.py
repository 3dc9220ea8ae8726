"""How far a run over rounds is from the exact optimum of (2.1), which clients keep beside their parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.families import Family
from coterie.federation import Federation, PerRow, Site, work
from coterie.methods.estimates import Estimates, GroupedProblem
from coterie.methods.given_strengths import given
from coterie.methods.rounds.at_home import Look
from coterie.numerics.kernels import Floats
from coterie.relations.ties import Ties

Reply = dict[str, Any]
AT = "optimum"
"""Name of the clients' state that holds it."""


@work
def hold(site: Site, optimum: Floats | None = None) -> Reply:
    """Keep the optimum, (m, d); None where the exact solver has left it here."""
    site.state[AT] = site.state["coefficients"] if optimum is None else optimum
    return {}


@work
def apart(site: Site, tied: bool, centre: Any = 0.0) -> Reply:
    """Squared distances of theta, of 0 and of ``centre`` from the optimum; ``tied``: of clients with gamma > 0 only."""
    theta, best = site.state["theta"], site.state[AT]
    counted = 1.0 * (site.state["gamma"] > 0.0) if tied else np.ones(len(site))
    with np.errstate(over="ignore", invalid="ignore"):
        square = np.sum((theta - best) ** 2, axis=1)
    near = np.isfinite(square)
    now, begun = counted * np.where(near, square, 0.0), counted * np.sum(best**2, axis=1)
    spread = counted * np.sum((best - centre) ** 2, axis=1)
    return {"far": 1.0 - near, "now": now, "start": begun, "spread": spread, "counted": counted}


def certify(fed: Federation, problem: GroupedProblem, ties: Ties) -> Estimates:
    """Solve (2.1) exactly; every client keeps its part of the optimum.

    A CoterieError where not all columns are personal: rounds tie whole vectors.
    """
    if len(problem.tree.parents) > 1:
        raise CoterieError("Methods over rounds take one level of clusters: name the finest only.")
    exact = given(fed, problem, ties.gamma, alpha=ties.alpha)
    if len(problem.personal) < len(exact.root):
        raise CoterieError(
            "Methods over rounds tie all coefficients of a client: share none, leave out columns that do not vary "
            "within any client, or use an exact method."
        )
    fed.ask(hold, optimum=PerRow(exact.client) if len(exact.client) else None)
    return exact


def look(family: Family, centre: Any = 0.0) -> Look:
    """What :func:`gap` is told by clients, and how far their optima are from the model ``centre`` (d,).

    Clients with gamma = 0 of a GLM do not count: the exact solver holds them by a weak prior, which (2.1) has not.
    """
    return Look(apart, {"tied": family.needs_prior, "centre": centre})


def differing(seen: Mapping[str, Any]) -> float:
    """The distance from the optimum over that of the optimum from the centre: free of where columns have their zero."""
    return float(np.sqrt(seen["now"] / seen["spread"])) if seen and seen["spread"] > 0.0 else float("nan")


def gap(seen: Mapping[str, Any]) -> float:
    """``|theta - optimum| / |optimum|``, the distance over that of the start, all clients stacked; from sums of a look.

    Where the optimum is 0 it is the distance itself; NaN where no client counts, or none answered.
    """
    if not seen or not seen["counted"]:
        return float("nan")
    now, start = float(seen["now"]), float(seen["start"])
    return float(np.sqrt(now / start)) if start > 0.0 else float(np.sqrt(now))
