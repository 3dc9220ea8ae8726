"""Formulas: what a formula uses, read without running any of it, and how it takes the columns of a table.

A formula comes from a user, from a model file or from a coordinator; any may be wrong, and the last two hostile. The
functions that it may hold, known to be harmless, are in :mod:`coterie.data.formula_expressions`; how far it may be
multiplied out is in :mod:`coterie.data.formula_terms`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from keyword import iskeyword
from typing import Any

from coterie.data.columns import Kind
from coterie.data.formula_expressions import HABITS, SPLINES, Use, as_contrasts
from coterie.data.formula_terms import COLUMNS, formulaic_terms, vanishing
from coterie.data.table import Table, meant
from coterie.errors import CoterieError, listed, shortened
from coterie.numerics.arrays import Ints

LEVELS = 1000  # most levels of a category in a formula; groups with more belong in the client or the cluster column
LENGTH = 1_000_000  # most characters of a formula, a ``.`` written out
_NAME = r"(?:[^\W\d][\w.]*|`[^`]+`)"
_OF_TRIALS = re.compile(r"\|(?=\s*trials\s*\([^~]*~)")
_SIMPLE = re.compile(rf"\s*([+-]?)\s*({_NAME}|[01])(?=\s*(?:[+-]|$))")


@dataclass(frozen=True)
class Parsed:
    """What a formula says."""

    formula: str  # ``.`` written out
    right: str
    outcome: str  # the column, or the expression on the left
    outcome_columns: tuple[str, ...]  # of the table, in order of appearance
    columns: tuple[str, ...]  # of the right side, in order of appearance
    categories: frozenset[str] = frozenset()  # columns inside C(...)
    numeric: frozenset[str] = frozenset()  # columns inside another function or an operator
    reckoned: frozenset[str] = frozenset()  # columns of either side beside an operator such as * of Python
    functions: frozenset[str] = frozenset()  # what the right side calls: log, C, np
    bare: frozenset[str] = frozenset()  # columns that stand by themselves in a term
    simple: tuple[str, ...] | None = None  # right-hand columns where it is a plain sum of columns
    intercept: bool = True  # only meaningful where `simple` is not None
    stateful: tuple[str, ...] = ()  # terms that remember something of the fitted table, such as center(x)
    factors: tuple[tuple[str, ...], ...] = ()  # the columns of each term of the right side
    widths: tuple[int, ...] = ()  # columns of numbers of each term, categories aside; empty where each makes one
    vanishing: tuple[tuple[str, str, str, tuple[str, ...]], ...] = ()  # arithmetic that is none

    @property
    def successes(self) -> tuple[str, str, bool] | None:
        """The expressions of successes and of failures, or of trials, and whether they are trials; None for neither."""
        return _successes(self.outcome)

    @property
    def ordered(self) -> list[tuple[str, str]]:
        """Columns whose contrasts depend on the order of their levels, each with the contrast's name."""
        found = re.findall(r"C\(\s*(?:`([^`]+)`|([\w.]+))\s*,[^()]*?(contr\.(?:poly|helmert|diff))\b", self.right)
        return list(dict.fromkeys((quoted or plain, contrast) for quoted, plain, contrast in found))

    @property
    def plain_outcome(self) -> bool:
        """The left side is a column as it stands."""
        return self.outcome_columns == (self.outcome,)

    def spline_of(self, term: str) -> str | None:
        """The spline that a term is made of, which has no value outside of its range; None for other terms."""
        splines = (f for f in self.stateful if f.startswith(tuple(f"{name}(" for name in SPLINES)))
        return next((spline for spline in splines if spline in term), None)


