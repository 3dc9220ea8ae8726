"""What one Python term of a formula may hold: columns, numbers and functions known to be harmless.

Formulaic evaluates terms as Python, so every term is parsed and compared with a short list of allowed forms first.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from coterie.errors import CoterieError, nearest, shortened

SPLINES = ("bs", "cc", "cr", "cs")
BASES = frozenset({"poly", *SPLINES})
STATEFUL = frozenset({"center", "scale", "standardize"}) | BASES
STATELESS = frozenset({"I", "log", "log2", "log10", "exp", "exp2", "exp10", "sqrt", "abs"})
NUMPY = frozenset(
    {"log", "log1p", "log2", "log10", "exp", "expm1", "sqrt", "cbrt", "abs", "square", "sin", "cos", "tan", "tanh"}
    | {"arctan", "sign", "floor", "ceil", "minimum", "maximum", "where", "clip"}
)
CONTRASTS = {
    **{"treatment": ("base",), "SAS": ("base",), "sum": (), "poly": ("scores",)},
    **{"helmert": ("reverse", "scale"), "diff": ("backward",)},
}
"""Contrasts of categories, each with its arguments."""
PATSY = {name.title(): name for name in ("treatment", "sum", "poly", "helmert", "diff")} | {"SAS": "SAS"}
"""Patsy's names of them."""
_ARGUMENTS = {"np.minimum": 2, "np.maximum": 2, "np.where": 3, "np.clip": 3}
"""How many arguments functions take that take more than one."""
_SMOOTH = "write bs({0}, df=4), or cr({0}, df=4, constraints='center')"
HABITS = {
    **dict.fromkeys(("offset", "weights"), "leave it out, and name the column by {f}='{0}' (--{f} {0})"),
    **dict.fromkeys(("factor", "as.factor", "ordered", "as.ordered"), "write C({0})"),
    **dict.fromkeys(("as.numeric", "as.integer"), "write {0}, and make the column one of numbers"),
    **dict.fromkeys(("s", "ns", "lo", "rcs", "pspline"), _SMOOTH),
    **dict.fromkeys(("te", "ti", "t2"), "write bs(x, df=4):bs(z, df=4) for a surface over two columns x and z"),
    **dict.fromkeys(("pow", "power", "np.power"), "write I({0}**2) for a power"),
    **dict.fromkeys(("relevel", "Treatment"), "write C({0}, contr.treatment('level')) to name the level of reference"),
    **dict.fromkeys(("interaction",), "write a:b"),
    **dict.fromkeys(("ln",), "write log({0})"),
    **dict.fromkeys(("ifelse",), "write np.where({0}, 1, 0)"),
    **dict.fromkeys(("Q",), "write the column between backticks"),
    **dict.fromkeys(("cbind", "trials"), "write cbind(successes, failures) or successes | trials(n) left of the '~'"),
    **{name: "write np." + name + "({0})" for name in NUMPY - STATELESS},
}
"""What those mean who write formulas as in R or patsy."""

DEPTH = 200
"""Most steps from the whole of an expression to its innermost part: a sum of 200 columns inside ``I()`` has as many."""
DEGREE = 100
"""Largest whole number that a term with a basis of its own, such as ``poly(x, 3)``, may be given, and most knots."""
_BOUNDS = ("lower_bound", "upper_bound")  # of a basis: values of the column

_ALLOWED = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Constant, ast.Name, ast.Call, ast.keyword),
    *(ast.Attribute, ast.List, ast.Tuple, ast.Load, ast.operator, ast.unaryop, ast.cmpop),
)


