"""A user's network by label, and the strength of its ties that held-out rows choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.data.clients import Clients
from coterie.engines.inprocess import InProcess
from coterie.errors import CoterieError
from coterie.evidence.splits import Splits
from coterie.families import Family
from coterie.methods.estimates import GroupedProblem
from coterie.methods.network.objective import Prior
from coterie.methods.network.options import HELD_OUT, Asked
from coterie.methods.network.path import Path, path
from coterie.methods.tree.setup import prepare
from coterie.numerics.kernels import Floats
from coterie.relations.layout import Layout
from coterie.relations.network import Network
from coterie.results.network_tables import covariates_of, edges_of
from coterie.runs.table_methods import client_losses, objective, run

if TYPE_CHECKING:
    import pandas as pd

INNER = 3
"""Splits of the training rows at most, with which a strength is chosen."""
STEPS, SPAN = 20, 1e-4
"""Candidates for it: so many, down to this share of the largest."""
DRAWN = 1000
"""Clients at most whose merging is followed for its picture."""
CLOSE, EXACT = 1e-4, 1e-6
"""KKT residuals along the path: where losses are compared, and where it is said which clients are equal."""


Loss = Callable[[Floats], float]
"""Of coefficients (n, p), in the units of the table."""


def by_position(clients: Clients, network: Mapping[str, Any], table: pd.DataFrame | None = None) -> dict[str, Any]:
    """The options of a network with clients' positions for their labels.

    Parameters
    ----------
    network : mapping
        As a user gives it: see ``methods.network.options.Asked``; ``edges`` are pairs of labels, with a weight or not,
        or a table of two or three columns; ``covariates`` are names of columns of ``table`` that do not vary within a
        client, or a table with a row for each client: see ``results.network_tables``.

    Raises
    ------
    CoterieError
        For clients that are not there, and covariates that vary within a client or are missing.
    """
    out = dict(network)
    if out.get("edges") is not None and not isinstance(out["edges"], Network):
        out["edges"] = edges_of(clients, out["edges"])
    if out.get("covariates") is not None:
        out["covariates"] = covariates_of(clients, out["covariates"], table)
    return out


def chosen(
    clients: Clients, problem: GroupedProblem, network: Mapping[str, Any], splits: Splits
) -> tuple[dict[str, Any], list[tuple[float, float]]]:
    """The options of a network with a number for its lam, which held-out rows of these clients choose.

    Candidates are those of the path from where all clients of a component are one, down to 0, where all are alone.

    Returns
    -------
    network : dict
    tried : list of (float, float)
        Candidates from infinity down, and their mean held-out losses; empty where lam was given.

    Raises
    ------
    CoterieError
        Where no rows can be held out.
    """
    asked = Asked.of(network)
    if asked.lam != HELD_OUT:
        return dict(network), []
    if splits.count == 0:
        raise CoterieError(
            "lam of the network is to be chosen by held-out rows: ask for at least one split, or give lam."
        )
    inner = Splits(min(splits.count, INNER), splits.fraction, splits.seed + 1)
    lam: Floats | None = None
    losses, rows = [], 0.0
    for mask in inner.masks(clients):
        train, held = clients.split(mask)
        tell = partial(_loss, held, problem.family)
        found = clusterpath(train, problem, asked, lam, tell)
        lam = found.lam[1:]
        losses.append(np.append(found.loss, tell(run("local", train, problem, {})[0].client)))
        rows += float(held.weights.sum())
    if not rows > 0.0:
        raise CoterieError(
            "No client has a row to spare, so held-out rows choose no lam: give the network a number for lam."
        )
    candidates = np.concatenate([[np.inf], [] if lam is None else lam, [0.0]])
    tried = list(zip(candidates.tolist(), (np.sum(losses, axis=0) / rows).tolist(), strict=True))
    return dict(network) | {"lam": min(tried, key=lambda t: t[1])[0]}, tried


def clusterpath(
    clients: Clients,
    problem: GroupedProblem,
    asked: Asked,
    lam: Floats | None = None,
    loss: Loss | None = None,
    kkt: float = CLOSE,
) -> Path:
    """The path of a network along lam; ``loss`` is of coefficients (n, p) in the units of the table."""
    fed = InProcess(objective(clients, problem.family), clients.clusters, ids=clients.ids)
    graph = asked.similarity.network(fed, problem) if asked.edges is None else asked.edges
    setup = prepare(fed, problem.tree, problem.family, problem.personal, problem.intercept)
    layout, prior = Layout.columns(setup.p, problem.personal), Prior.of(graph, problem.family)
    tell = None if loss is None else lambda theta: loss(theta * setup.unit)
    along: dict[str, Any] = {"lam": lam, "steps": STEPS, "span": SPAN, "loss": tell, "kkt": kkt}
    return path(fed, graph, asked.p, layout=layout, unit=setup.unit, prior=prior, **along)


def described(
    clients: Clients, problem: GroupedProblem, network: Mapping[str, Any], found: Mapping[str, Any]
) -> dict[str, Any]:
    """How clients merge along the path, and how well the network agrees with their finest clusters.

    Paths of more clients than ``DRAWN`` are not followed.

    Parameters
    ----------
    found : mapping
        What the fit says of the network: its edges, lam, and the candidates that were tried for it.
    """
    out: dict[str, Any] = {}
    if clients.levels and found.get("edges"):
        graph = Network(len(clients), np.array(found["edges"], dtype=np.int64), np.array(found["weight"]))
        agrees = graph.against(clients.clusters)
        out["against"] = {name: None if np.isnan(value) else value for name, value in agrees.items()}
    if not 1 < len(clients) <= DRAWN:
        return out
    lam = np.array([value for value, _ in found.get("tried", [])] or [found["lam"]])
    lam = np.sort(lam[(lam > 0.0) & (lam < np.inf)])
    values = None
    if len(lam):
        with np.errstate(over="ignore"):
            between = np.sqrt(lam[1:] * lam[:-1]) if len(lam) > 1 else lam * np.geomspace(SPAN, 1.0 / SPAN, STEPS)
        values = np.unique(np.concatenate([lam, between]))
        values = values[(values > 0.0) & np.isfinite(values)]
    tree = clusterpath(clients, problem, Asked.of(network), values, kkt=EXACT).tree
    return out | {"merges": [[value, list(who), size] for value, who, size in tree.merges if value < np.inf]}


def _loss(held: Clients, family: Family, theta: Floats) -> float:
    return float(client_losses(held, family, theta).sum())