def parse(formula: str, names: Iterable[object] | None = None, exclude: Iterable[str] = ()) -> Parsed:
    """Read ``outcome ~ columns`` in Wilkinson notation, with names that are not identifiers in backticks.

    ``names`` are the table's columns, needed for ``.`` and for saying what is missing; ``exclude`` those that ``.``
    leaves out besides the left side's. A CoterieError for wrong syntax, a missing outcome, a column that is not in the
    table, and a function that is not allowed.
    """
    check_syntax(formula)
    known = None if names is None else [str(n) for n in names]
    _need_backticks(formula, known or ())
    left, right = _sides(formula)
    outcome, use = _left(formula, left)
    outcome_columns = tuple(use.columns)
    right = _unquoted(as_contrasts(right) if "C(" in right else right)
    right = _write_out_dot(formula, right, known, {*outcome_columns, *exclude})
    text = f"{left.strip()} ~ {right.strip()}"
    _need_length(len(text), text)
    simple = _plain_sum(right)
    if simple is not None:
        columns, intercept = simple
        parsed = Parsed(
            text, right, outcome, outcome_columns, columns, simple=columns, intercept=intercept,
            factors=tuple((c,) for c in columns), bare=frozenset(columns),
        )  # fmt: skip
    else:
        parsed = _general(text, right, outcome, outcome_columns)
    parsed = replace(parsed, reckoned=parsed.reckoned | use.reckoned)
    both = set(outcome_columns).intersection(parsed.columns)
    if both:
        first = next(c for c in parsed.columns if c in both)
        raise CoterieError(f"Column '{first}' is on both sides of '{shortened(text)}': it cannot explain itself.")
    if clash := parsed.functions.intersection(parsed.columns):
        raise CoterieError(f"Rename the column '{min(clash)}': the formula calls a function of that name.")
    if known is not None:
        there = set(known)
        for column in (*outcome_columns, *parsed.columns):
            if column not in there:
                truth = {"TRUE": "True", "FALSE": "False", "T": "True", "F": "False", "NULL": "None"}.get(column)
                hint = f" Write {truth}." if truth else meant(column, known)
                raise CoterieError(f"The formula uses '{column}', which is not a column.{hint}")
    return parsed


def check_syntax(formula: str) -> None:
    """A CoterieError for a formula without two sides, which no table's columns can mend."""
    if not isinstance(formula, str):
        raise CoterieError(f"formula must be text such as 'score ~ hours + age', not {formula!r:.60}.")
    _need_length(len(formula), formula)
    if "~" not in formula:
        _sides(formula)


def _unquoted(side: str) -> str:
    """A side without the backticks around names such as ``o``, which formulaic would put inside ``contr`` too."""
    bare = re.sub(r"`[^`]*`", "``", side)
    for name in set(re.findall(r"`([^\W\d]\w*)`", side)):
        if re.search(rf"(?<=\w){name}|{name}(?=\w)", bare) and not iskeyword(name):
            side = side.replace(f"`{name}`", name)
    return side


def _sides(formula: str) -> tuple[str, str]:
    if not formula.strip():
        raise CoterieError("The formula is empty: write outcome ~ columns, for example 'score ~ hours + age'.")
    bare = re.sub(r"`[^`]*`", lambda m: "x" * len(m[0]), formula)
    if dotted := re.search(r"(?<![\w.])(as\.\w+)\(\s*([\w.]*)", bare):
        meant = HABITS.get(dotted[1], "make a column of the table of it").format(dotted[2], f=dotted[1])
        raise CoterieError(f"The formula calls '{dotted[1]}', which is R's. Instead {meant}.")
    if strange := re.search(r"%(?!in%)[^\w\s%]*%", bare):
        raise CoterieError(
            f"The formula '{shortened(formula)}' holds '{strange[0]}', which is R's: write * for columns and their "
            "interaction, : for the interaction alone, or compute it as a column of the table."
        )
    if "``" in formula:
        raise CoterieError(
            f"The formula '{shortened(formula)}' names no column between two backticks: write one there."
        )
    if "`" in bare:
        raise CoterieError(
            f"The formula '{shortened(formula)}' has a backtick without its partner: close it, or leave it out."
        )
    if "|" in _OF_TRIALS.sub("", bare, count=1):
        raise CoterieError(
            f"The formula '{shortened(formula)}' holds '|': leave (x | group) out and name the group as client "
            "(--client); every column is personal unless it is shared."
        )
    if bare.count("~") != 1 or not bare.split("~")[0].strip():
        raise CoterieError(f"The formula '{shortened(formula)}' needs one outcome and one '~': outcome ~ columns.")
    cut = bare.index("~")
    if not bare[cut + 1 :].strip():
        raise CoterieError(f"Formula '{shortened(formula)}' has nothing on its right side: write 1 for an intercept.")
    return formula[:cut], formula[cut + 1 :]


