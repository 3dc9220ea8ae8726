"""A user's network, its edges and covariates given by label: checked, and brought into the clients' order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from coterie.data.clients import Clients
from coterie.data.columns import Column, tidied_texts
from coterie.data.labels import encode, find_labels
from coterie.data.table import Table, to_pandas
from coterie.errors import CoterieError, listed, nearest
from coterie.numerics.arrays import Floats, Ints
from coterie.relations.network import Network


def by_position(clients: Clients, network: Mapping[str, Any], table: pd.DataFrame | None = None) -> dict[str, Any]:
    """Options of a network as users give them (``methods.networks.options.Asked``), with positions for labels.

    ``edges`` are pairs of labels, with a weight or not, or a table of two or three columns; ``covariates`` are names of
    columns of ``table`` that do not vary within a client, or a table with a row for each client. A CoterieError for
    clients that are not there, and covariates that vary within a client or are missing.
    """
    out = dict(network)
    if out.get("edges") is not None and not isinstance(out["edges"], Network):
        out["edges"] = edges_of(clients, out["edges"])
    if out.get("covariates") is not None:
        out["covariates"] = covariates_of(clients, out["covariates"], table)
    return out


def edges_of(clients: Clients, edges: Any) -> Network:
    """A network from pairs of labels, or a table of them, with weights where there is a third column.

    A CoterieError where this is no network of the clients; the sentence names them as the user does.
    """
    columns = _columns(clients, edges)
    if len(columns) not in (2, 3):
        raise CoterieError(
            f"Edges are pairs of {clients.name} labels, with a weight or not, not {len(columns)} columns."
        )
    ends = np.stack([_positions(clients, column) for column in columns[:2]], axis=1)
    loops = ends[ends[:, 0] == ends[:, 1], 0]
    if len(loops):
        names = listed(dict.fromkeys(clients.labels[loops]))
        raise CoterieError(f"The edges tie {clients.name} {names} to itself: leave such edges out.")
    return Network.of(len(clients), ends, None if len(columns) == 2 else _weights(clients, ends, columns[2]))


def _columns(clients: Clients, edges: Any) -> list[Any]:
    if hasattr(edges, "columns"):
        frame = to_pandas(edges)
        heads = [name for name in frame.columns[:2] if isinstance(name, str)]
        if heads and len(frame.columns) == 3 and (not heads[0].strip() or heads[0].startswith("Unnamed:")):
            raise CoterieError("The first column of the edges has no name: write them to the file without their index.")
        if len(heads) == 2 and (find_labels(clients.labels, heads) >= 0).all():
            raise CoterieError(
                f"The edges have {clients.name} {heads[0]} and {heads[1]} as names of columns: put a first line such "
                "as from,to above them."
            )
        return [frame[name] for name in frame.columns]
    if isinstance(edges, (str, bytes, Mapping)) or not isinstance(edges, Iterable) or hasattr(edges, "tocoo"):
        raise CoterieError(
            f"edges must be pairs of {clients.name} labels, with a weight or not, or a table of them, not "
            f"of type {type(edges).__name__}; Network.from_adjacency makes a network of a matrix."
        )
    rows = [tuple(row) if isinstance(row, Iterable) and not isinstance(row, str) else (row,) for row in edges]
    widths = {len(row) for row in rows}
    if len(widths) > 1:
        raise CoterieError("Edges must all be pairs, or all be pairs with a weight.")
    return [pd.Series(list(column), dtype=object).to_numpy() for column in zip(*rows, strict=True)] or [[], []]


def _positions(clients: Clients, labels: Any) -> Ints:
    """Places of clients; a CoterieError for a label that is missing or nobody's."""
    given = np.asarray(labels, dtype=object)
    at = find_labels(clients.labels, given)
    missing = np.flatnonzero(encode(given).missing)
    if len(missing):
        raise CoterieError(f"Edge {missing[0] + 1:,} has no {clients.name} at one end: name it, or leave the edge out.")
    unknown = given[at < 0]
    if len(unknown):
        hint = nearest(str(unknown[0]), [str(label) for label in clients.labels])
        raise CoterieError(
            f"The network names {clients.name} {listed(dict.fromkeys(unknown))}, not in the table.{hint}"
        )
    return at


