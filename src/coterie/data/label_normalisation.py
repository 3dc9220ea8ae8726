"""Labels that look the same are the same: how a label's text is written, and which labels resemble each other."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[Any]

_NEAR = 0.85
"""Likeness from which a label may be a slip for another."""
_SLIPS = 10
_KNOWN = 10_000
"""Most labels that are looked at for slips, and most labels that each is compared with."""
_MANY = 200_000
"""Known labels above which no likeness is looked for."""


def tidy(text: str) -> str:
    """Text without white space around it, in one of the ways (NFC) that Unicode has of writing accents."""
    text = text.strip()
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def tidied(values: Labels) -> Labels:
    """The same of an array of any objects; what is not text stays as it is."""
    out = np.empty(len(values), dtype=object)
    out[:] = [tidy(v) if isinstance(v, str) else v for v in values]
    return out


def joined(written: Labels, labels: Labels) -> tuple[str, ...]:
    """The labels that were written in several ways.

    Parameters
    ----------
    written : (k,) array
        Distinct values of a column.
    labels : (k,) array
        What each of them is read as.

    Returns
    -------
    tuple of str
    """
    pairs = [(w, label) for w, label in zip(written, labels, strict=True) if isinstance(w, str)]
    changed = {label for w, label in pairs if w != label}
    if not changed:
        return ()
    ways = Counter(label for _, label in pairs if label in changed)
    return tuple(sorted(label for label, count in ways.items() if count > 1))


def remarks(name: str, labels: Labels, several: Sequence[str] = (), show: bool = True) -> list[str]:
    """What to say of the spellings in a column.

    Parameters
    ----------
    name : str
        The column.
    labels : (m,) array
        Its distinct labels.
    several : sequence of str
        Labels that were written in several ways.
    show : bool, default True
        False leaves out numbers and examples, for notes that leave the table's owner.
    """
    notes = []
    if several:
        one = show and len(several) == 1
        count = f"{len(several):,} label{'s' * (not one)}" if show else "Labels"
        such = f", such as {several[0]!r}" if show else ""
        notes.append(
            f"{count} of '{name}' {'is' if one else 'are'} written in several ways that look alike (white space "
            f"around, accents in another Unicode form){such}: each was read as one."
        )
    groups = _folded(labels) if show else []
    if groups:
        pair = " and ".join(map(repr, groups[0][:2]))
        more = f", and {len(groups) - 1:,} more" if len(groups) > 1 else ""
        notes.append(
            f"Labels of '{name}' that differ only in upper and lower case were kept apart: {pair}{more}. If they are "
            "one, write them alike."
        )
    return notes


def _folded(labels: Labels) -> list[list[str]]:
    """Groups of labels that differ only in case."""
    if labels.dtype.kind != "O":
        return []
    folds = [str(v).casefold() for v in labels]
    if len(set(folds)) == len(folds):
        return []
    groups: dict[str, list[str]] = {}
    for fold, label in zip(folds, labels, strict=True):
        groups.setdefault(fold, []).append(str(label))
    return [group for group in groups.values() if len(group) > 1]


def resembling(strange: Labels, known: Labels) -> list[tuple[str, str]]:
    """Labels that may be slips for known ones, each with the one that may be meant.

    They differ from it in case, accents, marks, zeros in front, the way of writing a number or date, or a few letters,
    but in no digit: school 12 is no slip for school 1.
    """
    if not len(strange) or len(known) > _MANY:
        return []
    alike: dict[str, str] = {}
    for label in known:
        alike.setdefault(_bare(str(label)), str(label))
    if known.dtype.kind != "O":  # numbers are written in one way, and no letters can be wrong
        return [(s, alike[b]) for s in map(str, strange) if (b := _bare(s)) in alike and alike[b] != s]
    found = []
    slips = _SLIPS if len(alike) <= _KNOWN else 0
    for label in map(str, strange):
        bare = _bare(label)
        if bare in alike:
            found += [(label, alike[bare])] * (alike[bare] != label)
        elif slips and (near := _nearest(bare, alike)):
            found.append((label, alike[near]))
        slips = max(slips - (bare not in alike), 0)
    return [pair for pair in found if pair[1].strip()]


def numbered(strange: Labels, known: Labels) -> list[tuple[str, str]]:
    """Labels with the known ones that end in the same number: ``S001`` for 1, where there is one for each of them."""
    if len(known) > _MANY:
        return []
    ends: dict[str, list[str]] = {}
    for label in map(str, known):
        ends.setdefault(_last_number(label), []).append(label)
    pairs = [(label, ends.get(_last_number(label), [])) for label in map(str, strange) if _last_number(label)]
    return [(label, those[0]) for label, those in pairs] if all(len(those) == 1 for _, those in pairs) else []


def _last_number(text: str) -> str:
    found = re.search(r"0*([0-9]+)\D*$", text)
    return found[1] if found else ""


def _nearest(bare: str, known: Iterable[str]) -> str:
    digits = re.sub(r"\D", "", bare)
    those = [k for k in known if len(k) <= 2 * len(bare) and re.sub(r"\D", "", k) == digits]
    return next(iter(difflib.get_close_matches(bare[:200], those, n=1, cutoff=_NEAR)), "")


def _bare(text: str) -> str:
    """Words in lower case without accents and marks, numbers without zeros in front of them or after their point."""
    text = re.sub(r"[T ]00:00(:00(\.0+)?)?$", "", text)  # a day, written as its first moment
    text = re.sub(r"^([+-]?\d+)(?:\.0+|(\.\d*?[1-9])0+)$", r"\1\2", text)
    if re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d\d?", text):
        text = f"{float(text):.17g}"
    letters = (c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    folded = "".join(letters).casefold().removeprefix("urn:uuid:")
    if re.fullmatch(r"\W*[0-9a-f]{8}(-?)([0-9a-f]{4}\1){3}[0-9a-f]{12}\W*", folded):
        return re.sub(r"\W", "", folded)
    words = re.findall(r"[^\W_]+", folded)
    return " ".join(re.sub(r"(?<!\d)0+(?=\d)", "", word) for word in words) or text