def _plain_sum(right: str) -> tuple[tuple[str, ...], bool] | None:
    """Columns and intercept of a plain sum of names, or None for anything else."""
    position, columns, intercept, seen_number = 0, [], True, False
    while position < len(right.rstrip()):
        match = _SIMPLE.match(right, position)
        if match is None or (position > 0 and not match[1]):
            return None
        sign, name = match[1] or "+", match[2]
        if name in "01":
            if seen_number:
                return None
            seen_number, intercept = True, (name == "1") == (sign == "+")
        elif sign == "-":
            return None
        else:
            columns.append(name.strip("`"))
        position = match.end()
    return tuple(dict.fromkeys(columns)), intercept


def _write_out_dot(formula: str, right: str, names: list[str] | None, without: set[str]) -> str:
    parts = re.split(r"(`[^`]*`)", right)
    names = names and [n for n in names if not re.fullmatch(r"Unnamed: \d+", n)]  # by pandas: row numbers of a CSV
    dot = re.compile(r"(?<![\w.)\]])\.(?![\w.])")
    if not any(dot.search(p) for p in parts[::2]):
        return right
    if names is None:
        raise CoterieError(f"The '.' in the formula '{shortened(formula)}' can only be written out with a table.")
    every = " + ".join(f"`{n}`" for n in names if n not in without) or "1"
    _need_length(len(right) + len(every) * sum(len(dot.findall(p)) for p in parts[::2]), formula)
    return "".join(dot.sub(f"({every})" if right.strip() != "." else every, p) if i % 2 == 0 else p
                   for i, p in enumerate(parts))  # fmt: skip


def _left(formula: str, left: str) -> tuple[str, Use]:
    text, use = left.strip(), Use()
    if re.fullmatch(_NAME, text):
        use.columns.append(text.strip("`"))
        return use.columns[0], use
    inner = text[1:-1] if text.startswith("{") and text.endswith("}") else text
    for part in (_successes(inner) or (inner, "", False))[:2]:
        if re.fullmatch(_NAME, part):
            use.columns.append(part.strip("`"))
        elif part:
            use.read(part, formula)
    use.columns = list(dict.fromkeys(use.columns))
    if use.stateful or use.categories or not use.columns:
        raise CoterieError(f"The left side of '{shortened(formula)}' must be one column, or a function of columns.")
    return inner.strip(), use


def _successes(left: str) -> tuple[str, str, bool] | None:
    """What ``cbind(successes, failures)`` and ``successes | trials(n)`` hold: see ``Parsed.successes``."""
    bare = re.sub(r"`[^`]*`", lambda m: "x" * len(m[0]), left)
    if of := re.fullmatch(r"(.+?)\s*\|\s*trials\s*\((.+)\)", bare, re.DOTALL):
        return left[: of.end(1)].strip(), left[of.start(2) : of.end(2)].strip(), True
    if not (pair := re.fullmatch(r"cbind\s*\((.*)\)", bare, re.DOTALL)):
        return None
    depth = list(accumulate((c == "(") - (c == ")") for c in bare))
    commas = [at for at in range(pair.start(1), pair.end(1)) if bare[at] == "," and depth[at] == 1]
    if len(commas) != 1:
        raise CoterieError(f"'{shortened(left)}' needs two columns: write cbind(successes, failures).")
    return left[pair.start(1) : commas[0]].strip(), left[commas[0] + 1 : pair.end(1)].strip(), False


