"""A site's own table against a schema: what is refused before a run or left out, and what a check may say of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coterie.data.columns import Column, at_rows
from coterie.data.design import Design
from coterie.data.labels import encode, label_text, spelling_notes
from coterie.data.table import Table
from coterie.deployment.column_types import LARGEST, Mask, numbers
from coterie.deployment.config import PROBLEM
from coterie.deployment.schema import Schema
from coterie.errors import CoterieError, listed
from coterie.families import Family, family_named

if TYPE_CHECKING:
    import pandas as pd


class Withheld(CoterieError):
    """What is wrong with rows, for their owner; ``leaves`` is what others may hear of it."""

    def __init__(self, text: str, leaves: str) -> None:
        super().__init__(text)
        self.leaves = leaves


def require_schema(table: pd.DataFrame, agreed: Schema, columns: Sequence[str]) -> None:
    """Raise (:class:`Withheld`) for levels that the schema has not, values outside its ranges, and lost columns."""
    Table.of(table).need(columns, "formula's")
    for name in columns:
        column = agreed.columns[name]
        if column.levels:
            _, unseen = Column(table[name]).codes_of(column.levels)
            if unseen.any():
                other = listed(map(repr, table[name][unseen].astype(str).unique()), 3)
                what, remedy = (
                    "has levels that the schema does not have",
                    "add them with 'coterie federation check --unite'.",
                )
                raise Withheld(f"Column '{name}' {what} ({other}): {remedy}", f"Column '{name}' {what}: {remedy}")
        elif (outside := column.outside(numbers(table[name]))).any():
            what = f"Column '{name}' has values outside the range of the schema."
            raise Withheld(column.out_of_range(name, outside), what)


def validate_rows(table: pd.DataFrame, own: Schema, least: int) -> tuple[Schema, list[str], list[str]]:
    """A site's schema with the levels that its rows have; what is wrong with them, for others and for the owner.

    What fewer than ``least`` rows have is for the owner alone: levels, values outside of a range, text that is no
    number. Words that may leave hold no value, level or place of a row; the last says where the owner finds these.
    """
    columns, problems, rows, placed = dict(own.columns), list[str](), list[str](), False
    lost = [name for name in own.columns if name not in table.columns]
    for name, column in own.columns.items():
        if name not in lost:
            found = column.kind.check(name, column, table[name], least)
            columns[name], placed = found.column, placed or found.placed
            problems += found.problems
            rows += found.rows
    if lost:
        what = f"column {lost[0]!r}" if len(lost) == 1 else f"columns {listed(map(repr, lost))}"
        problems.append(f"its table has no {what}")
    if placed:
        problems.append(f"'{PROBLEM}' in the site's folder says in which rows")
    return Schema(columns), problems, rows


def usable_rows(
    table: pd.DataFrame, own: Schema, design: Design, task: Any, least: int, complete: Sequence[str] = ()
) -> tuple[pd.DataFrame, Mask, list[str]]:
    """The columns of a task as the site's schema has them, which rows can be used, and what is left out or clipped.

    No row is a reason to refuse. Columns are numbers in the range of the schema, and levels, of the rows that cannot be
    used too. ``least`` rows make a level that the schema has not used all the same; ``complete`` columns must have a
    value although the task does not use them. What was left out is said for the owner.
    """
    import pandas as pd

    parsed, weights = design.parsed, task["weights"]
    names = dict.fromkeys([*parsed.outcome_columns, *parsed.columns, *(n for n in (task["offset"], weights) if n)])
    others = [name for name in complete if name not in names]
    read = Table.of(table)
    read.need([*names, *others], "formula's")
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
            codes, coded = read[name].codes_of(known)[0], read[name].labels
            said += spelling_notes(name, coded.labels, coded.joined)
            rich = np.bincount(codes[codes >= 0], minlength=len(known)) >= least
            codes[~(rich | np.isin(known, column.levels))[codes]] = -1
            without(codes < 0, f"column '{name}' has no level of the schema")
            found[name] = np.array(known, dtype=object)[codes]
            continue
        values = numbers(table[name])
        with np.errstate(invalid="ignore"):
            without(~(np.abs(values) <= LARGEST), f"column '{name}' has no number")
        if (outside := column.outside(values)).any():
            said.append(f"Clipped: {column.out_of_range(name, outside)}")
        found[name] = np.clip(values, column.low, column.high) if outside.any() else values
    for name in others:
        has = own.columns[name].kind.has_value(table[name])
        without(~has, f"column '{name}' has no value (complete)")
    for name, bad in _unfit(found, parsed.outcome, family_named(task["family"]), weights):
        without(bad & rows, f"column '{name}' does not fit its role")
    for name, values in found.items():
        if values.dtype.kind == "f":  # what is left out is no reason to refuse either
            column, plain = own.columns[name], name == parsed.outcome
            found[name] = np.where(rows, values, 0.0 if plain else np.clip(0.0, column.low, column.high))
    return pd.DataFrame(found), rows, said


def _unfit(found: dict[str, Any], outcome: str, family: Family, weights: str | None) -> list[tuple[str, Mask]]:
    """Rows whose outcome is none of the family, and those without a weight."""
    wrong, y = [], found.get(outcome)
    if y is not None and y.dtype.kind == "f":
        wrong.append((outcome, ~family.possible(y) | (y > family.largest)))
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
            codes[name] = Column(columns[name]).codes_of(design.levels[name])[0], len(design.levels[name])
        elif len(values := np.unique(columns[name].to_numpy())) == 2:
            codes[name] = (columns[name].to_numpy() == values[1]), 2
    terms = dict.fromkeys(tuple(sorted(codes.keys() & set(term))) for term in design.parsed.factors)
    found = [np.zeros(len(columns), dtype=np.int64) for term in terms if term]
    for cell, names in zip(found, filter(None, terms), strict=True):
        for name in names:
            cell *= codes[name][1]
            cell += codes[name][0]
    return np.stack(found, axis=1) if found else np.empty((len(columns), 0), dtype=np.int64)
