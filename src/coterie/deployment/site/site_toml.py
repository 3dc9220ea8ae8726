"""What a site's owner says in ``site.toml``, where no coordinator can widen it: data, works that may leave, disclosure.

The rules of disclosure, in the manner of DataSHIELD's settings, stand under ``[disclosure]``. What a formula may hold
is in :mod:`coterie.deployment.site.formula_grammar`, what has left in :mod:`coterie.deployment.site.disclosure`.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from coterie import files
from coterie.data.formula_expressions import BASES, STATEFUL, STATELESS
from coterie.deployment import toml_files
from coterie.deployment.federation_toml import SITE, check_name
from coterie.errors import CoterieError
from coterie.options import Checked, Option, declared

RULES = "the rules of its owner ([disclosure] in site.toml)"
MIN_GROUP = 5  # rows that a sum, or a client's reply, must cover to leave a site
SUMS = (
    "coterie.deployment.coordinator.identifiability:*",
    "coterie.deployment.site.holdout:*",
    "coterie.methods.clusterwise:*",
    "coterie.methods.local:*",
    "coterie.methods.tree.*",
)
"""Works of the exact fits and of their comparison: what they answer is added up over all rows of clients.

Those of other methods also say what a single row decides: a largest norm, a median, a step on some rows.
"""
_TRANSFORMS = (STATELESS | STATEFUL) - BASES - {"I"}
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*)?")
_ROWS = "Rows that a sum or reply must cover, and by which sums must differ."
_WORKS = "a list of patterns such as 'coterie.methods.*'"


@dataclass(frozen=True)
class Disclosure(Checked):
    """The rules of one site, which hold where ``site.toml`` sets ``min_group`` above 1, or a guard of privacy.

    What functions of a column learn from rows elsewhere (centers, knots) they take from the site's schema. Published
    defaults of DataSHIELD: cells and subsets of at least 3 rows, parameters at most .33 of rows, 40 levels.
    """

    min_level: Annotated[
        int, Option("rows of every level, class and cell of levels that a sum covers, unless none", low=1)
    ] = 5
    rows_per_column: Annotated[int, Option("rows that a site must have for each column of a formula", low=1)] = 10
    max_levels: Annotated[int, Option("levels of a category in a formula", low=1)] = 40
    transforms: Annotated[
        tuple[str, ...], Option("functions of one column that a formula may hold", choices=sorted(_TRANSFORMS))
    ] = ("center", "exp", "log", "log10", "log2", "scale", "sqrt", "standardize")
    bases: Annotated[
        tuple[str, ...],
        Option("splines and polynomials of one column, over the range in schema.toml", choices=sorted(BASES)),
    ] = tuple(sorted(BASES))
    formulas_per_day: Annotated[int, Option("different formulas that are answered in a day (UTC)", low=1)] = 50
    refusals_per_day: Annotated[
        int, Option("sums refused for what rows hold, after which nothing leaves until the next day (UTC)", low=1)
    ] = 20
    min_sites: Annotated[int, Option("sites over which a secure sum may be opened", low=1)] = 3
    works: Annotated[
        tuple[str, ...],
        Option(
            "works that a table is answered to; others say what single rows decide, such as the longest", what=_WORKS
        ),
    ] = SUMS
    complete: Annotated[
        tuple[str, ...],
        Option(
            "columns without whose values a row is left out of all formulas, so that all are over the same rows",
            what="a list of columns",
        ),
    ] = ()
    plain: Annotated[bool, Option("whether sums and answers leave that are neither secure nor noisy")] = True


def _modules(names: tuple[str, ...]) -> tuple[str, ...]:
    if not all(map(_MODULE.fullmatch, names)):
        raise ValueError
    return names


@dataclass(frozen=True)
class Member(Checked):
    """``site.toml``: what one site's owner says, which nobody else can change.

    Nothing but what ``allow`` names is ever imported because a message says so. Which works a program asks for,
    ``coterie federation preview`` lists. With ``min_group`` 1 and no ``[privacy]``, formulas and sums are bound by no
    rules of disclosure.
    """

    name: Annotated[str, Option("One of the federation's sites.", read=lambda name: check_name("site", name))]
    data: Annotated[str, Option("Its table, or text for an objective of its own.", what="the path of a table")] = ""
    min_group: Annotated[int, Option(_ROWS, low=1, metavar="ROWS")] = MIN_GROUP
    allow: Annotated[
        tuple[str, ...],
        Option(
            "Objectives that a run may ask for, and modules whose works it may name.",
            read=_modules,
            what="a list of 'module' or 'module:function'",
            metavar="MODULE:FUNCTION",
        ),
    ] = ()
    ask: Annotated[tuple[str, ...], Option("Works that may be answered client by client.", what=_WORKS)] = ("*",)
    total: Annotated[tuple[str, ...], Option("Works whose sums may leave.", what=_WORKS)] = ("*",)
    privacy: Annotated[dict[str, Any], Option("Of a privacy guard: engines.privacy.Guard.")] = field(
        default_factory=dict
    )
    disclosure: Annotated[Disclosure, Option("Rules of disclosure.")] = Disclosure()

    @classmethod
    def read(cls, folder: str | Path) -> Member:
        """From a site's folder; a CoterieError says what is missing or wrong."""
        return toml_files.into(cls, files.local(folder) / SITE, "a site's configuration")

    def write(self, folder: str | Path) -> None:
        """Write ``site.toml`` into a site's folder."""
        said = {name: value for name, value in asdict(self).items() if value != {}}
        remarks = {name: rule.option.text for name, rule in declared(Disclosure).items()}
        head = "What the owner of this site's data allows; it stays here."
        toml_files.write(files.local(folder) / SITE, said, head, remarks)

    @property
    def guarded(self) -> bool:
        """Whether rules of disclosure hold."""
        return self.min_group > 1 or bool(self.privacy)

    def need(self, kind: str, work: Any) -> None:
        """A CoterieError unless the owner lets the answers of ``work`` leave by "ask" or by "total"."""
        patterns = self.ask if kind == "ask" else self.total
        if not any(fnmatchcase(str(work), pattern) for pattern in patterns):
            raise CoterieError(f"The owner does not let answers to {work} leave by {kind}: see {kind} in {SITE}.")

    def need_sum(self, work: str) -> None:
        """A CoterieError unless the owner's rules let ``work`` read a table."""
        mine = {entry.partition(":")[0] for entry in self.allow}
        if work.partition(":")[0] not in mine and not any(fnmatchcase(work, p) for p in self.disclosure.works):
            raise self._no_reader(work)

    def need_some(self, start: str) -> None:
        """A CoterieError unless the owner's rules let some work whose name begins so read a table."""
        if not any(p.startswith(start) or fnmatchcase(start, p) for p in self.disclosure.works):
            raise self._no_reader(f"{start}*")

    def _no_reader(self, work: str) -> CoterieError:
        return CoterieError(
            f"The owner does not let {work} read a table, as it may tell of rows: see works of [disclosure] in {SITE}."
        )

    def table(self, folder: Path) -> Path:
        """The site's data file; a CoterieError unless it is there."""
        if not self.data:
            raise CoterieError(f"There are no data: name the table in '{folder / SITE}' (data = \"...\").")
        path = (folder / files.local(self.data)).resolve()
        if not path.is_file():
            raise CoterieError(f"There is no file '{path}': correct data in '{folder / SITE}'.")
        return path
