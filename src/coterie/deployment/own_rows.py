"""A site's own table against a schema: what is refused before a run, and what a check may say of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from coterie.data.columns import at_rows, faults, find_levels, kind_of, need, read_numbers
from coterie.data.labels import encode, label_text
from coterie.deployment.schema import Column, Schema
from coterie.errors import CoterieError, listed

if TYPE_CHECKING:
    import pandas as pd


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
                what, remedy = "has levels that the schema has not", "add them with 'coterie federation check --unite'."
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
