"""From a table to clients, with every check of the table that a user should hear of before any work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np

from coterie.data.clients import Clients, LabelTree, arrange, relative_weights
from coterie.data.columns import BadRows, Column, Kind, at_rows, rows_text
from coterie.data.design import Design
from coterie.data.formula import Parsed, column_kinds, formula_notes, parse
from coterie.data.labels import Coded, spelling_notes
from coterie.data.table import Table, as_name, as_names
from coterie.errors import CoterieError, NoRows, listed, plural
from coterie.families import Family, family_named, names_of
from coterie.numerics.arrays import Bools, Floats, Ints

_BY_HAND = "Correct these rows, or leave them out of the table."


def prepare(
    df: Any,
    formula: str,
    client: str,
    cluster: str | Sequence[str] | None = (),
    family: str = "gaussian",
    offset: str | None = None,
    weights: str | None = None,
    missing: Literal["error", "drop"] = "error",
    design: Design | None = None,
    part: bool = False,
    classes: bool = False,
) -> tuple[Clients, Design]:
    """Read the clients of a table, one row for each observation, and the design that its formula stands for.

    ``client`` names the column that says whose row it is, ``cluster`` those of known clusters, fine to coarse;
    ``offset`` is added to the linear predictor as it is, and ``weights``, not negative, are divided by their mean. Rows
    with missing, infinite or non-numeric values in a column that is used raise, or are left out (``missing="drop"``). A
    ``design`` fitted before is used instead of the formula. A ``part`` is one site's of a larger table: it may have one
    client, one cluster and a constant outcome, and does not know the mean of the weights. Text that is the outcome has
    two values, or those of ``classes`` that the design has, which are numbered.

    ``notes`` of the clients tell what was left out and how the outcome was read. A CoterieError for whatever is wrong
    with the table names the column, the client or the row (counted from 1).
    """
    table = Table.of(df)
    if len(table) == 0:
        raise NoRows("The table has no rows.")
    check_choices(family, missing)
    client, levels = as_name("client", client), as_names("cluster", cluster)
    extra = {"offset": offset, "weights": weights}
    roles = {role: as_name(role, name) for role, name in extra.items() if name is not None}
    parsed = read_roles(table, formula, client, levels, roles, design)
    check_trials(parsed, family, weights)
    for name in parsed.outcome_columns if parsed.successes is not None else ():
        if not _holds_numbers(table[name]):
            raise CoterieError(f"Column '{name}' holds no numbers, and '{parsed.outcome}' counts successes of trials.")
    labels = {name: table[name].labels for name in (client, *levels)}
    kinds = column_kinds(table, parsed)
    used = {} if design is None else {c: design.kind(c) for c in design.columns}
    rows, notes = sound_rows(table, kinds | used, labels, roles, missing)
    dropped = tuple(notes)
    categories = [name for name, kind in kinds.items() if kind == "category"] if design is None else design.levels
    spelled = {name: table[name].labels for name in categories} | (labels if part else {})
    notes += formula_notes(table, parsed, kinds) + _spelling_notes(spelled, show=not part)
    if weights is not None:
        rows, weightless = weighing_rows(table, weights, rows)
        notes += weightless
    if rows is not None:
        labels = {name: column.take(rows) for name, column in labels.items()}
    tree, more = _tree(client, levels, labels, part, rows is not None)
    rows = tree.order if rows is None else rows[tree.order]
    take = None if tree.presorted and len(rows) == len(table) else rows
    with _mentioning(dropped):
        if design is None:
            design = Design.fit(table, parsed.formula, rows=take)
            design.need_variety()
        X = design.matrix(table, rows=take)
        y = np.array(design.read_outcome(table, take))  # which the table may change before all is asked for
        if (trials := design.read_trials(table, take)) is not None:
            y = checked_shares(y, trials, design.outcome, rows)
        asked = family_named(family)
        notes += more + check_outcome(
            y, asked, design.outcome, rows, None if classes else design.outcome_levels, part, shares=trials is not None
        )
    weigh = np.ones(len(y)) if weights is None else table[weights].floats[rows]
    weigh = weigh if part else relative_weights(weigh)
    weigh = weigh if trials is None else trials
    known = np.zeros(len(y)) if offset is None else table[offset].floats[rows]
    clients = tree.clients(X, y, known, weigh, design.terms, rows)
    relearn = partial(design.relearned, table) if design.parsed.stateful and not part else None
    return replace(clients, notes=tuple(notes), relearn=relearn, trials=trials is not None), design


@contextmanager
def _mentioning(dropped: Sequence[str]) -> Iterator[None]:
    """Errors of what is left of a table say also what was left out of it, which may be why."""
    try:
        yield
    except CoterieError as e:
        more = [_BY_HAND] * isinstance(e, BadRows) + list(dropped)
        if not more:
            raise
        raise type(e)(" ".join([str(e), *more])) from e


def check_choices(family: str, missing: str) -> None:
    """A CoterieError for a family, or a way with missing values, that there is not."""
    family_named(family)
    if missing not in ("error", "drop"):
        raise CoterieError(f"missing must be 'error' or 'drop', not '{missing}'.")


def check_trials(parsed: Parsed, family: str, weights: str | None) -> None:
    """A CoterieError for successes of trials where the family, or weights, do not go with them."""
    if parsed.successes is None:
        return
    if not family_named(family).two_classes:
        raise CoterieError(
            f"'{parsed.outcome}' is successes of trials: take family {names_of(lambda f: f.two_classes)}, not {family}."
        )
    if weights is not None:
        raise CoterieError(f"The trials of '{parsed.outcome}' are the weights of its rows: leave weights out.")
    for side in parsed.successes[:2]:
        if not any(c.isidentifier() or c == "`" for c in side):
            raise CoterieError(f"'{side}' in '{parsed.outcome}' is no column: make a column of the table of it.")


def read_roles(
    table: Table, formula: str, client: str, levels: tuple[str, ...], roles: dict[str, str], design: Design | None
) -> Parsed:
    """Each column has one role; the formula, read."""
    for role, names in {
        "client": [client],
        "cluster": levels,
        **{role: [name] for role, name in roles.items()},
    }.items():
        table.need(names, role)
    if design is not None:
        parsed = design.parsed
        table.need((*parsed.outcome_columns, *parsed.columns), "formula's")
    else:
        parsed = parse(formula, table.names, exclude=[client, *levels, *roles.values()])
    check_roles(parsed, client, levels, roles)
    return parsed


def check_roles(parsed: Parsed, client: str | None, levels: Sequence[str], roles: Mapping[str, str]) -> None:
    """A CoterieError for a column of two roles; over sites there may be no ``client``."""
    if client in levels:
        raise CoterieError(f"Column '{client}' is both the client and a cluster column; leave it out of the clusters.")
    given = [*([client] if client else []), *levels, *roles.values()]
    twice = next((name for name in given if given.count(name) > 1), None)
    if twice is not None:
        raise CoterieError(
            f"Column '{twice}' is named twice among the client, cluster, offset and weights columns: name one for each."
        )
    if client in parsed.columns:
        raise CoterieError(
            f"Column '{client}' is the client column and is also in the formula; take it out of the formula, "
            "because every client has its own coefficients already."
        )
    outcome = next((name for name in given if name in parsed.outcome_columns), None)
    if outcome is not None:
        raise CoterieError(f"Column '{outcome}' is the outcome; it cannot be the client, cluster or another too.")
    if roles.get("offset") in parsed.columns:
        raise CoterieError(f"Column '{roles['offset']}' is the offset and is also in the formula; keep one of them.")


def sound_rows(
    table: Table, kinds: Mapping[str, Kind], labels: Mapping[str, Coded], roles: Mapping[str, str], missing: str
) -> tuple[Ints | None, list[str]]:
    """Rows without faults in any column that is used (None for all of them), and what to say of the others."""
    found: list[tuple[str, Bools]] = []
    for place, (name, column) in enumerate(labels.items()):
        if (column.codes < 0).any():
            what = "client" if place == 0 else "cluster"
            says = f", where {table[name].read_as_missing}" if table[name].read_as_missing else ""
            found.append((f"{what} column '{name}' has no label in {at_rows(column.missing)}{says}", column.missing))
    for role, name in roles.items():
        if not _holds_numbers(table[name]):
            raise CoterieError(f"The {role} column '{name}' must hold numbers.")
    kinds = {**kinds, **dict.fromkeys(roles.values(), "number")}
    for name, kind in kinds.items():
        found += [(table[name].fault_text(what, bad), bad) for what, bad in table[name].faults(kind)]
    if not found:
        return None, []
    remedy = table.missing_remedy(kinds, labels)
    texts = [text for text, _ in found]
    sentence = "; ".join(texts[:3]) + (f"; and {len(texts) - 3} more" if len(texts) > 3 else "")
    if missing == "error":
        raise CoterieError(
            f"{sentence[0].upper()}{sentence[1:]}. Correct these rows, or leave them out with missing='drop' "
            f"(--missing drop).{remedy}"
        )
    bad = np.logical_or.reduce([mask for _, mask in found])
    rows = np.flatnonzero(~bad).astype(np.int64)
    if len(rows) == 0:
        raise NoRows(f"No row is left without missing values: {sentence}.{remedy}")
    return rows, [f"{len(table) - len(rows):,} of {plural(len(table), 'row')} were left out: {sentence}.{remedy}"]


def _tree(
    client: str, levels: Sequence[str], labels: Mapping[str, Coded], part: bool, dropped: bool
) -> tuple[LabelTree, list[str]]:
    """The tree of the clients, and what to say of it; a part of a table may have one client, and levels of one."""
    if part:
        return arrange(list(labels.items())), []
    if len(labels[client].labels) == 1:
        raise CoterieError(
            f"There is only one client: '{client}' is {labels[client].labels[0]!s} in every row"
            f"{' that is used' if dropped else ''}. Name the column that tells clients apart."
        )
    return informative_tree(client, levels, labels)


def _spelling_notes(columns: Mapping[str, Coded], show: bool = True) -> list[str]:
    return [note for name, c in columns.items() for note in spelling_notes(name, c.labels, c.joined, show)]


def informative_tree(client: str, levels: Sequence[str], labels: Mapping[str, Coded]) -> tuple[LabelTree, list[str]]:
    """The tree of the clients; levels that tell nothing are left out, and a note says so, as it does of spellings."""
    notes = _spelling_notes(labels)
    kept = [name for name in levels if len(labels[name].labels) > 1]
    notes += [
        f"There is only one cluster: '{name}' is {labels[name].labels[0]!s} in every row. How clusters differ cannot "
        "be learned from one, so it is left out."
        for name in levels
        if name not in kept
    ]
    tree = arrange([(name, labels[name]) for name in (client, *kept)])
    own = [client]
    for name in kept:
        if len(labels[name].labels) == len(labels[own[-1]].labels):
            notes.append(
                f"Every '{name}' holds one '{own[-1]}', so that the two cannot be told apart; '{name}' is left out."
            )
        else:
            own.append(name)
    if len(own) <= len(kept):
        tree = arrange([(name, labels[name]) for name in own])
    return tree, notes


def check_outcome(
    y: Floats,
    family: Family,
    name: str,
    rows: Ints | None = None,
    levels: tuple[str, ...] | None = None,
    constant: bool = False,
    shares: bool = False,
) -> list[str]:
    """Raise CoterieError if an outcome does not fit its family; say how it was read, where that needs saying.

    ``rows`` (n,) are table positions of the values (0, 1, ... by default), ``levels`` what was text in the table and is
    0 and 1 in ``y``; an outcome may be ``constant`` where the table is a part of a larger one. ``shares`` of
    trials were checked before.
    """

    def where(bad: Bools) -> str:
        return rows_text(np.flatnonzero(bad) if rows is None else np.sort(rows[bad]))

    if not np.isfinite(y).all():
        raise CoterieError(f"The outcome '{name}' is not a finite number in {where(~np.isfinite(y))}. {_BY_HAND}")
    if levels is not None and not family.two_classes:
        raise CoterieError(
            f"The outcome '{name}' is text ({levels[0]!r} and {levels[1]!r}); family {family} needs numbers. "
            f"Use family {names_of(lambda f: f.two_classes)}."
        )
    if not shares:
        family.check(y, name, where)
    notes = [] if constant else _two_valued(y, family, name)
    if not constant and y.min() == y.max():
        value = levels[int(y[0])] if levels is not None else f"{y[0]:g}"
        raise CoterieError(f"The outcome '{name}' is constant: {value} in every row, so there is nothing to explain.")
    return [f"In '{name}', {levels[1]!r} counts as 1 and {levels[0]!r} as 0."] if levels is not None else notes


def checked_shares(y: Floats, trials: Floats, name: str, rows: Ints | None = None) -> Floats:
    """Shares y (n,) of trials (n,), without rounding; a CoterieError where successes or trials cannot be counted."""
    if (bad := uncountable(y, trials)).any():
        pairs = zip((y * trials)[bad], trials[bad], strict=True)
        cases = [f"{s:g} of {t:g}" if t else "no trials" for s, t in pairs]
        where = rows_text(np.flatnonzero(bad) if rows is None else np.sort(rows[bad]))
        raise CoterieError(
            f"'{name}' needs whole numbers of successes from 0 to the trials, of which there is one at least; it has "
            f"{listed(dict.fromkeys(cases), 3)} in {where}. {_BY_HAND}"
        )
    return np.asarray(np.rint(y * trials) / np.rint(trials))


def uncountable(y: Floats, trials: Floats) -> Bools:
    """Rows (n,) whose shares y of trials are not of whole numbers, or not from 0 to 1 of one trial at least."""
    n, successes = np.rint(trials), np.rint(y * trials)
    whole = (np.abs(n - trials) <= 1e-6) & (np.abs(successes - y * trials) <= 1e-6 * np.maximum(n, 1.0))
    return np.asarray(~(whole & (n >= 1.0) & (successes >= 0.0) & (successes <= n)))


def _two_valued(y: Floats, family: Family, name: str) -> list[str]:
    """What to say of an outcome of yes or no, or of counts, that a straight line is fitted to."""
    if not family.any_number or len(y) < 4:
        return []
    low, high = float(y.min()), float(y.max())
    if low < high and np.all((y == low) | (y == high)):
        code = "" if (low, high) == (0.0, 1.0) else " with values of 0 and 1"
        other = names_of(lambda f: f.two_classes)
        return [
            f"The outcome '{name}' has two values, {low:g} and {high:g}, and family {family} fits a straight line to "
            f"them: if they stand for no and yes, use family {other} (--family {other}){code}."
        ]
    return []


def _holds_numbers(column: Column) -> bool:
    try:
        return column.kind() == "number"
    except CoterieError:  # which speaks of formulas
        return False


def weighing_rows(table: Table, name: str, rows: Ints | None) -> tuple[Ints | None, list[str]]:
    """Rows with a weight: those of weight 0 are as good as not there."""
    here = np.arange(len(table), dtype=np.int64) if rows is None else rows
    weights = table[name].floats[here]
    if (weights < 0).any():
        raise CoterieError(
            f"The weights column '{name}' is negative in {rows_text(here[weights < 0])}: make them 0 or more."
        )
    if not weights.any():
        raise NoRows(f"The weights column '{name}' is 0 in every row: leave it out.")
    if weights.all():
        return rows, []
    kept = here[weights > 0]
    return kept, [
        f"{len(here) - len(kept):,} of {plural(len(table), 'row')} were left out: their weight ('{name}') is 0."
    ]
