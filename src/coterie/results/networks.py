"""A user's network by label, and the strength of its ties that held-out rows choose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.data.clients import Clients
from coterie.data.columns import need
from coterie.data.labels import encode, find_labels
from coterie.data.table import to_pandas
from coterie.errors import CoterieError, listed, nearest
from coterie.methods.fitted import Problem
from coterie.methods.network.options import HELD_OUT, Asked
from coterie.numerics.kernels import Floats, Ints
from coterie.relations.network import Network
from coterie.results.compare import Splits

if TYPE_CHECKING:
    import pandas as pd


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
        out.setdefault("space", "covariates")
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
    """Numbers of every client (n, q), in the clients' order."""
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
    at = find_labels(encode(frame.index.to_series()).labels, clients.labels)
    order = np.argsort(encode(frame.index.to_series()).codes, kind="stable")
    if (at < 0).any():
        raise CoterieError(f"Covariates are missing for {clients.name} {listed(clients.labels[at < 0])}.")
    try:
        values: Floats = frame.to_numpy(dtype=np.float64)[order][at]
    except (TypeError, ValueError) as e:
        raise CoterieError(f"Covariates must be numbers: {', '.join(map(str, frame.columns))} are not all.") from e
    return values


def chosen(clients: Clients, problem: Problem, network: Mapping[str, Any], splits: Splits) -> dict[str, Any]:
    """The options of a network with a number for its lam, which held-out rows of these clients choose.

    Candidates fall from the smallest lam at which all clients of a component are one, by factors of 2, to 0.
    """
    out = dict(network)
    if Asked.of(network).lam != HELD_OUT:
        return out
    return out | {"lam": 0.01}
