"""``python -m papers``: tables and figures of the papers, made again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

from coterie.cli.declared_options import place
from coterie.cli.main import main as run
from coterie.cli.outputs import OUTPUTS, check_folder
from coterie.cli.terminal import Commands, say, width
from coterie.report.tables import render_text
from papers.outcome import Outcome, Settings, write
from papers.pictures import need_matplotlib
from papers.registry import Experiment, experiments, find

app = Commands(add_completion=False)


@app.command(epilog="Example: python -m papers 001/table1 --quick")
def papers(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="What to make; without a name, all are listed.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Make all of them: about half an hour.")] = False,
    out: Annotated[
        Path, typer.Option("--out", parser=place, metavar="FOLDER", help="Where figures and numbers go.")
    ] = Path("build/papers"),
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", min=1, metavar="N", help="Independent runs; by default as many as the paper made."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A smaller experiment in seconds: fewer runs, steps or clients.")
    ] = False,
) -> None:
    """Make tables and figures of the papers again, and print the papers' numbers beside those found.

    Each writes a figure, NAME.svg, and every number with its settings and versions, NAME.json.
    """
    chosen = experiments() if every else tuple(find(name) for name in names or ())
    if not chosen:
        list_experiments()
        return
    check_folder(out)
    need_matplotlib()
    for experiment in chosen:
        make(experiment, seeds, quick, out)


def make(experiment: Experiment, seeds: int | None, quick: bool, out: Path) -> None:
    """Run an experiment, print its tables, and write its figure and numbers."""
    start = perf_counter()
    with progress(f"{experiment.name} (about {experiment.time}) ...") as tell:
        outcome = experiment.run(Settings(seeds, quick, tell))
    outcome = replace(outcome, settings={**outcome.settings, "quick": quick})
    print_tables(experiment.what, outcome)
    for file in write(experiment.name, outcome, perf_counter() - start, out):
        OUTPUTS.append((file, None))
        say(f"Written to {file}.")


def list_experiments() -> None:
    """Every name, what it is, and about how long it takes."""
    from rich.console import Console
    from rich.table import Table

    grid = Table(box=None, pad_edge=False)
    grid.add_column("name", no_wrap=True)
    grid.add_column("what it is")
    grid.add_column("takes about", no_wrap=True)
    for experiment in experiments():
        grid.add_row(experiment.name, experiment.what, experiment.time)
    Console(width=width(), markup=False, highlight=False).print(grid)


def print_tables(what: str, outcome: Outcome) -> None:
    """The tables as wide as the terminal, and what a reader must know to compare."""
    say(f"{what}: the paper's numbers and those found here.")
    for table in outcome.tables:
        print()
        say(table.title)
        print(render_text(table, width()), end="")
    print()
    for note in outcome.notes:
        say(f"Note: {note}")


@contextmanager
def progress(text: str) -> Iterator[Callable[[str], None]]:
    """Show a person how far it is; what is yielded takes the words."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status(text) as line:
        yield lambda now: line.update(f"{text} {now}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and leave with its exit code, as every command of coterie does."""
    run(arguments, app, "python -m papers")


if __name__ == "__main__":
    main()