@dataclass
class Use:
    """What one Python term of a formula uses: see :class:`coterie.data.formula.Parsed`."""

    columns: list[str] = field(default_factory=list)
    categories: set[str] = field(default_factory=set)
    numeric: set[str] = field(default_factory=set)
    reckoned: set[str] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)
    stateful: bool = False
    width: int = 1

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
            raise CoterieError(f"Formula '{shortened(formula)}' cannot be read at '{shortened(expression)}'.") from e
        if _depth(tree) > DEPTH:
            raise CoterieError(f"'{shortened(expression)}' is nested too deeply: make a column of the table of it.")
        self._walk(tree.body, aliases, expression)

    def _walk(self, node: ast.AST, aliases: dict[str, str], expression: str) -> None:
        if not isinstance(node, _ALLOWED) or isinstance(node, ast.Attribute):
            dotted = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            raise CoterieError(
                f"The formula may not hold '{shortened(expression)}'; compute it as a column of the table first"
                f"{f', or write `{dotted}` between backticks if that is a column' if dotted else ''}."
            )
        if isinstance(node, ast.Constant) and not isinstance(node.value, (int, float, str, bool, type(None))):
            raise CoterieError(f"The formula may not hold the constant in '{shortened(expression)}'.")
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.BitXor):
                raise CoterieError(f"Write ** for a power, not ^, in '{shortened(expression)}'.")
            if _bulk(node.left) or _bulk(node.right):
                raise CoterieError(f"'{shortened(expression)}' may compute with numbers alone, not with text or lists.")
            if not _has_column(node):
                stands = shortened(ast.unparse(node))
                raise CoterieError(f"Write the number that '{stands}' stands for into the formula.")
            self.reckoned.update(aliases.get(name, name) for name in _reckoned(node))
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
        self.functions.add(function.split(".")[0])
        if function == "C":
            self._category(node, aliases, expression)
            return
        known = STATEFUL | STATELESS | {f"np.{f}" for f in NUMPY}
        if function not in known:
            hint = f"{nearest(function, [*known, 'C'])} Compute it as a column of the table instead."
            if function in HABITS:
                first = ast.unparse(node.args[0]) if node.args else "x"
                if function in ("offset", "weights") and not isinstance(node.args[0] if node.args else None, ast.Name):
                    first = "name"
                hint = f" Instead {HABITS[function].format(aliases.get(first, first), f=function)}."
            raise CoterieError(f"The formula calls '{shortened(function)}', which is not one of its functions.{hint}")
        most = _ARGUMENTS.get(function, 1)
        if function not in STATEFUL and (node.keywords or len(node.args) != most):
            count = "one value" if most == 1 else f"{most} values"
            raise CoterieError(f"'{shortened(expression)}': {function} takes {count}, without a name.")
        if function in STATEFUL:
            self.stateful = True
            sizes = [*node.args[1:4], *(k.value for k in node.keywords if k.arg not in _BOUNDS)]
            width = max(map(_width, sizes), default=1) if function in BASES else 1
            if width > DEGREE:
                raise CoterieError(f"'{shortened(expression)}' may have {DEGREE} columns or knots, not {width:,}.")
            self.width *= width
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
            raise CoterieError(
                f"'{shortened(expression)}' must be C(column) or C(column, contr.sum); C(column, contr.treatment('b')) "
                "names the level that others are compared with."
            )
        for c in contrast:
            _check_contrast(c, expression)
        name = aliases.get(node.args[0].id, node.args[0].id)
        self.columns.append(name)
        self.categories.add(name)


def _check_contrast(node: ast.AST, expression: str) -> None:
    """Raise CoterieError for a contrast that there is not, or with arguments that it does not take."""
    call = ast.unparse(node.func if isinstance(node, ast.Call) else node)
    name = call.removeprefix("contr.")
    if name not in CONTRASTS or name == call:
        raise CoterieError(f"'{shortened(expression)}' must name a contrast, as contr.treatment('b') or contr.sum.")
    if not isinstance(node, ast.Call):
        return
    takes = CONTRASTS[name]
    arguments = [*node.args, *(k.value for k in node.keywords)]
    if len(arguments) > len(takes) or any(k.arg not in takes for k in node.keywords):
        form = f"contr.{name}({', '.join(takes)})"
        raise CoterieError(f"The contrast in '{shortened(expression)}' takes other arguments: {form}.")
    if not all(isinstance(a, ast.Constant) for a in arguments):
        raise CoterieError(f"The contrast in '{shortened(expression)}' takes plain values only.")


def as_contrasts(side: str) -> str:
    """One side of a formula, with patsy's contrasts as ours, and levels that are numbers as the texts that they are."""
    pattern = rf",\s*(?:contrasts\s*=\s*)?(?:contr\.)?({'|'.join(PATSY)})\b(\s*\(\s*reference\s*=)?"
    opening = "(base="
    side = re.sub(pattern, lambda m: f", contr.{PATSY[m[1]]}{opening if m[2] else ''}", side)
    base = r"(contr\.(?:treatment|SAS)\(\s*(?:base\s*=\s*)?)([+-]?\d+)(?:\.0*)?(?=\s*\))"
    return re.sub(base, r"\1'\2'", side)


def _depth(tree: ast.AST) -> int:
    """How far below the root of a tree its deepest node is."""
    depth, level = 0, [tree]
    while level := [child for node in level for child in ast.iter_child_nodes(node)]:
        depth += 1
    return depth


def _has_column(node: ast.AST) -> bool:
    """Whether a name that is not that of a function is anywhere in an expression."""
    functions = {id(n.func) for n in ast.walk(node) if isinstance(n, ast.Call)}
    return any(isinstance(n, ast.Name) and id(n) not in functions for n in ast.walk(node))


def _reckoned(node: ast.AST) -> set[str]:
    """Names in an expression that are not only compared with something."""
    if isinstance(node, ast.Compare):
        return set()
    own = {node.id} if isinstance(node, ast.Name) else set[str]()
    return own.union(*map(_reckoned, ast.iter_child_nodes(node)))


def _bulk(node: ast.AST) -> bool:
    """Whether an operand may be text or a list, which numbers repeat, or blow up to any size."""
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) == "I" and any(map(_bulk, [*node.args, *(k.value for k in node.keywords)]))
    if isinstance(node, ast.UnaryOp):
        return _bulk(node.operand)
    return isinstance(node, ast.List | ast.Tuple) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _width(node: ast.AST) -> int:
    """How many columns an argument of a term with a basis may stand for: a degree, degrees of freedom, or knots."""
    if isinstance(node, ast.List | ast.Tuple):
        return len(node.elts)
    return max(node.value, 1) if isinstance(node, ast.Constant) and isinstance(node.value, int) else 1
