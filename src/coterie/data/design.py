"""Designs: a formula fitted to a table, that turns this and later tables into the same columns of numbers.

A right side that is a plain sum of numeric columns is built by NumPy alone; everything else goes through formulaic in
blocks of rows, so that neither needs much more memory than the matrix itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coterie.data.columns import BadRows, Column, Kind, at_rows, rows_text
from coterie.data.formula import Parsed, column_kinds, limit_columns, outcome_levels, parse
from coterie.data.formula_terms import compute_terms, state_from_json, state_to_json
from coterie.data.labels import resembling, tidied
from coterie.data.table import Table
from coterie.errors import CoterieError, listed, plural
from coterie.lazy_modules import pd
from coterie.numerics.arrays import Bools, Floats, Ints

Choice = Literal["error", "nan"]

INTERCEPT = "(Intercept)"
_BLOCK = 1 << 13
_FORMULAIC_BLOCK = 1 << 17
_VERSION = 1


@dataclass(frozen=True, eq=False)
class Design:
    """A formula fitted to a table."""

    formula: str  # ``.`` written out
    terms: tuple[str, ...]  # (p,) names of the columns of X: formulaic's, but "(Intercept)"
    levels: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of each category; other columns are numbers
    outcome_levels: tuple[str, ...] | None = None  # of text of two values, or of classes: what counts as 0, 1, ...
    state: dict[str, Any] = field(default_factory=dict)  # what center, scale, poly or bs remember of the fitted table

    @classmethod
    def fit(cls, df: Any, formula: str, rows: Ints | None = None, classes: bool = False) -> Design:
        """Learn levels and stateful terms from rows of a table, which must be without faults (None: all of them).

        An outcome that is text has two values, or any number where they are ``classes``. A CoterieError for a formula
        that cannot be read or computed, and for categories with more than 1,000 levels.
        """
        table = Table.of(df)
        parsed = parse(formula, table.names)
        kinds = column_kinds(table, parsed)
        levels = {c: table[c].levels_in(rows) for c in parsed.columns if kinds[c] == "category"}
        limit_columns(parsed, levels)
        draft = cls(parsed.formula, (), levels, outcome_levels(table, parsed, kinds, rows, classes))
        state = draft.learned(table, rows)
        if parsed.simple is not None and not levels:
            terms = ((INTERCEPT,) if parsed.intercept else ()) + parsed.simple
        elif "Intercept" in parsed.columns:
            raise CoterieError("Rename the column 'Intercept': the formula makes one of that name.")
        else:
            few = np.arange(min(8, len(table))) if rows is None else rows[:8]
            terms = _named(compute_terms(draft._frame(table, few, "error", "error")[0], parsed.right, state)[0].columns)
        if bare := next((f for f in parsed.stateful if not any(f in term for term in terms)), None):
            raise CoterieError(f"'{bare}' makes no columns: leave it out of the formula, or give it a degree.")
        if not terms:
            raise CoterieError(
                f"The formula '{parsed.formula}' has no columns on its right side: write 1 for an intercept alone."
            )
        return replace(draft, terms=terms, state=state)

    def learned(self, table: Table, rows: Ints | None) -> dict[str, Any]:
        """What stateful terms remember of some rows of a table."""
        if not self.parsed.stateful:
            return {}
        side = "0 + " + " + ".join(self.parsed.stateful)
        return compute_terms(self._frame(table, rows, "error", "error")[0], side, {})[1]

    def relearned(self, table: Table, rows: Ints) -> Callable[[Ints], Floats]:
        """What computes the matrix of any rows of a table by terms that were learned from some of them alone."""
        return partial(
            replace(self, state=self.learned(table, rows))._formulaic, table, on_unseen="error", on_missing="nan"
        )

    def need_variety(self) -> None:
        """Raise CoterieError for a category of one level that makes no column, as for a number that never varies."""
        made = {re.sub(r"\[[^\]]*\]$", "", term) for term in self.terms}
        for column, known in self.levels.items():
            alone = any(t == column or t.startswith(f"C({column}") for t in made)
            if len(known) == 1 and (column,) in self.parsed.factors and not alone:
                raise CoterieError(f"Column '{column}' is {known[0]!r} in every row: leave it out of the formula.")

    @cached_property
    def parsed(self) -> Parsed:
        """What the formula says."""
        return parse(self.formula)

    @property
    def columns(self) -> tuple[str, ...]:
        """Table columns that the right side uses."""
        return self.parsed.columns

    @property
    def outcome(self) -> str:
        """The outcome: a column, or the expression on the left side."""
        return self.parsed.outcome

    def kind(self, column: str) -> Kind:
        """How the design takes one of its columns."""
        return "category" if column in self.levels else "number"

    def matrix(
        self, df: Any, rows: Ints | None = None, on_unseen: Choice = "error", on_missing: Choice = "error"
    ) -> Floats:
        """The design matrix (n, p) of a table, C-contiguous.

        ``rows`` (n,) are taken in this order (None: all); other columns are ignored. Levels that the fitted table did
        not have raise, or with ``on_unseen="nan"`` fill their rows of X with NaN; ``on_missing`` says the same of
        missing, infinite and non-numeric values. A CoterieError names the column, the values and the first rows.
        """
        table = Table.of(df)
        table.need(self.columns, "formula's")
        if self.parsed.simple is not None and not self.levels:
            return self._numpy(table, rows, on_missing)
        return self._formulaic(table, rows, on_unseen, on_missing)

    def read_outcome(self, df: Any, rows: Ints | None = None) -> Floats:
        """The outcome of a table, (n,) float64; two-valued text as 0 and 1, successes as their share of trials."""
        table = Table.of(df)
        table.need(self.parsed.outcome_columns, "outcome's")
        if self.outcome_levels is not None:
            column, take = table[self.outcome], slice(None) if rows is None else rows
            codes, unseen = (values[take] for values in column.codes_of(self.outcome_levels))
            if unseen.any():
                other = column.series.iloc[take][unseen].astype(str).unique()
                known = " and ".join(repr(v) for v in self.outcome_levels)
                raise CoterieError(f"The outcome '{self.outcome}' is {known}, not {listed(map(repr, other), 3)}.")
            return np.where(codes < 0, np.nan, codes.astype(np.float64))
        plain_outcome = self.parsed.plain_outcome
        y = table[self.outcome].numbers if plain_outcome else self._computed(table, self.outcome)
        return np.ascontiguousarray(y if rows is None else y[rows], dtype=np.float64)

    def read_trials(self, df: Any, rows: Ints | None = None) -> Floats | None:
        """Trials (n,) of a table's rows where the outcome is successes of trials, else None."""
        if self.parsed.successes is None:
            return None
        n = self._trials(Table.of(df), *self.parsed.successes)
        return np.ascontiguousarray(n if rows is None else n[rows], dtype=np.float64)

    def _trials(self, table: Table, first: str, second: str, whole: bool) -> Floats:
        table.need(parse(f"{second if whole else self.outcome} ~ 1").outcome_columns, "outcome's")
        n = self._computed(table, second)
        return n if whole else np.asarray(n + self._computed(table, first), dtype=np.float64)

    def _computed(self, table: Table, left: str) -> Floats:
        """A left side that is an expression, or its successes over its trials; NaN where one of its columns is."""
        parsed = parse(f"{left} ~ 1")
        if parsed.successes is not None:
            successes, n = self._computed(table, parsed.successes[0]), self._trials(table, *parsed.successes)
            shares = np.full(len(table), np.nan)
            np.divide(successes, n, out=shares, where=n != 0.0)
            return shares
        if parsed.plain_outcome:
            return table[parsed.outcome].numbers
        used = parsed.outcome_columns
        kinds = {c: table[c].kind() for c in used}
        data = {c: table[c].floats if kinds[c] == "number" else _objects(table[c]) for c in used}
        frame, _ = compute_terms(pd.DataFrame(data), f"0 + {{{left}}}", {})
        if frame.shape[1] != 1:
            raise CoterieError(f"The left side '{left}' of the formula must be one column of numbers.")
        y = frame.iloc[:, 0].to_numpy(dtype=np.float64, copy=True)
        for column in used:
            for _, bad in table[column].faults(kinds[column]):
                y[bad] = np.nan
        return y

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Design) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash((self.formula, self.terms))

    def to_json(self) -> str:
        """The design as JSON text; `from_json` gives back an equal design."""
        parts = {name: getattr(self, name) for name in ("formula", "terms", "levels", "outcome_levels")}
        return json.dumps({"version": _VERSION, **parts, "state": state_to_json(self.state)}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Design:
        """A design from the text that `to_json` gave."""
        try:
            d = json.loads(text)
            newer = d["version"] > _VERSION
            if not newer:
                levels, two = {k: _texts(v) for k, v in d["levels"].items()}, d["outcome_levels"]
                pair = None if two is None else (_texts(two)[0], _texts(two)[1])
                design = cls(
                    _texts([d["formula"]])[0], _texts(d["terms"]), levels, pair, dict(state_from_json(d["state"]))
                )
        except (KeyError, TypeError, AttributeError, IndexError, ValueError) as e:
            raise CoterieError("The model's formula is damaged: save the model again.") from e
        if newer:
            raise CoterieError("The model's formula was saved by a newer coterie; update coterie to read it.")
        _ = design.parsed  # refuses what a formula may not hold
        return design

    def _numpy(self, table: Table, rows: Ints | None, on_missing: Choice) -> Floats:
        """A plain sum of numeric columns, filled in blocks that stay in cache."""
        columns = [table[c].numbers for c in self.parsed.simple or ()]
        bad = self._faults(table, rows, on_missing)
        n = len(table) if rows is None else len(rows)
        X = np.empty((n, len(self.terms)))
        first = len(self.terms) - len(columns)
        X[:, :first] = 1.0
        for start in range(0, n, _BLOCK):
            stop = min(start + _BLOCK, n)
            take = slice(start, stop) if rows is None else rows[start:stop]
            for j, values in enumerate(columns):
                X[start:stop, first + j] = values[take]
        if bad is not None:
            X[bad if rows is None else bad[rows]] = np.nan
        return X

    def _formulaic(self, table: Table, rows: Ints | None, on_unseen: Choice, on_missing: Choice) -> Floats:
        """Any other right side, computed in blocks of rows; rows that cannot be computed stay NaN."""
        frame, bad = self._frame(table, rows, on_unseen, on_missing)
        X = np.full((len(frame), len(self.terms)), np.nan)
        places = np.arange(len(frame)) if bad is None else np.flatnonzero(~bad)
        for start in range(0, len(places), _FORMULAIC_BLOCK):
            place = places[start : start + _FORMULAIC_BLOCK]
            values, _ = compute_terms(frame.iloc[place], self.parsed.right, self.state)
            if _named(values.columns) != self.terms:
                raise CoterieError(
                    f"The formula '{self.formula}' makes other columns here ({listed(values.columns)}) than in the "
                    f"table it was fitted on ({listed(self.terms)}); fit the model again."
                )
            X[place] = values.to_numpy(dtype=np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            total = X.sum()
        if not np.isfinite(total):
            finite = np.isfinite(X)
            if on_missing == "error":
                self._refuse_terms(~finite, bad, rows)
            X[~finite.all(axis=1)] = np.nan
        return X

    def _refuse_terms(self, broken: Bools, known: Bools | None, rows: Ints | None) -> None:
        """Raise for terms that are not numbers although their columns are, such as the log of 0."""
        for term, column in zip(self.terms, broken.T, strict=True):
            at = np.flatnonzero(column if known is None else column & ~known)
            if len(at) == len(column) and not self.parsed.spline_of(term):
                raise CoterieError(f"The term '{term}' is not a finite number in any row: leave it out of the formula.")
            if len(at):
                table_rows = np.sort(at if rows is None else rows[at])
                outside = self.parsed.spline_of(term)
                raise BadRows(
                    f"The term '{term}' is not a finite number in {rows_text(table_rows)}"
                    f"{f': its values extend beyond the range of {outside!r}' if outside else ''}."
                )

    def _faults(self, table: Table, rows: Ints | None, on_missing: Choice) -> Bools | None:
        """Table rows that cannot be computed, or None."""
        bad: Bools | None = None
        for column in self.columns:
            for what, found in table[column].faults(self.kind(column)):
                here = found & _used(rows, len(table))
                if on_missing == "error" and here.any():
                    text = table[column].fault_text(what, here)
                    remedy = table.missing_remedy({column: self.kind(column)})
                    raise BadRows(f"{text[0].upper()}{text[1:]}.{remedy}")
                bad = here if bad is None else bad | here
        return bad

    def _frame(
        self, table: Table, rows: Ints | None, on_unseen: Choice, on_missing: Choice
    ) -> tuple[pd.DataFrame, Bools | None]:
        """The columns that formulaic sees, and the rows that it cannot be asked about (by position in the frame)."""
        bad = self._faults(table, rows, on_missing)
        data: dict[str, Any] = {}
        for column in self.columns:
            if column not in self.levels:
                values = table[column].floats
                data[column] = values if rows is None else values[rows]
                continue
            codes, unseen = table[column].codes_of(self.levels[column])
            if unseen.any():
                unseen &= _used(rows, len(table))
                if on_unseen == "error" and unseen.any():
                    raise BadRows(_unseen_levels(table[column], unseen, self.levels[column]))
                bad = unseen if bad is None else bad | unseen
            codes = codes if rows is None else codes[rows]
            data[column] = pd.Categorical.from_codes(codes, categories=pd.Index(self.levels[column]))
        index = pd.RangeIndex(len(table) if rows is None else len(rows))
        return pd.DataFrame(data, index=index), bad if bad is None or rows is None else bad[rows]


def _used(rows: Ints | None, n: int) -> Bools:
    used = np.full(n, rows is None)
    if rows is not None:
        used[rows] = True
    return used


def _unseen_levels(column: Column, unseen: Bools, known: tuple[str, ...]) -> str:
    counts = column.series[unseen].astype(str).value_counts()
    cases = [f"{level!r} ({plural(count, 'row')})" for level, count in counts.items()]
    pairs = resembling(column.labels.take(unseen).labels, np.array(known, dtype=object))
    return (
        f"Column '{column.name}' has levels that the fitted table did not have: {listed(cases, 3)}, in "
        f"{at_rows(unseen)}.{f' Did you mean {pairs[0][1]!r}?' if pairs else ''}"
    )


def _objects(column: Column) -> npt.NDArray[Any]:
    """As objects, text that looks the same as one."""
    codes, uniques = pd.factorize(column.series.astype(object))
    values = np.empty(len(uniques) + 1, dtype=object)  # the last one, None, is what code -1 reads
    values[:-1] = tidied(np.asarray(uniques, dtype=object))
    return values[codes]


def _texts(values: Any) -> tuple[str, ...]:
    """Texts out of JSON; a ValueError where they are something else."""
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError
    return tuple(values)


def _named(names: Iterable[object]) -> tuple[str, ...]:
    return tuple(INTERCEPT if name == "Intercept" else str(name) for name in names)
