"""What a configuration holds that no file names: rows, a module or a function in memory, with a text for each."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np

from coterie.data.array_input import is_table
from coterie.data.rows_by_client import ROWS, by_client, digest
from coterie.data.table import Table
from coterie.errors import CoterieError
from coterie.options import shown

MARK = "in memory:"
"""How the placeholder of something without a name begins."""
SPLIT = "split"
"""The array that says on which side rows are, by default."""
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
        return Held.of(value, f"{MARK}{type(value).__name__} {digest([repr(value), *_numbers(value)])}")
    if not callable(value):
        raise ValueError("neither a name nor what can be called")
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", type(value).__name__)
    home = None if module == "__main__" else sys.modules.get(str(module))
    if reduce(lambda at, part: getattr(at, part, None), name.split("."), home) is value:
        return Held.of(value, f"{module}:{name}")
    written = getattr(value, "__code__", None)
    told = repr(value if written is None else (written.co_code, written.co_consts, value.__closure__))
    return Held.of(value, f"{MARK}{name.rpartition('.')[2]} {digest([_PLACE.sub('', told)])}")


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
        arrays = by_client(given)
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
    return Held.of(arrays, f"{MARK}rows {digest(arrays.values())}")


def _groups(arrays: Mapping[str, Any], group: Mapping[Any, Any]) -> Any:
    """The group of every row, by its client."""
    if "client" not in arrays:
        raise CoterieError("Groups by client need to know whose rows there are: give client, too.")
    known = {str(label): value for label, value in group.items()}
    labels, codes = np.unique(np.asarray(arrays["client"]).astype(str), return_inverse=True)
    if lost := [label for label in labels.tolist() if label not in known]:
        raise CoterieError(f"group does not say the group of client {lost[0]}: name one for each client.")
    return np.array([str(known[label]) for label in labels.tolist()])[codes]


def need_named(text: str, what: str, remedy: str) -> None:
    """Raise for the placeholder of what was in memory when a configuration was written."""
    if text.startswith(MARK) and not isinstance(text, Held):
        raise CoterieError(f"{what} was in memory when this configuration was written ('{text}'): {remedy}.")
