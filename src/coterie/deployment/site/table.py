"""A site's table as the arrays of a task: as it is, or by the rules of the site's owner."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.deployment.config import PROBLEM
from coterie.deployment.schema import Schema, clusters_of, design_of, disagreements
from coterie.deployment.site.config import RULES, Member
from coterie.deployment.site.payload import tell_owner
from coterie.errors import CoterieError, NoRows, shortened

if TYPE_CHECKING:
    import pandas as pd

    from coterie.data.clients import Clients
    from coterie.data.design import Design

LEFT_OUT = (
    "Sites whose owners set rules of disclosure leave out rows that cannot be used, and clip values to the ranges of "
    "the schema; which, they tell their owners alone. A client without a row that can be used is in the model all the "
    "same."
)
"""Said of every run over such sites, whatever rows they have."""
ROWS = ("X", "y", "offset", "weights", "starts", "stops")
"""What an objective is made of."""
_UNFIT = f"Its table does not fit the run: '{PROBLEM}' in the site's folder says why."


def arrays(folder: Path, member: Member, task: Mapping[str, Any], own: Schema, agreed: Schema) -> dict[str, Any]:
    """Everything of a prepared table that a node needs, as plain values."""
    from coterie.data.prepare_table import prepare as read_clients
    from coterie.data.table_files import read_table
    from coterie.deployment.site.row_validation import require_schema

    named = _label_columns(task, own)
    design = design_of(agreed, task)
    columns = [*design.parsed.outcome_columns, *design.columns]
    used = [*columns, *(n for n in (task["offset"], task["weights"]) if n)]
    if wrong := disagreements(agreed, own, [n for n in used if n in agreed.columns]):
        raise CoterieError(f"Its schema is not that of the run: {'; '.join(wrong)}.")
    table, client = _with_client(read_table(member.table(folder), named, own.na_values), task, member)
    try:
        require_schema(table, agreed, columns)
        clients, _ = read_clients(
            table, task["formula"], client, tuple(clusters_of(task)), task["family"], task["offset"], task["weights"],
            task["missing"], design, part=True,
        )  # fmt: skip
    except CoterieError as problem:
        raise _said_without_rows(folder, task, problem) from problem
    return _as_arrays(clients, task) | {"notes": list(map(_without_rows, clients.notes))}


def _label_columns(task: Mapping[str, Any], own: Schema) -> list[str]:
    """The columns that a task takes for clients and clusters, which the site's owner must have called labels."""
    named = [*([task["client"]] if task["client"] else []), *clusters_of(task)]
    if loose := [n for n in named if n not in own.labels]:
        raise CoterieError(
            f"Column {loose[0]!r} does not name clients or clusters here: the owner of the site says which do, with "
            f"'coterie federation schema --label'."
        )
    return named


def _with_client(table: pd.DataFrame, task: Mapping[str, Any], member: Member) -> tuple[pd.DataFrame, str]:
    """A table, and its column of clients; without one, the site is the client."""
    if task["client"]:
        return table, task["client"]
    client = "site" if "site" not in table.columns else "(site)"
    return table.assign(**{client: member.name}), client


def guarded_arrays(
    folder: Path, member: Member, task: Mapping[str, Any], own: Schema, agreed: Schema
) -> dict[str, Any]:
    """As :func:`arrays`, where the owner's rules hold: what is answered depends on schemas and labels alone.

    What is wrong with rows is kept in a file for the owner. Whatever goes wrong once rows are looked at is said in one
    and the same sentence.
    """
    from coterie.data.prepare_table import check_choices
    from coterie.deployment.site.formula_grammar import allowed

    check_choices(task["family"], task["missing"])
    named = _label_columns(task, own)
    design = allowed(task, own, agreed, member.disclosure)
    if strange := [name for name in member.disclosure.complete if name not in own.columns]:
        raise CoterieError(f"Its owner's rules name a column '{strange[0]}' (complete) that its schema has not.")
    path = member.table(folder)
    try:
        found, told, labelled = _usable_arrays(path, member, task, own, design, named)
    except OSError:
        raise
    except Exception as problem:
        tell_owner(folder, [str(problem)])
        raise CoterieError(_UNFIT) from problem
    if told:
        tell_owner(folder, (f"Of the rows for '{shortened(task['formula'])}':", *told))
    least = member.disclosure.rows_per_column * len(design.terms)
    if 0 < labelled < least:
        raise CoterieError(
            f"The formula makes {len(design.terms):,} columns, for which {RULES} want {least:,} rows "
            "(rows_per_column), more than the site has."
        )
    if not found:
        raise NoRows("No row of its table can be used.")
    return found


