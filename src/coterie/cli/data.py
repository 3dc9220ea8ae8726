"""`coterie data`: real grouped tables to try coterie on."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.declared_options import Force, new_file
from coterie.cli.outputs import check_table, write_table
from coterie.cli.terminal import Group, say, width
from coterie.errors import CoterieError, plural
from coterie.families import DEFAULT

if TYPE_CHECKING:
    from coterie.data.datasets import Entry

_WIDE = 60  # columns of a terminal that has room for numbers beside sentences

app = Group("Real grouped tables to try coterie on; nothing is downloaded.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="A name that 'coterie data list' shows.")]


@app.command("list")
def list_tables() -> None:
    """List the tables that can be fetched."""
    from rich.console import Console
    from rich.table import Table

    from coterie.data.datasets import list_data

    grid = Table(box=None, pad_edge=False)
    grid.add_column("name", no_wrap=True)
    sizes = width() >= _WIDE
    for title in ("rows", "clients") if sizes else ():
        grid.add_column(title, justify="right", no_wrap=True)
    grid.add_column("what it is")
    for entry in list_data():
        numbers = (f"{entry.rows:,}", f"{entry.clients:,}") if sizes else ()
        grid.add_row(entry.name, *numbers, entry.title)
    Console(width=width(), markup=False, highlight=False).print(grid)
    print()
    say("'coterie data show NAME' says how to model a table.")


@app.command()
def show(name: Name) -> None:
    """Say what a table is, and which commands model it."""
    from coterie.data.datasets import describe

    entry = describe(name)
    for line in str(entry).splitlines():
        say(line, indent=" " * 11)
    print("\nTo model it:")
    for command in commands(entry):
        print(f"  {command}")


@app.command()
def fetch(
    name: Name,
    out: Annotated[
        Path | None, new_file("--out", "FILE", "A .csv, .csv.gz, .parquet or .feather file; NAME.csv by default.")
    ] = None,
    force: Force = False,
) -> None:
    """Write a table to a file."""
    from coterie.data.datasets import describe, fetch

    entry = describe(name)
    file = Path(f"{entry.name}.csv") if out is None else out
    if out is None and file.exists() and not force:
        raise CoterieError(f"'{file}' is there already; name another file with --out.")
    check_table(file, [], force, "data")
    df = fetch(entry.name)
    write_table(df, file, "data", f"Wrote {plural(len(df), 'row')} to {file}.")


def commands(entry: Entry) -> list[str]:
    """What to type to fetch and fit a table, with the options that its note names."""
    words = ["coterie", "fit", f"{entry.name}.csv", "--formula", entry.formula, "--client", entry.client]
    for column in entry.cluster:
        words += ["--cluster", column]
    if entry.family != DEFAULT:
        words += ["--family", entry.family]
    words += [word for option in re.findall(r"--[a-z-]+ \w+", entry.note) for word in option.split()]
    return [f"coterie data fetch {entry.name}", shlex.join([*words, "--out", f"{entry.name}-model"])]
