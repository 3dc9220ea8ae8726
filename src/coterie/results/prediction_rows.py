"""What a model reads of the rows that it is to predict, and why it cannot read some of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np

from coterie.data.columns import BadRows, Kind, at_rows
from coterie.data.design import INTERCEPT, Design
from coterie.data.table import Table
from coterie.errors import CoterieError
from coterie.numerics.arrays import Bools, Floats, Ints

if TYPE_CHECKING:
    pass

Missing = Literal["error", "empty"]
NOTHING = "none: "
"""How the source of a row begins that has no prediction; the reason follows."""


def read_rows(
    table: Table, design: Design | None, terms: tuple[str, ...], offset: str | None, missing: Missing
) -> tuple[Floats, Floats | None, Ints, list[str]]:
    """The columns of a model, computed from a table.

    Parameters
    ----------
    table : Table
    design : Design or None
        None reads columns named like the terms.
    terms : tuple of str, (p,)
    offset : str or None
        A column that is added to the linear predictor.
    missing : {"error", "empty"}
        What to do with rows that cannot be read.

    Returns
    -------
    X : (n, p) float64
        NaN in rows that cannot be read.
    offset : (n,) float64 or None
    why : (n,) int64
        Place in `reasons`; -1 for rows that can be read.
    reasons : list of str

    Raises
    ------
    CoterieError
        For columns that are not there and, where `missing` is "error", for rows that cannot be read.
    """
    if missing not in ("error", "empty"):
        raise CoterieError(f"missing must be 'error' or 'empty', not {missing!r}.")
    numbers = [term for term in terms if design is None and term != INTERCEPT]
    table.need([*numbers, *([] if offset is None else [offset])], "model's")
    try:
        if missing == "error":
            _need_numbers(table, [*numbers, *([] if offset is None else [offset])])
        X = _columns(table, terms) if design is None else _matrix(design, table, missing)
    except BadRows as e:
        raise CoterieError(
            f"{e} Correct these rows, or leave their predictions empty: missing='empty' (--missing empty)."
        ) from e
    added = None if offset is None else table[offset].floats
    why, reasons = np.full(len(table), -1, dtype=np.int64), list[str]()
    if missing == "empty":
        kinds: dict[str, Kind] = dict.fromkeys([*numbers, *([] if offset is None else [offset])], "number")
        kinds |= {} if design is None else {c: design.kind(c) for c in design.columns}
        for what, rows in _reasons(table, design, kinds, X):
            here = rows & (why < 0)
            if here.any():
                why[here] = len(reasons)
                reasons.append(NOTHING + what)
        X[why >= 0] = np.nan
    return X, added, why, reasons


def _matrix(design: Design, table: Table, missing: Missing) -> Floats:
    choice: Literal["error", "nan"] = "nan" if missing == "empty" else "error"
    return design.matrices(table, outcome=False, on_unseen=choice, on_missing=choice)[0]


def _columns(table: Table, terms: tuple[str, ...]) -> Floats:
    X = np.ones((len(table), len(terms)))
    for j, term in enumerate(terms):
        if term != INTERCEPT:
            X[:, j] = table[term].numbers
    return X


def _need_numbers(table: Table, columns: list[str]) -> None:
    for column in columns:
        for what, rows in table[column].faults("number"):
            raise BadRows(f"Column '{column}' has {what} in {at_rows(rows)}.")


def _reasons(table: Table, design: Design | None, kinds: dict[str, Kind], X: Floats) -> Iterator[tuple[str, Bools]]:
    """Why rows cannot be read: reasons, each with the rows (n,) bool."""
    for column, kind in kinds.items():
        for what, rows in table[column].faults(kind):
            yield f"{what} in '{column}'", rows
        if design is not None and kind == "category":
            yield f"a new level of '{column}'", table[column].codes_of(design.levels[column])[1]
    broken: Bools = np.logical_not(np.isfinite(X))
    if design is not None:
        for j in np.flatnonzero(broken.any(axis=0)):
            if spline := design.parsed.spline_of(design.terms[j]):
                yield f"a value outside the range of '{spline}'", broken[:, j]
    yield "a term that is not finite", np.asarray(broken.any(axis=1))
