"""What the sites of a federation agree on before any row is read: columns, types, levels, units, ranges, scaling.

``schema.toml``, of which every site and the coordinator hold a copy, has a table ``[columns.NAME]`` of each column's
options (:class:`~coterie.deployment.column_types.SchemaColumn`). Where sites come to an agreement only the names of
columns and levels, types and units travel: no row, no count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from coterie import files, options
from coterie.data.design import Design
from coterie.data.formula import limit_columns, parse
from coterie.data.table import Table
from coterie.deployment import toml_files
from coterie.deployment.column_types import TYPES, SchemaColumn, far
from coterie.errors import CoterieError, nearest
from coterie.lazy_modules import pd

_MOMENTS = ("center", "scale", "standardize")


@dataclass(frozen=True)
class Schema:
    """Columns by name, in the order in which a ``.`` of a formula takes them."""

    columns: dict[str, SchemaColumn] = field(default_factory=dict)

    @property
    def na_values(self) -> list[str] | None:
        """Texts of a site's file that mean a missing value: those of any table, but for what is a level here."""
        from coterie.data.table_files import NA_VALUES

        levels = {level for column in self.columns.values() for level in column.levels}
        return None if levels.isdisjoint(NA_VALUES) else [text for text in NA_VALUES if text not in levels]

    @property
    def labels(self) -> list[str]:
        """The columns that formulas may not use: they name clients and clusters."""
        return [name for name, column in self.columns.items() if not column.kind.in_formulas]

    @classmethod
    def of(cls, tables: Mapping[str, Any], where: str = "the schema") -> Schema:
        """From plain values, as :meth:`plain` gives them; a CoterieError names the column that is wrong."""
        if not isinstance(tables, Mapping):
            raise CoterieError(f"There is no table of columns in {where}: write [columns.NAME] for each.")
        columns = {}
        for name, keys in tables.items():
            what = f"Column '{name}' of {where}"
            try:
                columns[str(name)] = options.of(SchemaColumn, keys, what, noun="key")
            except CoterieError as problem:
                known = what[1:] in str(problem)
                raise problem if known else CoterieError(f"{what}: {problem}") from problem
        return cls(columns)

    @classmethod
    def read(cls, path: str | Path) -> Schema:
        """From ``schema.toml``; a CoterieError says what is wrong with it."""
        tables = files.read_toml(path := files.local(path), "the schema")
        options.need_names(f"'{path}'", tables, ("columns",), "key")
        return cls.of(tables.get("columns", {}), f"'{path}'")

    def write(self, path: str | Path) -> None:
        """Write ``schema.toml``, whole or not at all."""
        head = "What the sites agree on: columns, types, levels, units, ranges, scaling. No rows."
        toml_files.write(files.local(path), {"columns": self.plain()}, head)

    def plain(self) -> dict[str, Any]:
        """The schema in plain values, which travel."""
        return {name: column.plain() for name, column in self.columns.items()}

    def statement(self) -> dict[str, Any]:
        """What a site tells the coordinator of its columns: types, units and names of levels, no number."""
        said = ("type", "unit", "levels")
        return {name: {k: v for k, v in keys.items() if k in said} for name, keys in self.plain().items()}

    def design(self, formula: str, exclude: Iterable[str] = (), classes: bool = False) -> Design:
        """The design of a formula, from the schema alone: the same at every site, whatever rows it has.

        A ``.`` leaves out ``exclude`` besides the outcome and the labels; ``classes`` are those of
        :meth:`~coterie.data.design.Design.fit`. A CoterieError names a column that the schema
        has not, a category without levels, or a term such as ``scale(x)`` for which the schema has no numbers.
        """
        parsed = parse(formula, self.columns, [*exclude, *self.labels])
        for name in (*parsed.outcome_columns, *parsed.columns):
            column = self.columns[name]
            if not column.kind.in_formulas:
                raise CoterieError(f"Column '{name}' holds labels: a formula cannot use it.")
            if (column.kind.needs_levels or name in parsed.categories) and not column.levels:
                raise CoterieError(f"The schema has no levels of '{name}': write those of all sites into it.")
            if parsed.successes is not None and name in parsed.outcome_columns and column.kind.needs_levels:
                raise CoterieError(f"Column '{name}' is a category, and '{parsed.outcome}' counts successes of trials.")
        limit_columns(parsed, {n: self.columns[n].levels for n in parsed.columns if self.columns[n].levels})
        numbers = {term: self._numbers(term) for term in parsed.stateful}
        design = Design.fit(self._rows((*parsed.outcome_columns, *parsed.columns)), parsed.formula, classes=classes)
        state = {term: _with(kept, numbers.get(term) or {}) for term, kept in design.state.items()}
        return replace(design, state=state)

    def _numbers(self, term: str) -> dict[str, float]:
        """What the schema says of a term that learns from rows: center and scale; nothing for one that has a range."""
        function, column, options = "", "", list[ast.AST]()
        with suppress(SyntaxError):  # a name between backticks
            match ast.parse(term, mode="eval").body:
                case ast.Call(args=[ast.Name(column), *others]) as call:
                    function, options = ast.unparse(call.func), [*others, *call.keywords]
        moments = function in _MOMENTS
        if column not in self.columns or (moments and options):
            raise CoterieError(
                f"The sites cannot agree on '{term}', which learns from rows: write it with a plain column name and "
                "without options, or make it a column at every site."
            )
        names = ("center", "scale") if moments else ("low", "high")
        found = {name: getattr(self.columns[column], name) for name in names}
        if lacking := [name for name, value in found.items() if value is None]:
            raise CoterieError(
                f"'{term}' needs numbers that all sites agree on: write {' and '.join(lacking)} of column '{column}' "
                "into the schema."
            )
        return found if moments else {}

    def _rows(self, names: Iterable[str]) -> pd.DataFrame:
        """A table made up of some columns, to learn from: every level occurs, numbers go evenly over their range."""
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


