"""What a user gives by label, checked and brought into the order of clients and clusters.

Strengths of ties, main clients and their weights; the edges of a network, and clients' covariates.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from coterie.data.clients import Clients, Level
from coterie.data.columns import Column, tidied_texts
from coterie.data.labels import encode, find_labels
from coterie.data.table import Table, to_pandas
from coterie.errors import CoterieError, listed, nearest, plural
from coterie.lazy_modules import sparse
from coterie.numerics.arrays import Floats, Ints
from coterie.relations.network import Network

Strength = float | Floats


@dataclass(frozen=True, eq=False)
class LeftOut:
    """A level of clusters that says nothing to learned variances, but has ties where strengths are given."""

    level: Level  # its labels as each node of the level below has them; one label where all are in one cluster
    below: int  # 0 where it stands above the clients, k above the k-th level that is kept

    @classmethod
    def of(cls, clients: Clients, columns: Mapping[str, Any]) -> list[LeftOut]:
        """The levels that ``clients`` leave out of those asked for: all ``columns`` by name, fine to coarse."""
        kept, node, first, out = [level.name for level in clients.levels], clients.clusters, clients.starts, []
        below = 0
        for name, column in columns.items():
            if name in kept:
                node = node if below == 0 else clients.levels[below - 1].parent[node]
                first = clients.starts[np.unique(node, return_index=True)[1]]
                below += 1
                continue
            coded = encode(column)
            codes = coded.codes[clients.order[first]]
            labels = coded.labels[codes[:1] if len(np.unique(codes)) == 1 else codes]
            out.append(cls(Level(name, labels, np.zeros(len(labels), dtype=np.int64)), below))
        return out


def aligned(clients: Clients, strengths: dict[str, Any], left_out: Sequence[LeftOut] = ()) -> dict[str, list[Any]]:
    """Every strength (gamma, lam and alpha) as a list of candidates.

    A strength is given as a number, for all; as a mapping from labels (of clients for gamma, of clusters for the
    others) or from names of levels to such; or as a sequence of these, a grid. None leaves it out. A candidate is a
    number, an array in the order of clients or clusters, or a list of these with an entry for each level.

    In levels that are left out each cluster holds one node of the level below: two ties in series,
    ``a/2 |x - w|^2 + b/2 |w - v|^2`` least over w, are one of strength ``ab / (a + b)``.
    """
    given = {name: value for name, value in strengths.items() if value is not None}
    if given and "gamma" not in given:
        raise CoterieError(f"{' and '.join(given)} needs gamma too: how strongly clients are tied to their cluster.")
    if "lam" in given and "alpha" in given:
        raise CoterieError("Give lam (form 2.3) or alpha (form 2.1), not both.")
    series = [x for x in left_out if len(x.level.labels) > 1]
    for name in ("lam", "alpha"):
        if name in given and not clients.levels and not left_out:
            raise CoterieError(
                f"{name} ties clusters, and there are none to tie: name a cluster column of two values or more, fewer "
                "than clients, or leave it out."
            )
    levels = sorted([*enumerate(clients.levels, 1), *((x.below + 0.5, x.level) for x in left_out)], key=lambda v: v[0])
    above = [level for _, level in levels]
    if "alpha" in given and len([*clients.levels, *series]) > 1:
        raise CoterieError("alpha is for one level of clusters: name one, or give lam, with an entry for each level.")
    own = [Level(clients.name, clients.labels, clients.clusters)]
    out = {name: _grid(name, value, own if name == "gamma" else above) for name, value in given.items()}
    grids = [name for name in out if len(out[name]) > 1]
    if series and len(out) > 1 and grids:
        raise CoterieError(
            f"'{series[0].level.name}' holds one of the level below in each cluster, so that a grid of {grids[0]} "
            f"cannot be laid over it: leave '{series[0].level.name}' out of the clusters, or give one strength."
        )
    if series and len(out) > 1:
        out = _in_series(clients, series, {name: found[0] for name, found in out.items()})
    names = [level.name for level in clients.levels]
    out = {name: found for name, found in out.items() if name == "gamma" or names}
    for name in out.keys() & {"lam", "alpha"}:
        out[name] = [_by_kept_level([one[level] for level in names]) for one in out[name]]
    return out


def _grid(name: str, value: Any, levels: Sequence[Level]) -> list[dict[str, Strength]]:
    """The candidates of one strength, each by level."""
    candidates = [value] if _is_mapping(value) or np.ndim(np.asarray(value, dtype=object)) == 0 else list(value)
    if not candidates:
        raise CoterieError(f"The grid of {name} is empty: give one value at least.")
    return [_by_level(name, v, levels) for v in candidates]


def _by_level(name: str, value: Any, levels: Sequence[Level]) -> Any:
    """One candidate as an entry for each level; of the clients as it is."""
    known = {level.name: level for level in levels}
    if not _is_mapping(value):
        value = dict.fromkeys(known, value)
    elif not (entries := dict(value)).keys() & known.keys():
        if len(levels) > 1:
            first = str(next(iter(entries), ""))
            raise CoterieError(
                f"{name} must say which level it is of ({', '.join(known)}), and {first!r} is none."
                f"{nearest(first, list(known))}"
            )
        value = {levels[0].name: entries}
    out: dict[str, Strength] = {}
    for key in [*value, *known]:
        if key not in known:
            raise CoterieError(
                f"{name} names the level {key!r}; there are {', '.join(known)}.{nearest(str(key), list(known))}"
            )
        if key not in value and len(known[key].labels) > 1:
            raise CoterieError(f"{name} has no entry for the level '{key}': give every level one.")
        inner = value.get(key, np.inf)
        out[key] = _by_label(name, dict(inner), known[key]) if _is_mapping(inner) else _strength(name, inner)
    return out[levels[0].name] if name == "gamma" else out


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) or hasattr(value, "items")


def _in_series(clients: Clients, series: Sequence[LeftOut], one: dict[str, Any]) -> dict[str, list[Any]]:
    """The strengths of the levels that are kept, with the ties of those left out in series with the ones below."""
    ties: list[Any] = [one["gamma"]]
    if "alpha" in one:  # (2.1): alpha of the tie goes to the network, and none to a cluster of one
        if np.any((share := np.asarray(one["alpha"][series[0].level.name])) > 1.0):
            raise CoterieError("alpha must lie between 0 (clusters apart) and 1 (no clusters).")
        return {"gamma": [ties[0] * (share if share.ndim else float(share))]}
    ties += [one["lam"][level.name] for level in clients.levels]
    for x in series:
        with np.errstate(divide="ignore"):
            both = 1.0 / (1.0 / np.asarray(ties[x.below]) + 1.0 / np.asarray(one["lam"][x.level.name]))
        ties[x.below] = both if both.ndim else float(both)
    return {"gamma": ties[:1], "lam": [dict(zip((v.name for v in clients.levels), ties[1:], strict=True))]}


def _by_kept_level(values: list[Strength]) -> Any:
    """A number for all levels, what the only one has, or a list."""
    alike = len(values) == 1 or all(np.ndim(v) == 0 and v == values[0] for v in values)
    return values[0] if alike else values


def _strength(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not number >= 0.0:
        given = f"{value:g}" if isinstance(value, (int, float)) else repr(value)
        raise CoterieError(f"{name} must be one number that is not negative, or a grid of such numbers, not {given}.")
    return number


def plain_strength(value: Any) -> Any:
    """A strength without arrays."""
    return [plain_strength(v) for v in value] if isinstance(value, (list, np.ndarray)) else value


def _by_label(name: str, values: dict[Any, Any], level: Level) -> Any:
    at = find_labels(level.labels, np.array(list(values), dtype=object))
    unknown = [k for k, j in zip(values, at, strict=True) if j < 0]
    missing = sorted(set(range(len(level.labels))) - set(at.tolist()))
    if unknown:
        hint = nearest(str(unknown[0]), [str(label) for label in level.labels]) or " Leave it out."
        raise CoterieError(f"{name} names {level.name} {unknown[0]!r}, which is not in the table.{hint}")
    if missing:
        lost = repr(level.labels[missing[0]])
        raise CoterieError(f"{name} has no entry for {level.name} {lost}: add one, or give one number for all.")
    out = np.empty(len(level.labels))
    out[at] = [_strength(name, v) for v in values.values()]
    return out


def main_clients(clients: Clients, named: Any) -> Ints:
    """Positions of the clients that a user names as main ones: a label or several."""
    if not (labels := [named] if isinstance(named, str) or np.ndim(named) == 0 else list(named)):
        raise CoterieError("main names no client: name one at least, or leave it out, and every client is a main one.")
    return _positions(clients, labels, "main")


def _positions(clients: Clients, labels: Any, what: str) -> Ints:
    """Places of clients; a CoterieError for what is no label, or nobody's."""
    if wrong := [label for label in labels if not isinstance(label, Hashable)]:
        raise CoterieError(f"{what} names a {clients.name} by its label, not by {wrong[0]!r}.")
    given = np.asarray(labels, dtype=object)
    at = find_labels(clients.labels, given)
    if len(unknown := given[at < 0]):
        hint = nearest(str(unknown[0]), [str(label) for label in clients.labels])
        who = listed([f"'{label}'" for label in dict.fromkeys(unknown)])
        raise CoterieError(f"{what} names {clients.name} {who}, not in the table.{hint}")
    return at


