"""Whether what arrives can be used: at a site the form of a request, at the coordinator the replies of sites."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np

from coterie.engines import wire
from coterie.errors import LONGEST, CoterieError, shortened
from coterie.federation import Ragged

Answer = Callable[[Any, bytes], bytes]
"""``answer(request, key)``: what a site says to a request; ``key`` is the digest of the request's message."""
NUMBERED = ("ask", "total", "mark", "restore", "join", "confirm", "unmask")
"""Kinds of requests that change what a site holds. Their numbers rise: an older one than the last changes nothing."""


TOLD = 4  # bytes of a request's digest that a reply says


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
    marks = request.get("marks", [])
    sound = sound and isinstance(marks, list) and all(isinstance(tag, str) for tag in marks)
    sound = sound and numbers([request.get("number", 1), 0])
    masked = isinstance(rows, np.ndarray) and rows.dtype == bool and rows.ndim == 1
    sound = sound and (rows is None or masked or _whole(rows))
    sound = sound and (by is None or by == "cluster" if _text(by) else _whole(by))
    if sound and by is not None and not _text(by) and len(by):
        sound = int(by.max()) < len(by) and (rows is None or masked or len(rows) == len(by))
    if not sound:
        raise CoterieError("A request names exchanges, clients or groups as none does: use one version everywhere.")


_BOTH = ("exchange", "counted")


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


NUMBERS = "biufc"  # kinds of dtypes that can be added up
K = TypeVar("K")
T = TypeVar("T")
_FARTHEST = 2**48  # no run has as many requests; a site that says so could drive the numbers to where they end
Kind = Literal["lost", "late", "unreadable", "broken", "failed", "refused"]
_TROUBLES: tuple[tuple[str, Kind, str], ...] = (
    ("garbled", "lost", "could not read the request: "),
    ("busy", "lost", ""),
    ("failed", "failed", "work failed: "),
    ("refused", "refused", ""),
)
_OTHER = "its answer belongs to another request"


@dataclass(frozen=True)
class ReplyFault:
    """An answer that cannot be used.

    Its kind: no answer, that to another request, or one that the site itself had no use for ("lost"); the site has had
    a request with a later ``number`` ("late"); bytes that are no message ("unreadable"); a message that is no answer
    ("broken"); the site's work failed ("failed"); the site disagrees on what has happened, or will not say ("refused").
    """

    kind: Kind
    text: str
    number: int = 0


def read_reply(data: bytes | None, request: Mapping[str, Any], site: str, key: bytes) -> dict[str, Any] | ReplyFault:
    """The answer in ``data`` (None: there was none) of a site to a ``request``, with the digest ``key``."""
    if data is None:
        return ReplyFault("lost", "did not answer")
    try:
        reply = wire.decode(data)
    except wire.OtherVersion as problem:
        return ReplyFault("broken", str(problem))
    except CoterieError as problem:
        return ReplyFault("unreadable", f"its answer cannot be read ({problem})")
    if not isinstance(reply, dict):
        return ReplyFault("broken", "its answer is no answer")
    for name, kind, text in _TROUBLES:
        if name in reply:
            said = reply[name] if isinstance(reply[name], str) else "it does not say what"
            return ReplyFault(kind, f"{text}{shortened(said, LONGEST)}")
    about = reply.get("site"), reply.get("to")
    if request["kind"] in NUMBERED and not (tuple(map(type, about)) == (str, bytes) and about == (site, key[:TOLD])):
        return ReplyFault("lost", _OTHER)
    if "late" in reply:
        if type(reply["late"]) is not int or not 0 < reply["late"] < _FARTHEST:
            return ReplyFault("broken", "its answer is no answer")
        return ReplyFault("late", "was asked something later, by another process of the coordinator", reply["late"])
    if request["kind"] in ("ask", "total"):
        if not _answers(reply, request):
            return ReplyFault("broken", _OTHER)
        if request["kind"] == "total" and "secure" not in request and (other := _unsummed(reply["values"])) is not None:
            return ReplyFault("broken", f"its {other!r} is no sum of numbers")
        return reply
    if not isinstance(reply.get("done"), str) or reply["done"] != request["kind"]:
        return ReplyFault("broken", _OTHER)
    return reply


def _unsummed(values: Mapping[str, Any]) -> str | None:
    """The first name of an answer to "total" whose value is made of other things than numbers; None if none is."""
    for name, value in values.items():
        parts = value if isinstance(value, list) else [value]
        if not all(isinstance(p, np.ndarray | np.generic) and p.dtype.kind in NUMBERS for p in parts):
            return name
    return None


