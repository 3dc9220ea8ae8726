"""What the sites of a federation agree on before any row is read: columns, types, levels, units, ranges, scaling.

``schema.toml``, of which every site and the coordinator hold a copy:

```toml
[columns.age]
type = "number"
unit = "years"                       # free text, compared as it is written
low = 18.0                           # values outside are clipped to it; where no rules of an owner hold, refused
high = 110.0
center = 54.0                        # what scale(age) and center(age) take: round numbers will do
scale = 9.0
[columns.pain]
type = "category"
levels = ["1", "2", "3", "4"]        # those of all sites
[columns.hospital]
type = "label"                       # names clients or clusters; not for formulas
```

Where sites come to an agreement only the names of columns and levels, types and units travel: no row, no count.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie import files
from coterie.deployment import toml
from coterie.errors import CoterieError, listed, nearest

if TYPE_CHECKING:
    import pandas as pd

    from coterie.data.design import Design

TYPES = ("number", "category", "label")
_NUMBERS = ("low", "high", "center", "scale")
_MAX = sys.float_info.max
_MOMENTS = ("center", "scale", "standardize")


@dataclass(frozen=True)
class Column:
    """One column as the sites agree on it.

    Attributes
    ----------
    type : {"number", "category", "label"}
    unit : str
        "" where none was named.
    levels : tuple of str
        Of a category, in order; the first is the reference.
    low, high : float or None
        Smallest and largest value allowed.
    center, scale : float or None
        What ``center(x)`` subtracts and ``scale(x)`` divides by.
    """

    type: str
    unit: str = ""
    levels: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    center: float | None = None
    scale: float | None = None

    def __post_init__(self) -> None:
        if self.type not in TYPES:
            raise CoterieError(f"type must be {' or '.join(TYPES)}, not {self.type!r}.")
        if not isinstance(self.unit, str):
            raise CoterieError(f"unit must be text, not {self.unit!r}.")
        if not isinstance(self.levels, list | tuple) or not all(isinstance(v, str) for v in self.levels):
            raise CoterieError(f"levels must be a list of text, not {self.levels!r}.")
        object.__setattr__(self, "levels", tuple(self.levels))
        if len(set(self.levels)) < len(self.levels):
            raise CoterieError("a level is named twice.")
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is not None and not _is_number(value):
                raise CoterieError(f"{name} must be a number, not {value!r}.")
            if value is not None:
                object.__setattr__(self, name, float(value))
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise CoterieError(f"low ({self.low:g}) must be below high ({self.high:g}).")
        if self.scale is not None and not self.scale > 0:
            raise CoterieError(f"scale must be above 0, not {self.scale:g}.")

    def plain(self) -> dict[str, Any]:
        """Its keys and values, without those that say nothing."""
        found = {k: v for k, v in asdict(self).items() if v not in (None, "", ())}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in found.items()}


@dataclass(frozen=True)
class Schema:
    """Columns by name, in the order in which a ``.`` of a formula takes them."""

    columns: dict[str, Column] = field(default_factory=dict)

    @property
    def na_values(self) -> list[str] | None:
        """Texts of a site's file that mean a missing value: those of any table, but for what is a level here."""
        from coterie.data.delimited import NA_VALUES

        levels = {level for column in self.columns.values() for level in column.levels}
        return None if levels.isdisjoint(NA_VALUES) else [text for text in NA_VALUES if text not in levels]

    @classmethod
    def of(cls, tables: Mapping[str, Any], where: str = "The schema") -> Schema:
        """From plain values, as :meth:`plain` gives them; a CoterieError names the column that is wrong."""
        known = [f.name for f in fields(Column)]
        columns = {}
        if not isinstance(tables, Mapping):
            raise CoterieError(f"{where} is no table of columns: write [columns.NAME] for each.")
        for name, keys in tables.items():
            if not isinstance(keys, Mapping):
                raise CoterieError(f"{where}: write [columns.{name}] and a line for each of {', '.join(known)}.")
            for key in keys:
                if key not in known:
                    raise CoterieError(f"{where} has no use for '{key}' of column '{name}'.{nearest(key, known)}")
            try:
                columns[str(name)] = Column(**({"type": ""} | dict(keys)))
            except CoterieError as problem:
                raise CoterieError(f"{where}, column '{name}': {problem}") from problem
        return cls(columns)

    @classmethod
    def read(cls, path: str | Path) -> Schema:
        """From ``schema.toml``.

        Raises
        ------
        CoterieError
            If there is none, it is not TOML, or a column says something that has no meaning.
        """
        tables = toml.read(path := files.local(path), "the schema")
        toml.check_keys(path, "", tables, ("columns",))
        return cls.of(tables.get("columns", {}), f"'{path}'")

    def write(self, path: str | Path) -> None:
        """Write ``schema.toml``, whole or not at all."""
        head = "What the sites agree on: columns, types, levels, units, ranges, scaling. No rows."
        toml.write(files.local(path), {"columns": self.plain()}, head)

    def plain(self) -> dict[str, Any]:
        """The schema in plain values, which travel."""
        return {name: column.plain() for name, column in self.columns.items()}

    def statement(self) -> dict[str, Any]:
        """What a site tells the coordinator of its columns: types, units and names of levels, no number."""
        said = ("type", "unit", "levels")
        return {name: {k: v for k, v in keys.items() if k in said} for name, keys in self.plain().items()}

    @property
    def fingerprint(self) -> str:
        """Sixteen letters, the same where columns have the same names, types, levels and units."""
        text = json.dumps(self.statement(), sort_keys=True)
        return blake2b(text.encode(), digest_size=8).hexdigest()

    def design(self, formula: str, exclude: Iterable[str] = ()) -> Design:
        """The design of a formula, from the schema alone: the same at every site, whatever rows it has.

        Parameters
        ----------
        formula : str
            ``outcome ~ columns``.
        exclude : iterable of str
            Columns that a ``.`` leaves out besides the outcome and the labels.

        Raises
        ------
        CoterieError
            For a column the schema has not, a category without levels, or a term such as ``scale(x)`` for which the
            schema has no numbers.
        """
        from coterie.data.columns import limit_columns
        from coterie.data.design import Design
        from coterie.data.formula import parse

        labels = [name for name, column in self.columns.items() if column.type == "label"]
        out = tuple(dict.fromkeys([*exclude, *labels]))
        parsed = parse(formula, self.columns, out)
        for name in (*parsed.outcome_columns, *parsed.columns):
            column = self.columns[name]
            if column.type == "label":
                raise CoterieError(f"Column '{name}' holds labels: a formula cannot use it.")
            if (column.type == "category" or name in parsed.categories) and not column.levels:
                raise CoterieError(f"The schema has no levels of '{name}': write those of all sites into it.")
        limit_columns(parsed, {n: self.columns[n].levels for n in parsed.columns if self.columns[n].levels})
        numbers = {term: self._numbers(term) for term in parsed.stateful}
        design = Design.fit(self._rows((*parsed.outcome_columns, *parsed.columns)), parsed.formula, out)
        state = {term: _with(kept, numbers.get(term) or {}) for term, kept in design.state.items()}
        return replace(design, state=state)

    def _numbers(self, term: str) -> dict[str, float]:
        """What the schema says of a term that learns from rows: center and scale; nothing for one that has a range."""
        import ast

        try:
            call = ast.parse(term, mode="eval").body
        except SyntaxError:  # a name between backticks
            call = ast.Constant(None)
        inner = call.args[0] if isinstance(call, ast.Call) and call.args else None
        moments = isinstance(call, ast.Call) and ast.unparse(call.func) in _MOMENTS
        if (
            not isinstance(call, ast.Call)
            or not isinstance(inner, ast.Name)
            or inner.id not in self.columns
            or (moments and len(call.args) + len(call.keywords) > 1)
        ):
            raise CoterieError(
                f"The sites cannot agree on '{term}', which learns from rows: write it with a plain column name and "
                "without options, or make it a column at every site."
            )
        names = ("center", "scale") if moments else ("low", "high")
        found = {name: getattr(self.columns[inner.id], name) for name in names}
        if lacking := [name for name, value in found.items() if value is None]:
            raise CoterieError(
                f"'{term}' needs numbers that all sites agree on: write {' and '.join(lacking)} of column '{inner.id}' "
                "into the schema."
            )
        return found if moments else {}

    def _rows(self, names: Iterable[str]) -> pd.DataFrame:
        """A table made up of some columns, to learn from: every level occurs, numbers go evenly over their range."""
        import numpy as np
        import pandas as pd

        columns = {name: self.columns[name] for name in names}
        n = max(100, *(len(c.levels) for c in columns.values()), 0)
        data: dict[str, Any] = {}
        for name, column in columns.items():
            if column.levels:
                codes = np.arange(n) % len(column.levels)
                data[name] = pd.Categorical.from_codes(codes, categories=pd.Index(column.levels))
            else:
                low = 0.0 if column.low is None else column.low
                data[name] = np.linspace(low, low + 1.0 if column.high is None else column.high, n)
        return pd.DataFrame(data)