def _weights(clients: Clients, ends: Ints, given: Any) -> Floats:
    """Weights (M,), positive and finite, the same where a pair comes twice."""
    try:
        weight: Floats = pd.Series(given).to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError) as e:
        raise CoterieError("Weights of edges, their third column, must be numbers.") from e
    wrong = np.flatnonzero(~((weight > 0.0) & np.isfinite(weight)))
    if len(wrong):
        i, j = clients.labels[ends[wrong[0]]]
        raise CoterieError(
            f"The edge of {clients.name} {i} and {j} must have a positive finite weight, not {weight[wrong[0]]:g}: "
            "leave edges without weight out."
        )
    _, first, by = np.unique(np.sort(ends, axis=1), axis=0, return_index=True, return_inverse=True)
    differs = np.flatnonzero(weight != weight[first][by])
    if len(differs):
        i, j = clients.labels[ends[differs[0]]]
        raise CoterieError(f"Edges of {clients.name} {i} and {j} come twice, with different weights: keep one of them.")
    return weight


def covariates_of(clients: Clients, given: Any, table: pd.DataFrame | None) -> Any:
    """Numbers of every client (n, q), in the clients' order; a category is a column for each of its values.

    Given are names of columns of ``table`` that do not vary within a client; a table, Series or mapping by client; or
    numbers in the clients' order, which are returned as they are. A CoterieError for covariates that vary within a
    client, are missing for one, or tell nothing.
    """
    names = [given] if isinstance(given, str) else given
    if table is not None and isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names):
        frame = _of_rows(clients, list(dict.fromkeys(names)), table)
    else:
        found = _by_client(clients, given)
        if found is None:
            return given
        frame = found
    coded = encode(frame.index.to_series())
    if len(coded.labels) < len(frame):
        raise CoterieError(f"Covariates must have one row for each {clients.name}.")
    at, place = find_labels(coded.labels, clients.labels), np.argsort(coded.codes, kind="stable")
    frame = frame.iloc[place[at]]
    missing = (at < 0) | frame.isna().any(axis=1).to_numpy()
    if (at < 0).all():
        raise CoterieError(
            f"The covariates name no {clients.name} of the table: give them a column '{clients.name}', or an index of "
            "its labels."
        )
    if missing.any():
        raise CoterieError(f"Covariates are missing for {clients.name} {listed(clients.labels[missing])}: fill them.")
    return np.concatenate([_numbers(clients, frame[name]) for name in frame.columns], axis=1)


def _of_rows(clients: Clients, names: list[str], table: pd.DataFrame) -> pd.DataFrame:
    """Columns of the table as a row for each client; what some of a client's rows miss, its others have."""
    if not names or clients.name in names:
        raise CoterieError(f"covariates must be columns that tell something of each {clients.name}: name some.")
    Table.of(table).need(names, "covariate")
    coded = encode(table[clients.name])
    groups = table[names].apply(tidied_texts).groupby(np.where(coded.missing, np.nan, coded.codes), observed=True)
    for name in names:
        many = groups[name].nunique().to_numpy() > 1
        if many.any():
            raise CoterieError(
                f"Covariates must not vary within a {clients.name}, and {name} does in {coded.labels[many][0]}."
            )
    return groups.first().set_axis(coded.labels, axis=0)


def _by_client(clients: Clients, given: Any) -> pd.DataFrame | None:
    """A table with clients' labels as its index; None for bare numbers."""
    if isinstance(given, Mapping):
        named = clients.name in given
        try:
            given = pd.DataFrame(dict(given)) if named else pd.DataFrame.from_dict(dict(given), orient="index")
        except (TypeError, ValueError, AttributeError) as e:
            raise CoterieError(f"Covariates in a mapping are numbers of each {clients.name}, by its label.") from e
    if isinstance(given, pd.Series):
        given = given.to_frame()
    if not hasattr(given, "columns"):
        return None
    frame = to_pandas(given)
    frame = frame.set_index(clients.name) if clients.name in frame.columns else frame
    if not len(frame.columns):
        raise CoterieError(f"The table of covariates has no column beside '{clients.name}': give it some.")
    return frame


def _numbers(clients: Clients, column: pd.Series[Any]) -> Floats:
    """A covariate as numbers (n, q); a CoterieError where it is infinite, or another category for each client."""
    numbers = Column(column).coordinates
    if numbers.shape[1] == len(column) > 2:
        raise CoterieError(
            f"Covariate '{column.name}' is another category for each {clients.name}, so it says nothing of who is "
            "alike: leave it out."
        )
    wrong = ~np.isfinite(numbers).all(axis=1)
    if wrong.any():
        raise CoterieError(
            f"Covariate '{column.name}' is infinite for {clients.name} {listed(clients.labels[wrong])}: give a number."
        )
    return numbers
