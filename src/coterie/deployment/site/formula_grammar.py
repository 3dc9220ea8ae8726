"""The formulas that a site answers where its owner's rules hold: a closed grammar, judged without a look at any row.

Terms are columns, ``C(column)``, interactions, and the listed functions of one column, whose numbers are those of the
site's own schema. With comparisons, arithmetic and numbers of one's own a coordinator could write a formula that fits,
or does not, by what a single row holds.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from coterie.data.design import Design
from coterie.data.formula import Parsed, parse
from coterie.data.formula_expressions import BASES, STATEFUL
from coterie.data.formula_terms import formulaic_terms
from coterie.data.prepare_table import check_trials
from coterie.deployment.column_types import LARGEST
from coterie.deployment.schema import Schema, design_of, disagreements, excluded
from coterie.deployment.site.site_toml import RULES, Disclosure
from coterie.errors import CoterieError, listed, shortened
from coterie.families import family_named, names_of

ORDER = 5  # most columns of an interaction
DEGREE = 6
"""Most degrees of freedom of a spline, and largest degree of a polynomial: its knots lie evenly over the range."""
_OPTIONS = {"poly": "degree"}
_NUMBERS = {"center": ("center",), "scale": ("center", "scale"), "standardize": ("center", "scale")}


def allowed(task: Mapping[str, Any], own: Schema, agreed: Schema, rules: Disclosure) -> Design:
    """The design of a task on a table whose formula keeps to the grammar.

    ``own`` is the site's schema, ``agreed`` that of the run. Ranges, centers and scales that a term takes must be the
    site's own, and of its categories the run must have every level: others would choose among rows. What a CoterieError
    says of all else depends on the task, the schemas and the rules alone.
    """
    parsed = parse(task["formula"], agreed.columns, excluded(agreed, task))
    extra = [n for n in (task["offset"], task["weights"]) if n]
    used = [*parsed.outcome_columns, *parsed.columns, *extra]
    if lost := [name for name in used if name not in agreed.columns]:
        raise CoterieError(f"The schema of the run has no column '{shortened(str(lost[0]))}'.")
    wrong = disagreements(agreed, own, used)
    calls = dict(_calls(parsed))
    for text, call in calls.items():
        wrong += _call(text, call, own, agreed, rules)
    for name in dict.fromkeys(used if not wrong else ()):
        column, theirs = own.columns[name], agreed.columns[name]
        if any(level not in theirs.levels for level in column.levels):
            raise CoterieError(
                f"Column '{name}' has levels not in the schema: 'coterie federation check --unite' adds them."
            )
        if len(theirs.levels) > rules.max_levels and name in parsed.columns:
            raise CoterieError(f"Column '{name}' has {len(theirs.levels):,} levels; {RULES} allow {rules.max_levels}.")
        if name in extra and not column.numeric:
            raise CoterieError(f"Column '{name}' must hold numbers to be an offset or weights.")
        if name == task["weights"] and not (column.low or 0.0) > 0.0:  # who is here would tell of each row
            raise CoterieError(f"Weights '{name}' need a smallest value above 0, which their owner writes (low).")
    if wrong:
        raise CoterieError(f"Its schema is not that of the run: {'; '.join(dict.fromkeys(wrong))}.")
    if any(len(columns) > ORDER for columns in parsed.factors):
        raise CoterieError(f"An interaction has more than {ORDER} columns, the most that {RULES} allow.")
    classes = agreed.columns[parsed.outcome].levels if parsed.plain_outcome else ()
    family = family_named(task["family"])
    if classes and not family.two_classes and not task["classes"]:
        raise CoterieError(
            f"Outcome '{parsed.outcome}' is a category: take family {names_of(lambda f: f.two_classes)}."
        )
    check_trials(parsed, task["family"], task["weights"])
    if not parsed.plain_outcome and not family.any_number and parsed.successes is None:
        raise CoterieError(f"A computed outcome needs the family {names_of(lambda f: f.any_number)} here.")
    return design_of(agreed, task)


def _calls(parsed: Parsed) -> Iterator[tuple[str, ast.Call]]:
    """The functions of columns in a formula; a CoterieError for anything else that is no column."""
    found = [] if parsed.plain_outcome else [parsed.outcome]
    if parsed.successes is not None:
        found = []
        for side in parsed.successes[:2]:
            if not parse(f"{side} ~ 1").plain_outcome:
                raise CoterieError(f"Successes and trials are columns as they are by {RULES}, not '{shortened(side)}'.")
    if parsed.simple is None:
        for term in formulaic_terms(parsed.right, parsed.formula):
            for factor in term.factors:
                kind = factor.eval_method.value
                if kind == "python":
                    found.append(factor.expr)
                elif kind != "lookup" and factor.expr != "1":
                    raise CoterieError(f"The formula may not hold the number in '{shortened(str(factor.expr))}'.")
    for text in dict.fromkeys(found):
        bare = re.sub(r"`([^`]+)`", lambda m: f"_{m[1].encode().hex()}", text).strip()
        try:
            tree = ast.parse(bare, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            tree = ast.Constant(None)
        if not isinstance(tree, ast.Call):
            raise CoterieError(
                f"The formula may not hold '{shortened(text)}': {RULES} allow columns, C(column), interactions, and "
                "some functions of one column; compute it as a column of the table first."
            )
        yield text, tree


def _call(text: str, call: ast.Call, own: Schema, agreed: Schema, rules: Disclosure) -> list[str]:
    """Raise unless a call is one of the grammar; how the schemas differ in what it takes of them."""
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    options = [*call.args[1:], *(k.value for k in call.keywords)]
    small = all(isinstance(v, ast.Constant) and type(v.value) is int and 1 <= v.value <= DEGREE for v in options)
    named = all(k.arg == _OPTIONS.get(name, "df") for k in call.keywords) and len(call.args) <= 1 + (name == "poly")
    known = ("C", *rules.transforms, *rules.bases)
    if (
        name not in known
        or not call.args
        or not isinstance(call.args[0], ast.Name)
        or (options and not (name in BASES and small and named and len(options) == 1))
    ):
        raise CoterieError(
            f"The formula may not hold '{shortened(text)}': {RULES} allow {listed(known, 30)} of one column, and of "
            f"splines and polynomials df or degree up to {DEGREE}."
        )
    if name == "C":
        return []
    column = call.args[0].id
    column = bytes.fromhex(column[1:]).decode() if re.fullmatch(r"_([0-9a-f]{2})+", column) else column
    if column not in own.columns or column not in agreed.columns:
        return []
    mine, theirs = own.columns[column], agreed.columns[column]
    if not mine.numeric or theirs.levels:
        raise CoterieError(f"'{shortened(text)}' needs a column of numbers.")
    if name not in STATEFUL:
        _need_finite(text, name, mine.low, mine.high)
        return []
    taken = ("low", "high") if name in BASES else _NUMBERS[name]
    return [f"'{column}' has another {key}" for key in taken if getattr(mine, key) != getattr(theirs, key)]


def _need_finite(text: str, name: str, low: float | None, high: float | None) -> None:
    """Raise unless a function, which rises or falls all the way, is a number at both ends of a column's range."""
    ends = np.array([-LARGEST if low is None else low, LARGEST if high is None else high])
    function: Any = {"exp10": lambda x: np.power(10.0, x)}.get(name) or getattr(np, name)
    with np.errstate(all="ignore"):
        values = function(ends)
    if not np.all(np.abs(values) <= LARGEST):  # NaN is not
        raise CoterieError(
            f"'{shortened(text)}' is no number over the whole range of its column: write the smallest and largest "
            "value allowed into schema.toml (low, high), such that it is."
        )