def _is_number(value: Any) -> bool:
    """Whether a value is a number that is finite as a float; truth values are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -_MAX <= value <= _MAX


def _with(kept: Any, numbers: Mapping[str, float]) -> Any:
    """What a term remembers, with the agreed numbers for what it learned; what it does without stays None."""
    import numpy as np

    if not isinstance(kept, dict):
        return kept
    return {
        name: np.array(numbers[name]) if name in numbers and value is not None else _with(value, numbers)
        for name, value in kept.items()
    }


def excluded(schema: Schema, task: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns that a ``.`` in a task's formula leaves out: labels, and those that have another role."""
    clusters = task.get("cluster") or ()
    roles = [task.get(role) for role in ("client", "offset", "weights")]
    roles += [clusters] if isinstance(clusters, str) else list(clusters)
    labels = [name for name, column in schema.columns.items() if column.type == "label"]
    return tuple(dict.fromkeys([*filter(None, roles), *labels]))


def propose(
    df: Any, labels: Iterable[str] = (), categories: Iterable[str] = (), min_group: int = 1, known: Schema | None = None
) -> tuple[Schema, list[str]]:
    """A first schema from one site's table.

    Parameters
    ----------
    df : DataFrame
    labels : iterable of str
        Columns that name clients and clusters.
    categories : iterable of str
        Columns that are categories although they hold numbers.
    min_group : int
        Levels with fewer rows are told to the owner, since their names travel.
    known : Schema, optional
        What was agreed before: its types, units, ranges and numbers stay, and levels are added.

    Returns
    -------
    schema : Schema
    notes : list of str
        Columns left out, and levels with few rows.
    """
    from coterie.data.columns import kind_of
    from coterie.data.labels import encode, label_text
    from coterie.data.table import to_pandas

    table = to_pandas(df)
    before = {} if known is None else known.columns
    labels, categories = set(labels), set(categories)
    columns, notes = dict(before), []
    for name in table.columns:
        old = before.get(name)
        if name in labels or (old is not None and old.type == "label"):
            columns[name] = replace(old or Column("label"), type="label", levels=())
            continue
        try:
            kind = old.type if old is not None else "category" if name in categories else kind_of(table[name], name)
        except CoterieError as problem:
            notes.append(f"Column '{name}' was left out: {problem}")
            continue
        if kind == "number":
            columns[name] = old or _moments(table[name], min_group)
            continue
        coded = encode(table[name])
        counts = dict(zip(map(label_text, coded.labels), _counts(coded.codes, len(coded.labels)), strict=True))
        few = [f"{level!r} ({n:,})" for level, n in counts.items() if n < min_group]
        if few:
            notes.append(f"Levels of '{name}' with fewer than {min_group} rows, whose names travel: {listed(few)}.")
        levels = tuple(dict.fromkeys([*(() if old is None else old.levels), *counts]))
        columns[name] = replace(old or Column("category"), levels=levels)
    return Schema(columns), notes