def _general(text: str, right: str, outcome: str, outcome_columns: tuple[str, ...]) -> Parsed:
    """Any other right side, split into terms and factors by formulaic."""
    terms = [term.factors for term in formulaic_terms(right, text)]
    if len(terms) > COLUMNS:
        raise CoterieError(
            f"The formula '{shortened(text)}' makes {len(terms):,} columns or more, over {COLUMNS:,}: leave terms out."
        )
    uses: dict[str, Use] = {}
    bare = set()
    for factor in chain.from_iterable(terms):
        if factor.expr not in uses:
            use = uses[factor.expr] = Use()
            if factor.eval_method.value == "lookup":
                use.columns.append(factor.expr)
                bare.add(factor.expr)
            elif factor.eval_method.value == "python":
                use.read(factor.expr, text)

    def every(what: str) -> Any:
        return frozenset().union(*(getattr(use, what) for use in uses.values()))

    return Parsed(
        formula=text,
        right=right,
        outcome=outcome,
        outcome_columns=outcome_columns,
        columns=tuple(dict.fromkeys(column for use in uses.values() for column in use.columns)),
        **{what: every(what) for what in ("categories", "numeric", "reckoned", "functions")},
        bare=frozenset(bare),
        stateful=tuple(expression for expression, use in uses.items() if use.stateful),
        factors=tuple(tuple(column for f in term for column in uses[f.expr].columns) for term in terms),
        widths=tuple(math.prod(uses[f.expr].width for f in term) for term in terms),
        vanishing=tuple(vanishing(right)),
    )


def _need_length(length: int, formula: str) -> None:
    if length > LENGTH:
        raise CoterieError(
            f"The formula '{shortened(formula)}' has {length:,} characters, more than {LENGTH:,}: use fewer columns, "
            "or shorter names."
        )


def _need_backticks(formula: str, names: Iterable[str]) -> None:
    """Raise for a column whose name a formula reads as several words, or as an expression that cannot be meant."""
    quoted = re.sub(r"`[^`]*`", "``", formula)
    known = set(names)
    for name in names:
        if name not in quoted:
            continue
        at = re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", quoted)
        if at is None or re.fullmatch(_NAME, name):
            continue
        words = re.fullmatch(r"\w[\w.]*(\s+\w[\w.]*)+", name)
        parts = re.findall(r"(?<![\w.])[^\W\d][\w.]*(?![\w.(])", name)
        outcome = "~" not in quoted[: at.start()] and "(" not in name  # whoever has a column y-1 means it there
        if words or (parts and (outcome or not known.issuperset(parts))):
            what = "a space" if words or name != name.strip() else "signs"
            raise CoterieError(
                f"Column '{name}' has {what} in its name: write it between backticks, `{name}` (in a shell, put the "
                "formula between single quotes then)."
            )


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
            raise CoterieError(f"Column '{name}' is a category: a formula may compare it, but not compute with it.")
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


def outcome_levels(
    table: Table, parsed: Parsed, kinds: Mapping[str, Kind], rows: Ints | None, classes: bool = False
) -> tuple[str, ...] | None:
    """What counts as 0, 1, ... where the outcome is text of two values, or of ``classes``; None for a number."""
    if not parsed.plain_outcome or kinds[parsed.outcome] == "number":
        return None
    texts = table[parsed.outcome].levels_in(rows)
    if len(texts) == 1:
        raise CoterieError(f"The outcome '{parsed.outcome}' is constant: {texts[0]!r} in every row.")
    if len(texts) != 2 and not classes:
        raise CoterieError(
            f"The outcome '{parsed.outcome}' is text with {len(texts):,} different values "
            f"({listed(map(repr, texts), 3)}); it must be a number, or have two values: "
            "of more classes, fit each against one of them, on the rows of these two."
        )
    return texts


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
        instead = form.format(*map(name, factors))
        notes.append(
            f"'{written}' is '{means}' in a formula, where ^, **, *, / and : combine terms and are not "
            f"arithmetic: write {instead} for the {'ratio' if '/' in form else 'power'}."
            if means
            else f"'{written}' leaves out a term that the formula does not have; a minus is not arithmetic there: "
            f"{instead} would be."
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
