"""Columns as the sites of a federation agree on them, and what depends on a column's type: a row of :data:`TYPES`.

A further type is a further row: how rows hold a value, what a site proposes and what its check may say of them, how
proposals are united, whether formulas may use it, its words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from coterie.data.columns import Column, at_rows
from coterie.data.labels import encode, label_text
from coterie.errors import CoterieError, listed
from coterie.lazy_modules import pd
from coterie.options import Option, check

Mask = npt.NDArray[np.bool_]
LARGEST = 1e60  # numbers of a larger size are not used: so products of several of them are numbers


def _distinct(levels: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(levels)) < len(levels):
        raise CoterieError("A level is named twice: name it once.")
    return levels


@dataclass(frozen=True)
class SchemaColumn:
    """One column as the sites agree on it."""

    type: Annotated[
        str,
        Option(
            "What its values are; a label names clients or clusters, and is not for formulas.", choices=lambda: TYPES
        ),
    ]
    unit: Annotated[str, Option("In what it is measured; free text, compared as it is written.")] = ""
    levels: Annotated[
        tuple[str, ...], Option("Of a category at all sites; the first is the reference.", read=_distinct)
    ] = ()
    low: Annotated[
        float | None,
        Option("Smallest value allowed; others are clipped to it, or refused where no rules of an owner hold."),
    ] = None
    high: Annotated[float | None, Option("Largest value allowed.")] = None
    center: Annotated[float | None, Option("What center(x) and scale(x) subtract; a round number will do.")] = None
    scale: Annotated[float | None, Option("What scale(x) divides by; a round number will do.", above=0.0)] = None

    def __post_init__(self) -> None:
        check(self)
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise CoterieError(f"low ({self.low:g}) must be below high ({self.high:g}).")

    @property
    def kind(self) -> ColumnType:
        """What depends on its type."""
        return TYPES[self.type]

    @property
    def numeric(self) -> bool:
        """Whether a formula takes it for numbers: one of numbers that has levels is categories."""
        return self.kind.numeric and not self.levels

    def plain(self) -> dict[str, Any]:
        """Its keys and values, without those that say nothing."""
        found = {k: v for k, v in asdict(self).items() if v not in (None, "", ())}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in found.items()}

    def outside(self, values: npt.NDArray[np.float64]) -> Mask:
        """Which values lie outside its range."""
        low = -np.inf if self.low is None else self.low
        high = np.inf if self.high is None else self.high
        with np.errstate(invalid="ignore"):
            return np.asarray(np.isfinite(values) & ((values < low) | (values > high)))

    def out_of_range(self, name: str, outside: Mask) -> str:
        """A sentence, for the owner of rows, about those whose value lies outside its range."""
        low, high = (f"{end:g}" if end is not None else "" for end in (self.low, self.high))
        span = f"{low} to {high}" if low and high else f"{low} and more" if low else f"{high} and less"
        unit = f" {self.unit}" if self.unit else ""
        return f"Column '{name}' is outside {span}{unit} in {at_rows(outside)}: correct these rows, or its unit."


@dataclass
class Findings:
    """What a check of a site's rows found: for others ``problems``, ``doubts``, levels ``present``; ``rows`` here.

    Words for others hold no value, level or place of a row; ``placed`` says that the owner finds these in ``rows``.
    ``doubts`` are what may be right all the same, and ``present`` the levels that enough rows have, by column.
    """

    problems: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    present: dict[str, list[str]] = field(default_factory=dict)
    rows: list[str] = field(default_factory=list)
    placed: bool = False


@dataclass(frozen=True)
class ColumnType:
    """A type of column, by what it does with rows.

    ``propose(name, series, before, min_group)`` gives the column that a site's rows make, where ``before`` (or None)
    was agreed before, and notes of levels with few rows. ``check(name, column, series, least,
    findings)`` adds to :class:`Findings`, and gives the column with the levels that enough rows have; what fewer than
    ``least`` have is for the owner alone. ``has_value(series)`` says which rows hold a value, ``unite(a, b)`` joins
    what two sites propose. Formulas take it for numbers (``numeric``), not without levels (``needs_levels``), or not at
    all (``in_formulas``).
    """

    name: str
    plural: str
    propose: Callable[[str, pd.Series[Any], SchemaColumn | None, int], tuple[SchemaColumn, list[str]]]
    check: Callable[[str, SchemaColumn, pd.Series[Any], int, Findings], SchemaColumn]
    has_value: Callable[[pd.Series[Any]], Mask]
    unite: Callable[[SchemaColumn, SchemaColumn], SchemaColumn] = lambda a, b: a
    numeric: bool = False
    needs_levels: bool = False
    in_formulas: bool = True


def numbers(series: pd.Series[Any]) -> npt.NDArray[np.float64]:
    """The values of a column of numbers; NaN where there is none."""
    return np.array(Column(series).numbers, dtype=np.float64)


def _is_there(series: pd.Series[Any]) -> Mask:
    return np.asarray(series.notna().to_numpy(), dtype=np.bool_)


def _is_usable_number(series: pd.Series[Any]) -> Mask:
    with np.errstate(invalid="ignore"):
        return np.asarray(np.abs(numbers(series)) <= LARGEST)


def _propose_number(
    name: str, series: pd.Series[Any], before: SchemaColumn | None, min_group: int
) -> tuple[SchemaColumn, list[str]]:
    """A number, with center and scale to two digits where enough rows stand behind them."""
    if before is not None:
        return before, []
    values = numbers(series)
    values = values[np.isfinite(values)]
    spread = float(values.std()) if len(values) >= max(min_group, 2) else 0.0
    if not spread > 0.0:
        return SchemaColumn("number"), []
    scale = float(f"{spread:.2g}")
    center = float(f"{round(float(values.mean()) / scale, 1) * scale:.6g}") + 0.0  # -0.0 becomes 0.0
    return SchemaColumn("number", center=center, scale=scale), []


FAR, WIDE = 4.0, 8.0


def far(name: str, center: float, scale: float, agreed: SchemaColumn) -> list[str]:
    """What is odd about a column whose center or scale is far from the agreed one, as where its unit is another.

    Far is a center by more than :data:`FAR` scales, of the larger one, or a scale of :data:`WIDE` times the other:
    cholesterol in mmol/l has a 39th of the scale that it has in mg/dl, glucose an 18th; a temperature in Fahrenheit
    lies 88 scales of Celsius away.
    """
    if agreed.center is None or agreed.scale is None or not scale > 0.0:
        return []
    if abs(center - agreed.center) <= FAR * max(scale, agreed.scale) and 1 / WIDE < scale / agreed.scale < WIDE:
        return []
    return [
        f"'{name}' lies far from the center and scale of the schema, as it does in another unit: look at its values"
    ]


def _check_number(name: str, column: SchemaColumn, series: pd.Series[Any], least: int, found: Findings) -> SchemaColumn:
    values, held = numbers(series), Column(series)
    strange, outside = ~np.isfinite(values) & _is_there(series), column.outside(values)
    for what, rows in held.faults("number"):
        if (rows & strange).any():
            text = held.fault_text(what, rows)
            found.rows.append(f"{text[0].upper()}{text[1:]}.")
    if outside.any():
        found.rows.append(column.out_of_range(name, outside))
    if strange.sum() >= least:
        found.problems.append(f"'{name}' is not a column of numbers")
    usable = values[np.isfinite(values)]
    if len(usable) >= max(least, 2):
        found.doubts.extend(far(name, float(usable.mean()), float(usable.std()), column))
    if strange.sum() < least <= outside.sum():
        found.problems.append(f"'{name}' has values outside the range of the site's schema")
        found.placed = True
    return column


def _level_counts(series: pd.Series[Any]) -> dict[str, int]:
    coded = encode(series)
    counts = np.bincount(coded.codes[coded.codes >= 0], minlength=len(coded.labels))
    return {label_text(v): int(n) for v, n in zip(coded.labels, counts, strict=True)}


def _propose_category(
    name: str, series: pd.Series[Any], before: SchemaColumn | None, min_group: int
) -> tuple[SchemaColumn, list[str]]:
    counts = _level_counts(series)
    few = [f"{level!r} ({n:,})" for level, n in counts.items() if n < min_group]
    said = f"Levels of '{name}' with fewer than {min_group} rows, whose names travel: {listed(few)}."
    before = before or SchemaColumn("category")
    return _with_levels(before, counts), [said] if few else []


def _check_category(
    name: str, column: SchemaColumn, series: pd.Series[Any], least: int, found: Findings
) -> SchemaColumn:
    counts = _level_counts(series)
    if few := [repr(level) for level, n in counts.items() if n < least and level not in column.levels]:
        found.rows.append(
            f"Column '{name}' has levels that the schema has not, of fewer than {least} rows ({listed(few, 10)}): "
            "name them with 'coterie federation schema'."
        )
    found.present[name] = [level for level, n in counts.items() if n >= least]
    return _with_levels(column, tuple(found.present[name]))


def _with_levels(column: SchemaColumn, levels: Mapping[str, Any] | tuple[str, ...]) -> SchemaColumn:
    return replace(column, levels=tuple(dict.fromkeys([*column.levels, *levels])))


TYPES = {
    row.name: row
    for row in (
        ColumnType("number", "numbers", _propose_number, _check_number, _is_usable_number, numeric=True),
        ColumnType(
            "category",
            "categories",
            _propose_category,
            _check_category,
            _is_there,
            unite=lambda a, b: _with_levels(a, b.levels),
            needs_levels=True,
        ),
        ColumnType(
            "label",
            "labels",
            lambda name, series, before, least: (SchemaColumn("label", before.unit if before else ""), []),
            lambda name, column, series, least, found: column,
            _is_there,
            in_formulas=False,
        ),
    )
}
"""The types of columns by the name that ``schema.toml`` has for them."""
