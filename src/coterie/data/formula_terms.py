"""The terms of a formula by formulaic: multiplied out, if that takes seconds at most, and computed as columns.

A few characters can ask for years: ``(a + b + c)**30`` has 3**30 products. What a formula comes to is counted first.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable
from functools import lru_cache, wraps
from keyword import iskeyword
from math import prod
from typing import Any

import numpy as np

from coterie.data.formula_expressions import BASES, SPLINES
from coterie.errors import CoterieError, listed, nearest, shortened
from coterie.lazy_modules import pd

COLUMNS = 2000  # most columns of a design matrix
WORK = 3_000_000
"""Most factors that are looked at on the way from a formula to its terms; a million take about a second."""
_NUMBER = re.compile(r"[0-9.]+")


def formulaic_terms(side: str, formula: str) -> Any:
    """The terms of one side of a formula, which errors call ``formula``; syntax errors in one sentence."""
    from formulaic import Formula
    from formulaic.errors import FormulaicError

    try:
        return Formula(list(_terms(side)))
    except _TooMany as e:
        raise CoterieError(
            f"The formula '{shortened(formula)}' multiplies out into too many terms: leave out interactions, or write "
            "I(x**2) if a power of numbers is meant."
        ) from e
    except _Several as e:
        raise CoterieError(f"The formula '{shortened(formula)}' has more than one right side: write one ~.") from e
    except RecursionError as e:
        raise CoterieError(
            f"The formula '{shortened(formula)}' is nested too deeply: write it with fewer parentheses."
        ) from e
    except (FormulaicError, SyntaxError, ValueError, IndexError, MemoryError) as e:
        reason = re.sub(r"\x1b\[[0-9;]*m|[⧛⧚]", "", str(e)).strip().split("\n")[0].rstrip(". ")
        reason = shortened(re.sub(r" \(<unknown>.*\)", "", reason.replace("insuffient", "insufficient")))
        compared = re.search(r"Unknown operator '[<>=!]", reason)
        hint = " Write a comparison inside I(), as in I(x > 3)." if compared else ""
        if re.search("numerical scaling|Numeric literals", reason):  # what the parser says of x/2 and of 2*x or 5
            reason, hint = "a number other than 0 or 1 is no term", " Write arithmetic inside I(), as in I(x / 2)."
        if word := next(filter(iskeyword, re.findall(r"`(\w+)`", side)), None):
            hint = f" Rename the column '{word}', which is a word of Python, to use it in a function."
        raise CoterieError(f"The formula '{shortened(formula)}' cannot be read: {reason}.{hint}") from e


def vanishing(side: str) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """Arithmetic of numbers that one side of a formula takes for something else, since its signs combine terms.

    ``x^2``, ``x**2``, ``x:x`` and ``x*x`` all are ``x``, ``x / z`` is ``x + x:z``, and ``- z`` leaves out a term that
    may not be there. Each with what it is taken for (empty: nothing), a form of what may be meant, and its factors.
    """
    from formulaic.parser import DefaultFormulaParser

    found: list[tuple[str, str, str, tuple[str, ...]]] = []
    below, leaves, less = [DefaultFormulaParser().parse(side, target="ast")], Counter[str](), []
    while below:
        node = below.pop()
        if not hasattr(node, "operator"):
            leaves[str(node)] += 1
            continue
        symbol = node.operator.symbol
        factors = _product(node.args[0], ":") if symbol in ("**", "^") else _product(node, symbol)
        below += factors if symbol in (":", "*") else node.args
        plain = [str(f) for f in factors if not hasattr(f, "operator")]
        if symbol in ("**", "^") and len(plain) == len(factors) == 1 and str(node.args[1]) != "1":
            n = str(node.args[1])
            found.append((f"{plain[0]}{symbol}{n}", plain[0], f"I({{0}}**{n})", (plain[0],)))
        elif symbol in (":", "*"):
            summands = [s for f in factors if hasattr(f, "operator") for s in set(_summands(f)) if s in plain]
            times = Counter(plain + summands)
            found += [(symbol.join([f] * n), f, f"I({{0}}**{n})", (f,)) for f, n in times.items() if n > 1]
        elif symbol == "/" and len(sides := [str(a) for a in node.args if not hasattr(a, "operator")]) == 2:
            kept = [side for side in sides if not _NUMBER.fullmatch(side)]
            means = kept[0] if len(kept) == 1 else f"{sides[0]} + {sides[0]}:{sides[1]}"
            found.append((f"{sides[0]}/{sides[1]}", means, "I({0} / {1})", tuple(sides)))
        elif symbol == "-" and not hasattr(node.args[-1], "operator"):
            less.append((_last(node.args[0]) if len(node.args) == 2 else "", str(node.args[-1])))
    for before, name in less:
        if leaves[name] == 1 and not _NUMBER.fullmatch(name):
            alone = not before or _NUMBER.fullmatch(before)
            form = "I(-{0})" if alone else "I({0} - {1})"
            found.append((f"- {name}", "", form, (name,) if alone else (before, name)))
    return found[::-1]


def _summands(node: Any) -> list[str]:
    if not hasattr(node, "operator"):
        return [str(node)]
    return [s for part in node.args for s in _summands(part)] if node.operator.symbol == "+" else []


def _last(node: Any) -> str:
    """The last name or number in a syntax tree."""
    while hasattr(node, "operator"):
        node = node.args[-1]
    return str(node)


def _product(node: Any, symbol: str) -> list[Any]:
    """The factors of a product by one sign, however it is nested."""
    if getattr(getattr(node, "operator", None), "symbol", None) != symbol or symbol not in (":", "*"):
        return [node]
    return [factor for part in node.args for factor in _product(part, symbol)]


class _TooMany(Exception):
    """More work than :data:`WORK`."""


class _Several(Exception):
    """Several right sides."""


@lru_cache(maxsize=16)
def _terms(side: str) -> tuple[Any, ...]:
    from formulaic.parser import DefaultFormulaParser

    parser = DefaultFormulaParser()
    tree = parser.parse(side, target="ast")
    _need_little(tree)
    terms = parser.get_terms_from_ast(tree, context={})._simplify()
    if not hasattr(terms, "__iter__") or any(not hasattr(t, "factors") for t in terms):
        raise _Several
    return tuple(terms)


def _need_little(tree: Any) -> None:
    """Raise unless a syntax tree of formulaic's can be multiplied out with little work."""
    nodes, below = [], [tree]
    while below:  # a loop, since parentheses may be nested by the thousand
        node = below.pop()
        if hasattr(node, "operator"):
            nodes.append(node)
            below += node.args
    leaves = 1 + sum(len(node.args) for node in nodes) - len(nodes)
    sizes: dict[int, tuple[int, int]] = {}
    work = 0
    for node in reversed(nodes):
        parts = [sizes.pop(id(a), (1, 1)) for a in node.args]
        most, factors, effort = _size(node, parts)
        sizes[id(node)] = most, min(factors, leaves)
        work += effort
        if work > WORK:
            raise _TooMany


