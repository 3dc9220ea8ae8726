"""Designs: a formula fitted to a table, that turns this and later tables into the same columns of numbers.

A right side that is a plain sum of numeric columns is built by NumPy alone; everything else goes through formulaic in
blocks of rows, so that neither needs much more memory than the matrix itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from coterie.data.columns import (
    Kind,
    at_rows,
    faults,
    find_levels,
    kind_of,
    need,
    read_levels,
    read_numbers,
    rows_text,
)
from coterie.data.formula import Parsed, parse
from coterie.data.materialise import materialise, plain, unplain
from coterie.errors import CoterieError, listed

if TYPE_CHECKING:
    import pandas as pd

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Choice = Literal["error", "nan"]

INTERCEPT = "(Intercept)"
LEVELS = 1000
"""Most levels of a category in a formula; groups with more belong in the client or the cluster column."""
COLUMNS = 2000
"""Most columns of a design matrix."""
_BLOCK = 1 << 13
_FORMULAIC_BLOCK = 1 << 17
_VERSION = 1


@dataclass(frozen=True, eq=False)
class Design:
    """A formula fitted to a table.

    Attributes
    ----------
    formula : str
        The formula, with ``.`` written out.
    terms : tuple of str, (p,)
        Names of the columns of X: formulaic's, but ``"(Intercept)"``.
    levels : dict of str to tuple of str
        The levels of each category, by column; the other columns are numbers.
    outcome_levels : (str, str) or None
        Of a two-valued text outcome: what counts as 0 and as 1.
    state : dict
        What formulaic's stateful terms (``center``, ``scale``, ``poly``, ``bs``) remember of the fitted table.
    """

    formula: str
    terms: tuple[str, ...]
    levels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    outcome_levels: tuple[str, str] | None = None
    state: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def fit(cls, df: pd.DataFrame, formula: str, exclude: tuple[str, ...] = ()) -> Design:
        """Learn levels and stateful terms from a table.

        Parameters
        ----------
        df : DataFrame
            Without faults in the columns that the formula uses.
        formula : str
            ``outcome ~ columns``.
        exclude : tuple of str
            Columns that a ``.`` in the formula leaves out besides the outcome.

        Returns
        -------
        Design

        Raises
        ------
        CoterieError
            For a formula that cannot be read or computed, and for categories with more than 1,000 levels.
        """
        parsed = parse(formula, df.columns, exclude)
        kinds = column_kinds(df, parsed)
        levels = {c: read_levels(df[c])[1] for c in parsed.columns if kinds[c] == "category"}
        _limit_columns(parsed, levels)
        outcome_levels = _outcome_levels(df, parsed, kinds)
        if parsed.simple is not None and not levels:
            terms = ((INTERCEPT,) if parsed.intercept else ()) + parsed.simple
            if not terms:
                raise CoterieError(f"The formula '{parsed.formula}' has no columns on its right side.")
            return cls(parsed.formula, terms, outcome_levels=outcome_levels)
        if "Intercept" in parsed.columns:
            raise CoterieError("Rename the column 'Intercept': the formula makes one of that name.")
        draft = cls(parsed.formula, (), levels, outcome_levels)
        state: dict[str, Any] = {}
        if parsed.stateful:
            side = "0 + " + " + ".join(parsed.stateful)
            state = materialise(draft._frame(df, None, "error", "error")[0], side, state)[1]
        sample = draft._frame(df.head(8), None, "error", "error")[0]
        names = [str(c) for c in materialise(sample, parsed.right, state)[0].columns]
        if not names:
            raise CoterieError(f"The formula '{parsed.formula}' has no columns on its right side.")
        return cls(parsed.formula, _named(names), levels, outcome_levels, state)

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

    @property
    def intercept(self) -> bool:
        """Whether there is an intercept."""
        return INTERCEPT in self.terms

    def kind(self, column: str) -> Kind:
        """How the design takes one of its columns."""
        return "category" if column in self.levels else "number"

    def matrices(
        self,
        df: pd.DataFrame,
        outcome: bool = True,
        rows: I64 | None = None,
        on_unseen: Choice = "error",
        on_missing: Choice = "error",
    ) -> tuple[F64, F64 | None]:
        """The design matrix and the outcome of a table.

        Parameters
        ----------
        df : DataFrame
            Columns in any order; others are ignored.
        outcome : bool, default True
            Whether to read the outcome too.
        rows : (n,) int64, optional
            Rows to take, in this order; all rows by default.
        on_unseen : {"error", "nan"}, default "error"
            What to do with levels that the fitted table did not have: raise, or fill their rows of X with NaN.
        on_missing : {"error", "nan"}, default "error"
            The same for missing, infinite and non-numeric values.

        Returns
        -------
        X : (n, p) float64, C-contiguous
        y : (n,) float64, or None where `outcome` is False

        Raises
        ------
        CoterieError
            Naming the column, the values and the first rows.
        """
        need(df, self.columns, "formula's")
        fast = self.parsed.simple is not None and not self.levels
        X = self._numpy(df, rows, on_missing) if fast else self._formulaic(df, rows, on_unseen, on_missing)
        return X, self.read_outcome(df, rows) if outcome else None

    def read_outcome(self, df: pd.DataFrame, rows: I64 | None = None) -> F64:
        """The outcome of a table, (n,) float64; two-valued text as 0 and 1."""
        need(df, self.parsed.outcome_columns, "outcome's")
        if self.outcome_levels is not None:
            codes, unseen, counts = find_levels(df[self.outcome], self.outcome_levels)
            if unseen.any():
                known = " and ".join(repr(v) for v in self.outcome_levels)
                raise CoterieError(f"The outcome '{self.outcome}' is {known}, not {listed(map(repr, counts))}.")
            y: npt.NDArray[Any] = codes.astype(np.float64)
            y[codes < 0] = np.nan
        elif self.parsed.plain_outcome:
            y = read_numbers(df[self.outcome])
        else:
            y = self._computed_outcome(df)
        return np.ascontiguousarray(y if rows is None else y[rows], dtype=np.float64)

    def _computed_outcome(self, df: pd.DataFrame) -> F64:
        """The left side where it is an expression; NaN where one of its columns is missing."""
        import pandas as pd

        used = self.parsed.outcome_columns
        kinds = {c: kind_of(df[c], c) for c in used}
        data = {c: _floats(df[c]) if kinds[c] == "number" else df[c].astype(object).to_numpy() for c in used}
        frame, _ = materialise(pd.DataFrame(data), f"0 + {{{self.outcome}}}", {})
        if frame.shape[1] != 1:
            raise CoterieError(f"The left side '{self.outcome}' of the formula must be one column of numbers.")
        y = frame.iloc[:, 0].to_numpy(dtype=np.float64, copy=True)
        for column in used:
            for _, bad in faults(df[column], kinds[column]):
                y[bad] = np.nan
        return y

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Design) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash((self.formula, self.terms))

    def to_json(self) -> str:
        """The design as JSON text; `from_json` gives back an equal design."""
        return json.dumps(
            {
                "version": _VERSION,
                "formula": self.formula,
                "terms": self.terms,
                "levels": self.levels,
                "outcome_levels": self.outcome_levels,
                "state": plain(self.state),
            },
            ensure_ascii=False,
        )

    @classmethod
    def from_json(cls, text: str) -> Design:
        """A design from the text that `to_json` gave."""
        try:
            d = json.loads(text)
            newer = d["version"] > _VERSION
            if not newer:
                design = cls(
                    str(d["formula"]),
                    tuple(d["terms"]),
                    {k: tuple(v) for k, v in d["levels"].items()},
                    None if d["outcome_levels"] is None else (d["outcome_levels"][0], d["outcome_levels"][1]),
                    unplain(d["state"]),
                )
        except (KeyError, TypeError, AttributeError, IndexError, ValueError) as e:
            raise CoterieError("The model's formula is damaged: save the model again.") from e
        if newer:
            raise CoterieError("The model's formula was saved by a newer coterie; update coterie to read it.")
        _ = design.parsed  # refuses what a formula may not hold
        return design

    def _numpy(self, df: pd.DataFrame, rows: I64 | None, on_missing: Choice) -> F64:
        """A plain sum of numeric columns, filled in blocks that stay in cache."""
        columns = [read_numbers(df[c]) for c in self.parsed.simple or ()]
        bad = self._faults(df, on_missing)
        n = len(df) if rows is None else len(rows)
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

    def _formulaic(self, df: pd.DataFrame, rows: I64 | None, on_unseen: Choice, on_missing: Choice) -> F64:
        """Any other right side, computed in blocks of rows; rows that cannot be computed stay NaN."""
        frame, bad = self._frame(df, rows, on_unseen, on_missing)
        X = np.full((len(frame), len(self.terms)), np.nan)
        places = np.arange(len(frame)) if bad is None else np.flatnonzero(~bad)
        for start in range(0, len(places), _FORMULAIC_BLOCK):
            place = places[start : start + _FORMULAIC_BLOCK]
            values, _ = materialise(frame.iloc[place], self.parsed.right, self.state)
            if _named([str(c) for c in values.columns]) != self.terms:
                raise CoterieError(
                    f"The formula '{self.formula}' makes other columns here ({listed(values.columns)}) than in the "
                    f"table it was fitted on ({listed(self.terms)}); fit the model again."
                )
            X[place] = values.to_numpy(dtype=np.float64)
        if not np.isfinite(X.sum()):
            finite = np.isfinite(X)
            if on_missing == "error":
                self._refuse_terms(~finite, bad, rows)
            X[~finite.all(axis=1)] = np.nan
        return X

    def _refuse_terms(self, broken: Mask, known: Mask | None, rows: I64 | None) -> None:
        """Raise for terms that are not numbers although their columns are, such as the log of 0."""
        for term, column in zip(self.terms, broken.T, strict=True):
            at = np.flatnonzero(column if known is None else column & ~known)
            if len(at):
                table_rows = np.sort(at if rows is None else rows[at])
                raise CoterieError(f"The term '{term}' is not a finite number in {rows_text(table_rows)}.")

    def _faults(self, df: pd.DataFrame, on_missing: Choice) -> Mask | None:
        bad: Mask | None = None
        for column in self.columns:
            for what, at in faults(df[column], self.kind(column)):
                if on_missing == "error":
                    raise CoterieError(f"Column '{column}' has {what} in {at_rows(at)}.")
                bad = at if bad is None else bad | at
        return bad

    def _frame(
        self, df: pd.DataFrame, rows: I64 | None, on_unseen: Choice, on_missing: Choice
    ) -> tuple[pd.DataFrame, Mask | None]:
        """The columns that formulaic sees, and the rows that it cannot be asked about (by position in the frame)."""
        import pandas as pd

        bad = self._faults(df, on_missing)
        data: dict[str, Any] = {}
        for column in self.columns:
            if column not in self.levels:
                values = _floats(df[column])
                data[column] = values if rows is None else values[rows]
                continue
            codes, unseen, counts = find_levels(df[column], self.levels[column])
            if unseen.any() and on_unseen == "error":
                raise CoterieError(
                    f"Column '{column}' has levels that the fitted table did not have: "
                    f"{listed([f'{k!r} ({v:,} rows)' if v > 1 else f'{k!r} (1 row)' for k, v in counts.items()], 3)}, "
                    f"in {at_rows(unseen)}."
                )
            bad = unseen if bad is None else bad | unseen
            codes = codes if rows is None else codes[rows]
            data[column] = pd.Categorical.from_codes(codes, categories=pd.Index(self.levels[column]))
        index = pd.RangeIndex(len(df) if rows is None else len(rows))
        frame = pd.DataFrame(data, index=index)
        return frame, bad if bad is None or rows is None else bad[rows]


def column_kinds(df: pd.DataFrame, parsed: Parsed) -> dict[str, Kind]:
    """How a formula takes each column it uses, outcome included.

    Raises
    ------
    CoterieError
        For columns that a formula cannot use, or that it uses in two ways.
    """
    kinds: dict[str, Kind] = {}
    for column in (*parsed.outcome_columns, *parsed.columns):
        kinds[column] = "category" if column in parsed.categories else kind_of(df[column], column)
        twice = column in parsed.numeric or (column in parsed.bare and kind_of(df[column], column) == "number")
        if column in parsed.categories and twice:
            raise CoterieError(
                f"The formula uses '{column}' both as a category and as a number; "
                "make a copy of the column under another name for one of them."
            )
    return kinds


def _limit_columns(parsed: Parsed, levels: dict[str, tuple[str, ...]]) -> None:
    for column, known in levels.items():
        if len(known) > LEVELS:
            raise CoterieError(
                f"Column '{column}' has {len(known):,} different values, too many for a formula (at most {LEVELS:,}): "
                "if these are groups of rows, make it the client or the cluster column instead."
            )
    width = sum(math.prod(len(levels.get(c, " ")) for c in term) for term in parsed.factors)
    if width > COLUMNS:
        raise CoterieError(
            f"The formula '{parsed.formula}' makes about {width:,} columns, more than {COLUMNS:,}: "
            "leave out interactions of categories with many levels."
        )


def _outcome_levels(df: pd.DataFrame, parsed: Parsed, kinds: dict[str, Kind]) -> tuple[str, str] | None:
    if not parsed.plain_outcome or kinds[parsed.outcome] == "number":
        return None
    texts = read_levels(df[parsed.outcome])[1]
    if len(texts) == 1:
        raise CoterieError(f"The outcome '{parsed.outcome}' is constant: {texts[0]!r} in every row.")
    if len(texts) != 2:
        raise CoterieError(
            f"The outcome '{parsed.outcome}' is text with {len(texts):,} different values "
            f"({listed(map(repr, texts), 3)}); it must be a number, or have two values."
        )
    return texts[0], texts[1]


def _floats(series: pd.Series[Any]) -> F64:
    """As floats, because formulas over small integers would overflow."""
    return np.asarray(read_numbers(series), dtype=np.float64)


def _named(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(INTERCEPT if name == "Intercept" else name for name in names)
