"""What a configuration holds that no file names: rows, a module or a function in memory, with a text for each."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from functools import reduce
from hashlib import blake2b
from typing import Any

import numpy as np

from coterie.data.array_input import is_table
from coterie.data.net_inputs import as_inputs, hashed, layout, several, together
from coterie.data.table import Table
from coterie.errors import RAISED, CoterieError, plural, shortened
from coterie.options import shown

MARK = "in memory:"
"""How the placeholder of something without a name begins."""
ROWS = "The first argument"
SPLIT = "split"
"""The array that says on which side rows are, by default."""
AGAIN = 16  # items of a Dataset that are read twice
_PLACE = re.compile(r" at 0x[0-9a-fA-F]+")
"""Where something lies in memory, which no two processes agree on."""


class Held(str):
    """The text that stands for something in memory, where a configuration is hashed, shown or written; and the thing.

    A function that can be imported has its import path; anything else a placeholder with a digest.
    """

    value: Any

    @classmethod
    def of(cls, value: Any, text: str) -> Held:
        """A thing and its text."""
        made = cls(text)
        made.value = value
        return made


def code(value: Any) -> str:
    """A name as it is; a module, a class or a function as what is held. A ValueError for anything else."""
    if isinstance(value, str):
        return value
    if hasattr(value, "state_dict") and not isinstance(value, type):
        return Held.of(value, f"{MARK}{type(value).__name__} {_digest([repr(value), *_numbers(value)])}")
    if not callable(value):
        raise ValueError("neither a name nor what can be called")
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", type(value).__name__)
    home = None if module == "__main__" else sys.modules.get(str(module))
    if reduce(lambda at, part: getattr(at, part, None), name.split("."), home) is value:
        return Held.of(value, f"{module}:{name}")
    written = getattr(value, "__code__", None)
    told = repr(value if written is None else (written.co_code, written.co_consts, value.__closure__))
    return Held.of(value, f"{MARK}{name.rpartition('.')[2]} {_digest([_PLACE.sub('', told)])}")


def _numbers(module: Any) -> list[Any]:
    """Parameters and buffers; none of a layer that has no numbers yet, which is refused where it is built."""
    try:
        return [v.detach().cpu().float().numpy() for v in module.state_dict().values() if hasattr(v, "detach")]
    except (RuntimeError, TypeError, ValueError):  # lazy, sparse, or on the device "meta"
        return []


def rows(given: Any, client: Any = None, group: Any = None, given_split: Any = None, **more: Any) -> Held:
    """Rows in memory as arrays by name: X, y and, where they are known, client, group, split and ``more``.

    ``given`` is (X, y[, client[, group]]), a mapping of such arrays, or one from clients to their (X, y) or Dataset; a
    table is held as it is.
    The others are a value for each row or names of arrays in it; groups may be a mapping from clients.
    """
    arrays: dict[str, Any]
    beside = {"client": client, "group": group, "given_split": given_split, **more}
    if is_table(given):
        for name, value in beside.items():
            if value is not None and not isinstance(value, str):
                raise CoterieError(f"{name} of a table must be the name of a column, not {shown(value)}.")
        table = Table.of(given)
        for name, value in beside.items():
            table.need([] if value is None else [value], "relation" if name in ("client", "group") else name)
        return Held.of(table.frame, f"{MARK}table {table.fingerprint()[:12]}")
    if isinstance(given, Mapping) and not {"X", "y"} <= given.keys():
        if client is not None:
            raise CoterieError("Rows that are given by client name their clients: leave client out.")
        arrays = _by_client(given)
    elif isinstance(given, Mapping):
        arrays = dict(given)
    elif isinstance(given, (tuple, list)) and 2 <= len(given) <= 4:
        arrays = dict(zip(("X", "y", "client", "group"), given, strict=False))
    else:
        raise CoterieError(
            f"{ROWS} is {shown(given)}, and a model of Torch takes (X, y), arrays by name, a mapping from clients to "
            "(X, y), or data by name; give a table with a formula."
        )
    for name, value in beside.items():
        own = SPLIT if name == "given_split" else name
        if isinstance(value, str):
            if value not in arrays:
                raise CoterieError(f"{ROWS} has no array '{value}', as {name} says. There are {', '.join(arrays)}.")
            arrays[own] = arrays[value]
        elif value is not None and not isinstance(value, Mapping):
            arrays[own] = value
    if isinstance(group, Mapping):
        arrays["group"] = _groups(arrays, group)
    return Held.of(arrays, f"{MARK}rows {_digest(arrays.values())}")


def _groups(arrays: Mapping[str, Any], group: Mapping[Any, Any]) -> Any:
    """The group of every row, by its client."""
    if "client" not in arrays:
        raise CoterieError("Groups by client need to know whose rows there are: give client, too.")
    known = {str(label): value for label, value in group.items()}
    labels, codes = np.unique(np.asarray(arrays["client"]).astype(str), return_inverse=True)
    if lost := [label for label in labels.tolist() if label not in known]:
        raise CoterieError(f"group does not say the group of client {lost[0]}: name one for each client.")
    return np.array([str(known[label]) for label in labels.tolist()])[codes]


def _by_client(given: Mapping[Any, Any]) -> dict[str, Any]:
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
            fixed = all(_digest(_flat(items[i])) == _digest(_flat(_item(own[i]))) for i in some)
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


def need_named(text: str, what: str, remedy: str) -> None:
    """Raise for the placeholder of what was in memory when a configuration was written."""
    if text.startswith(MARK) and not isinstance(text, Held):
        raise CoterieError(f"{what} was in memory when this configuration was written ('{text}'): {remedy}.")


def _digest(parts: Any) -> str:
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
