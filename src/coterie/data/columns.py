"""Columns of a table as numbers or categories, and what is wrong with them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from coterie.data.labels import encode, label_text
from coterie.data.terms import COLUMNS
from coterie.errors import CoterieError, listed, nearest

if TYPE_CHECKING:
    import pandas as pd

    from coterie.data.formula import Parsed

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Kind = Literal["number", "category"]

LEVELS = 1000
"""Most levels of a category in a formula; groups with more belong in the client or the cluster column."""

_MONEY = r"(?:[A-Z]{0,3}[€$£¥₹₩]|USD|EUR|GBP|CHF|JPY|CNY|INR|CAD|AUD|SEK|NOK|DKK|PLN|BRL|Rs\.?|kr\.?)"
_OTHER_NUMBER = re.compile(
    rf"[(<>≤≥~≈±]*\s*[+\-−]?\s*{_MONEY}?\s*[+\-−]?(?:\d[\d\s.,'’_]*|[.,]\d+)(?:e[+-]?\d+)?[)]?\s*"
    rf"(?P<unit>{_MONEY}|[^\W\d_][^\W\d]{{0,11}}\.?(?:\s*[/^*·]\s*[^\W_]+|[²³])*|[%‰°][A-Za-z]?|[µμ][a-z]+)?",
)
_ORDINALS = frozenset({"st", "nd", "rd", "th"})
_UNITS = 3
"""Most units that one column may have; with more of them its texts are names, such as 3A and 4B."""
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}|\d{1,2}([./-])\d{1,2}\1\d{4}(?!\d)|\d{1,2}/\d{1,2}/\d{2}(?!\d)")
_NUMBERS = (int, float, np.integer, np.floating, Decimal, np.bool_)
_WHOLE = re.compile(r"\s*[+-]?\d+\s*")
_MISSING = "missing values"
_NOT_NUMBERS = "values that are not numbers"
_ARROW_TEXT = frozenset({"string[pyarrow]", "large_string[pyarrow]"})


class BadRows(CoterieError):
    """Rows that a model or a formula cannot take, although it could take others."""


def at_rows(bad: Mask, limit: int = 5) -> str:
    """Count and first rows, counted from 1 below the header: ``"7 rows (data rows 2, 5, 9, 11, 12, ...)"``."""
    return rows_text(np.flatnonzero(bad), limit)


def rows_text(rows: npt.NDArray[np.intp], limit: int = 5) -> str:
    """The same from row positions counted from 0."""
    if len(rows) == 1:
        return f"1 row (data row {rows[0] + 1})"
    first = ", ".join(str(r + 1) for r in rows[:limit])
    return f"{len(rows):,} rows (data rows {first}{', ...' if len(rows) > limit else ''})"


def as_names(what: str, value: Any) -> tuple[str, ...]:
    """None, one or several names of columns as a tuple; CoterieError, which names the argument, for anything else."""
    if value is None:
        return ()
    several = isinstance(value, Iterable) and not isinstance(value, (str, bytes))
    names = tuple(value) if several else (value,)
    for name in names:
        if not isinstance(name, str):
            hint = f": write {str(name)!r}" if isinstance(name, (int, np.integer)) else ""
            raise CoterieError(f"{what} must name columns by text, not by {name!r}{hint}.")
    return names


def as_name(what: str, value: Any) -> str:
    """The name of one column; CoterieError, which names the argument, for anything else."""
    names = as_names(what, value)
    if len(names) != 1:
        raise CoterieError(f"{what} must be the name of one column, not {value!r}.")
    return names[0]


def need(df: pd.DataFrame, names: Iterable[str], role: str) -> None:
    """Raise CoterieError unless the table has these columns."""
    known = [str(c) for c in df.columns]
    for name in names:
        if name not in known:
            several = "," in name and set(map(str.strip, name.split(","))) <= set(known)
            hint = " Name each column by itself." if several else meant(name, known)
            if name in df.index.names:
                hint = " It is in the index: reset_index() makes a column of it."
            raise CoterieError(f"The {role} column '{name}' is not in the table.{hint}")


def meant(name: str, known: Sequence[str]) -> str:
    """The end of a message about a column that is not there: the nearest ones, or those there are."""
    if not known:
        return " The table has no columns."
    return nearest(name, known) or f" There are the columns {listed(map(repr, known), 10)}."


def kind_of(series: pd.Series[Any], name: str, outcome: bool = False) -> Kind:
    """How a formula takes a column when the formula does not say.

    Booleans and numbers are numbers; categories and text are categories, except text of which most rows are numbers,
    which is a column of numbers with faults in it.

    Raises
    ------
    CoterieError
        For dates and other things that are neither.
    """
    import pandas as pd

    dtype, held = series.dtype, str(series.dtype)
    if isinstance(dtype, pd.CategoricalDtype) or str(dtype).startswith("dictionary<values=string"):
        return "category"
    if pd.api.types.is_bool_dtype(dtype) or (
        pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_complex_dtype(dtype)
    ):
        return "number"
    if isinstance(dtype, pd.StringDtype) or str(dtype) in _ARROW_TEXT:
        return _kind_of_text(series, name, outcome)
    if isinstance(dtype, np.dtype) and dtype.kind == "O":
        present = series.dropna()
        kinds = {type(v) for v in present}
        if all(issubclass(k, _NUMBERS) for k in kinds):
            return "number"
        if all(issubclass(k, (str, *_NUMBERS)) for k in kinds):
            return _kind_of_text(series, name, outcome)
        found = next(k.__name__ for k in kinds if not issubclass(k, (str, *_NUMBERS)))
        held = found if found.startswith(("date", "time")) else f"object ({found})"
    raise CoterieError(
        f"Column '{name}' holds {_thing(held)}, which a formula cannot use; make a column of numbers or text of it."
    )


def _kind_of_text(series: pd.Series[Any], name: str, outcome: bool) -> Kind:
    import pandas as pd

    otherwise = "" if outcome else f" (or if '{name}' is a category, write C({name}) in the formula)"

    counts = series.value_counts(sort=False)
    parsed = pd.to_numeric(pd.Series(counts.index, dtype=object), errors="coerce").notna().to_numpy()
    readable, total = int(counts.to_numpy()[parsed].sum()), int(counts.sum())
    if parsed.size and not parsed.all() and 2 * readable > total:
        return "number"
    dates = [text for text in counts.index if isinstance(text, str) and _DATE.match(text.strip())]
    if 2 * int(counts[dates].sum()) > total:
        raise CoterieError(
            f"Column '{name}' holds dates, which a formula cannot use; make a column of numbers of it{otherwise}."
        )
    if parsed.all():  # digits alone may be codes, such as those of years or ZIP areas
        written = [t for t in counts.index if not _WHOLE.fullmatch(str(t))]
        if len(written) > 2:
            raise CoterieError(
                f"Column '{name}' has numbers that are text, such as {written[0]!r}: make them numbers, as "
                f"pandas.to_numeric does{otherwise}."
            )
        return "category"
    written = _numbers_as_text(counts.index)
    if 2 * (readable + int(counts[written].sum())) > total and len(counts) > 2:
        such = next((t for t in written if _unread(t)), written[0])
        raise CoterieError(
            f"Column '{name}' has numbers that are written as text, such as {such!r}: write them as in 1234.5, "
            f"without signs or units around them{otherwise}."
        )
    return "category"


def whole_text(series: pd.Series[Any]) -> bool:
    """Whether a column is text of whole numbers, more than two and none with a zero in front, as codes have."""
    import pandas as pd

    if isinstance(series.dtype, pd.CategoricalDtype) or pd.api.types.is_numeric_dtype(series.dtype):
        return False
    texts = [str(v).strip() for v in series.dropna().unique()[:1001]]
    return len(texts) > 2 and all(_WHOLE.fullmatch(t) and not t.lstrip("+-")[:-1].startswith("0") for t in texts)


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


def _thing(dtype: Any) -> str:
    text = str(dtype)
    if text.startswith(("datetime", "period", "timestamp", "date")):
        return "dates"
    return "durations" if text.startswith(("timedelta", "duration")) else f"values of type {text}"


def read_numbers(series: pd.Series[Any]) -> npt.NDArray[Any]:
    """A column as numbers, not copied if it is plain: NaN for missing values and for text that is not a number."""
    import pandas as pd

    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "iufb":
        return series.to_numpy()
    if not pd.api.types.is_numeric_dtype(series.dtype) and not pd.api.types.is_bool_dtype(series.dtype):
        series = pd.to_numeric(series.astype(object), errors="coerce")
    return series.to_numpy(dtype=np.float64, na_value=np.nan)


def read_levels(series: pd.Series[Any]) -> tuple[I64, tuple[str, ...]]:
    """Codes (-1 where missing) and texts of a category's levels, in a category's own order or else natural order."""
    import pandas as pd

    column = encode(series)
    texts = tuple(label_text(v) for v in column.labels)
    if not isinstance(series.dtype, pd.CategoricalDtype):
        return column.codes, texts
    used = set(texts)
    own = list(dict.fromkeys(t for t in map(label_text, series.cat.categories) if t in used))
    own = own if len(own) == len(texts) else list(texts)
    rank = np.array([own.index(t) for t in texts] + [-1], dtype=np.int64)
    return rank[column.codes], tuple(own)


def find_levels(series: pd.Series[Any], levels: Sequence[str]) -> tuple[I64, Mask]:
    """Codes of a column in known levels (-1 where none), and the rows with levels that are not known."""
    column = encode(series)
    place = {label_text(t): i for i, t in reversed([*enumerate(levels)])}
    table = np.array([place.get(label_text(v), -2) for v in column.labels] + [-1], dtype=np.int64)
    codes = table[column.codes]
    unseen = codes == -2
    codes[unseen] = -1
    return codes, unseen


def faults(series: pd.Series[Any], kind: Kind) -> list[tuple[str, Mask]]:
    """What is wrong with a column: (``"missing values"``, rows) and the like; empty for a sound column."""
    if kind == "category":
        missing = series.isna().to_numpy(dtype=bool)
        return [(_MISSING, missing)] if missing.any() else []
    values = read_numbers(series)
    if values.dtype.kind in "iub":
        return []
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum()):
            return []
    nan = np.isnan(values)
    missing = series.isna().to_numpy(dtype=bool)
    parts = [(_MISSING, missing), (_NOT_NUMBERS, nan & ~missing)]
    parts.append(("infinite values", np.isinf(values)))
    return [(what, rows) for what, rows in parts if rows.any()]


def fault_text(column: str, what: str, bad: Mask, df: pd.DataFrame) -> str:
    """One fault of a column of a table in words, without a full stop."""
    if what != _NOT_NUMBERS:
        texts = read_as_missing(df, [column]) if what == _MISSING else []
        return f"column '{column}' has {what} in {at_rows(bad)}{f', where {texts[0]}' if texts else ''}"
    values = list(dict.fromkeys(df[column][bad].astype(str)))
    written = 2 * len(_numbers_as_text(values)) > len(values)
    hint = "write numbers as in 1234.5" if written else f"if '{column}' is a category, write C({column}) in the formula"
    return f"column '{column}' has {what} in {at_rows(bad)}: {listed(map(repr, values), 3)} ({hint})"


def read_as_missing(df: pd.DataFrame, columns: Iterable[str]) -> list[str]:
    """Which texts of a file were read as missing in each of some columns, in words; only columns with such texts.

    :func:`coterie.read_table` leaves word of them in the table; counts are those of the whole file.
    """
    word: dict[str, Any] = df.attrs.get("coterie") or {}
    found, notes = word.get("read_as_missing", {}), []
    for column in columns:
        if counts := found.get(column):
            whole = len(df) == word["rows"]
            shown = [f"{t!r} ({n:,} row{'s' * (n > 1)})" if whole else repr(t) for t, n in counts.items()]
            notes.append(f"the file says {listed(shown, 5)}")
    return notes


def missing_remedy(df: pd.DataFrame, kinds: Mapping[str, Kind]) -> str:
    """How text that was read as missing is read as a level; empty where no category has such text."""
    if not read_as_missing(df, [c for c, kind in kinds.items() if kind == "category"]):
        return ""
    return (
        " If such text is a level and not a missing value, name the texts that do mean missing when the file is read: "
        "na_values=[] (--na-value '') leaves empty cells alone."
    )


def at(series: pd.Series[Any], rows: I64 | None) -> pd.Series[Any]:
    """Some rows of a column, by position; all of them for None."""
    return series if rows is None else series.iloc[rows]


def column_kinds(df: pd.DataFrame, parsed: Parsed) -> dict[str, Kind]:
    """How a formula takes each column it uses, outcome included.

    Raises
    ------
    CoterieError
        For columns that a formula cannot use, or that it uses in two ways.
    """
    kinds: dict[str, Kind] = {}
    for column in (*parsed.outcome_columns, *parsed.columns):
        outcome = column in parsed.outcome_columns
        kinds[column] = "category" if column in parsed.categories else kind_of(df[column], column, outcome)
        twice = column in parsed.numeric or (column in parsed.bare and kind_of(df[column], column) == "number")
        if column in parsed.categories and twice:
            raise CoterieError(
                f"The formula uses '{column}' both as a category and as a number; "
                "make a copy of the column under another name for one of them."
            )
        if kinds[column] == "category" and column in parsed.reckoned:
            raise CoterieError(
                f"Column '{column}' is a category: a formula may compare it with a value, but not compute with it."
            )
    return kinds


def limit_columns(parsed: Parsed, levels: dict[str, tuple[str, ...]]) -> None:
    """Raise CoterieError where categories would make a matrix too wide."""
    for column, known in levels.items():
        if len(known) > LEVELS:
            raise CoterieError(
                f"Column '{column}' has {len(known):,} different values, too many for a formula (at most {LEVELS:,}): "
                "if these are groups of rows, make it the client or the cluster column instead."
            )
    widths = parsed.widths or (1,) * len(parsed.factors)
    terms = zip(parsed.factors, widths, strict=True)
    width = sum(n * math.prod(len(levels.get(c, " ")) for c in term) for term, n in terms)
    if width > COLUMNS:
        raise CoterieError(
            f"The formula '{parsed.formula}' makes about {width:,} columns, more than {COLUMNS:,}: "
            "leave out interactions of categories with many levels."
        )


def outcome_levels(
    df: pd.DataFrame, parsed: Parsed, kinds: dict[str, Kind], rows: I64 | None
) -> tuple[str, str] | None:
    """What counts as 0 and as 1 where the outcome is text of two values; None where it is a number."""
    if not parsed.plain_outcome or kinds[parsed.outcome] == "number":
        return None
    texts = read_levels(at(df[parsed.outcome], rows))[1]
    if len(texts) == 1:
        raise CoterieError(f"The outcome '{parsed.outcome}' is constant: {texts[0]!r} in every row.")
    if len(texts) != 2:
        raise CoterieError(
            f"The outcome '{parsed.outcome}' is text with {len(texts):,} different values "
            f"({listed(map(repr, texts), 3)}); it must be a number, or have two values."
        )
    return texts[0], texts[1]
