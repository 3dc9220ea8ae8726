"""What there is to use: `coterie methods`, all methods or one in detail, and `coterie data`, real grouped tables."""

from __future__ import annotations

import inspect
import re
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from coterie.cli import declared_options as o
from coterie.cli.declared_options import Force, Place, new_file, place
from coterie.cli.outputs import check_table, write_table
from coterie.cli.terminal import Group, found, say, width
from coterie.errors import CoterieError, nearest, plural
from coterie.families import DEFAULT
from coterie.methods.method import Method
from coterie.methods.registry import METHODS
from coterie.options import declared
from coterie.results.fit_options import Columns
from coterie.status_line import status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coterie.data.datasets import Entry


_TABLE = "A table"
COLUMNS = {
    name: o.optional(declared(Columns)[name], "") if name in o.NEEDED else o.flag(declared(Columns)[name])
    for name in ("formula", "client", "cluster")
}

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME", help="A method, to see its options and its paper.", autocompletion=o.complete_method
    ),
]
Model = Annotated[
    Literal["table", "torch"] | None,
    typer.Option("--model", help="Those for a table with a formula, or for a net; and why others are not."),
]
Engine = Annotated[
    Literal["inprocess", "loopback", "ray", "sites"] | None,
    typer.Option(
        "--engine", help="Those that run where the rows are, on any engine, or over sites whose rows stay with them."
    ),
]
Table = Annotated[
    Place | None,
    typer.Option("--table", parser=place, metavar="FILE", help="A table, to see which apply.", rich_help_panel=_TABLE),
]


@o.takes(COLUMNS)
def methods(
    context: typer.Context,
    name: Name = None,
    model: Model = None,
    engine: Engine = None,
    table: Table = None,
    as_json: o.Json = False,
) -> None:
    """List the methods: what each is, what it needs, what it runs on; or all about one of them."""
    if name is not None and name not in METHODS:
        raise CoterieError(f"There is no method called '{name}'.{nearest(name, METHODS) or ' See coterie methods.'}")
    some = [METHODS[name]] if name is not None else list(METHODS.values())
    wrong = not_applicable(context, table, some) if table is not None else {}
    for method in some:
        kind = model or ("table" if table is not None or method.fits else "torch")
        why = method.why_not(kind, engine == "sites")
        if why is not None:
            wrong.setdefault(method.name, why)
    if name is not None:
        detail(METHODS[name])
    elif shown := [method for method in some if method.name not in wrong]:
        from coterie.report.tables import Table as Lines
        from coterie.report.tables import render_text

        columns = ("method", "what it is", "for", "needs")
        rows = tuple((m.name, m.summary, runs_on(m), m.needs or "–") for m in shown)
        print(render_text(Lines("", columns, rows, texts=4), width()), end="")
        found(methods=[dict(zip(columns, row, strict=True)) for row in rows])
    found(not_here=wrong)
    for why in wrong.values():
        say(f"Not here: {why}")


def runs_on(method: Method) -> str:
    """The models that a method is for."""
    return " and ".join([*["tables"] * bool(method.fits), *["nets"] * bool(method.trains)])


def not_applicable(context: typer.Context, table: Path, some: list[Method]) -> dict[str, str]:
    """Why methods do not apply to a table, by name."""
    from coterie.api import prepared
    from coterie.results.table_fit import why_not

    o.need_columns(context)
    fitting = prepared(table, **{key: context.params[key] or () for key in COLUMNS})
    problem, _ = fitting.problem()
    each = {m.name: why_not(m.name, problem, fitting.clients, False) for m in some if m.fits}
    return {name: why for name, why in each.items() if why is not None}


def detail(method: Method) -> None:
    """All about one method."""
    say(f"{method.name}: {method.summary}.")
    say(f"Paper: {method.paper}")
    say(f"Needs: {method.needs or 'nothing beside rows and their clients'}.")
    say(f"For: {runs_on(method)}. {' '.join(method.not_for.values())}")
    found(method=method.name, what=method.summary, paper=method.paper, needs=method.needs, runs_on=runs_on(method))
    options: dict[str, dict[str, Any]] = {}
    for title, inner in groups(method):
        print()
        say(f"{title}:")
        for key, one in inner.items():
            default = method.defaults.get(key, one.default) if "net" in title else one.default
            say(f"  {key} ({one.allowed}; {shown(default)}): {one.option.text}", indent="    ")
            known = {"allowed": one.allowed, "default": shown(default), "text": one.option.text}
            options.setdefault(title, {})[key] = known
    found(options=options)


def groups(method: Method) -> Iterator[tuple[str, dict[str, Any]]]:
    """The declared options of a method over rounds: of its fit of a table, and of its training."""
    if method.rounds:
        yield "Over rounds, on a table", declared(method.options_of_fit)
    if method.trains:
        own = declared(method.method_class)
        yield (
            "Over rounds, on a net" + " or a table" * bool(method.fits),
            {key: own[key] for key in method.hyper_parameters if key in own},
        )


def shown(value: Any) -> str:
    """A default in words."""
    return "needed" if value is inspect.Parameter.empty else f"{value!r} by default"


_WIDE = 60  # columns of a terminal that has room for numbers beside sentences

app = Group("Real grouped tables to try coterie on; nothing is downloaded.")


def complete_table(incomplete: str) -> list[str]:
    """Names of tables that begin so, for a shell that completes them."""
    from coterie.data.datasets import list_data

    return [entry.name for entry in list_data() if entry.name.startswith(incomplete)]


DataName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A name that 'coterie data list' shows.", autocompletion=complete_table),
]


@app.command("list")
def list_tables(as_json: o.Json = False) -> None:
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
    found(tables=[asdict(entry) for entry in list_data()])
    Console(width=width(), markup=False, highlight=False).print(grid)
    print()
    say("'coterie data show NAME' says how to model a table.")


@app.command()
def show(name: DataName, as_json: o.Json = False) -> None:
    """Say what a table is, and which commands model it."""
    from coterie.data.datasets import describe

    entry = describe(name)
    found(**asdict(entry), commands=commands(entry))
    for line in str(entry).splitlines():
        say(line, indent=" " * 11)
    print("\nTo model it:")
    for command in commands(entry):
        print(f"  {command}")


@app.command()
def fetch(
    name: DataName,
    out: Annotated[
        Place | None, new_file("--out", "FILE", "A .csv, .csv.gz, .parquet or .feather file; NAME.csv by default.")
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
    with status(f"Reading {entry.name} ..."):
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