def _counts(codes: Any, k: int) -> list[int]:
    import numpy as np

    return [int(n) for n in np.bincount(codes[codes >= 0], minlength=k)]


def _moments(series: pd.Series[Any], min_group: int) -> Column:
    """A number, with center and scale to two digits where enough rows stand behind them."""
    import numpy as np

    from coterie.data.columns import read_numbers

    values = np.asarray(read_numbers(series), dtype=np.float64)
    values = values[np.isfinite(values)]
    spread = float(values.std()) if len(values) >= max(min_group, 2) else 0.0
    if not spread > 0.0:
        return Column("number")
    scale = float(f"{spread:.2g}")
    return Column("number", center=float(f"{round(float(values.mean()) / scale, 1) * scale:.6g}"), scale=scale)


def disagreements(agreed: Schema, own: Schema, used: Iterable[str] | None = None) -> list[str]:
    """What a site's schema says otherwise than the agreed one: columns, types and units, each in words.

    Levels may differ: those of all sites are united.
    """
    found = []
    for name in agreed.columns if used is None else used:
        if name not in own.columns:
            found.append(
                f"there is no column '{name}'{nearest(name, own.columns).rstrip('?').replace(' Did', ': did')}"
            )
            continue
        theirs, here = agreed.columns[name], own.columns[name]
        if here.type != theirs.type:
            found.append(f"'{name}' is a {here.type} and not a {theirs.type}")
        if here.unit != theirs.unit:
            found.append(f"'{name}' is in {here.unit or 'no unit'} and not in {theirs.unit or 'no unit'}")
    return found


def unite(proposals: Mapping[str, Schema], known: Schema | None = None) -> tuple[Schema, list[str]]:
    """One schema of several sites' proposals, and who differs in what.

    Parameters
    ----------
    proposals : dict of str to Schema
        By site. Levels are united; a column that a site has not is named.
    known : Schema, optional
        What was agreed before; by default the first site's.

    Returns
    -------
    schema : Schema
    problems : list of str
    """
    names = sorted(proposals)
    if not names:
        return known or Schema(), []
    base = known if known is not None and known.columns else proposals[names[0]]
    columns = dict(base.columns)
    problems = []
    for site in names:
        problems += [f"at site '{site}' {text}" for text in disagreements(base, proposals[site])]
        for name, column in proposals[site].columns.items():
            if name in columns and columns[name].type == column.type == "category":
                levels = tuple(dict.fromkeys([*columns[name].levels, *column.levels]))
                columns[name] = replace(columns[name], levels=levels)
    return Schema(columns), problems