def _with(kept: Any, numbers: Mapping[str, float]) -> Any:
    """What a term remembers, with the agreed numbers for what it learned; what it does without stays None."""
    if not isinstance(kept, dict):
        return kept
    return {
        name: np.array(numbers[name]) if name in numbers and value is not None else _with(value, numbers)
        for name, value in kept.items()
    }


def clusters_of(task: Mapping[str, Any]) -> list[str]:
    """The columns of clusters that a task names."""
    names = task.get("cluster") or ()
    return [names] if isinstance(names, str) else list(names)


def excluded(schema: Schema, task: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns that a ``.`` in a task's formula leaves out: labels, and those that have another role."""
    roles = [task.get(role) for role in ("client", "offset", "weights")]
    return tuple(dict.fromkeys([*filter(None, roles), *clusters_of(task), *schema.labels]))


def design_of(schema: Schema, task: Mapping[str, Any]) -> Design:
    """The design of a task's formula by a schema, the same at the coordinator and at every site."""
    return schema.design(task["formula"], excluded(schema, task), bool(task.get("classes")))


def propose(
    df: Any,
    labels: Iterable[str] = (),
    categories: Iterable[str] = (),
    min_group: int = 1,
    known: Schema | None = None,
    units: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Schema, list[str]]:
    """A first schema from one site's table, and notes: columns left out, and levels with few rows.

    ``labels`` name clients and clusters, ``categories`` are columns of numbers that are none. Levels with fewer than
    ``min_group`` rows are told to the owner, since their names travel. Of what is ``known``, types, units, ranges and
    numbers stay, and levels are added.
    """
    table = Table.of(df)
    before = {} if known is None else known.columns
    labels, categories = list(labels), list(categories)
    for names, role in ((labels, "label"), (categories, "category"), (units, "unit's")):
        table.need(names, role)
    columns, notes = dict(before), []
    for name in table.names:
        old, chosen = before.get(name), "label" if name in labels else "category" if name in categories else None
        if old is not None and chosen != "label":
            chosen = old.type
        try:
            kind = TYPES[chosen or table[name].kind()]
        except CoterieError as problem:
            notes.append(f"Column '{name}' was left out: {problem}")
            continue
        columns[name], said = kind.propose(name, table[name].series, old, min_group)
        columns[name] = replace(columns[name], unit=units.get(name, columns[name].unit))
        notes += said
        if kind.needs_levels and (text := table[name].read_as_missing):
            read = f"In '{name}' {text}, which was read as missing"
            notes.append(f"{read}: if it is a level, write it into the levels of '{name}'.")
    notes += [
        f"The table has no column '{name}', which stays in the schema: take it out if no site has it."
        for name in columns
        if name not in table.names
    ]
    return Schema(columns), notes


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


def far_apart(agreed: Schema, own: Schema) -> list[str]:
    """Columns whose center and scale in a site's schema are far from the agreed ones, in words without a number."""
    found = []
    for name, column in own.columns.items():
        if name in agreed.columns and column.center is not None and column.scale is not None:
            found += far(name, column.center, column.scale, agreed.columns[name])
    return found


def unite(proposals: Mapping[str, Schema], known: Schema | None = None) -> tuple[Schema, list[str]]:
    """One schema of several sites' proposals, and who differs in what from it.

    Levels are united. What was agreed before is ``known``; by default it is what the first site says.
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
            if name in columns and columns[name].type == column.type:
                columns[name] = column.kind.unite(columns[name], column)
    return Schema(columns), problems
