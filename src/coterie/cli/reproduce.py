"""`coterie reproduce`: tables and figures of the papers, made again."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.common import Force, check_folder, need_room, ours, place, say, width, wrote
from coterie.errors import CoterieError

if TYPE_CHECKING:
    from coterie.reproduce.outcome import Outcome

EXAMPLE = "Example: coterie reproduce 001/table1 --quick --json table1.json"


def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="What to reproduce; without it, all names are listed.")
    ] = None,
    numbers: Annotated[
        Path | None,
        typer.Option("--json", parser=place, metavar="FILE", help="Write every number, with settings and versions."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", parser=place, metavar="FOLDER", help="Where the figure goes, as NAME.svg.")
    ] = Path("build/reproduce"),
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", metavar="N", help="Independent runs; by default as many as the paper made."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A smaller experiment in seconds: fewer runs, steps or clients.")
    ] = False,
    force: Force = False,
) -> None:
    """Make a table or figure of a paper again, and print the paper's numbers beside those found."""
    if name is None:
        if quick or force or seeds is not None or numbers is not None:
            raise CoterieError("Options are for one experiment: name it. 'coterie reproduce' alone lists them.")
        list_experiments()
        return
    from coterie.reproduce.outcome import Settings, figure_file, write
    from coterie.reproduce.pictures import need_matplotlib
    from coterie.reproduce.registry import find

    experiment = find(name)
    if seeds is not None and seeds < 1:
        raise CoterieError("--seeds must be at least 1.")
    check_folder(out)
    if numbers is not None:
        check_file(numbers)
        if numbers.absolute() == out.absolute():
            raise CoterieError(f"--json and --out both name '{out}': one is a file, the other a folder.")
        need_room(numbers, [], force, ours("reproduce"))
    need_room(figure_file(experiment.name, out), [], force, ours("reproduce"))
    need_matplotlib()
    start = perf_counter()
    with progress(f"{experiment.name} (about {experiment.time}) ...") as tell:
        outcome = experiment.run(Settings(seeds, quick, tell))
    outcome = replace(outcome, settings={**outcome.settings, "quick": quick})
    print_tables(experiment.what, outcome)
    for file in write(experiment.name, outcome, perf_counter() - start, out, numbers):
        wrote("reproduce", file)


def list_experiments() -> None:
    """Every name, what it is, and about how long it takes."""
    from rich.console import Console
    from rich.table import Table

    from coterie.reproduce.registry import experiments

    grid = Table(box=None, pad_edge=False)
    grid.add_column("name", no_wrap=True)
    grid.add_column("what it is")
    grid.add_column("takes about", no_wrap=True)
    for experiment in experiments():
        grid.add_row(experiment.name, experiment.what, experiment.time)
    Console(width=width(), markup=False, highlight=False).print(grid)
    print()
    say("'coterie reproduce NAME' prints paper against ours and draws a figure.")


def print_tables(what: str, outcome: Outcome) -> None:
    """The tables as wide as the terminal, and what a reader must know to compare."""
    from coterie.report.tables import render_text

    say(f"{what}: the paper's numbers and those found here.")
    for table in outcome.tables:
        print()
        say(table.title)
        print(render_text(table, width()), end="")
    print()
    for note in outcome.notes:
        say(f"Note: {note}")


def check_file(file: Path) -> None:
    """Refuse a file that cannot be written before any work."""
    if file.is_dir():
        raise CoterieError(f"'{file}' is a folder; --json names a file.")
    if not file.parent.is_dir():
        raise CoterieError(f"There is no folder '{file.parent}' to write '{file.name}' to.")
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise CoterieError(f"'{file}' cannot be written: permission denied in '{file.parent}'.")


@contextmanager
def progress(text: str) -> Iterator[Callable[[str], None]]:
    """Show a person how far it is; what is yielded takes the words."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status(text) as line:
        yield lambda now: line.update(f"{text} {now}")
