"""Formulas: what a formula uses, read without running any of it, and only functions known to be harmless.

A formula comes from a user or from a model file; either may be wrong, and a file may be hostile. Formulaic evaluates
terms as Python, so every term is parsed and compared with a short list of allowed forms first.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from coterie.errors import CoterieError, nearest

STATEFUL = frozenset({"center", "scale", "standardize", "poly", "bs", "cc", "cr", "cs"})
STATELESS = frozenset({"I", "log", "log2", "log10", "exp", "exp2", "exp10", "sqrt", "abs"})
NUMPY = frozenset(
    {"log", "log1p", "log2", "log10", "exp", "expm1", "sqrt", "cbrt", "abs", "square", "sin", "cos", "tan", "tanh"}
    | {"arctan", "sign", "floor", "ceil", "minimum", "maximum", "where", "clip"}
)
CONTRASTS = frozenset({"treatment", "SAS", "sum", "helmert", "diff", "poly"})

_NAME = r"(?:[^\W\d][\w.]*|`[^`]+`)"
_SIMPLE = re.compile(rf"\s*([+-]?)\s*({_NAME}|[01])(?=\s*(?:[+-]|$))")
_ALLOWED = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Constant, ast.Name, ast.Call, ast.keyword),
    *(ast.Attribute, ast.List, ast.Tuple, ast.Load, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)


@dataclass(frozen=True)
class Parsed:
    """What a formula says.

    Attributes
    ----------
    formula : str
        The formula, ``.`` written out.
    left, right : str
        Its two sides.
    outcome : str
        Name of the outcome: the column, or the expression on the left.
    outcome_columns, columns : tuple of str
        Table columns of the left and of the right side, in order of appearance.
    categories : frozenset of str
        Columns that stand inside ``C(...)``.
    numeric : frozenset of str
        Columns that stand inside another function or an operator.
    bare : frozenset of str
        Columns that stand by themselves in a term.
    simple : tuple of str or None
        Right-hand columns where the right side is a plain sum of columns, else None.
    intercept : bool
        Only meaningful where `simple` is not None.
    stateful : tuple of str
        Terms that remember something of the table they were fitted on, such as ``center(x)``.
    factors : tuple of tuples of str
        The columns of each term of the right side.
    """

    formula: str
    left: str
    right: str
    outcome: str
    outcome_columns: tuple[str, ...]
    columns: tuple[str, ...]
    categories: frozenset[str] = frozenset()
    numeric: frozenset[str] = frozenset()
    bare: frozenset[str] = frozenset()
    simple: tuple[str, ...] | None = None
    intercept: bool = True
    stateful: tuple[str, ...] = ()
    factors: tuple[tuple[str, ...], ...] = ()

    @property
    def plain_outcome(self) -> bool:
        """The left side is a column as it stands."""
        return self.outcome_columns == (self.outcome,)


def parse(formula: str, names: Iterable[object] | None = None, exclude: Iterable[str] = ()) -> Parsed:
    """Read a formula.

    Parameters
    ----------
    formula : str
        ``outcome ~ columns`` in Wilkinson notation; names that are not identifiers in backticks.
    names : iterable, optional
        The table's columns; needed for ``.`` and for saying what is missing.
    exclude : iterable of str
        Columns that ``.`` leaves out besides those of the left side.

    Returns
    -------
    Parsed

    Raises
    ------
    CoterieError
        For wrong syntax, a missing outcome, a column that is not in the table, a function that is not allowed.
    """
    if not isinstance(formula, str):
        raise CoterieError(f"formula must be text such as 'score ~ hours + age', not {formula!r:.60}.")
    known = None if names is None else [str(n) for n in names]
    _need_backticks(formula, known or ())
    left, right = _sides(formula)
    outcome, outcome_columns = _left(formula, left)
    right = _write_out_dot(formula, right, known, {*outcome_columns, *exclude})
    text = f"{left.strip()} ~ {right.strip()}"
    simple = _plain_sum(right)
    if simple is not None:
        columns, intercept = simple
        parsed = Parsed(
            text, left, right, outcome, outcome_columns, columns, simple=columns, intercept=intercept,
            factors=tuple((c,) for c in columns), bare=frozenset(columns),
        )  # fmt: skip
    else:
        parsed = _general(text, left, right, outcome, outcome_columns)
    both = [c for c in parsed.columns if c in outcome_columns]
    if both:
        raise CoterieError(f"Column '{both[0]}' is on both sides of the formula '{text}'; it cannot explain itself.")
    if known is not None:
        for column in (*outcome_columns, *parsed.columns):
            if column not in known:
                raise CoterieError(f"The formula uses '{column}', which is not a column.{nearest(column, known)}")
    return parsed


def _sides(formula: str) -> tuple[str, str]:
    if not formula.strip():
        raise CoterieError("The formula is empty: write outcome ~ columns, for example 'score ~ hours + age'.")
    bare = re.sub(r"`[^`]*`", lambda m: "x" * len(m[0]), formula)
    if "`" in bare:
        raise CoterieError(f"The formula '{formula}' has a backtick without its partner.")
    if "|" in bare:
        raise CoterieError(
            f"The formula '{formula}' holds '|': leave (x | group) out and name the group as client; "
            "every column is personal unless it is shared."
        )
    if bare.count("~") != 1 or not bare.split("~")[0].strip():
        raise CoterieError(f"The formula '{formula}' needs one outcome and one '~': outcome ~ columns.")
    cut = bare.index("~")
    if not bare[cut + 1 :].strip():
        raise CoterieError(f"The formula '{formula}' has nothing on its right side; write 1 for an intercept alone.")
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
    dot = re.compile(r"(?<![\w.)\]])\.(?![\w.])")
    if not any(dot.search(p) for p in parts[::2]):
        return right
    if names is None:
        raise CoterieError(f"The '.' in the formula '{formula}' can only be written out with a table.")
    every = " + ".join(f"`{n}`" for n in names if n not in without) or "1"
    return "".join(dot.sub(f"({every})" if right.strip() != "." else every, p) if i % 2 == 0 else p
                   for i, p in enumerate(parts))  # fmt: skip


def _left(formula: str, left: str) -> tuple[str, tuple[str, ...]]:
    text = left.strip()
    if re.fullmatch(_NAME, text):
        return text.strip("`"), (text.strip("`"),)
    inner = text[1:-1] if text.startswith("{") and text.endswith("}") else text
    use = _Use()
    use.read(inner, formula)
    if use.stateful or use.categories or not use.columns:
        raise CoterieError(f"The left side of the formula '{formula}' must be one column, or a function of columns.")
    return inner.strip(), tuple(use.columns)


def _general(text: str, left: str, right: str, outcome: str, outcome_columns: tuple[str, ...]) -> Parsed:
    """Any other right side, split into terms and factors by formulaic."""
    total = _Use()
    stateful: list[str] = []
    bare: set[str] = set()
    factors: list[tuple[str, ...]] = []
    for term in formulaic_terms(right, text):
        columns: list[str] = []
        for factor in term.factors:
            use = _Use()
            method = factor.eval_method.value
            if method == "lookup":
                use.columns.append(factor.expr)
                bare.add(factor.expr)
            elif method == "python":
                use.read(factor.expr, text)
            if use.stateful:
                stateful.append(factor.expr)
            columns += use.columns
            total.merge(use)
        factors.append(tuple(columns))
    return Parsed(
        formula=text,
        left=left,
        right=right,
        outcome=outcome,
        outcome_columns=outcome_columns,
        columns=tuple(dict.fromkeys(total.columns)),
        categories=frozenset(total.categories),
        numeric=frozenset(total.numeric),
        bare=frozenset(bare),
        stateful=tuple(dict.fromkeys(stateful)),
        factors=tuple(factors),
    )


def _need_backticks(formula: str, names: Iterable[str]) -> None:
    """Raise for a column whose name a formula reads as several words, or as an expression that cannot be meant."""
    quoted = re.sub(r"`[^`]*`", "``", formula)
    known = set(names)
    for name in names:
        at = re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", quoted)
        if at is None or re.fullmatch(_NAME, name):
            continue
        words = re.fullmatch(r"\w[\w.]*(\s+\w[\w.]*)+", name)
        parts = re.findall(r"(?<![\w.])[^\W\d][\w.]*(?![\w.(])", name)
        outcome = "~" not in quoted[: at.start()] and "(" not in name  # whoever has a column y-1 means it there
        if words or (parts and (outcome or not known.issuperset(parts))):
            what = "a space" if words else "signs"
            raise CoterieError(
                f"Column '{name}' has {what} in its name: write it between backticks, `{name}` (in a shell, put the "
                "formula between single quotes then)."
            )


def formulaic_terms(side: str, formula: str) -> Any:
    """The terms of one side of a formula; syntax errors in one sentence."""
    from formulaic import Formula
    from formulaic.errors import FormulaicError

    try:
        terms = Formula(side)
    except (FormulaicError, SyntaxError, ValueError, IndexError) as e:
        reason = re.sub(r"\x1b\[[0-9;]*m|[⧛⧚]", "", str(e)).strip().split("\n")[0].rstrip(". ")
        reason = reason.replace("insuffient", "insufficient")
        raise CoterieError(f"The formula '{formula}' cannot be read: {reason}.") from e
    if not hasattr(terms, "__iter__") or any(not hasattr(t, "factors") for t in terms):
        raise CoterieError(f"The formula '{formula}' has more than one right side.")
    return terms


class _Use:
    """What one Python term of a formula uses."""

    def __init__(self) -> None:
        self.columns: list[str] = []
        self.categories: set[str] = set()
        self.numeric: set[str] = set()
        self.stateful = False

    def merge(self, other: _Use) -> None:
        self.columns += other.columns
        self.categories |= other.categories
        self.numeric |= other.numeric

    def read(self, expression: str, formula: str) -> None:
        """Walk an expression; raise for whatever is not on the list."""
        aliases: dict[str, str] = {}

        def alias(match: re.Match[str]) -> str:
            key = f"_column_{len(aliases)}"
            aliases[key] = match[0][1:-1]
            return key

        try:
            tree = ast.parse(re.sub(r"`[^`]+`", alias, expression).strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
            raise CoterieError(f"The formula '{formula}' cannot be read at '{expression}'.") from e
        self._walk(tree.body, aliases, expression)

    def _walk(self, node: ast.AST, aliases: dict[str, str], expression: str) -> None:
        if not isinstance(node, _ALLOWED) or isinstance(node, ast.Attribute):
            raise CoterieError(f"The formula may not hold '{expression}'; compute it as a column of the table first.")
        if isinstance(node, ast.Constant) and not isinstance(node.value, (int, float, str, bool, type(None))):
            raise CoterieError(f"The formula may not hold the constant in '{expression}'.")
        if isinstance(node, ast.BinOp) and not any(isinstance(n, ast.Name) for n in ast.walk(node)):
            raise CoterieError(f"Write the number that '{ast.unparse(node)}' stands for into the formula.")
        if isinstance(node, ast.Name):
            name = aliases.get(node.id, node.id)
            self.columns.append(name)
            self.numeric.add(name)
            return
        for child in self._children(node, aliases, expression):
            self._walk(child, aliases, expression)

    def _children(self, node: ast.AST, aliases: dict[str, str], expression: str) -> Iterator[ast.AST]:
        if not isinstance(node, ast.Call):
            yield from ast.iter_child_nodes(node)
            return
        function = ast.unparse(node.func)
        if function == "C":
            self._category(node, aliases, expression)
            return
        known = STATEFUL | STATELESS | {f"np.{f}" for f in NUMPY}
        if function not in known:
            raise CoterieError(
                f"The formula calls '{function}', which is not one of its functions.{nearest(function, [*known, 'C'])} "
                "Compute it as a column of the table instead."
            )
        self.stateful |= function in STATEFUL
        yield from node.args
        yield from (k.value for k in node.keywords)

    def _category(self, node: ast.Call, aliases: dict[str, str], expression: str) -> None:
        """``C(column)`` or ``C(column, contr.sum)``: a category, whatever the column holds."""
        contrast = [*node.args[1:], *(k.value for k in node.keywords if k.arg == "contrasts")]
        if (
            not node.args
            or not isinstance(node.args[0], ast.Name)
            or len(contrast) + 1 < len(node.args + node.keywords)
        ):
            raise CoterieError(f"'{expression}' must be C(column) or C(column, contr.sum).")
        for c in contrast:
            call = c.func if isinstance(c, ast.Call) else c
            if not re.fullmatch(rf"contr\.({'|'.join(CONTRASTS)})", ast.unparse(call)):
                raise CoterieError(
                    f"'{expression}' must name a contrast such as contr.treatment, contr.sum or contr.poly."
                )
            arguments = [*c.args, *(k.value for k in c.keywords)] if isinstance(c, ast.Call) else []
            if not all(isinstance(a, ast.Constant) for a in arguments):
                raise CoterieError(f"The contrast in '{expression}' takes plain values only.")
        name = aliases.get(node.args[0].id, node.args[0].id)
        self.columns.append(name)
        self.categories.add(name)
