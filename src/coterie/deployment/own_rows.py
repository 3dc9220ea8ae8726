"""A site's own table against a schema: what is refused before a run or left out, and what a check may say of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coterie.data.columns import at_rows, faults, find_levels, kind_of, need, read_numbers
from coterie.data.design import Design
from coterie.data.labels import encode, label_text
from coterie.data.reading import COUNTS
from coterie.data.spelling import remarks
from coterie.deployment.grammar import LARGEST
from coterie.deployment.schema import Column, Schema
from coterie.errors import CoterieError, listed

if TYPE_CHECKING:
    import pandas as pd

Mask = npt.NDArray[np.bool_]


class Withheld(CoterieError):
    """What is wrong with rows, for their owner; ``leaves`` is what others may hear of it."""

    def __init__(self, text: str, leaves: str) -> None:
        super().__init__(text)
        self.leaves = leaves


def allowed(table: pd.DataFrame, agreed: Schema, columns: Sequence[str]) -> None:
    """Raise (:class:`Withheld`) for levels that the schema has not, values outside its ranges, and lost columns."""
    need(table, columns, "formula's")
    for name in columns:
        column = agreed.columns[name]
        if column.levels:
            _, unseen = find_levels(table[name], column.levels)
            if unseen.any():
                other = listed(map(repr, table[name][unseen].astype(str).unique()), 3)
                what, remedy = (
                    "has levels that the schema does not have",
                    "add them with 'coterie federation check --unite'.",
                )
                raise Withheld(f"Column '{name}' {what} ({other}): {remedy}", f"Column '{name}' {what}: {remedy}")
        elif (outside := _outside(table[name], name, column)) is not None:
            raise Withheld(outside, f"Column '{name}' has values outside the range of the schema.")


def compared(table: pd.DataFrame, own: Schema, min_group: int) -> tuple[Schema, list[str], list[str]]:
    """A site's schema with the levels that its rows have, and what is wrong with the rows, in words that may leave.

    Parameters
    ----------
    table : DataFrame
        The site's.
    own : Schema
        The site's.
    min_group : int
        Levels with fewer rows are not named: the owner names them in the schema first.

    Returns
    -------
    schema : Schema
    problems : list of str
        Without a value, a level or the place of a row.
    rows : list of str
        In which rows, for the owner alone.
    """
    columns, problems, rows, lost = dict(own.columns), [], list[str](), list[str]()
    for name, column in own.columns.items():
        if name not in table.columns:
            lost.append(name)
        elif column.type == "number":
            if not _numbers(table[name], name):
                problems.append(f"'{name}' is not a column of numbers")
            elif (outside := _outside(table[name], name, column)) is not None:
                problems.append(f"'{name}' has values outside the range of the site's schema")
                rows.append(outside)
        elif column.type == "category":
            coded = encode(table[name])
            counts = np.bincount(coded.codes[coded.codes >= 0], minlength=len(coded.labels))
            new = {label_text(v): int(n) for v, n in zip(coded.labels, counts, strict=True)}
            new = {level: n for level, n in new.items() if level not in column.levels}
            if few := sum(n < min_group for n in new.values()):
                problems.append(
                    f"'{name}' has {few} {'level' if few == 1 else 'levels'} of fewer than {min_group} rows that the "
                    "owner has not named yet, with 'coterie federation schema'"
                )
            levels = (*column.levels, *(level for level, n in new.items() if n >= min_group))
            columns[name] = replace(column, levels=levels)
    if lost:
        what = f"column {lost[0]!r}" if len(lost) == 1 else f"columns {listed(map(repr, lost))}"
        problems.append(f"its table has no {what}")
    return Schema(columns), problems, rows


def usable(
    table: pd.DataFrame, own: Schema, design: Design, task: Any, least: int
) -> tuple[pd.DataFrame, Mask, list[str]]:
    """The columns of a task as the site's schema has them, and which rows can be used: no row is a reason to refuse.

    Parameters
    ----------
    table : DataFrame
        The site's.
    own : Schema
        The site's.
    design : Design
    task : dict
    least : int
        Rows by which a level that the schema has not is used all the same.

    Returns
    -------
    columns : DataFrame
        Numbers in the range of the schema, and levels.
    rows : (n,) bool
    said : list of str
        What was left out or clipped, for the owner.
    """
    import pandas as pd

    parsed, weights = design.parsed, task["weights"]
    names = dict.fromkeys([*parsed.outcome_columns, *parsed.columns, *(n for n in (task["offset"], weights) if n)])
    need(table, list(names), "formula's")
    found, rows, said = dict[str, Any](), np.ones(len(table), dtype=np.bool_), list[str]()

    def without(bad: Mask, what: str) -> None:
        nonlocal rows
        if bad.any():
            said.append(f"Left out: {what} in {at_rows(bad)}.")
            rows &= ~bad

    for name in names:
        column = own.columns[name]
        known = design.levels.get(name) or (design.outcome_levels if name == parsed.outcome else None)
        if known:
            codes, coded = find_levels(table[name], known)[0], encode(table[name])
            said += remarks(name, coded.labels, coded.joined)
            rich = np.bincount(codes[codes >= 0], minlength=len(known)) >= least
            codes[~(rich | np.isin(known, column.levels))[codes]] = -1
            without(codes < 0, f"column '{name}' has no level of the schema")
            found[name] = np.array(known, dtype=object)[codes]
            continue
        values = np.array(read_numbers(table[name]), dtype=np.float64)
        with np.errstate(invalid="ignore"):
            without(~(np.abs(values) <= LARGEST), f"column '{name}' has no number")
        if (outside := _outside(table[name], name, column)) is not None:
            said.append(f"Clipped: {outside}")
        found[name] = np.clip(values, column.low, column.high) if outside is not None else values
    for name, bad in _unfit(found, parsed.outcome, task["family"], weights):
        without(bad & rows, f"column '{name}' does not fit its role")
    return pd.DataFrame(found), rows, said


def _unfit(found: dict[str, Any], outcome: str, family: str, weights: str | None) -> list[tuple[str, Mask]]:
    """Rows whose outcome is none of the family, and those without a weight."""
    wrong, y = [], found.get(outcome)
    if y is not None and y.dtype.kind == "f" and family == "binomial":
        wrong.append((outcome, (y != 0.0) & (y != 1.0)))
    if y is not None and y.dtype.kind == "f" and family == "poisson":
        wrong.append((outcome, (y < 0.0) | (y != np.floor(y)) | (y > COUNTS)))
    return wrong + ([] if weights is None else [(weights, found[weights] <= 0.0)])


def row_ids(table: pd.DataFrame, own: Schema) -> npt.NDArray[np.uint64]:
    """What every row is known by: what it holds in the columns of the schema, and how many such rows came before.

    So a row that is added to the table, or moved in it, leaves the others who they are.
    """
    import pandas as pd
    from pandas.util import hash_array

    total = np.zeros(len(table), dtype=np.uint64)
    for name in sorted(set(own.columns) & set(table.columns)):
        seed = hash_array(np.array([name], dtype=object), categorize=False)
        total = total * np.uint64(0x9E3779B97F4A7C15) + (_hashes(table[name]) ^ seed)
    before = pd.Series(total).groupby(total).cumcount().to_numpy(dtype=np.uint64)
    return np.asarray(hash_array(total ^ (before * np.uint64(0xD1B54A32D192ED03)), categorize=False), dtype=np.uint64)


def _hashes(series: pd.Series[Any]) -> npt.NDArray[np.uint64]:
    """A number for every value, the same whether a column is of whole numbers, of others, or of text that has them."""
    import pandas as pd
    from pandas.util import hash_array

    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "iufb":
        values = series.to_numpy(dtype=np.float64)
        return np.where(np.isnan(values), np.uint64(0), hash_array(values + 0.0, categorize=False))
    coded = encode(series)
    texts = np.array([*map(label_text, coded.labels), ""], dtype=object)
    values = pd.to_numeric(pd.Series(texts), errors="coerce").to_numpy(dtype=np.float64)
    found = np.where(np.isnan(values), hash_array(texts, categorize=False), hash_array(values + 0.0, categorize=False))
    found[-1] = 0
    return np.asarray(found[coded.codes], dtype=np.uint64)


def cells(columns: pd.DataFrame, design: Design) -> npt.NDArray[np.int64]:
    """The cell (n, t) of every row in each of the t terms that have categories, or numbers of two values."""
    codes: dict[str, tuple[Any, int]] = {}
    for name in design.columns:
        if name in design.levels:
            codes[name] = find_levels(columns[name], design.levels[name])[0], len(design.levels[name])
        elif len(values := np.unique(columns[name].to_numpy())) == 2:
            codes[name] = (columns[name].to_numpy() == values[1]), 2
    terms = dict.fromkeys(tuple(sorted(codes.keys() & set(term))) for term in design.parsed.factors)
    found = [np.zeros(len(columns), dtype=np.int64) for term in terms if term]
    for cell, names in zip(found, filter(None, terms), strict=True):
        for name in names:
            cell *= codes[name][1]
            cell += codes[name][0]
    return np.stack(found, axis=1) if found else np.empty((len(columns), 0), dtype=np.int64)


def _numbers(series: pd.Series[float], name: str) -> bool:
    """Whether a column holds numbers; missing ones are for the run to say."""
    try:
        kind = kind_of(series, name)
    except CoterieError:
        return False
    return kind == "number" and all(what == "missing values" for what, _ in faults(series, "number"))


def _outside(series: pd.Series[float], name: str, column: Column) -> str | None:
    """A sentence about values outside a column's range; None if there are none."""
    low = -np.inf if column.low is None else column.low
    high = np.inf if column.high is None else column.high
    values = np.asarray(read_numbers(series), dtype=np.float64)
    with np.errstate(invalid="ignore"):
        bad = np.isfinite(values) & ((values < low) | (values > high))
    if not bad.any():
        return None
    unit = f" {column.unit}" if column.unit else ""
    return f"Column '{name}' is outside {low:g} to {high:g}{unit} in {at_rows(bad)}: correct these rows, or its unit."
