"""What may be known of a site's rows: its owner's rules, in the manner of DataSHIELD's disclosure settings.

They stand under ``[disclosure]`` in ``site.toml``, where no coordinator can widen them. What a formula may hold is in
:mod:`coterie.deployment.formula_grammar`, what has left in :mod:`coterie.deployment.releases`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from coterie.data.term_grammar import BASES, STATEFUL, STATELESS
from coterie.errors import CoterieError, listed

RULES = "the rules of its owner ([disclosure] in site.toml)"
TRANSFORMS = ("center", "exp", "log", "log10", "log2", "scale", "sqrt", "standardize")
SUMS = (
    "coterie.deployment.holdout:*",
    "coterie.deployment.identifiability:*",
    "coterie.methods.clusterwise:*",
    "coterie.methods.local:*",
    "coterie.methods.tree.*",
)
"""Works of the exact fits and of their comparison: what they answer is added up over all rows of clients.

Those of other methods also say what a single row decides: a largest norm, a median, a step on some rows.
"""
MAY = {"transforms": (STATELESS | STATEFUL) - BASES - {"I"}, "bases": BASES}
LISTS = {"works": "patterns such as 'coterie.methods.tree.*'", "complete": "columns"}
REMARKS = {
    "min_level": "rows of every level, class and cell of levels that a sum covers, unless none",
    "rows_per_column": "rows that a site must have for each column of a formula",
    "max_levels": "levels of a category in a formula",
    "transforms": "functions of one column that a formula may hold",
    "bases": "splines and polynomials of one column, over the range in schema.toml",
    "formulas_per_day": "different formulas that are answered in a day (UTC)",
    "refusals_per_day": "sums refused for what rows hold, after which nothing leaves until the next day (UTC)",
    "min_sites": "sites over which a secure sum may be opened",
    "works": "works that a table is answered to; others say what single rows decide, such as the longest",
    "complete": "columns without whose values a row is left out of all formulas, so that all are over the same rows",
    "plain": "whether sums and answers leave that are neither secure nor noisy",
}
"""What each rule says, as ``federation init`` writes it into ``site.toml``."""


@dataclass(frozen=True)
class Disclosure:
    """The rules of one site, which hold where ``site.toml`` sets ``min_group`` above 1, or a guard of privacy.

    Attributes
    ----------
    min_level : int, default 5
        Rows that every level of a category, class of an outcome and cell of an interaction must have in what a sum
        covers, unless it has none.
    rows_per_column : int, default 10
        Rows that the site must have for each column of a formula, multiplied out.
    max_levels : int, default 40
        Most levels of a category in a formula.
    transforms, bases : tuple of str
        Functions of one column that a formula may hold. What they learn from rows elsewhere (centers, knots) they take
        from the site's schema.
    formulas_per_day : int, default 50
        Different formulas that are answered in a day.
    refusals_per_day : int, default 20
        Sums that are refused, or fail, for what rows hold, each of which tells one bit of them; after so many nothing
        leaves until the next day.
    min_sites : int, default 3
        Sites over which secure sums may be opened.
    works : tuple of str
        Patterns of works that may read a table; by default those of exact fits (:data:`SUMS`). Works of modules that
        ``allow`` names may, too.
    complete : tuple of str, default ()
        Columns without whose values a row is left out whatever the formula is. Formulas of these columns are then over
        the same rows, and no two of them differ by the few whose values are missing.
    plain : bool, default True
        Whether sums and answers may leave that are neither secure nor with noise.

    Notes
    -----
    Published defaults of DataSHIELD: cells and subsets of at least 3 rows, parameters at most .33 of rows, 40 levels.
    """

    min_level: int = 5
    rows_per_column: int = 10
    max_levels: int = 40
    transforms: tuple[str, ...] = TRANSFORMS
    bases: tuple[str, ...] = tuple(sorted(BASES))
    formulas_per_day: int = 50
    refusals_per_day: int = 20
    min_sites: int = 3
    works: tuple[str, ...] = SUMS
    complete: tuple[str, ...] = ()
    plain: bool = True

    def __post_init__(self) -> None:
        for rule in fields(self):
            value: Any = getattr(self, rule.name)
            if rule.name in MAY:
                known = MAY[rule.name]
                if isinstance(value, str) or not all(v in known for v in value):
                    raise CoterieError(f"{rule.name} must be a list of some of {listed(sorted(known), 20)}.")
                object.__setattr__(self, rule.name, tuple(value))
            elif rule.name in LISTS:
                value = (value,) if isinstance(value, str) else value
                if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
                    raise CoterieError(f"{rule.name} must be a list of {LISTS[rule.name]}, not {value!r}.")
                object.__setattr__(self, rule.name, tuple(value))
            elif rule.name == "plain":
                if not isinstance(value, bool):
                    raise CoterieError(f"plain must be true or false, not {value!r}.")
            elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise CoterieError(f"{rule.name} must be a whole number from 1, not {value!r}.")
