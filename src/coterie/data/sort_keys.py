"""The order of rows by a column: by size or time, also where numbers and dates are written as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from coterie.data.labels import label_text
from coterie.errors import CoterieError, listed

Key = tuple[float, ...]
Reader = Callable[[str], Key | None]

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_FULL = ("uary", "ruary", "ch", "il", "", "e", "y", "ust", "t(?:ember)?", "ober", "ember", "ember")
_MONTH = "|".join(f"{m}(?:{rest})?" for m, rest in zip(MONTHS, _FULL, strict=True))
_HOUR = (
    r"(?P<h>\d{1,2}):(?P<min>\d\d)(?::(?P<s>\d\d(?:[.,]\d+)?))?\s*(?P<half>[ap]m)?"
    r"\s*(?P<zone>z|utc|[+-]\d\d:?\d\d)?"
)
_TIME = rf"(?:(?:[t ]|, ){_HOUR})?"
_DAY = r"(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*\.?,?\s+)?(?P<d>\d{1,2})(?:st|nd|rd|th)?\.?"
_SEP = r"(?P<sep>[-/. ])"
_NAMED = tuple(
    re.compile(rf"{form}{_TIME}")
    for form in (
        rf"{_DAY}[-/ ,]*(?P<name>{_MONTH})\.?[-/ ,]*(?P<y>\d{{4}})",
        rf"(?P<name>{_MONTH})\.?[-/ ]*(?P<d>\d{{1,2}})(?:st|nd|rd|th)?(?:,\s*|[-/ ]+)(?P<y>\d{{4}})",
        rf"(?P<y>\d{{4}})[-/ ,]*(?P<name>{_MONTH})\.?[-/ ,]*(?P<d>\d{{1,2}})",
        rf"(?P<name>{_MONTH})\.?[-/ ,]*(?P<y>\d{{4}})",
        rf"(?P<y>\d{{4}})[-/ ,]*(?P<name>{_MONTH})\.?",
        rf"(?P<name>{_MONTH})\.?",
    )
)
_YMD = re.compile(rf"(?P<y>\d{{4}}){_SEP}(?P<m>\d{{1,2}})(?:(?P=sep)(?P<d>\d{{1,2}}))?{_TIME}")
_DMY = re.compile(rf"(?P<d>\d{{1,2}}){_SEP}(?P<m>\d{{1,2}})(?P=sep)(?P<y>\d{{4}}){_TIME}")
_MDY = re.compile(rf"(?P<m>\d{{1,2}}){_SEP}(?P<d>\d{{1,2}})(?P=sep)(?P<y>\d{{4}}){_TIME}")
_MY = re.compile(r"(?P<m>\d{1,2})\s*[-/.]\s*(?P<y>\d{4})")
_CLOCK = re.compile(_HOUR)
_ISO = re.compile(r"\d{4}-\d\d-\d\d(?!\d)")
_SHORT_YEAR = re.compile(
    rf"\d{{1,2}}\s*[-/. ]\s*(?:\d{{1,2}}|{_MONTH})\.?\s*[-/. ]\s*'?\d\d\b.*|(?:{_MONTH})\.?[-/ ]*'?\d\d"
    r"|(?:q|h|w|week|fy)\s*\d{1,2}[-/ ]'?\d\d"
)
_NUMBER = re.compile(r"(?:(?<=[\s=:,(])|^)[+-]?\d+|\d+")
_ROMAN = re.compile(r"(?:.*[^a-z])?(?=[ivx])x{0,3}(?:ix|iv|v?i{0,3})")
_WORDS = frozenset(
    {"mon", "tue", "wed", "thu", "fri", "sat", "sun", "monday", "tuesday", "wednesday", "thursday", "friday"}
    | {"saturday", "sunday", "spring", "summer", "autumn", "fall", "winter", "one", "two", "three", "four", "five"}
    | {"six", "seven", "eight", "nine", "ten", "first", "second", "third", "fourth", "fifth", "sixth", "seventh"}
    | {"eighth", "ninth", "tenth"}
)
_YEARS = range(1000, 3000)


def sort_keys(values: Any, name: str) -> tuple[npt.NDArray[Any], str | None]:
    """What the rows (n,) of a table are sorted by, numbers or dates, and how text was read (None where it is no text).

    Numbers, dates, durations and ordered categories are taken as they are; none is missing. In text of column ``name``,
    dates and numbers are read: a day or month with the year first, months by their English name, ``31/12/2024`` where
    some row tells days from months, times, quarters and weeks of a year, and numbers beside the same words in every row
    (``week 9``, ``w10``). A CoterieError for text with numbers or words of time whose order cannot be told, and for
    values that have no order.
    """
    series = values if isinstance(values, pd.Series) else pd.Series(values)
    if isinstance(series.dtype, pd.CategoricalDtype):
        if series.cat.ordered:
            return series.cat.codes.to_numpy(), None
        series = series.astype(series.cat.categories.dtype)
    if isinstance(series.dtype, pd.PeriodDtype):
        series = pd.Series(series.dt.to_timestamp())
    if isinstance(series.dtype, pd.DatetimeTZDtype):
        series = series.dt.tz_convert("UTC").dt.tz_localize(None)
    if isinstance(series.dtype, pd.ArrowDtype):
        series = series.convert_dtypes(dtype_backend="numpy_nullable")
    kind = series.dtype.kind if isinstance(series.dtype, np.dtype) else ""
    if pd.api.types.is_numeric_dtype(series.dtype) and kind != "c":
        keys = series.to_numpy() if kind else series.to_numpy(dtype=np.float64)
        _refuse_day_first(keys, name)
        return keys, None
    if kind in ("b", "m", "M") or pd.api.types.is_bool_dtype(series.dtype):
        return series.to_numpy(), None
    try:
        codes, uniques = pd.factorize(series.astype(object))
    except TypeError as e:
        raise _no_order(series.iloc[0], name) from e
    keys, note = _of_objects(list(uniques), name)
    return keys[codes], note


def _no_order(value: object, name: str) -> CoterieError:
    return CoterieError(
        f"Column '{name}' holds a {type(value).__name__}, which has no order: make numbers or dates of them."
    )


def _of_objects(distinct: list[Any], name: str) -> tuple[npt.NDArray[Any], str | None]:
    if not any(isinstance(v, (str, bytes)) for v in distinct):
        try:
            frame = pd.Series(distinct, dtype=object)
            if all(hasattr(v, "year") for v in distinct):
                frame = pd.Series(pd.to_datetime(frame, utc=True)).dt.tz_localize(None)
            ranks = frame.rank(method="dense").to_numpy(dtype=np.float64)
        except (TypeError, ValueError) as e:
            raise _no_order(distinct[0], name) from e
        return ranks, None
    texts = [label_text(v) for v in distinct]
    keys, what = _read(texts, name)
    order = sorted(
        range(len(texts)), key=lambda i: (keys[i], texts[i].casefold(), texts[i]) if what is None else keys[i]
    )
    ranks = np.empty(len(texts))
    for place, i in enumerate(order):  # text that says the same, such as 9 and 09, is one time
        same = place > 0 and what is not None and keys[i] == keys[order[place - 1]]
        ranks[i] = ranks[order[place - 1]] if same else place
    ends = f"from {texts[order[0]]!r} to {texts[order[-1]]!r}"
    if what is None:
        return ranks, (
            f"The rows are ordered by '{name}', which is text without numbers or dates, from A to Z: {ends}. If that "
            "is not their order, make numbers, dates or an ordered category of it."
        )
    return ranks, f"The rows are ordered by '{name}', text that was read as {what}: {ends}."


def _read(texts: Sequence[str], name: str) -> tuple[list[Key], str | None]:
    """What texts say, and as what they were read; None for words, which are in no order but that of the alphabet."""
    folded = [" ".join(t.casefold().split()) for t in texts]
    if keys := _all(folded, _number):
        if (
            any(re.search(r"\.\d+0$", t) for t in folded)
            and len({len(t.split(".")[1]) for t in folded if "." in t}) > 1
        ):
            raise _refused(name, texts, "such as 1.9 and 1.10, decimals or versions: make numbers of them")
        _refuse_day_first(np.array([k[0] for k in keys]), name)
        return keys, "numbers"
    if keys := _iso(folded):
        return keys, "dates"
    for reader, what in _READERS:
        if keys := _all(folded, reader):
            return keys, what
    days, months = (_all(folded, _with(form)) for form in (_DMY, _MDY))
    if days or months:
        dots = all("." in t for t in folded)
        if days and months and not dots and days != months:
            raise _refused(
                name, texts, "with day and month that no row tells apart: write them with the year first, as 2026-12-31"
            )
        return (days, "dates (day, month, year)") if days else (months or [], "dates (month, day, year)")
    dated = any((m := _YMD.fullmatch(t)) and m["d"] for t in folded)  # 2024-31-12: not a date with the year first
    if not dated and (keys := _parts(folded)):
        return keys, "numbers" if len(keys[0]) == 1 else "years and their parts"
    if any(_SHORT_YEAR.fullmatch(t) for t in folded):
        raise _refused(name, texts, "whose years have two digits: write four, the year first, as 2026-12-31")
    if any(re.search(r"\d", t) for t in folded):
        raise _refused(name, texts, "with numbers that do not sort as text does: make numbers or dates of them")
    if len(texts) > 1 and (any(w in _WORDS for t in folded for w in t.split()) or all(map(_ROMAN.fullmatch, folded))):
        raise _refused(
            name, texts, "that do not sort by the alphabet: make numbers, dates or an ordered category of them"
        )
    return [() for _ in texts], None


def _refused(name: str, texts: Sequence[str], why: str) -> CoterieError:
    return CoterieError(f"Rows cannot be ordered by column '{name}', with texts ({listed(map(repr, texts), 3)}) {why}.")


def _all(texts: Iterable[str], reader: Reader) -> list[Key] | None:
    keys = []
    for text in texts:
        if (key := reader(text)) is None:
            return None
        keys.append(key)
    return keys


def _iso(texts: Sequence[str]) -> list[Key] | None:
    if not all(map(_ISO.match, texts)):
        return None
    try:
        stamps = pd.to_datetime(pd.Series(texts), format="ISO8601", utc=True)
    except ValueError:
        return None
    return [(t,) for t in (stamps - pd.Timestamp(0, tz="UTC")).dt.total_seconds()]


def _number(text: str) -> Key | None:
    try:
        value = float(text.replace("\N{MINUS SIGN}", "-"))
    except ValueError:
        return None
    return None if value != value else (value,)


def _with(*forms: re.Pattern[str]) -> Reader:
    def read(text: str) -> Key | None:
        return next((k for form in forms if (m := form.fullmatch(text)) and (k := _date(m.groupdict()))), None)

    return read


def _date(part: dict[str, str | None]) -> Key | None:
    """Seconds since the year 1; None for a day or an hour that there is not."""
    month = part.get("m") or (MONTHS.index(part["name"][:3]) + 1 if part.get("name") else 1)  # type: ignore[index]
    hour, seconds = int(part.get("h") or 0), float((part.get("s") or "0").replace(",", "."))
    if part.get("half"):
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if part["half"] == "pm" else 0)
    try:
        day = datetime(int(part.get("y") or 2000), int(month), int(part.get("d") or 1), hour, int(part.get("min") or 0))
    except ValueError:
        return None
    zone = part.get("zone") or ""
    shift = 0
    if zone[:1] in ("+", "-"):
        shift = (int(zone[1:3]) * 60 + int(zone[-2:])) * (60 if zone[0] == "+" else -60)
    return ((day - datetime(1, 1, 1)).total_seconds() + seconds - shift,)


def _parts(texts: Sequence[str]) -> list[Key] | None:
    """Numbers beside the same words: one of them, or a year and its parts."""
    if len({_NUMBER.sub("#", t) for t in texts}) != 1:
        return None
    numbers = [tuple(int(n) for n in _NUMBER.findall(t)) for t in texts]
    if len(numbers[0]) == 1:
        return [(float(n),) for (n,) in numbers]
    if numbers[0] and all(n[0] in _YEARS for n in numbers):
        return [tuple(map(float, n)) for n in numbers]
    if len(numbers[0]) == 2 and all(n[1] in _YEARS for n in numbers):
        return [(float(year), float(part)) for part, year in numbers]
    return None


_READERS: tuple[tuple[Reader, str], ...] = (
    (_with(_YMD), "dates"),
    (_with(*_NAMED), "dates"),
    (_with(_MY), "months"),
    (_with(_CLOCK), "times"),
)


def _refuse_day_first(values: npt.NDArray[Any], name: str) -> None:
    """Raise CoterieError for numbers such as 31122024, which are dates that do not sort by time."""
    if values.dtype.kind == "b" or len(values) < 2 or not 11000 < values.min() <= values.max() < 1e8:
        return
    if not np.array_equal(values, np.floor(values)):
        return
    distinct = [str(int(v)) for v in np.unique(values)[:1000]]
    for form, digits in (("%d%m%Y", 8), ("%m%d%Y", 8), ("%m%Y", 6)):
        padded = [t.zfill(digits) for t in distinct]
        first = "%Y%m%d" if digits == 8 else "%Y%m"
        if len(distinct) > 1 and _all_are(padded, form) and not _all_are(padded, first):
            raise CoterieError(
                f"Column '{name}' has dates such as {padded[0]}, which do not sort by time: write them with the year "
                "first, as 2026-12-31."
            )


def _all_are(texts: Sequence[str], form: str) -> bool:
    """Whether these are dates of one form, of years from 1800 to 2200."""
    stamps = pd.to_datetime(pd.Series(texts), format=form, errors="coerce")
    return bool(stamps.dt.year.between(1800, 2200).all())
