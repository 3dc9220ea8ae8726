"""`coterie advise`: whether a client should collaborate, and with whom."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli import options as o
from coterie.cli.common import Force, TablePath, check_table, need_room, ours, place, say, status, width, wrote
from coterie.cli.fit import told
from coterie.errors import CoterieError
from coterie.methods.collaboration.options import Options
from coterie.options import declared
from coterie.results.options import Columns
from coterie.results.options import Options as FitOptions

if TYPE_CHECKING:
    from coterie.results.advice import Advice

EXAMPLE = 'Example: coterie advise students.csv --formula "mAch ~ cses" --client school --cluster sector'

_ADVICE = "The advice"
For = Annotated[
    str | None,
    typer.Option("--for", metavar="CLIENT", help="Show the collaborators of this client.", rich_help_panel=_ADVICE),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", parser=place, metavar="FILE", help="Write a row for each client as .csv or .parquet, all columns."
    ),
]
Pairs = Annotated[
    Path | None,
    typer.Option(
        "--pairs", parser=place, metavar="FILE", help="Write a row for each client and collaborator, with weights."
    ),
]


_OWN = ("collaborators", "within", "prior")
OPTIONS = o.flags(Columns) | o.flags(FitOptions, "family", "splits", "test_fraction", "seed")
OPTIONS |= {
    name: o.flag(replace(one, option=replace(one.option, group=_ADVICE)))
    for name, one in declared(Options).items()
    if name in _OWN
}


@o.takes(OPTIONS)
def advise(
    context: typer.Context,
    table: TablePath,
    na_value: o.NaValue = None,
    main: For = None,
    out: Out = None,
    pairs: Pairs = None,
    force: Force = False,
) -> None:
    """Say with whom every client should collaborate, what that promises, and what held-out rows say of it."""
    for file in (out, pairs):
        if file is not None:
            check_table(file)
            need_room(file, [table], force, ours("advise"))
    if out is not None and pairs is not None and out.resolve() == pairs.resolve():
        raise CoterieError(f"--out and --pairs both name '{out}': they are two tables, so name two files.")
    advice = _read(context)
    from coterie.report.tables import advice_table, collaborators_table, render_text

    tables = [collaborators_table(advice, main)] if main is not None else []
    print()
    for each in (*tables, advice_table(advice)):
        print(render_text(each, width()))
    for sentence in advice.sentences:
        say(sentence)
    from coterie.data.table_files import write_table

    for file, frame in ((out, advice.clients.reset_index()), (pairs, advice.weights)):
        if file is not None:
            write_table(frame, file)
            wrote("advise", file)


def _read(context: typer.Context) -> Advice:
    """Read the table and ask for advice: what is left of the options are the arguments of coterie.advise."""
    mine = ("table", "out", "pairs", "main", "force")
    options: dict[str, Any] = {k: v for k, v in context.params.items() if k not in mine}
    options["cluster"] = tuple(options["cluster"] or ())
    options |= o.assignments("--prior", [f"prior={options['prior']}"])
    na_values = o.na_values(options.pop("na_value"))
    with status("Reading the table ..."):
        from coterie.data.table_files import read_table
        from coterie.results.advice import advise as advise_frame

        labels = [options["client"], *options["cluster"]]
        df = read_table(context.params["table"], labels, na_values)
    with told(df, context.params["table"], labels), status("Choosing collaborators ..."):
        return advise_frame(df, **options)
