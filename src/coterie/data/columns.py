"""Typed columns: a column as numbers, labels or levels, each read once, and what is wrong with it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coterie.data.labels import Coded, Labels, code, encode, factorize, label_ids, label_text, tidied
from coterie.errors import CoterieError, listed, plural
from coterie.lazy_modules import pd
from coterie.numerics.arrays import Bools, Floats, Ints

Kind = Literal["number", "category"]
Stored = Literal["number", "text", "category", "other"]

_MONEY = r"(?:[A-Z]{0,3}[€$£¥₹₩]|USD|EUR|GBP|CHF|JPY|CNY|INR|CAD|AUD|SEK|NOK|DKK|PLN|BRL|Rs\.?|kr\.?)"
_OTHER_NUMBER = re.compile(
    rf"[(<>≤≥~≈±]*\s*[+\-−]?\s*{_MONEY}?\s*[+\-−]?(?:\d[\d\s.,'’_]*|[.,]\d+)(?:e[+-]?\d+)?[)]?\s*"
    rf"(?P<unit>{_MONEY}|[^\W\d_][^\W\d]{{0,11}}\.?(?:\s*[/^*·]\s*[^\W_]+|[²³])*|[%‰°][A-Za-z]?|[µμ][a-z]+)?"
)
_ORDINALS = frozenset({"st", "nd", "rd", "th"})
_UNITS = 3  # most units that one column may have; with more of them its texts are names, such as 3A and 4B
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}|\d{1,2}([./-])\d{1,2}\1\d{4}(?!\d)|\d{1,2}/\d{1,2}/\d{2}(?!\d)")
_NUMBERS = (int, float, np.integer, np.floating, Decimal, np.bool_)
_WHOLE = re.compile(r"\s*[+-]?\d+\s*")
_MISSING = "missing values"
_NOT_NUMBERS = "values that are not numbers"
_ARROW_TEXT = frozenset({"string[pyarrow]", "large_string[pyarrow]"})


class BadRows(CoterieError):
    """Rows that a model or a formula cannot take, although it could take others."""


def at_rows(bad: Bools) -> str:
    """Count and first rows, counted from 1 below the header: ``"7 rows (data rows 2, 5, 9, 11, 12, ...)"``."""
    return rows_text(np.flatnonzero(bad))


def rows_text(rows: npt.NDArray[np.intp], limit: int = 5) -> str:
    """The same from row positions counted from 0."""
    if len(rows) == 1:
        return f"1 row (data row {rows[0] + 1})"
    first = ", ".join(str(r + 1) for r in rows[:limit])
    return f"{plural(len(rows), 'row')} (data rows {first}{', ...' if len(rows) > limit else ''})"


class Column:
    """A column of a table. Each reading of it is made when it is first asked for, and kept.

    ``read_as_missing`` says which texts of the file were read as missing, in words; it is empty where none were.
    """

    def __init__(self, series: pd.Series[Any], read_as_missing: str = "") -> None:
        self.series, self.name, self.read_as_missing = series, str(series.name), read_as_missing

    @cached_property
    def stored(self) -> Stored:
        """What its values are: numbers or booleans, text (or text and numbers), categories, or something else."""
        dtype = self.series.dtype
        if isinstance(dtype, pd.CategoricalDtype) or str(dtype).startswith("dictionary<values=string"):
            return "category"
        if pd.api.types.is_bool_dtype(dtype) or (
            pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_complex_dtype(dtype)
        ):
            return "number"
        if isinstance(dtype, pd.StringDtype) or str(dtype) in _ARROW_TEXT:
            return "text"
        if isinstance(dtype, np.dtype) and dtype.kind == "O":
            if all(issubclass(k, _NUMBERS) for k in self._types):
                return "number"
            if all(issubclass(k, (str, *_NUMBERS)) for k in self._types):
                return "text"
        return "other"

    @cached_property
    def _types(self) -> set[type]:
        return {type(v) for v in self.series.dropna()}

    def kind(self, outcome: bool = False) -> Kind:
        """How a formula takes the column when the formula does not say.

        Booleans and numbers are numbers; categories and text are categories, except text of which most rows are
        numbers, which is a column of numbers with faults in it. A CoterieError for dates and whatever is neither.
        """
        if self.stored == "other":
            held = str(self.series.dtype)
            if held == "object":
                held = next(k.__name__ for k in self._types if not issubclass(k, (str, *_NUMBERS)))
                held = held if held.startswith(("date", "time")) else f"object ({held})"
            raise CoterieError(
                f"Column '{self.name}' holds {_thing(held)}, which a formula cannot use: make numbers of it."
            )
        if self.stored != "text":
            return self.stored
        kind, trouble = self._kind_of_text
        if trouble:
            hint = f" (or if '{self.name}' is a category, write C({self.name}) in the formula)"
            raise CoterieError(f"Column '{self.name}' {trouble}{'' if outcome else hint}.")
        return kind

    @cached_property
    def _kind_of_text(self) -> tuple[Kind, str]:
        """A kind, and what is wrong with text that stands for something else."""
        codes, texts = self._factors
        counts = np.bincount(codes[codes >= 0], minlength=len(texts))
        parsed = pd.to_numeric(pd.Series(texts, dtype=object), errors="coerce").notna().to_numpy()
        readable, total = int(counts[parsed].sum()), int(counts.sum())
        if parsed.size and not parsed.all() and 2 * readable > total:
            return "number", ""
        rows = dict(zip(texts, counts.tolist(), strict=True))
        dates = [t for t in texts if isinstance(t, str) and _DATE.match(t.strip())]
        if 2 * sum(map(rows.__getitem__, dates)) > total:
            return "category", "holds dates, which a formula cannot use; make a column of numbers of it"
        if parsed.all():  # digits alone may be codes, such as those of years or ZIP areas
            written = [t for t in texts if not _WHOLE.fullmatch(str(t))]
            if len(written) <= 2:
                return "category", ""
            how = f"has numbers that are text, such as {written[0]!r}: make them numbers, as pandas.to_numeric does"
            return "category", how
        written = _numbers_as_text(texts)
        if 2 * (readable + sum(map(rows.__getitem__, written))) > total and len(texts) > 2:
            such = next((t for t in written if _unread(t)), written[0])
            return "category", (
                f"has numbers that are written as text, such as {such!r}: write them as in 1234.5, without signs or "
                "units around them"
            )
        return "category", ""

    @property
    def whole_text(self) -> bool:
        """Whether it is text of whole numbers, more than two and none with a zero in front, as codes have."""
        if self.stored != "text":
            return False
        texts = [str(v).strip() for v in self._factors[1][:1001]]
        return len(texts) > 2 and all(_WHOLE.fullmatch(t) and not t.lstrip("+-")[:-1].startswith("0") for t in texts)

    @cached_property
    def _factors(self) -> tuple[Ints, Labels]:
        """Codes of the rows (-1 where missing) and distinct values, as they came and in the order they came in."""
        return factorize(self.series)

    @cached_property
    def labels(self) -> Coded:
        """The column as labels: see :func:`coterie.data.labels.encode`."""
        return code(*self._factors) if self.stored == "text" else encode(self.series)

    @cached_property
    def numbers(self) -> npt.NDArray[Any]:
        """The column as numbers (n,), not copied if it is plain: NaN where missing and for text that is no number."""
        series = self.series
        if isinstance(series.dtype, np.dtype) and series.dtype.kind in "iufb":
            return series.to_numpy()
        if pd.api.types.is_numeric_dtype(series.dtype) or pd.api.types.is_bool_dtype(series.dtype):
            return series.to_numpy(dtype=np.float64, na_value=np.nan)
        if self.stored == "text":
            codes, texts = self._factors
            values = pd.to_numeric(pd.Series(texts, dtype=object), errors="coerce")
            return np.append(values.to_numpy(dtype=np.float64, na_value=np.nan), np.nan)[codes]
        values = pd.to_numeric(series.astype(object), errors="coerce")
        return values.to_numpy(dtype=np.float64, na_value=np.nan)

    @property
    def floats(self) -> Floats:
        """The same as float64, because formulas over small integers would overflow."""
        return np.asarray(self.numbers, dtype=np.float64)

    @property
    def coordinates(self) -> Floats:
        """Numbers (n, q) that say how far apart rows are: dates as days, a category as 0 or 1 for each value."""
        series, kind = self.series, pd.api.types.infer_dtype(self.series, skipna=True)
        if kind == "complex":
            raise CoterieError(f"Column '{self.name}' has complex numbers: give real ones.")
        if kind in ("datetime64", "datetime", "date"):
            series = pd.to_datetime(series)
            series = (series - series.min()) / pd.Timedelta(days=1)
        elif kind in ("timedelta64", "timedelta"):
            series = pd.to_timedelta(series) / pd.Timedelta(days=1)
        elif kind not in ("integer", "floating", "mixed-integer-float", "decimal", "boolean"):
            return np.asarray(pd.get_dummies(tidied_texts(series).astype(str)).to_numpy(dtype=np.float64))
        return np.asarray(series.to_numpy(dtype=np.float64)[:, None])

    @cached_property
    def levels(self) -> tuple[Ints, tuple[str, ...]]:
        """Codes (-1 where missing) and texts of levels, in a category's own order or else natural order."""
        column = self.labels
        texts = tuple(label_text(v) for v in column.labels)
        if not isinstance(self.series.dtype, pd.CategoricalDtype):
            return column.codes, texts
        used = set(texts)
        own = list(dict.fromkeys(t for t in map(label_text, self.series.cat.categories) if t in used))
        own = own if len(own) == len(texts) else list(texts)
        rank = np.array([own.index(t) for t in texts] + [-1], dtype=np.int64)
        return rank[column.codes], tuple(own)

    def levels_in(self, rows: Ints | None) -> tuple[str, ...]:
        """Texts of the levels that some rows (None: all) have."""
        codes, texts = self.levels
        if rows is None:
            return texts
        used = np.bincount(codes[rows] + 1, minlength=len(texts) + 1)[1:] > 0
        return texts if used.all() else Column(self.series.iloc[rows]).levels[1]  # what is left may have another order

    def codes_of(self, levels: Sequence[str]) -> tuple[Ints, Bools]:
        """Codes of the rows in known levels (-1 where none), and the rows with levels that are not known."""
        column = self.labels
        place = {label_text(t): i for i, t in reversed([*enumerate(levels)])}
        table = np.array([place.get(label_text(v), -2) for v in column.labels] + [-1], dtype=np.int64)
        codes = table[column.codes]
        unseen = codes == -2
        codes[unseen] = -1
        return codes, unseen

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of type and values, the same for a table that went through any format that keeps its types."""
        kind, values = self._in_bytes
        total = hashlib.sha256(f"{kind}\n".encode())
        total.update(np.ascontiguousarray(values).view(np.uint8).data)
        return total.digest()

    @property
    def _in_bytes(self) -> tuple[str, npt.NDArray[Any]]:
        series = self.series
        if pd.api.types.is_datetime64_any_dtype(series.dtype):
            stamps = series.dt.tz_convert("UTC").dt.tz_localize(None) if series.dt.tz is not None else series
            return "date", stamps.to_numpy(dtype="datetime64[us]").view(np.int64)
        if pd.api.types.is_numeric_dtype(series.dtype) or pd.api.types.is_bool_dtype(series.dtype):
            whole = getattr(series.dtype, "kind", "") in "biu"
            if whole and (isinstance(series.dtype, np.dtype) or not series.hasnans):
                kind = {"b": "truth", "i": "integer", "u": "integer"}.get(series.to_numpy().dtype.kind)
                if kind is not None:
                    return kind, series.to_numpy().astype("<i8", copy=False)
            return "number", np.asarray(self.numbers, dtype="<f8")
        labels = self.labels
        return "text", np.append(label_ids(labels.labels), np.uint64(0))[labels.codes].astype("<u8", copy=False)

    @cached_property
    def missing(self) -> Bools:
        """Rows without a value, (n,) bool."""
        return np.asarray(self.series.isna().to_numpy(), dtype=bool)

    def faults(self, kind: Kind) -> list[tuple[str, Bools]]:
        """What is wrong with it: (``"missing values"``, rows) and the like; empty for a sound column."""
        if kind == "number":
            return self._unusable_numbers
        return [(_MISSING, self.missing)] if self.missing.any() else []

    @cached_property
    def _unusable_numbers(self) -> list[tuple[str, Bools]]:
        values = self.numbers
        if values.dtype.kind in "iub":
            return []
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(values.sum()):
                return []
        strange: Bools = np.isnan(values) & ~self.missing
        parts = [(_MISSING, self.missing), (_NOT_NUMBERS, strange), ("infinite values", np.isinf(values))]
        return [(what, rows) for what, rows in parts if rows.any()]

    def fault_text(self, what: str, bad: Bools) -> str:
        """One of its faults in words, without a full stop."""
        if what != _NOT_NUMBERS:
            says = f", where {self.read_as_missing}" if what == _MISSING and self.read_as_missing else ""
            return f"column '{self.name}' has {what} in {at_rows(bad)}{says}"
        values = list(dict.fromkeys(self.series[bad].astype(str)))
        written = 2 * len(_numbers_as_text(values)) > len(values)
        category = f"if '{self.name}' is a category, write C({self.name}) in the formula"
        hint = "write numbers as in 1234.5" if written else category
        return f"column '{self.name}' has {what} in {at_rows(bad)}: {listed(map(repr, values), 3)} ({hint})"


def tidied_texts(series: pd.Series[Any]) -> pd.Series[Any]:
    """Texts that look the same as one, as labels are read; numbers and dates as they are."""
    if pd.api.types.is_numeric_dtype(series) or pd.api.types.is_datetime64_any_dtype(series):
        return series
    return pd.Series(tidied(series.to_numpy(dtype=object)), index=series.index, name=series.name)


def _unread(text: str) -> bool:
    """Whether a text is not a number as computers write them."""
    try:
        float(text)
    except ValueError:
        return True
    return False


def _numbers_as_text(values: Iterable[Any]) -> list[str]:
    """The texts that are numbers with signs or units around them, or with other marks than a point in them."""
    found = {t: m for t in values if isinstance(t, str) and (m := _OTHER_NUMBER.fullmatch(t.strip()))}
    units = {m["unit"] for m in found.values() if m["unit"]}
    if units & _ORDINALS or len(units) > _UNITS or (len(units) > 1 and len(found) < 3 * len(units)):
        return [t for t, m in found.items() if not m["unit"]]
    return list(found)


def _thing(dtype: str) -> str:
    if dtype.startswith(("datetime", "period", "timestamp", "date")):
        return "dates"
    return "durations" if dtype.startswith(("timedelta", "duration")) else f"values of type {dtype}"
