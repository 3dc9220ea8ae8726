"""A site's own table against a schema: the arrays of a task, as it is or by the rules of its owner, and its check."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.util import hash_array

from coterie.data.clients import Clients
from coterie.data.columns import Column, at_rows
from coterie.data.design import Design
from coterie.data.labels import encode, label_text, spelling_notes, travelling
from coterie.data.prepare_table import check_choices, prepare, uncountable
from coterie.data.splits import RowSplits
from coterie.data.table import Table
from coterie.data.table_files import read_table
from coterie.deployment.column_types import LARGEST, Findings, Mask, numbers
from coterie.deployment.federation_toml import PROBLEM, SCHEMA
from coterie.deployment.schema import Schema, clusters_of, design_of, disagreements
from coterie.deployment.site.disclosure import TooFew
from coterie.deployment.site.formula_grammar import allowed
from coterie.deployment.site.prepared_data import ROWS
from coterie.deployment.site.redaction_and_owner_log import tell_owner
from coterie.deployment.site.site_toml import RULES, Member
from coterie.errors import CoterieError, NoRows, listed, shortened
from coterie.families import family_named

LEFT_OUT = (
    "Sites whose owners set rules of disclosure leave out rows that cannot be used, and clip values to the ranges of "
    "the schema; which, they tell their owners alone. A client without a row that can be used is in the model all the "
    "same."
)
"""Said of every run over such sites, whatever rows they have."""
UNITE = "add them with 'coterie federation check --unite'."
_UNFIT = f"Its table does not fit the run: '{PROBLEM}' in the site's folder says why."


def arrays(folder: Path, member: Member, task: Mapping[str, Any], own: Schema, agreed: Schema) -> dict[str, Any]:
    """Everything of a prepared table that a node needs, as plain values."""
    design = design_of(agreed, task)
    columns = [*design.parsed.outcome_columns, *design.columns]
    used = [*columns, *(n for n in (task["offset"], task["weights"]) if n)]
    if wrong := disagreements(agreed, own, [n for n in used if n in agreed.columns]):
        raise CoterieError(f"Its schema is not that of the run: {'; '.join(wrong)}.")
    table, client = _table_of(member.table(folder), member, task, own)
    try:
        require_schema(table, agreed, columns)
        clients = _clients(table, client, task, design, task["missing"])
    except CoterieError as problem:
        raise _said_without_rows(folder, task, problem) from problem
    rows = re.compile(r" \(data rows? [\d, .]+\)|: '.*(?= \(if ')", re.DOTALL)
    return _as_arrays(clients, task) | {"notes": [rows.sub("", note) for note in clients.notes], "at": clients.order}


def _need_labels(task: Mapping[str, Any], own: Schema) -> list[str]:
    """The columns that a task takes for clients and clusters, which the site's owner must have called labels."""
    named = [*filter(None, [task["client"]]), *clusters_of(task)]
    if loose := [n for n in named if n not in own.labels]:
        raise CoterieError(
            f"Column {loose[0]!r} does not name clients or clusters here: the owner of the site says which do, with "
            f"'coterie federation schema --label'."
        )
    return named


def _table_of(path: Path, member: Member, task: Mapping[str, Any], own: Schema) -> tuple[pd.DataFrame, str]:
    """The site's table, and its column of clients; without one, the site is the client."""
    table = read_table(path, _need_labels(task, own), own.na_values)
    if task["client"]:
        return table, task["client"]
    client = "site" if "site" not in table.columns else "(site)"
    return table.assign(**{client: member.name}), client


def _clients(table: pd.DataFrame, client: str, task: Mapping[str, Any], design: Design, missing: Any) -> Clients:
    return prepare(
        table, task["formula"], client, tuple(clusters_of(task)), task["family"], task["offset"], task["weights"],
        missing, design, part=True, classes=task["classes"],
    )[0]  # fmt: skip


