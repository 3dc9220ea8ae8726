"""What a site says in words, on its way out: without the paths of its files, and no longer than a sentence can be.

Errors name files, which tell of a site's people, projects and machines. The site's own log has the whole text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coterie.deployment.config import FEDERATION, SCHEMA, SITE
from coterie.deployment.prepared import PROBLEM
from coterie.engines import wire
from coterie.errors import LONGEST, CoterieError, shortened

PATH, FOLDER = "(a path at the site)", "the site's folder"
OWN = (SITE, FEDERATION, SCHEMA, PROBLEM)
_QUOTED = r"""(?P<quote>['"])(?:~?/|[A-Za-z]:[\\/]|\\\\)(?:(?!(?P=quote))[^\n])+(?P=quote)"""
_BARE = r"(?<![\w/:.)\]-])(?:~?(?:/[^\s/'\",:;()<>]+){2,}/?|[A-Za-z]:[\\/][^\s'\",;()<>]+)"
_ANY = re.compile(f"{_QUOTED}|{_BARE}")
_WORDS = ("refused", "failed", "garbled", "done")


def cleaned(reply: bytes, folder: Path) -> bytes:
    """A reply whose words tell no path; numbers, names of clients and levels stay as they are."""
    if not any(word.encode() in reply[:64] for word in _WORDS):
        return reply  # an answer to an exchange: numbers alone
    said = wire.decode(reply)
    before = wire.encode(said)
    for key in _WORDS[:-1]:
        if key in said:
            said[key] = without_paths(str(said[key]), folder)
    for holder, key in ((said, "problems"), (said.get("info"), "notes")):
        if isinstance(holder, dict) and key in holder:
            holder[key] = [without_paths(str(text), folder) for text in holder[key]]
    after = wire.encode(said)
    return reply if after == before else after


def values(reply: bytes) -> bool:
    """Whether a reply of a node holds numbers: not where it refuses, failed, or was asked something late."""
    words = (*_WORDS, "late")
    return not any(word.encode() in reply[:64] for word in words) or "values" in wire.decode(reply)


def without_paths(text: str, folder: Path) -> str:
    """A text that names the site's own settings without where they are, and other files not at all."""

    def name(match: re.Match[str]) -> str:
        last = (match["rest"] or "").rpartition("/")[2]
        return f"'{last}'" if last in OWN else PATH if last else FOLDER

    for known in sorted({str(folder), str(folder.absolute()), str(folder.resolve())} - {".", "/"}, key=len)[::-1]:
        own = re.escape(known)
        text = re.sub(rf"""(?P<quote>['"]){own}(?P<rest>/[^'"\n]*)?(?P=quote)""", name, text)
        text = re.sub(rf"""(?<![\w./-]){own}(?P<rest>/[^\s'",:;()]*)?(?![\w.-])""", name, text)
    return shortened(_ANY.sub(PATH, text), LONGEST)


def safe(function: Callable[[], Any], folder: Path) -> Any:
    """What a function returns; its CoterieError without paths, since an engine sends the text on."""
    try:
        return function()
    except CoterieError as problem:
        raise CoterieError(without_paths(str(problem), folder)) from problem
