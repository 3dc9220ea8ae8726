"""Auxiliary learning: one table with several outcomes as a table of tasks, so that a task is a client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import pandas as pd

from coterie.data.columns import Column
from coterie.data.table import Table, as_name, as_names
from coterie.errors import CoterieError
from coterie.options import Option, checked

Standardise = Annotated[bool, Option("Whether outcomes are brought to mean 0 and standard deviation 1.")]
ADDED = ("task", "outcome", "row")


@checked
def stack_tasks(df: Any, main: str, auxiliary: str | Sequence[str], standardise: Standardise = True) -> pd.DataFrame:
    """Make each outcome a task: a row for each outcome that a row of ``df`` has.

    Fit it with ``client="task"``, so that auxiliary tasks are collaborators of the main one, and with
    ``split_by="row"``, so that no test row of the main task is trained on as another task's.

    Parameters
    ----------
    df : DataFrame
        pandas or polars; one row for each observation.
    main : str
        Column of the outcome that matters.
    auxiliary : str or sequence of str
        Columns of outcomes that may help.
    standardise : bool, default True
        Bring outcomes to mean 0 and standard deviation 1, auxiliary ones with the sign of their correlation with the
        main one, so that coefficients compare. Leave it out for outcomes of 0 and 1, or counts.

    Returns
    -------
    DataFrame
        The other columns of ``df``, and ``task``, ``outcome`` and ``row`` (the number of the row of ``df``). Rows where
        an outcome is missing are left out for that task. ``attrs["tasks"]`` has each task's location and scale:
        ``outcome = (value - location) / scale``.

    Raises
    ------
    CoterieError
        For columns that are not there or not numbers, are named twice, do not vary, or whose names are taken.

    Examples
    --------
    >>> tasks = coterie.stack_tasks(df, "math", ["reading", "science"])  # doctest: +SKIP
    >>> coterie.fit(tasks, "outcome ~ hours", "task", method="bias-correction", split_by="row",
    ...             rounds={"main": "math"})  # doctest: +SKIP
    """
    table, others = Table.of(df), as_names("auxiliary", auxiliary)
    outcomes = [as_name("main", main), *others]
    table.need(outcomes, "outcome")
    if not others:
        raise CoterieError("There are no auxiliary tasks: name a column of another outcome at least.")
    if len(set(outcomes)) < len(outcomes):
        raise CoterieError(f"An outcome is named twice in {', '.join(outcomes)}: name each once.")
    for name in ADDED:
        if name in table and name not in outcomes:
            raise CoterieError(f"The table has a column '{name}' already: rename it.")
    values = {name: _numbers(table[name]) for name in outcomes}
    first = values[outcomes[0]]
    units = {name: _units(name, v, first) if standardise else (0.0, 1.0) for name, v in values.items()}
    rest, parts = table.frame.drop(columns=outcomes), []
    for name, v in values.items():
        known = np.flatnonzero(~np.isnan(v))
        location, scale = units[name]
        added = {"task": name, "outcome": (v[known] - location) / scale, "row": known}
        parts.append(rest.iloc[known].reset_index(drop=True).assign(**added))
    out = pd.concat(parts, ignore_index=True)
    out.attrs["tasks"] = {name: {"location": a, "scale": b} for name, (a, b) in units.items()}
    return out


def _numbers(column: Column) -> Any:
    if column.stored != "number":
        raise CoterieError(f"Column '{column.name}' is to be an outcome and holds no numbers: code it first.")
    values = column.floats
    if np.isinf(values).any():
        raise CoterieError(f"Column '{column.name}' has infinite values: correct them or leave these rows out.")
    return values


def _units(name: str, values: Any, main: Any) -> tuple[float, float]:
    """Location and scale; the scale is negative where a task goes against the main one."""
    spread = float(np.nanstd(values)) if np.isfinite(values).any() else 0.0
    if not spread > 0.0:
        raise CoterieError(
            f"Column '{name}' does not vary, so that there is nothing to learn about it: leave it out, or take another "
            "main outcome."
        )
    both = np.isfinite(values) & np.isfinite(main)
    against = both.sum() > 1 and float(np.cov(values[both], main[both])[0, 1]) < 0.0
    return float(np.nanmean(values)), -spread if against else spread
