"""How a formula takes the columns of a table, and what a user should know of it where it may not be what was meant."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from coterie.data.columns import I64, Kind
from coterie.data.formula import Parsed
from coterie.data.table import Table
from coterie.data.terms import COLUMNS
from coterie.errors import CoterieError, listed

LEVELS = 1000
"""Most levels of a category in a formula; groups with more belong in the client or the cluster column."""


def column_kinds(table: Table, parsed: Parsed) -> dict[str, Kind]:
    """How a formula takes each column it uses, outcome included.

    A CoterieError for columns that a formula cannot use, or that it uses in two ways.
    """
    kinds: dict[str, Kind] = {}
    for name in (*parsed.outcome_columns, *parsed.columns):
        column = table[name]
        kinds[name] = "category" if name in parsed.categories else column.kind(name in parsed.outcome_columns)
        twice = name in parsed.numeric or (name in parsed.bare and column.kind() == "number")
        if name in parsed.categories and twice:
            raise CoterieError(
                f"The formula uses '{name}' both as a category and as a number; "
                "make a copy of the column under another name for one of them."
            )
        if kinds[name] == "category" and name in parsed.reckoned:
            raise CoterieError(
                f"Column '{name}' is a category: a formula may compare it with a value, but not compute with it."
            )
    return kinds


def limit_columns(parsed: Parsed, levels: Mapping[str, tuple[str, ...]]) -> None:
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


def outcome_levels(table: Table, parsed: Parsed, kinds: Mapping[str, Kind], rows: I64 | None) -> tuple[str, str] | None:
    """What counts as 0 and as 1 where the outcome is text of two values; None where it is a number."""
    if not parsed.plain_outcome or kinds[parsed.outcome] == "number":
        return None
    texts = table[parsed.outcome].levels_in(rows)
    if len(texts) == 1:
        raise CoterieError(f"The outcome '{parsed.outcome}' is constant: {texts[0]!r} in every row.")
    if len(texts) != 2:
        raise CoterieError(
            f"The outcome '{parsed.outcome}' is text with {len(texts):,} different values "
            f"({listed(map(repr, texts), 3)}); it must be a number, or have two values."
        )
    return texts[0], texts[1]


def formula_notes(table: Table, parsed: Parsed, kinds: Mapping[str, Kind]) -> list[str]:
    """What to say of arithmetic of numbers that a formula takes for something else."""
    notes = []

    def name(text: str) -> str:
        if re.fullmatch(r"[\w.]+(\(.*\))?", text):
            return text
        return f"`{text}`" if text in table else f"({text})"

    for written, means, form, factors in parsed.vanishing:
        if "category" in map(kinds.get, factors):
            continue
        meant = form.format(*map(name, factors))
        notes.append(
            f"'{written}' is '{means}' in a formula, where ^, **, *, / and : combine terms and are not "
            f"arithmetic: write {meant} for the {'ratio' if '/' in form else 'power'}."
            if means
            else f"'{written}' leaves out a term that the formula does not have; a minus is not arithmetic there: "
            f"{meant} would be."
        )
    for column in parsed.bare:
        if column in table and table[column].whole_text:
            notes.append(
                f"Column '{column}' is text, and so a category, although all of it is whole numbers: make it a column "
                f"of numbers if they are amounts, or write C({column})."
            )
    return notes + _order_notes(table, parsed)


def _order_notes(table: Table, parsed: Parsed) -> list[str]:
    """What to say of contrasts that depend on the order of levels, where text has none of its own."""
    notes = []
    for column, contrast in parsed.ordered:
        known = table[column].levels[1]
        own = getattr(table[column].series.dtype, "ordered", False) or list(known) != sorted(known)
        if len(known) > 2 and not own and not all(re.fullmatch(r"[+-]?[\d.]+", level) for level in known):
            notes.append(
                f"{contrast} takes the levels of '{column}' in the order of the alphabet: "
                f"{listed(map(repr, known), 6)}. For another, number them or make an ordered category of them."
            )
    return notes
