"""Checks of what users ask for: each raises one sentence that says what can be asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from coterie.errors import CoterieError, nearest

LARGEST = 10**9
"""Steps, rows and seeds at most."""


def need_names(what: str, given: Iterable[str], known: Sequence[str] | type) -> None:
    """Raise for an option of ``what`` that is not among those known: names, or a dataclass's fields."""
    names = [f.name for f in fields(known)] if isinstance(known, type) else list(known)
    for name in given:
        if name not in names:
            raise CoterieError(f"{what} has no option {name!r}.{nearest(name, names)} There are {', '.join(names)}.")


def need_choices(options: Any, choices: Mapping[str, Sequence[str]]) -> None:
    """Raise where an attribute of ``options`` is none of its choices."""
    for name, values in choices.items():
        value = getattr(options, name)
        if not (isinstance(value, str) and value in values):
            raise CoterieError(f"{name} must be one of {', '.join(values)}, not {value!r}.{nearest(value, values)}")


def need_whole(options: Any, least: Mapping[str, int], optional: Sequence[str] = ()) -> None:
    """Raise where an attribute is no whole number from its least value on; None where that is ``optional``."""
    for name, low in least.items():
        value = getattr(options, name)
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not (whole and low <= value <= LARGEST) and not (value is None and name in optional):
            raise CoterieError(f"{name} must be a whole number from {low} to {LARGEST:,}, not {value!r}.")


def need_positive(options: Any, most: Mapping[str, float], words: Mapping[str, Sequence[str]] | None = None) -> None:
    """Raise where an attribute is no finite number above 0, up to ``most``, nor one of its words."""
    for name, high in most.items():
        value, others = getattr(options, name), (words or {}).get(name, ())
        if isinstance(value, str) and value in others:
            continue
        number = isinstance(value, (int, float, np.number)) and not isinstance(value, (bool, np.bool_))
        if not (number and 0.0 < value <= high and value < np.inf):
            also = "".join(f"{word} or " for word in others)
            upper = "" if np.isinf(high) else f" and up to {high:g}"
            raise CoterieError(f"{name} must be {also}a number above 0{upper}, not {value!r}.")


def is_number(value: Any) -> bool:
    """Whether a value is a real number, which a truth value is not."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
