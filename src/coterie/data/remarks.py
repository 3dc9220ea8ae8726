"""What a user should know of how a formula takes the columns of a table, where it may not be what was meant."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from coterie.data.columns import column_kinds, read_levels, whole_text
from coterie.data.labels import Coded, encode, spelling_notes
from coterie.errors import listed

if TYPE_CHECKING:
    import pandas as pd

    from coterie.data.design import Design
    from coterie.data.formula import Parsed


def signs(table: pd.DataFrame, parsed: Parsed) -> list[str]:
    """What to say of arithmetic of numbers that a formula takes for something else."""
    kinds, notes = column_kinds(table, parsed) if parsed.vanishing else {}, []

    def name(text: str) -> str:
        if re.fullmatch(r"[\w.]+(\(.*\))?", text):
            return text
        return f"`{text}`" if text in table.columns else f"({text})"

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
        if column in table.columns and whole_text(table[column]):
            notes.append(
                f"Column '{column}' is text, and so a category, although all of it is whole numbers: make it a column "
                f"of numbers if they are amounts, or write C({column})."
            )
    return notes + orders(table, parsed)


def orders(df: pd.DataFrame, parsed: Parsed) -> list[str]:
    """What to say of contrasts that depend on the order of levels, where text has none of its own."""
    notes = []
    for column, contrast in parsed.ordered:
        known = read_levels(df[column])[1]
        own = getattr(df[column].dtype, "ordered", False) or list(known) != sorted(known)
        if len(known) > 2 and not own and not all(re.fullmatch(r"[+-]?[\d.]+", level) for level in known):
            notes.append(
                f"{contrast} takes the levels of '{column}' in the order of the alphabet: "
                f"{listed(map(repr, known), 6)}. For another, number them or make an ordered category of them."
            )
    return notes


def spellings(
    table: pd.DataFrame, parsed: Parsed, design: Design | None, labels: Mapping[str, Coded], show: bool
) -> list[str]:
    """What :func:`coterie.data.labels.spelling_notes` says of the levels of categories, and of ``labels``."""
    if design is not None:
        names = list(design.levels)
    else:
        names = [name for name, kind in column_kinds(table, parsed).items() if kind == "category"]
    columns = {**{name: encode(table[name]) for name in names}, **labels}
    return [note for name, c in columns.items() for note in spelling_notes(name, c.labels, c.joined, show)]
