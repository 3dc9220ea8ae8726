"""What a site is asked: read once, whether it has the form of a request, and how many rows stand behind the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from coterie.engines import wire
from coterie.errors import CoterieError
from coterie.federation import Array, Ints

Answer = Callable[[Any, bytes], bytes]
"""``answer(request, key)``: what a site says to a request; ``key`` is the digest of the request's message."""
NUMBERED = ("ask", "total", "mark", "restore", "join", "confirm", "unmask")
"""Kinds of requests that change what a site holds. Their numbers rise: an older one than the last changes nothing."""


class Refusal(CoterieError):
    """A site disagrees with the coordinator on what has happened, or will not say what it is asked."""


def failed(problem: Exception) -> bytes:
    """The answer of a site whose work failed."""
    try:
        text = str(problem)
    except ValueError:  # of a KeyError, say, whose key is a whole number with too many digits to be written
        text = "what is wrong cannot be written"
    return wire.encode({"failed": f"{type(problem).__name__}: {text}"})


def need_form(request: Mapping[str, Any]) -> None:
    """Raise a CoterieError for a request of one of the kinds ``NUMBERED`` as no coordinator sends one.

    Numbers of exchanges that equal nothing, not even themselves (NaN), would make a site work again where it should
    repeat its reply; clients counted from the end, or by fractions, would be asked twice unseen; and a group with a
    large number takes memory for all below it.
    """
    kind, rows, by = request["kind"], request.get("rows"), request.get("by")
    named = {"mark": ("counted",), "restore": ("exchange",), "ask": _BOTH, "total": _BOTH}.get(kind, ())
    sound = all(numbers(request[name]) for name in named) and isinstance(request.get("tag", ""), str)
    sound = sound and numbers([request.get("number", 1), 0])
    masked = isinstance(rows, np.ndarray) and rows.dtype == bool and rows.ndim == 1
    sound = sound and (rows is None or masked or _whole(rows))
    sound = sound and (by is None or by == "cluster" if _text(by) else _whole(by))
    if sound and by is not None and not _text(by) and len(by):
        sound = int(by.max()) < len(by) and (rows is None or masked or len(rows) == len(by))
    if not sound:
        raise CoterieError("A request names exchanges, clients or groups as none does: use one version everywhere.")


_BOTH = ("exchange", "counted")


def clients(rows: Array | None, clusters: Ints) -> Ints | None:
    """The client of each request (None: all) of ``rows``: clients, or a mask over the site's sorted clusters (m,)."""
    if rows is None or rows.dtype != bool:
        return None if rows is None else rows.astype(np.int64)
    if len(rows) != (int(clusters[-1]) + 1 if len(clusters) else 0):
        raise CoterieError(f"A request names {len(rows)} clusters, and here are others: begin a new run.")
    return np.flatnonzero(rows[clusters])


def covers(counts: Array, rows: Ints | None, labels: Ints) -> Ints:
    """How many of the clients' rows (m,) each group of a request covers; a client that is asked twice counts once."""
    clients = np.arange(len(labels)) if rows is None else np.asarray(rows, dtype=np.int64)
    if rows is not None and len(np.unique(clients)) < len(clients):
        labels, clients = np.divmod(np.unique(np.asarray(labels, dtype=np.int64) * len(counts) + clients), len(counts))
    sums: Ints = np.bincount(labels, counts[clients])[np.unique(labels)].astype(np.int64)
    return sums


def numbers(exchange: Any) -> bool:
    """Whether a value numbers an exchange: two whole numbers that can be written, in a log too."""
    return (
        isinstance(exchange, list) and len(exchange) == 2 and all(type(n) is int and 0 <= n < 2**63 for n in exchange)
    )


def _text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _whole(value: Any) -> bool:
    if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.kind not in "iu":
        return False
    return not len(value) or (int(value.min()) >= 0 and int(value.max()) < 2**62)