def guarded_arrays(
    folder: Path, member: Member, task: Mapping[str, Any], own: Schema, agreed: Schema
) -> dict[str, Any]:
    """As :func:`arrays`, where the owner's rules hold: what is answered depends on schemas and labels alone.

    What is wrong with rows is kept in a file for the owner. Whatever goes wrong once rows are looked at is said in one
    and the same sentence.
    """
    check_choices(task["family"], task["missing"])
    _need_labels(task, own)
    design = allowed(task, own, agreed, member.disclosure)
    if strange := [name for name in member.disclosure.complete if name not in own.columns]:
        raise CoterieError(f"Its owner's rules name a column '{strange[0]}' (complete) that its schema has not.")
    path = member.table(folder)
    try:
        found, told, labelled = _usable_arrays(path, member, task, own, design)
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
    path: Path, member: Member, task: Mapping[str, Any], own: Schema, design: Design
) -> tuple[dict[str, Any], list[str], int]:
    """The arrays of the rows that can be used, what to tell the owner of the others, and how many rows have labels."""
    table, client = _table_of(path, member, task, own)
    rules = member.disclosure
    columns, sound, told = usable_rows(table, own, design, task, max(member.min_group, rules.min_level), rules.complete)
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
    everybody = _clients(columns, client, task, design, "error")
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
        "row_ids": row_ids(table, own)[rows[clients.order]],
        "at": rows[clients.order],
        "values": np.hstack(values),
        "cells": cells(columns.iloc[clients.order], design),
    }
    told += [note for note in clients.notes if not note.startswith("In '")]
    return found | {"notes": [LEFT_OUT, *(n for n in clients.notes if n not in told)]}, told, len(rows)


def split_keys(
    folder: Path, member: Member, task: Mapping[str, Any], by: Mapping[str, str], at: npt.NDArray[np.int64]
) -> dict[str, Any]:
    """What rows ``at`` these places of the table are held out by, where a column says it: see ``Cut.sides``.

    ``by`` has one name, that of an argument of :func:`coterie.fit` (order_by, split_by or given_split), and the column,
    which the owner's schema must have. What is wrong with it is for the owner alone: a TooFew where rows are guarded.
    """
    own = Schema.read(folder / SCHEMA)
    ((option, name),) = by.items()
    what = {"order_by": "order", "split_by": "groups", "given_split": "given"}[option]
    if name not in own.columns:
        raise CoterieError(f"Its schema has no column '{name}' to split rows by.")
    column = _table_of(member.table(folder), member, task, own)[0][name].iloc[at]
    try:
        made = RowSplits.of(**{what: column}, names=(name,) * 3)
    except CoterieError as problem:
        if member.guarded:
            raise TooFew(str(problem)) from problem
        tell_owner(folder, [str(problem)])
        raise CoterieError(_UNFIT) from problem
    if made.given is not None:
        return {what: made.given}
    return {what: column if made.order is None else made.order}  # groups are drawn by their labels, as of a table