def weight_matrix(clients: Clients, tau: Any) -> Any:
    """``{main: {collaborator: weight}}``, or a matrix of all clients, as a sparse matrix."""
    n = len(clients)
    if isinstance(tau, Mapping):
        return sparse.csr_array(_weighted_pairs(clients, tau), shape=(n, n))
    try:
        W: Any = tau if sparse.issparse(tau) else np.asarray(tau, dtype=np.float64)
    except (TypeError, ValueError) as e:
        raise CoterieError("tau must be auto, equal, a mapping {main: {other: weight}} or a matrix of numbers.") from e
    if W.shape != (n, n):
        shape = " x ".join(str(size) for size in W.shape) or "a number"
        raise CoterieError(f"A matrix tau must be {n} x {n}, clients by clients, not {shape}.")
    return sparse.csr_array(W).astype(np.float64)


def _weighted_pairs(clients: Clients, tau: Mapping[Any, Any]) -> tuple[Floats, tuple[Ints, Ints]]:
    """Weights, and the positions of the main clients and of the collaborators that they are of."""
    entries = []
    for main, others in tau.items():
        if not isinstance(others, Mapping):
            raise CoterieError(f"tau of {main!r} must be a mapping from collaborators to weights, not {others!r}.")
        for other, weight in others.items():
            if not isinstance(weight, (int, float, np.number)) or isinstance(weight, bool):
                raise CoterieError(f"The weight tau of {other!r} for {main!r} must be a number, not {weight!r}.")
            entries.append((main, other, float(weight)))
    if not entries:
        raise CoterieError("tau names no collaborators: name one at least, or leave tau out.")
    mains, others, weights = zip(*entries, strict=True)
    return np.array(weights), (_positions(clients, mains, "tau"), _positions(clients, others, "tau"))


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
            f"Edges are pairs of {clients.name} labels, with a weight or not, not {plural(len(columns), 'column')}."
        )
    for column in columns[:2]:
        if len(missing := np.flatnonzero(encode(column).missing)):
            where = f"Edge {missing[0] + 1:,} has no {clients.name} at one end"
            raise CoterieError(f"{where}: name it, or leave the edge out.")
    ends = np.stack([_positions(clients, column, "The network") for column in columns[:2]], axis=1)
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
