"""Values of a result as plain JSON, and back again exactly: labels of any kind, infinities, keys that are not text."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from coterie.errors import CoterieError

_TAG = "$"
_ZONE = re.compile(r"UTC([+-]\d\d:\d\d)?|[A-Z][\w+-]*(/[A-Z][\w+-]*)*", re.ASCII)
"""Names of time zones; what else pandas takes for one may be a file."""


def plain(value: Any) -> Any:
    """What JSON can hold of a value: itself, or ``{"$": kind, "value": text}``.

    Raises
    ------
    CoterieError
        For things that no model can be saved with.
    """
    if value is None or isinstance(value, (bool, str)) or type(value) is int:
        return value
    if isinstance(value, np.generic) and not isinstance(value, (np.datetime64, np.timedelta64)):
        return plain(value.item())
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {_TAG: "float", "value": repr(float(value))}
    if isinstance(value, tuple):
        return {_TAG: "tuple", "value": [plain(v) for v in value]}
    if isinstance(value, (list, np.ndarray)):
        return [plain(v) for v in value]
    if isinstance(value, Mapping):
        if all(type(k) is str for k in value) and _TAG not in value:
            return {k: plain(v) for k, v in value.items()}
        return {_TAG: "dict", "value": [[plain(k), plain(v)] for k, v in value.items()]}
    kind = _kind(value)
    if kind is None:
        raise CoterieError(f"A model cannot be saved with {value!r} in it; use numbers, text or dates.")
    return {_TAG: kind, "value": _WRITE[kind](value)}


def unplain(value: Any) -> Any:
    """The value that `plain` was given."""
    if isinstance(value, list):
        return [unplain(v) for v in value]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {k: unplain(v) for k, v in value.items()}
    kind, inner = value[_TAG], value["value"]
    if kind == "tuple":
        return tuple(unplain(v) for v in inner)
    if kind == "dict":
        return {unplain(k): unplain(v) for k, v in inner}
    return _READ[kind](inner)


def from_json(data: bytes) -> Any:
    """What a JSON file says; a ValueError where it is none, or has numbers that :func:`plain` writes otherwise."""
    return json.loads(data, parse_constant=_refuse)


def _refuse(name: str) -> Any:
    raise ValueError(f"it holds {name} for a number")


def need_zone(name: str | None) -> None:
    """A ValueError where a text does not name a time zone."""
    if name is not None and not _ZONE.fullmatch(name):
        raise ValueError("it names no time zone")


def _timestamp(parts: list[Any]) -> Any:
    import pandas as pd

    iso, zone, unit = parts
    need_zone(zone)
    stamp = pd.Timestamp(iso)
    return (stamp if zone is None else stamp.tz_convert(zone)).as_unit(unit)


def _kind(value: Any) -> str | None:
    import pandas as pd

    if isinstance(value, pd.Timestamp):
        return "timestamp"
    if isinstance(value, np.datetime64):
        return "datetime64"
    if isinstance(value, dt.datetime):
        return "datetime"
    return "date" if isinstance(value, dt.date) else None


_WRITE: dict[str, Callable[[Any], Any]] = {
    "timestamp": lambda v: [v.isoformat(), None if v.tz is None else str(v.tz), v.unit],
    "datetime64": lambda v: [str(v), np.datetime_data(v.dtype)[0]],
    "datetime": dt.datetime.isoformat,
    "date": dt.date.isoformat,
}
_READ: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "timestamp": _timestamp,
    "datetime64": lambda v: np.datetime64(v[0], v[1]),
    "datetime": dt.datetime.fromisoformat,
    "date": dt.date.fromisoformat,
}
