"""The exact optimum of (2.1): how far a run is from it, and the gradients there that (3.4) needs.

Clients keep the optimum beside their parameters. Lyu, Hanzely, Kolar (2022).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.families import Family
from coterie.federation import Federation, PerCluster, PerRow, Site, work
from coterie.methods.clustered_l2gd.client_work import Monitor
from coterie.methods.estimates import Estimates, GroupedProblem
from coterie.methods.given_strengths import given
from coterie.methods.replies import require_all_replies
from coterie.numerics.kernels import Floats
from coterie.objectives.constants import squared_gradients
from coterie.relations.clusters import Ties

Reply = dict[str, Any]
OPTIMUM = "optimum"
"""Name of the clients' state that holds it."""


@work
def keep(site: Site, optimum: Floats | None = None) -> Reply:
    """Keep the optimum, (m, d); None where the exact solver has left it here."""
    site.state[OPTIMUM] = site.state["coefficients"] if optimum is None else optimum
    return {}


@work
def squared_distances(site: Site, tied: bool, centre: Any = 0.0) -> Reply:
    """Squared distances of theta, of 0 and of ``centre`` from the optimum; ``tied``: of clients with gamma > 0 only."""
    theta, best = site.state["theta"], site.state[OPTIMUM]
    counted = 1.0 * (site.state["gamma"] > 0.0) if tied else np.ones(len(site))
    with np.errstate(over="ignore", invalid="ignore"):
        square = np.sum((theta - best) ** 2, axis=1)
    finite = np.isfinite(square)
    now, begun = counted * np.where(finite, square, 0.0), counted * np.sum(best**2, axis=1)
    spread = counted * np.sum((best - centre) ** 2, axis=1)
    return {"diverged": 1.0 - finite, "now": now, "start": begun, "spread": spread, "counted": counted}


def solve_exactly(fed: Federation, problem: GroupedProblem, ties: Ties) -> Estimates:
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
    fed.ask(keep, optimum=PerRow(exact.client) if len(exact.client) else None)
    return exact


def distance_monitor(family: Family, centre: Any = 0.0) -> Monitor:
    """What :func:`gap` is told by clients, and how far their optima are from the model ``centre`` (d,).

    Clients with gamma = 0 of a GLM do not count: the exact solver holds them by a weak prior, which (2.1) has not.
    """
    return Monitor(squared_distances, {"tied": family.needs_prior, "centre": centre})


def gap_to_spread(observed: Mapping[str, Any]) -> float:
    """The distance from the optimum over that of the optimum from the centre: free of where columns have their zero."""
    if not observed or not observed["spread"] > 0.0:
        return float("nan")
    return float(np.sqrt(observed["now"] / observed["spread"]))


def gap(observed: Mapping[str, Any]) -> float:
    """``|theta - optimum| / |optimum|`` of all clients stacked, the distance over that of the start.

    Where the optimum is 0 it is the distance itself; NaN where no client counts, or none answered.
    """
    if not observed or not observed["counted"]:
        return float("nan")
    now, start = float(observed["now"]), float(observed["start"])
    return float(np.sqrt(now / start if start > 0.0 else now))


@work
def send_weighted(site: Site, gamma: Floats, at: str) -> Reply:
    """What the averages (2.2) are made from."""
    return {"s": gamma[:, None] * site.state[at]}


@work
def send_squares(site: Site, gamma: Floats, at: str, own: Floats, network: Floats) -> Reply:
    """Squares of the three gradients, of rows' gradients, and of the parameters."""
    theta = site.state[at]
    loss, rows = squared_gradients(site.objective, theta)
    phi = gamma**2 * np.sum((theta - network) ** 2, axis=1)
    psi = gamma**2 * np.sum((theta - own[site.clusters]) ** 2, axis=1)
    return {"phi": phi, "psi": psi, "loss": loss, "rows": rows, "start": np.sum(theta**2, axis=1)}


@dataclass(frozen=True)
class GradientsAtOptimum:
    """What (3.4) needs at the optimum, for every cluster (k,), and ``start``, ``|0 - optimum|^2``.

    ``phi`` is a cluster's share of ``|grad phi|^2``, ``psi`` is ``(1 - alpha_j)^2 |grad psi_j|^2``, ``loss`` is
    ``|grad F_j|^2`` and ``rows`` is ``sum_i n_i sum_l |grad f_il|^2``.
    """

    phi: Floats
    psi: Floats
    loss: Floats
    rows: Floats
    start: float


def gradients_at_optimum(fed: Federation, ties: Ties, at: str) -> GradientsAtOptimum:
    """Ask, in two exchanges of sums, for the squares at the optimum, which the clients keep as state ``at``."""
    gamma = PerRow(ties.gamma)
    own, network = ties.averages(require_all_replies(fed.total(send_weighted, by="cluster", gamma=gamma, at=at))["s"])
    message: dict[str, Any] = {"gamma": gamma, "at": at, "own": PerCluster(own), "network": network}
    s = require_all_replies(fed.total(send_squares, by="cluster", **message))
    start = float(s["start"].sum())
    return GradientsAtOptimum(ties.alpha**2 * s["phi"], (1.0 - ties.alpha) ** 2 * s["psi"], s["loss"], s["rows"], start)