def _usable_arrays(
    path: Path, member: Member, task: Mapping[str, Any], own: Schema, design: Design, named: list[str]
) -> tuple[dict[str, Any], list[str], int]:
    """The arrays of the rows that can be used, what to tell the owner of the others, and how many rows have labels."""
    from coterie.data.labels import encode
    from coterie.data.prepare_table import prepare as read_clients
    from coterie.data.table_files import read_table
    from coterie.deployment.site import row_validation

    table, client = _with_client(read_table(path, named, own.na_values), task, member)
    rules = member.disclosure
    columns, sound, told = row_validation.usable_rows(
        table, own, design, task, max(member.min_group, rules.min_level), rules.complete
    )
    coded = {name: encode(table[name]) for name in (client, *clusters_of(task))}
    labelled = np.logical_and.reduce([c.codes >= 0 for c in coded.values()])
    rows = np.flatnonzero(labelled)
    if not len(rows):
        return {}, told, 0
    who, m = coded[client].codes[rows], len(coded[client].labels)
    has, used = np.bincount(who, minlength=m), np.bincount(who[sound[rows]], minlength=m)
    least = max(member.min_group, rules.min_level if member.privacy else 1)
    kept = sound[rows] & ~((used < least) & (has >= least))[who]
    if kept.sum() < least <= len(rows):
        kept[:] = False
    columns = columns.assign(**{name: table[name].to_numpy() for name in coded}).iloc[rows]
    everybody, _ = read_clients(
        columns, task["formula"], client, tuple(clusters_of(task)), task["family"], task["offset"], task["weights"],
        "error", design, part=True,
    )  # fmt: skip
    at = kept[everybody.order]
    if member.privacy:  # how many rows a client has may be told, so those that cannot be used stay, without weight
        clients = replace(everybody, weights=np.where(at, everybody.weights, 0.0))
    else:
        clients = everybody.subset(at)  # one without a row stays: who takes part tells of labels alone
    values = [clients.X, clients.y[:, None], clients.offset[:, None], clients.weights[:, None]]
    found = _as_arrays(clients, task) | {
        "width": len(design.terms),
        "counts": told_counts(everybody.counts, clients.clusters, member.min_group),
        "labelled": everybody.counts,
        "row_ids": row_validation.row_ids(table, own)[rows[clients.order]],
        "values": np.hstack(values),
        "cells": row_validation.cells(columns.iloc[clients.order], design),
    }
    told += [note for note in clients.notes if not note.startswith("In '")]
    return found | {"notes": [LEFT_OUT, *(n for n in clients.notes if n not in told)]}, told, len(rows)


def told_counts(counts: Any, clusters: Any, min_group: int) -> Any:
    """Rows of each client as others hear of them: of clients with few, an even share of what these have together."""
    few = counts < min_group
    together, n = np.bincount(clusters[few], counts[few]), np.maximum(np.bincount(clusters[few]), 1)
    even = np.where(together < min_group, 1, together // n).astype(np.int64)
    told = np.array(counts, dtype=np.int64)
    told[few] = even[clusters[few]]
    return told


def _as_arrays(clients: Clients, task: Mapping[str, Any]) -> dict[str, Any]:
    """Clients as plain values."""
    levels, at = {}, clients.clusters
    for level in clients.levels:
        levels[level.name] = travelling(level.labels)[at]
        at = level.parent[at]
    found: dict[str, Any] = {name: getattr(clients, name) for name in ROWS}
    found |= {"family": task["family"], "labels": travelling(clients.labels), "ids": clients.ids, "levels": levels}
    return found | {"clusters": clients.clusters}


def _said_without_rows(folder: Path, task: Mapping[str, Any], problem: CoterieError) -> CoterieError:
    """What of a problem may leave the site; the whole of it is kept in a file for its owner.

    Which rows a formula or a range does not fit, and their values, would let a coordinator that asks for one formula
    after another read the table.
    """
    from coterie.deployment.site.row_validation import Withheld

    tell_owner(folder, [str(problem)])
    if isinstance(problem, NoRows):
        return NoRows("No row of its table can be used.")
    if isinstance(problem, Withheld):
        return CoterieError(f"{problem.leaves} '{PROBLEM}' in the site's folder says in which rows.")
    hint = "" if task["missing"] == "drop" else " Rows with missing values are left out with --missing drop."
    return CoterieError(
        f"Its table does not fit the schema, formula or family of the run: '{PROBLEM}' in the site's folder says what "
        f"is wrong in which rows.{hint}"
    )


def _without_rows(note: str) -> str:
    """A note of how a table was read, without the places and values of rows."""
    return re.sub(r" \(data rows? [\d, .]+\)|: '.*(?= \(if ')", "", note, flags=re.DOTALL)


def travelling(labels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Labels as an array that can travel: numbers stay numbers, all else is text."""
    if labels.dtype.kind in "iufb":
        return labels
    from coterie.data.labels import label_text

    return np.array([label_text(v) for v in labels], dtype=str)
