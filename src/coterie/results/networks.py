"""A user's network by label, and the strength of its ties that held-out rows choose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.data.clients import Clients
from coterie.data.columns import need
from coterie.data.labels import encode, find_labels
from coterie.data.table import to_pandas
from coterie.engines.inprocess import InProcess
from coterie.errors import CoterieError, listed, nearest
from coterie.methods.fitted import Problem
from coterie.methods.network.hold import Hold
from coterie.methods.network.options import HELD_OUT, Asked
from coterie.methods.network.path import Path, path
from coterie.methods.tree.setup import prepare
from coterie.numerics.kernels import Floats, Ints
from coterie.relations.layout import Layout
from coterie.relations.network import Network
from coterie.results.compare import Splits, run
from coterie.results.metrics import client_losses, objective

if TYPE_CHECKING:
    import pandas as pd

INNER = 3
"""Splits of the training rows at most, with which a strength is chosen."""
STEPS, SPAN = 16, 1e-3
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
        client, or a table with a row for each client.

    Raises
    ------
    CoterieError
        For clients that are not there, and covariates that vary within a client or are missing.
    """
    out = dict(network)
    if out.get("edges") is not None and not isinstance(out["edges"], Network):
        out["edges"] = _edges(clients, out["edges"])
    if out.get("covariates") is not None:
        out["covariates"] = _covariates(clients, out["covariates"], table)
    return out


def _edges(clients: Clients, edges: Any) -> Network:
    """Pairs of labels, with weights where there is a third column."""
    columns = _columns(edges)
    if len(columns) not in (2, 3):
        raise CoterieError(
            f"Edges are pairs of {clients.name} labels, with a weight or not, not {len(columns)} columns."
        )
    ends = np.stack([_positions(clients, column) for column in columns[:2]], axis=1)
    try:
        weight = None if len(columns) == 2 else np.asarray(columns[2], dtype=np.float64)
    except (TypeError, ValueError) as e:
        raise CoterieError("Weights of edges, their third column, must be numbers.") from e
    return Network.of(len(clients), ends, weight)


def _columns(edges: Any) -> list[Any]:
    if hasattr(edges, "columns"):
        frame = to_pandas(edges)
        return [frame[name] for name in frame.columns]
    rows = [tuple(row) if isinstance(row, Iterable) and not isinstance(row, str) else (row,) for row in edges]
    widths = {len(row) for row in rows}
    if len(widths) > 1:
        raise CoterieError("Edges must all be pairs, or all be pairs with a weight.")
    return [np.array(column, dtype=object) for column in zip(*rows, strict=True)] if rows else [[], []]


def _positions(clients: Clients, labels: Any) -> Ints:
    """Places of clients; a CoterieError for one that is not there."""
    at = find_labels(clients.labels, np.asarray(labels, dtype=object))
    unknown = np.asarray(labels, dtype=object)[at < 0]
    if len(unknown):
        hint = nearest(str(unknown[0]), [str(label) for label in clients.labels])
        raise CoterieError(
            f"The network names {clients.name} {listed(dict.fromkeys(unknown))}, not in the table.{hint}"
        )
    return at


def _covariates(clients: Clients, given: Any, table: pd.DataFrame | None) -> Floats:
    """Numbers of every client (n, q), in the clients' order; a category is a column for each of its values."""
    import pandas as pd

    names = [given] if isinstance(given, str) else given
    if table is not None and not hasattr(names, "columns") and all(isinstance(name, str) for name in names):
        need(table, names, "covariate")
        frame = table[[clients.name, *names]].drop_duplicates()
        twice = frame[clients.name].duplicated()
        if twice.any():
            raise CoterieError(
                f"Covariates must not vary within a {clients.name}, and {', '.join(names)} "
                f"{'does' if len(names) == 1 else 'do'} in {frame[clients.name][twice].iloc[0]!r}."
            )
        frame = frame.set_index(clients.name)
    elif hasattr(given, "columns"):
        frame = to_pandas(given)
        frame = frame.set_index(clients.name) if clients.name in frame.columns else frame
    else:
        return np.asarray(given, dtype=np.float64)
    coded = encode(frame.index.to_series())
    at, place = find_labels(coded.labels, clients.labels), np.argsort(coded.codes, kind="stable")
    missing = (at < 0) | frame.isna().any(axis=1).to_numpy()[place][at]
    if missing.any():
        raise CoterieError(f"Covariates are missing for {clients.name} {listed(clients.labels[missing])}.")
    if len(coded.labels) < len(frame):
        raise CoterieError(f"Covariates must have one row for each {clients.name}.")
    categories = [name for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]
    values: Floats = pd.get_dummies(frame, columns=categories).to_numpy(dtype=np.float64)[place][at]
    return values


def chosen(
    clients: Clients, problem: Problem, network: Mapping[str, Any], splits: Splits
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
        train, held = clients.subset(~mask), clients.subset(mask)
        tell = partial(_loss, held, problem.family)
        found = clusterpath(train, problem, asked, lam, tell)
        lam = found.lam[1:]
        losses.append(np.append(found.loss, tell(run("local", train, problem, {})[0].client)))
        rows += float(held.weights.sum())
    if not rows > 0.0:
        raise CoterieError("No client has a row to spare, so held-out rows choose no lam: give the network a number.")
    candidates = np.concatenate([[np.inf], [] if lam is None else lam, [0.0]])
    tried = list(zip(candidates.tolist(), (np.sum(losses, axis=0) / rows).tolist(), strict=True))
    return dict(network) | {"lam": min(tried, key=lambda t: t[1])[0]}, tried


def clusterpath(
    clients: Clients,
    problem: Problem,
    asked: Asked,
    lam: Floats | None = None,
    loss: Loss | None = None,
    kkt: float = CLOSE,
) -> Path:
    """The path of a network along lam; ``loss`` is of coefficients (n, p) in the units of the table."""
    fed = InProcess(objective(clients, problem.family), clients.clusters, ids=clients.ids)
    graph = asked.edges or asked.similarity.network(fed, problem)
    setup = prepare(fed, problem.tree, problem.family, problem.personal, problem.intercept)
    layout, hold = Layout.columns(setup.p, problem.personal), Hold.of(graph, problem.family)
    tell = None if loss is None else lambda theta: loss(theta * setup.unit)
    along: dict[str, Any] = {"lam": lam, "steps": STEPS, "span": SPAN, "loss": tell, "kkt": kkt}
    return path(fed, graph, asked.p, layout=layout, unit=setup.unit, hold=hold, **along)


def described(
    clients: Clients, problem: Problem, network: Mapping[str, Any], found: Mapping[str, Any]
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
        between = np.sqrt(lam[1:] * lam[:-1]) if len(lam) > 1 else lam * np.geomspace(SPAN, 1.0 / SPAN, STEPS)
        values = np.unique(np.concatenate([lam, between]))
    tree = clusterpath(clients, problem, Asked.of(network), values, kkt=EXACT).tree
    return out | {"merges": [[value, list(who), size] for value, who, size in tree.merges if value < np.inf]}


def _loss(held: Clients, family: str, theta: Floats) -> float:
    return float(client_losses(held, family, theta).sum())