def _answers(reply: Mapping[str, Any], request: Mapping[str, Any]) -> bool:
    exchange, gradients = reply.get("exchange"), reply.get("gradients")
    return (
        isinstance(exchange, list)
        and all(type(number) is int for number in exchange)
        and exchange == request["exchange"]
        and isinstance(reply.get("values"), dict)
        and isinstance(gradients, int)
        and 0 <= gradients < 2**62
    )


def disagreeing(found: Mapping[int, Any], rows: Mapping[int, int | None], unequal: bool) -> dict[int, str]:
    """Sites whose replies have other rows than were asked for, or other names, types or shapes than most sites.

    ``rows`` is how many rows each site was asked for (None: one sum, without an axis of rows); ``unequal``: shapes may
    differ.
    """
    wrong: dict[int, str] = {}
    said: dict[int, str] = {}
    for site, reply in found.items():
        problem = _misshapen(reply["values"], rows[site], unequal)
        if problem is None:
            named = sorted(reply["values"].items())
            said[site] = ", ".join(f"{name} ({_type(v, rows[site], unequal)})" for name, v in named) or "nothing"
        else:
            wrong[site] = problem
    return wrong | outnumbered(said)


def outnumbered(said: Mapping[K, str]) -> dict[K, str]:
    """Who says something else than most, and what.

    Where none are more than the others, all are named: one broken site of two must not put out the sound one.
    """
    common = most_common(said.values())
    others = "as many answer something else" if common is None else f"most answer {common}"
    return {who: f"it answers {text} where {others}" for who, text in said.items() if text != common}


def most_common(said: Iterable[T]) -> T | None:
    """What is said more often than anything else; None where nothing is, so that nobody's word is taken."""
    first = Counter(said).most_common(2)
    return first[0][0] if len(first) == 1 or (first and first[0][1] > first[1][1]) else None


def _misshapen(values: Mapping[str, Any], rows: int | None, unequal: bool) -> str | None:
    for name, value in values.items():
        lists = isinstance(value, list) and unequal and rows is not None
        if not lists and not isinstance(value, np.ndarray | np.generic | Ragged):
            return f"its {name!r} is no array"
        if isinstance(value, list) and not all(isinstance(v, np.ndarray | np.generic) for v in value):
            return f"its {name!r} is no list of arrays"
        if rows is not None and (getattr(value, "ndim", 1) == 0 or len(value) != rows):
            return f"its {name!r} does not have the {rows:,} rows that were asked for"
    return None


def _type(value: Any, rows: int | None, unequal: bool) -> str:
    """What most sites must share: type and shape of a row; rows of unequal lengths or shapes are joined as they are."""
    array = value.values if isinstance(value, Ragged) else value
    if unequal and not isinstance(value, Ragged):
        return " ".join(["rows", *sorted({_kind(part) for part in (value if isinstance(value, list) else [array])})])
    shape = array.shape if rows is None else array.shape[1:]
    if isinstance(value, Ragged):
        return f"Ragged {_kind(array)} {shape}"
    return f"array {array.dtype.kind if array.dtype.kind in 'SU' else array.dtype.str} {shape}"


def _kind(array: Any) -> str:
    return "numbers" if array.dtype.kind in NUMBERS else str(array.dtype.kind)


def not_numbers(found: Mapping[int, Any], nonnegative: Collection[str] = ()) -> dict[int, str]:
    """Sites that answer NaN, infinity or next to it, or of what is ``nonnegative`` less than 0, if most sites do not.

    Where most do, the numbers of the run are to blame.
    """
    wrong = {}
    for site, reply in found.items():
        for name, value in reply["values"].items():
            if not _within(value, -_LARGEST, _LARGEST):
                wrong[site] = f"its {name!r} holds NaN or infinite numbers: use other units for very large values"
            elif name in nonnegative and not _within(value, 0.0, _LARGEST):
                wrong[site] = f"its {name!r} is less than 0, and is a sum of squares or a count"
    return wrong if 2 * len(wrong) < len(found) else {}


_LARGEST = 1e300  # beyond, sums of sites overflow


def _within(value: Any, low: float, high: float) -> bool:
    if isinstance(value, list):
        return all(_within(part, low, high) for part in value)
    array = value.values if isinstance(value, Ragged) else np.asarray(value)
    if array.dtype.kind == "c":
        return bool((np.abs(array) <= high).all())
    return array.dtype.kind not in "iuf" or not array.size or (low <= float(array.min()) and float(array.max()) <= high)
