"""Rows that a user gives client by client, as arrays or Datasets, made one table of arrays; and their digest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from coterie.data.net_inputs import as_inputs, hashed, layout, several, together
from coterie.errors import RAISED, CoterieError, plural, shortened

ROWS = "The first argument"
AGAIN = 16  # items of a Dataset that are read twice


def by_client(given: Mapping[Any, Any]) -> dict[str, Any]:
    """The rows of every client, one after another."""
    if not given:
        raise CoterieError(f"{ROWS} has no client.")
    if twice := [label for label in given if str(label) != label and str(label) in given]:
        raise CoterieError(f"{ROWS} has client {twice[0]} twice, as a number and as text: give each client one label.")
    parts = {label: _pair(label, own) for label, own in given.items()}
    X, y = (together([part[k] for part in parts.values()], "The rows of clients") for k in (0, 1))
    counts = [len(part[1]) for part in parts.values()]
    return {"X": X, "y": y, "client": np.repeat([str(label) for label in parts], counts)}


def collated(given: Any, collate: Any, what: str) -> dict[str, Any]:
    """The rows of a mapping from clients to Datasets, all of whose items one ``collate`` puts together, read once.

    A CoterieError, which names ``what`` collates, where there are no Datasets, or something else than rows comes back.
    """
    sized = isinstance(given, Mapping) and given and not {"X", "y"} <= given.keys()
    if not sized or not all(hasattr(own, "__getitem__") and hasattr(own, "__len__") for own in given.values()):
        raise CoterieError(f"{what} puts items of Datasets together: let source give a mapping from clients to these.")
    try:
        found = collate([own[i] for own in given.values() for i in range(len(own))])
        named = ({str(k): _array(v) for k, v in part.items()} if isinstance(part, Mapping) else part for part in found)
        X, y = (as_inputs(part, "X or y") if isinstance(part, dict) else _array(part) for part in named)
    except RAISED as e:
        raise CoterieError(f"{what} must make (X, y) of a list of items: {shortened(str(e), 120)}.") from e
    counts = [len(own) for own in given.values()]
    if not X.ndim or not y.ndim or not len(X) == len(y) == sum(counts):
        raise CoterieError(f"{what} gives X of shape {X.shape} and y of shape {y.shape} for {sum(counts):,} items.")
    return {"X": X, "y": y, "client": np.repeat([str(label) for label in given], counts)}


def _pair(label: Any, own: Any) -> tuple[Any, Any]:
    """Inputs and outcomes of a client, whose Dataset is read once."""
    fixed = True
    try:
        if hasattr(own, "dtype"):
            raise TypeError("it is one array")
        if isinstance(own, Sequence) and len(own) == 2:
            X, y = (as_inputs(part, "X or y") if several(part) else _array(part) for part in own)
        elif hasattr(own, "__getitem__") and hasattr(own, "__len__"):
            items = [_item(own[i]) for i in range(len(own))]
            X, y = (_stacked([item[k] for item in items]) for k in (0, 1)) if items else 2 * (np.empty(0),)
            some = range(min(len(own), AGAIN))
            fixed = all(digest(_flat(items[i])) == digest(_flat(_item(own[i]))) for i in some)
        else:
            raise TypeError("it is neither")
    except RAISED as e:
        why = shortened(str(e), 120)
        raise CoterieError(f"Client {label} must have (X, y), or a Dataset of pairs of one shape: {why}.") from e
    if not X.ndim or not y.ndim or len(X) != len(y):
        raise CoterieError(
            f"Client {label} has {plural(len(X) if X.ndim else 0, 'row')} of X, and y of shape {y.shape}: give one "
            "each."
        )
    if not len(y):
        raise CoterieError(f"Client {label} has no rows, and no model could be its own: leave it out.")
    if not fixed:
        raise CoterieError(
            f"The Dataset of client {label} gives other items whenever it is read, and here every item is read once: "
            "leave random transforms out, or train with Deep.of_clients, whose steps draw them anew."
        )
    return X, y


def _item(item: Any) -> tuple[Any, Any]:
    """One row of a Dataset."""
    if not isinstance(item, Sequence) or len(item) != 2:
        kind = type(item).__name__
        raise TypeError(f"an item is a {kind}{f' of {len(item)}' if isinstance(item, Sequence) else ''}, and no pair")
    X, y = (part if isinstance(part, Mapping | tuple | list) else _array(part) for part in item)
    return X, y


def _flat(item: Any) -> list[Any]:
    """All arrays of a row, one after another."""
    if isinstance(item, Mapping | tuple):
        return [leaf for part in (item.values() if isinstance(item, Mapping) else item) for leaf in _flat(part)]
    return [_array(item)]


def _stacked(items: list[Any]) -> Any:
    """Items of a Dataset as rows: of one shape, of several lengths, or of several arrays."""
    if isinstance(items[0], Mapping):
        return as_inputs([{key: _array(part) for key, part in item.items()} for item in items], "Items")
    if isinstance(items[0], tuple):
        return as_inputs({str(k): _stacked([item[k] for item in items]) for k in range(len(items[0]))}, "Items")
    rows = [_array(item) for item in items]
    return as_inputs(rows, "Items") if len({row.shape[:1] for row in rows}) > 1 else np.stack(rows)


def _array(values: Any) -> Any:
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)


def digest(parts: Any) -> str:
    """Twelve letters that tell texts and arrays from others."""
    found = blake2b(digest_size=6)
    for part in parts:
        if several(part):
            part = as_inputs(part, "X or y")
            found.update(repr(layout(part)).encode())
            for one in hashed(part):
                found.update(one)
            continue
        values = np.asarray(part.encode() if isinstance(part, str) else _array(part))
        if values.dtype.kind == "O":
            values = np.asarray(repr(values.tolist()).encode())
        found.update(f"{values.dtype}{values.shape}".encode())
        found.update(np.ascontiguousarray(values).view(np.uint8).data if values.size else b"")
    return found.hexdigest()
