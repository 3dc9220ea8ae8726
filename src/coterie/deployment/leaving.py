"""What a reply of a site holds, in words that its owner can check: names, shapes, bytes, rows covered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from coterie.engines import wire
from coterie.engines.node import Node
from coterie.engines.requests import clients, covers, numbers
from coterie.errors import LONGEST, CoterieError, shortened
from coterie.federation import Ragged


def described(request: Any, reply: bytes, node: Node | None) -> dict[str, Any]:
    """One answer of a site as plain values: what was asked, what left, and the fewest rows that stand behind a number.

    Parameters
    ----------
    request : dict
        As decoded.
    reply : bytes
        The whole message.
    node : Node or None
        Of the request's run, where it is open.
    """
    request = request if isinstance(request, dict) else {}
    found: dict[str, Any] = {"run": None, "kind": "?"}
    texts = {name: request.get(name) for name in ("run", "kind", "work")}
    found |= {name: shortened(text) for name, text in texts.items() if isinstance(text, str)}
    if "work" in found:
        found["work"] = found["work"].removeprefix("coterie.")
    if isinstance(task := request.get("task"), Mapping) and isinstance(task.get("formula"), str):
        found["formula"] = shortened(task["formula"])
    if numbers(exchange := request.get("exchange")):
        found["exchange"] = exchange[-1]
    try:
        answer = wire.decode(reply)
    except CoterieError:  # the site wrote it itself: never but by a fault of its memory
        answer = {}
    for trouble in ("refused", "failed", "garbled", "late"):
        if trouble in answer:
            found[trouble] = shortened(str(answer[trouble]), LONGEST)
            return found | {"bytes": len(reply)}
    if answer.get("problems"):
        found["problems"] = list(answer["problems"])
    values = answer.get("values")
    if isinstance(values, Mapping):
        found["values"] = {name: shape(value) for name, value in values.items()}
        covers = None if node is None else covered(node.about(), request)
        if covers is not None:
            found["covers"] = covers
    elif found["kind"] in ("open", "about"):
        found["clients"] = len(answer.get("labels", ()))
    return found | {"bytes": len(reply)}


def covered(about: Mapping[str, Any], request: Mapping[str, Any]) -> int | None:
    """The fewest rows that a row of the reply stands for: of a client, or of a group of a sum; None for no request.

    Parameters
    ----------
    about : dict
        ``counts`` and ``clusters`` of the site's clients.
    request : dict
        Of kind "ask" or "total".
    """
    counts, clusters = np.asarray(about["counts"]), np.asarray(about["clusters"])
    rows, by = clients(request.get("rows"), clusters), request.get("by")
    n = len(counts) if rows is None else len(rows)
    if not n:
        return None
    if request["kind"] == "ask":
        labels = np.arange(n)
    elif by is None:
        labels = np.zeros(n, dtype=np.int64)
    else:
        labels = (clusters if rows is None else clusters[rows]) if isinstance(by, str) else by
    return int(covers(counts, rows, labels).min())


def shape(value: Any) -> str:
    """A value's type and shape: ``float64 (4, 10)``; ``uint8 3 rows, 120 in all`` of rows of different lengths."""
    if isinstance(value, Ragged):
        return f"{value.values.dtype} {len(value)} rows, {len(value.values)} in all"
    if isinstance(value, np.ndarray | np.generic):
        size = ", ".join(map(str, value.shape))
        return f"{value.dtype} ({size}{',' if value.ndim == 1 else ''})"
    if isinstance(value, list):
        return f"[{', '.join(map(shape, value))}]"
    return type(value).__name__
