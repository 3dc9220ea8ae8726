"""Labels of clients, clusters and categories: codes in natural order, hashes, and labels that look the same.

A label's text is written in one way, so that 1, 1.0, "1" and " 1" are one client on any machine and in any order.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.lazy_modules import pd
from coterie.numerics.arrays import Ints
from coterie.numerics.keyed_random import text_ids

Labels = npt.NDArray[Any]

_NUMBERS = (int, float, np.integer, np.floating, Decimal)
_NEAR = 0.85  # likeness from which a label may be a slip for another
_SLIPS = 10
_KNOWN = 10_000  # most labels that are looked at for slips, and most labels that each is compared with
_MANY = 200_000  # known labels above which no likeness is looked for
_HALVES = re.compile("[\ud800-\udfff]")  # of characters, which a wrong decoding leaves


@dataclass(frozen=True, eq=False)
class Coded:
    """A column of labels: ``labels[codes]``."""

    codes: Ints  # (n,) place of each row's label; -1 where it is missing
    labels: Labels  # (m,) distinct, numbers by size, text by code point: integers, floats, booleans, datetimes or str
    joined: tuple[str, ...] = ()  # those that the column writes in several ways that look alike

    @property
    def missing(self) -> npt.NDArray[np.bool_]:
        """Rows without a label, (n,) bool."""
        return self.codes < 0

    def take(self, rows: npt.NDArray[Any]) -> Coded:
        """Some of the rows (mask or positions), with the labels that are still used."""
        codes = self.codes[rows]
        used = np.bincount(codes, minlength=len(self.labels)) > 0
        return Coded((np.cumsum(used, dtype=np.int64) - 1)[codes], self.labels[used], self.joined)


def encode(values: Any) -> Coded:
    """Codes and distinct labels of a column: a Series, an array or a sequence.

    Whole numbers stored as floats (as happens when a label is missing) become integers; columns that mix numbers and
    text become text, so that 1 and "1" are one client. Text that looks the same is one label: see :func:`tidy`.
    """
    if isinstance(values, np.ndarray) and values.dtype.kind in "iu":
        return _integers(values)
    if isinstance(values, np.ndarray) and (found := _of_text(values)) is not None:
        return code(*found)
    series = values if isinstance(values, pd.Series) else pd.Series(values)
    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "iu":
        return _integers(series.to_numpy())
    return code(*factorize(series))


def _of_text(values: Labels) -> tuple[Ints, Labels] | None:
    """What :func:`factorize` gives, of text alone, without pandas; None for what is anything else."""
    if values.ndim != 1 or values.dtype.kind not in "UO":
        return None
    texts: list[Any] = values.tolist()
    if set(map(type, texts)) != {str} or any(map(_HALVES.search, distinct := [*dict.fromkeys(texts)])):
        return None
    places = dict(zip(distinct, range(len(distinct)), strict=True))
    codes = np.fromiter(map(places.__getitem__, texts), np.int64, len(texts))
    return codes, np.array(distinct, dtype=object)


def factorize(series: pd.Series[Any]) -> tuple[Ints, Labels]:
    """Codes of the rows (-1 where missing) and distinct values, as they are and in the order they come in."""
    if isinstance(series.dtype, pd.DatetimeTZDtype):
        series = series.dt.tz_convert("UTC").dt.tz_localize(None)
    try:
        codes, uniques = pd.factorize(series)
    except (TypeError, NotImplementedError) as e:  # lists and the like, which cannot be told apart quickly
        kind = type(next(iter(series.dropna()), None)).__name__
        raise CoterieError(
            f"Column '{series.name}' holds values of type {kind}, which cannot be labels: make text or numbers of them."
        ) from e
    labels = np.asarray(uniques)
    kinds = set(map(type, series.to_numpy())) if series.dtype == object else set()
    if kinds & {bool, np.bool_} and any(issubclass(k, _NUMBERS) for k in kinds - {bool}):
        what = "Labels must not" if series.name is None else f"Column '{series.name}' must not"
        raise CoterieError(
            f"{what} hold True or False beside numbers: as labels True is 1 and False is 0: write all as text, or "
            "all as numbers."
        )
    for j, label in enumerate(labels if series.dtype == object else ()):
        if isinstance(label, str) and not label.isascii() and _HALVES.search(label):  # nothing can hash or write it
            row = int(np.argmax(codes == j)) + 1
            raise CoterieError(
                f"Column '{series.name}' has text that is not Unicode in data row {row}: {label!r:.60}. Decode it with "
                "the encoding that it has."
            )
    return codes.astype(np.int64, copy=False), labels


def code(codes: Ints, uniques: Labels) -> Coded:
    """The labels of a column from what :func:`factorize` made of it."""
    labels = _one_kind(uniques)
    return _sorted(codes, labels, _joined(uniques, labels) if labels.dtype.kind == "O" else ())


def _integers(values: Labels) -> Coded:
    if len(values) == 0:
        return Coded(np.empty(0, dtype=np.int64), values)
    if bool(np.all(values[1:] >= values[:-1])):
        new = np.ones(len(values), dtype=bool)
        np.not_equal(values[1:], values[:-1], out=new[1:])
        return Coded(np.cumsum(new, dtype=np.int64) - 1, values[new])
    low, high = int(values.min()), int(values.max())
    if high - low < max(4 * len(values), 1024) and abs(low) < 2**62 and abs(high) < 2**62:
        shifted = values.astype(np.int64, copy=False) - low  # a table look-up is faster than hashing
        present = np.zeros(high - low + 1, dtype=bool)
        present[shifted] = True
        labels = (np.flatnonzero(present) + low).astype(values.dtype)
        return Coded((np.cumsum(present, dtype=np.int64) - 1)[shifted], labels)
    codes, uniques = pd.factorize(values)
    return _sorted(codes.astype(np.int64, copy=False), uniques)


def _one_kind(distinct: Labels) -> Labels:
    """Distinct labels as an array of one kind; several of them may become equal."""
    if distinct.dtype.kind in "iubM":
        return distinct
    if distinct.dtype.kind == "f":
        return _whole(distinct)
    kinds = {type(u) for u in distinct}
    if kinds and all(issubclass(k, (int, float, np.integer, np.floating)) and k is not bool for k in kinds):
        if any(issubclass(k, (float, np.floating)) for k in kinds):
            return _whole(distinct.astype(np.float64))
        with suppress(OverflowError):  # of numbers that are too large for a machine, the texts are as good
            return distinct.astype(np.int64)
    if kinds and kinds <= {bool, np.bool_}:
        return distinct.astype(bool)
    return _texts(distinct)


def _whole(values: npt.NDArray[np.float64]) -> Labels:
    if np.all(np.abs(values) < 2.0**53) and np.array_equal(values, np.floor(values)):
        return values.astype(np.int64)
    return values


def _sorted(codes: Ints, distinct: Labels, several: tuple[str, ...] = ()) -> Coded:
    order = np.argsort(distinct, kind="stable")
    labels = distinct[order]
    new = np.ones(len(labels), dtype=bool)
    if len(labels):
        new[1:] = labels[1:] != labels[:-1]
    rank = np.full(len(labels) + 1, -1, dtype=np.int64)  # the last entry is what code -1 reads
    rank[order] = np.cumsum(new) - 1
    return Coded(rank[codes], labels[new], several)


def label_text(label: Any) -> str:
    """The text of a label: the same for 1, 1.0, "1" and b"1", and for text that looks the same."""
    if isinstance(label, (float, np.floating)) and float(label).is_integer():
        return str(int(label))
    if isinstance(label, Decimal) and label.is_finite() and label == int(label):
        return str(int(label))
    if isinstance(label, bytes):
        return tidy(label.decode(errors="backslashreplace"))
    if isinstance(label, np.datetime64):
        return str(label.astype("datetime64[us]"))
    return tidy(str(label))


def travelling(labels: Labels) -> Labels:
    """Labels as an array that can travel: numbers stay numbers, all else is text."""
    if labels.dtype.kind in "iufb":
        return labels
    return np.array([label_text(v) for v in labels], dtype=str)


def _texts(labels: Labels) -> Labels:
    return np.array([label_text(v) for v in labels], dtype=object)


def label_ids(labels: Labels) -> npt.NDArray[np.uint64]:
    """64-bit hashes of labels (m,), uint64, by SipHash of their text: the key of every random number of a client.

    They are the same for 1 and "1", on any machine and in any order.
    """
    return text_ids([*map(str, labels.tolist())] if labels.dtype.kind in "iu" else _texts(labels))


def find_labels(known: Labels, values: Any) -> Ints:
    """Positions (n,) of a column's labels among known ones (m,); -1 for labels not seen and for missing ones.

    Labels are compared by their text, so 1, 1.0 and "1" are the same one.
    """
    column = encode(values)
    if known.dtype.kind in "iu" and column.labels.dtype.kind in "iu":
        index, wanted = pd.Index(known.astype(np.int64)), pd.Index(column.labels.astype(np.int64))
    else:
        index, wanted = pd.Index(_texts(known), dtype=object), pd.Index(_texts(column.labels), dtype=object)
    first = np.flatnonzero(~index.duplicated())  # a model may be older than the joining of labels that look the same
    found = index[first].get_indexer(wanted)
    place = np.append(np.where(found < 0, -1, first[found]), -1).astype(np.int64)
    return place[column.codes]


def tidy(text: str) -> str:
    """Text without white space around it, in one of the ways (NFC) that Unicode has of writing accents."""
    text = text.strip()
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def tidied(values: Labels) -> Labels:
    """The same of an array of any objects; what is not text stays as it is."""
    out = np.empty(len(values), dtype=object)
    out[:] = [tidy(v) if isinstance(v, str) else v for v in values]
    return out


def _joined(written: Labels, labels: Labels) -> tuple[str, ...]:
    """The labels that were written in several ways, from the distinct values of a column and what each is read as."""
    pairs = list(zip(written, labels, strict=True))
    changed = {label for w, label in pairs if not isinstance(w, str) or w != label}
    if not changed:
        return ()
    ways = Counter(label for _, label in pairs if label in changed)
    return tuple(sorted(label for label, count in ways.items() if count > 1))


def spelling_notes(name: str, labels: Labels, several: Sequence[str] = (), show: bool = True) -> list[str]:
    """What to say of the spellings of a column's distinct labels, ``several`` of which were written in several ways.

    Without ``show`` no numbers and examples are named, for notes that leave the table's owner.
    """
    notes = []
    if several:
        one = show and len(several) == 1
        count = f"{len(several):,} label{'s' * (not one)}" if show else "Labels"
        such = f", such as {several[0]!r}" if show else ""
        notes.append(
            f"{count} of '{name}' {'is' if one else 'are'} written in several ways that look alike (white space "
            f"around, accents in another Unicode form, numbers beside text){such}: each was read as one."
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