def _size(node: Any, parts: list[tuple[int, int]]) -> tuple[int, int, int]:
    """Most terms of a node, most factors of a term, and the work, in factors, from those of its parts."""
    symbol, (terms, factors) = node.operator.symbol, zip(*parts, strict=True) if parts else ((0,), (0,))
    if symbol in ("**", "^"):
        power = str(node.args[1]) if not hasattr(node.args[1], "operator") else ""
        if not re.fullmatch("[0-9]{1,2}", power):
            raise ValueError(f"the right side of {symbol} must be a whole number from 1 to 99")
        n = int(power)
        most = terms[0] ** n
        return most, factors[0] * n, most * factors[0] * n * n
    if symbol in ("*", ":"):
        most = prod(terms)
        return most + (sum(terms) if symbol == "*" else 0), sum(factors), most * sum(factors) * 2
    if symbol in ("/", "in"):
        outer, inner = (0, 1) if symbol == "/" else (1, 0)
        longest = terms[outer] * factors[outer] + factors[inner]
        return sum(terms), longest, (terms[outer] + terms[inner]) * longest
    return sum(terms), max(factors), sum(terms)


def compute_terms(frame: pd.DataFrame, side: str, state: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """One side of a formula such as ``1 + x + center(z)``, computed on float64 columns and categoricals.

    ``state`` is what stateful terms remember; they learn it from the frame where it is empty. It comes back beside the
    columns.
    """
    from formulaic import ModelSpec
    from formulaic.materializers import PandasMaterializer

    quoted = [c for c in map(str, frame.columns) if f"`{c}`" in side and not c.isidentifier()]
    aliases = {f"column_{list(frame.columns).index(c)}_": c for c in quoted}
    plain = side
    for alias, name in aliases.items():  # formulaic would draw random ones where such a name occurs twice
        plain = plain.replace(f"`{name}`", alias)
    spec = ModelSpec(
        formula=formulaic_terms(plain, side),
        transform_state=copy.deepcopy(state),
        na_action="ignore",
        output="pandas",
    )
    context = {"sqrt": np.sqrt, "abs": np.abs} | {name: _within(name) for name in SPLINES}
    try:
        with np.errstate(all="ignore"):
            renamed = frame.rename(columns={name: alias for alias, name in aliases.items()})
            matrix = PandasMaterializer(renamed, context=context).get_model_matrix(spec)
    except Exception as e:  # whatever a term raises is about the user's formula and table
        reason = _restore(str(e), aliases).strip().split("\n")[0].rstrip(".")
        if absent := re.match(r"Value `(.*)` for `\w+\.base` is not among the provided levels", reason):
            used = [
                c for c in frame.columns if frame[c].dtype == "category" and re.search(rf"\b{re.escape(c)}\b", side)
            ]
            there = [str(level) for c in used for level in frame[c].cat.categories]
            known = nearest(absent[1], there) or (f" There are {listed(there, 10)}." if there else "")
            raise CoterieError(
                f"A contrast in '{side.strip()}' names level {absent[1]}, which is not there.{known}"
            ) from e
        if told := re.match(r"Unable to evaluate factor `(.*)`\. \[\w+: (.*)\]$", reason):
            used = [c for c in frame.columns if re.search(rf"\b{re.escape(c)}\b", told[1])]
            counts, why = {c: frame[c].nunique() for c in used}, told[2].rstrip(".")
            if names := [c for c in used if frame[c].dtype == "category"]:
                why = f"'{names[0]}' is a category"
            elif constant := [c for c, count in counts.items() if count == 1]:
                why = f"'{constant[0]}' is the same in every row"
            elif used and told[1].startswith(tuple(f"{name}(" for name in BASES)):
                why = f"'{used[0]}' has {counts[used[0]]:,} different values, and df, degree and knots must fit them"
                why += " and each other"
            reason = f"'{told[1]}': {why}"
        raise CoterieError(f"The formula cannot be computed on this table: {reason}.") from e
    state = dict(matrix.model_spec.transform_state)
    columns = matrix.__wrapped__
    columns.columns = [_restore(str(c), aliases) for c in columns.columns]
    return columns, state


def _within(name: str) -> Callable[..., Any]:
    """A spline of formulaic's that is NaN outside its range, where formulaic would refuse all rows for one."""
    from formulaic.transforms import TRANSFORMS

    spline: Callable[..., Any] = TRANSFORMS[name]
    default = "raise" if name == "bs" else "extend"

    @wraps(spline)
    def computed(x: Any, *args: Any, _state: dict[str, Any], **kwargs: Any) -> Any:
        if kwargs.get("extrapolation", default) != "raise":
            return spline(x, *args, _state=_state, **kwargs)
        columns = spline(x, *args, _state=_state, **kwargs | {"extrapolation": "clip"})
        values = np.asarray(x, dtype=np.float64)
        outside = (values < float(_state["lower_bound"])) | (values > float(_state["upper_bound"]))
        for column in columns.values() if outside.any() else ():
            column[outside] = np.nan
        return columns

    return computed


def _restore(text: str, aliases: dict[str, str]) -> str:
    """The names behind the aliases, in backticks inside functions."""
    for alias, name in aliases.items():
        text = re.sub(rf"(?<![^:]){alias}(?![^:\[])", lambda _, name=name: name, text)  # type: ignore[misc]
        text = text.replace(alias, f"`{name}`")
    return text


def state_to_json(value: Any) -> Any:
    """Formulaic's state in JSON's types; `state_from_json` gives it back."""
    if isinstance(value, dict):
        return {"dict": [[state_to_json(k), state_to_json(v)] for k, v in value.items()]}
    if isinstance(value, np.ndarray):
        return {"array": value.astype(np.float64).tolist()}
    if isinstance(value, (list, tuple)):
        return [state_to_json(v) for v in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise CoterieError(f"A term of the formula remembers {type(value).__name__}, which cannot be saved.")


def state_from_json(value: Any) -> Any:
    """What `state_to_json` was given."""
    if isinstance(value, dict) and "array" in value:
        return np.array(value["array"], dtype=np.float64)
    if isinstance(value, dict):
        return {state_from_json(k): state_from_json(v) for k, v in value["dict"]}
    if isinstance(value, list):
        return [state_from_json(v) for v in value]
    return value
