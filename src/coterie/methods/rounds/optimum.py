"""What (3.4) of Lyu, Hanzely, Kolar (2022) needs at the optimum: squares of gradients, from two exchanges of sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.federation import Federation, PerCluster, PerRow, Site, work
from coterie.methods.replies import require_all_replies
from coterie.numerics.kernels import Floats
from coterie.objectives.constants import squares
from coterie.relations.ties import Ties

Reply = dict[str, Any]


@work
def weigh_at(site: Site, gamma: Floats, at: str) -> Reply:
    """What the averages (2.2) are made from."""
    return {"s": gamma[:, None] * site.state[at]}


@work
def squares_at(site: Site, gamma: Floats, at: str, own: Floats, network: Floats) -> Reply:
    """Squares of the three gradients, of rows' gradients, and of the parameters."""
    theta = site.state[at]
    loss, rows = squares(site.objective, theta)
    phi = gamma**2 * np.sum((theta - network) ** 2, axis=1)
    psi = gamma**2 * np.sum((theta - own[site.clusters]) ** 2, axis=1)
    return {"phi": phi, "psi": psi, "loss": loss, "rows": rows, "start": np.sum(theta**2, axis=1)}


@dataclass(frozen=True)
class Optimum:
    """What (3.4) needs at the optimum, for every cluster (k,), and ``start``, ``|0 - optimum|^2``.

    ``phi`` is a cluster's share of ``|grad phi|^2``, ``psi`` is ``(1 - alpha_j)^2 |grad psi_j|^2``, ``loss`` is
    ``|grad F_j|^2`` and ``rows`` is ``sum_i n_i sum_l |grad f_il|^2``.
    """

    phi: Floats
    psi: Floats
    loss: Floats
    rows: Floats
    start: float


def optimum(fed: Federation, ties: Ties, at: str) -> Optimum:
    """Ask, in two exchanges of sums, for the squares at the optimum, which the clients keep as state ``at``."""
    gamma = PerRow(ties.gamma)
    own, network = ties.averages(require_all_replies(fed.total(weigh_at, by="cluster", gamma=gamma, at=at))["s"])
    message: dict[str, Any] = {"gamma": gamma, "at": at, "own": PerCluster(own), "network": network}
    s = require_all_replies(fed.total(squares_at, by="cluster", **message))
    start = float(s["start"].sum())
    return Optimum(ties.alpha**2 * s["phi"], (1.0 - ties.alpha) ** 2 * s["psi"], s["loss"], s["rows"], start)
