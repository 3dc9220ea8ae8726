"""What leaves a site: a line of it in the log of its owner, and words that are redacted.

Errors name files, which tell of a site's people, projects and machines: redacted, they name none and are no longer than
a sentence can be. The site's own log has the whole text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coterie import files
from coterie.deployment import logs
from coterie.deployment.federation_toml import BOOK, FEDERATION, PROBLEM, RELEASES, SCHEMA, SITE
from coterie.deployment.site.disclosure import fewest_rows
from coterie.engines import wire
from coterie.engines.message_checks import numbers
from coterie.engines.site import Node
from coterie.errors import LONGEST, CoterieError, plural, shortened
from coterie.federation import Ragged


def summary(request: Any, reply: bytes, node: Node | None) -> dict[str, Any]:
    """One answer of a site as plain values: what was asked, what left, and the fewest rows that stand behind a number.

    ``node`` is that of the request's run, where it is open.
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
            return found
    if answer.get("problems"):
        found["problems"] = list(answer["problems"])
    values = answer.get("values")
    if isinstance(values, Mapping):
        found["values"] = {name: shape(value) for name, value in values.items()}
        covers = None if node is None else fewest_rows(node.about(), request)
        if covers is not None:
            found["covers"] = covers
    elif found["kind"] in ("open", "about"):
        found["clients"] = len(answer.get("labels", ()))
    return found


def note_answer(path: Path, request: Any, reply: bytes, seconds: float, node: Node | None, sent: int) -> None:
    """Note for a site's owner what left: ``watch`` of a :class:`~coterie.deployment.site.receiver.SiteReceiver`.

    ``sent`` are the bytes that went out, in which a form that both ends know is left out.
    """
    told = {"time": logs.now(), **summary(request, reply, node), "bytes": sent, "seconds": round(seconds, 6)}
    logs.append(path, told)


TOLD = 20  # of what an owner was told, so much is kept: the last of it may only be what came of the first


def tell_owner(folder: Path, lines: Iterable[str]) -> None:
    """Write down in a site's folder what does not leave, after what was said before: :data:`PROBLEM`."""
    path = folder / PROBLEM
    said = "\n".join(re.sub(r"\n{2,}", "\n", line) for line in lines)
    before = path.read_text(errors="replace").strip().split("\n\n") if path.is_file() else []
    kept = [old for old in before if old and old.partition("\n")[2] != said][1 - TOLD :]
    text = "\n\n".join([*kept, f"[{logs.now()}]\n{said}"])
    files.write(path, [f"{text}\n".encode(errors="replace")], mode=0o600)


def shape(value: Any) -> str:
    """A value's type and shape: ``float64 (4, 10)``; ``uint8 3 rows, 120 in all`` of rows of different lengths."""
    if isinstance(value, Ragged):
        return f"{value.values.dtype} {plural(len(value), 'row')}, {len(value.values)} in all"
    if isinstance(value, np.ndarray | np.generic):
        size = ", ".join(map(str, value.shape))
        return f"{value.dtype} ({size}{',' if value.ndim == 1 else ''})"
    if isinstance(value, list):
        return f"[{', '.join(map(shape, value))}]"
    return type(value).__name__


PATH, FOLDER = "(a path at the site)", "the site's folder"
OWN = (SITE, FEDERATION, SCHEMA, PROBLEM, RELEASES, BOOK)
_QUOTED = r"""(?P<quote>['"])(?:~?/|[A-Za-z]:[\\/]|\\\\)(?:(?!(?P=quote))[^\n])+(?P=quote)"""
_BARE = r"(?<![\w/:.)\]-])(?:~?(?:/[^\s/'\",:;()<>]+){2,}/?|[A-Za-z]:[\\/][^\s'\",;()<>]+)"
_ANY = re.compile(f"{_QUOTED}|{_BARE}")
_WORDS = ("refused", "failed", "garbled", "busy", "done")


def redact(reply: bytes, folder: Path, data: str = "") -> bytes:
    """A reply whose words tell no path, nor the name of the file of ``data``; what else it holds stays as it is."""
    if not any(word.encode() in reply[:64] for word in _WORDS):
        return reply  # an answer to an exchange: numbers alone
    said = wire.decode(reply)
    before = wire.encode(said)
    for key in _WORDS[:-1]:
        if key in said:
            said[key] = redact_paths(str(said[key]), folder, data)
    for holder, key in ((said, "problems"), (said.get("info"), "notes")):
        if isinstance(holder, dict) and key in holder:
            holder[key] = [redact_paths(str(text), folder, data) for text in holder[key]]
    after = wire.encode(said)
    return reply if after == before else after


def holds_numbers(reply: bytes) -> bool:
    """Whether a reply of a node holds numbers: not where it refuses, failed, or was asked something late."""
    words = (*_WORDS, "late")
    return not any(word.encode() in reply[:64] for word in words) or "values" in wire.decode(reply)


def redact_paths(text: str, folder: Path, data: str = "") -> str:
    """A text that names the site's own settings without where they are, and other files not at all, nor ``data``."""

    def name(match: re.Match[str]) -> str:
        last = (match["rest"] or "").rpartition("/")[2]
        return f"'{last}'" if last in OWN else PATH if last else FOLDER

    for known in sorted({str(folder), str(folder.absolute()), str(folder.resolve())} - {".", "/"}, key=len)[::-1]:
        own = re.escape(known)
        text = re.sub(rf"""(?P<quote>['"]){own}(?P<rest>/[^'"\n]*)?(?P=quote)""", name, text)
        text = re.sub(rf"""(?<![\w./-]){own}(?P<rest>/[^\s'",:;()]*)?(?![\w.-])""", name, text)
    text = _ANY.sub(PATH, text)
    if (table := Path(data).name) and table in text:  # also as part of a longer name, such as that of a copy
        *heads, last = text.split(table)
        text = PATH.join([*(head[: 1 + max(map(head.rfind, " \t\n'\""))] for head in heads), last])
    return shortened(text, LONGEST)