def told_counts(counts: Any, clusters: Any, min_group: int) -> Any:
    """Rows of each client as others hear of them: of clients with few, an even share of what these have together."""
    few = counts < min_group
    together, n = np.bincount(clusters[few], counts[few]), np.maximum(np.bincount(clusters[few]), 1)
    even = np.where(together < min_group, 1, together // n).astype(np.int64)
    told = np.array(counts, dtype=np.int64)
    told[few] = even[clusters[few]]
    return told


def _as_arrays(clients: Clients, task: Mapping[str, Any]) -> dict[str, Any]:
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
                what = f"Column '{name}' has levels that the schema does not have"
                other = listed(map(repr, table[name][unseen].astype(str).unique()), 3)
                raise Withheld(f"{what} ({other}): {UNITE}", f"{what}: {UNITE}")
        elif (outside := column.outside(numbers(table[name]))).any():
            what = f"Column '{name}' has values outside the range of the schema."
            raise Withheld(column.out_of_range(name, outside), what)


def validate_rows(table: pd.DataFrame, own: Schema, least: int) -> tuple[Schema, Findings]:
    """A site's schema with the levels that its rows have, and what is wrong with them or odd about them.

    What fewer than ``least`` rows have is for the owner alone: levels, values outside of a range, text that is no
    number.
    """
    columns, found = dict(own.columns), Findings()
    lost = [name for name in own.columns if name not in table.columns]
    for name, column in own.columns.items():
        if name not in lost:
            columns[name] = column.kind.check(name, column, table[name], least, found)
    if lost:
        what = f"column {lost[0]!r}" if len(lost) == 1 else f"columns {listed(map(repr, lost))}"
        found.problems.append(f"its table has no {what}")
    if found.placed:
        found.problems.append(f"'{PROBLEM}' in the site's folder says in which rows")
    return Schema(columns), found


def usable_rows(
    table: pd.DataFrame, own: Schema, design: Design, task: Any, least: int, complete: Sequence[str] = ()
) -> tuple[pd.DataFrame, Mask, list[str]]:
    """The columns of a task as the site's schema has them, which rows can be used, and what is left out or clipped.

    No row is a reason to refuse. Columns are numbers in the range of the schema, and levels, of the rows that cannot be
    used too. ``least`` rows make a level that the schema has not used all the same; ``complete`` columns must have a
    value although the task does not use them. What was left out is said for the owner.
    """
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
            other = listed(map(repr, table[name][codes < 0].dropna().astype(str).unique()), 3)
            without(codes < 0, f"column '{name}' has no level of the schema{f', but {other},' if other else ''}")
            found[name] = np.array(known, dtype=object)[codes]
            continue
        values = np.array(read[name].numbers, dtype=np.float64)
        for what, bad in read[name].faults("number"):
            said.append(f"Left out: {read[name].fault_text(what, bad)}.")
            rows &= ~bad
        without(np.isfinite(values) & (np.abs(values) > LARGEST), f"column '{name}' has numbers beyond {LARGEST:g}")
        if (outside := column.outside(values)).any():
            said.append(f"Clipped: {column.out_of_range(name, outside)}")
        found[name] = np.clip(values, column.low, column.high) if outside.any() else values
    for name in others:
        has = own.columns[name].kind.has_value(table[name])
        without(~has, f"column '{name}' has no value (complete)")
    y, family = found.get(parsed.outcome), family_named(task["family"])
    if y is not None and y.dtype.kind == "f":
        unfit = ~family.possible(y) | (np.abs(y) > family.largest)
        without(unfit & rows, f"column '{parsed.outcome}' has no outcome of the family {family.name}")
    usual = 0.0 if family.possible(np.zeros(1)).all() else 1.0
    whole = parsed.plain_outcome or parsed.successes is not None  # else it is finite in the column's range
    instead = dict(zip(parsed.outcome_columns, (usual, 1.0), strict=False)) if whole else {}  # no success of one trial
    if (trials := design.read_trials(pd.DataFrame(found))) is not None:
        unfit = uncountable(design.read_outcome(pd.DataFrame(found)), trials)
        without(unfit & rows, f"'{parsed.outcome}' has no successes of trials")
    if weights is not None:
        without((found[weights] <= 0.0) & rows, f"column '{weights}' has weights that are not above 0")
    for name, values in found.items():
        if values.dtype.kind == "f":  # what is left out is no reason to refuse either
            column = own.columns[name]
            found[name] = np.where(rows, values, instead.get(name, np.clip(0.0, column.low, column.high)))
    return pd.DataFrame(found), rows, said


def row_ids(table: pd.DataFrame, own: Schema) -> npt.NDArray[np.uint64]:
    """What every row is known by: what it holds in the columns of the schema, and how many such rows came before.

    So a row that is added to the table, or moved in it, leaves the others who they are.
    """
    total = np.zeros(len(table), dtype=np.uint64)
    for name in sorted(set(own.columns) & set(table.columns)):
        seed = hash_array(np.array([name], dtype=object), categorize=False)
        total = total * np.uint64(0x9E3779B97F4A7C15) + (_hashes(table[name]) ^ seed)
    before = pd.Series(total).groupby(total).cumcount().to_numpy(dtype=np.uint64)
    return np.asarray(hash_array(total ^ (before * np.uint64(0xD1B54A32D192ED03)), categorize=False), dtype=np.uint64)


def _hashes(series: pd.Series[Any]) -> npt.NDArray[np.uint64]:
    """A number for every value, the same whether a column is of whole numbers, of others, or of text that has them."""
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
    """The cell (n, t) of every row in each of the t terms that have categories, or numbers of two values.

    An outcome of several classes is such a term, too.
    """
    codes: dict[str, tuple[Any, int]] = {}
    levels = design.levels | ({design.outcome: design.outcome_levels} if design.outcome_levels else {})
    for name in (*design.columns, *levels.keys() - {*design.columns}):
        if name in levels:
            codes[name] = Column(columns[name]).codes_of(levels[name])[0], len(levels[name])
        elif len(values := np.unique(columns[name].to_numpy())) == 2:
            codes[name] = (columns[name].to_numpy() == values[1]), 2
    factors = (*design.parsed.factors, (design.outcome,))
    terms = dict.fromkeys(tuple(sorted(codes.keys() & set(term))) for term in factors)
    found = [np.zeros(len(columns), dtype=np.int64) for term in terms if term]
    for cell, names in zip(found, filter(None, terms), strict=True):
        for name in names:
            cell *= codes[name][1]
            cell += codes[name][0]
    return np.stack(found, axis=1) if found else np.empty((len(columns), 0), dtype=np.int64)
