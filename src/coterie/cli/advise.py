"""`coterie advise`: whether a client should collaborate, and with whom."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli import options as o
from coterie.cli.common import Force, TablePath, check_table, need_room, ours, place, say, status, width, wrote
from coterie.cli.fit import told
from coterie.errors import CoterieError

if TYPE_CHECKING:
    from coterie.results.advice import Advice

EXAMPLE = 'Example: coterie advise students.csv --formula "mAch ~ cses" --client school --cluster sector'

_ADVICE = "The advice"
Collaborators = Annotated[
    int,
    typer.Option("--collaborators", metavar="N", help="Collaborators of a client at most.", rich_help_panel=_ADVICE),
]
Within = Annotated[
    str,
    typer.Option(
        "--within",
        metavar="WHERE",
        help="all, or cluster: where collaborators are looked for.",
        rich_help_panel=_ADVICE,
    ),
]
Prior = Annotated[
    str,
    typer.Option(
        "--prior",
        metavar="ROWS",
        help="Rows that pull models to the pooled one: auto (up to 1, none for gaussian), none, or a number.",
        rich_help_panel=_ADVICE,
    ),
]
For = Annotated[
    str | None,
    typer.Option("--for", metavar="CLIENT", help="Show the collaborators of this client.", rich_help_panel=_ADVICE),
]
Splits = Annotated[
    int,
    typer.Option(
        "--splits",
        metavar="N",
        help="Repeated splits inside each client; 0 measures nothing.",
        rich_help_panel="The evidence",
    ),
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


def advise(
    context: typer.Context,
    table: TablePath,
    formula: o.Formula,
    client: o.Client,
    cluster: o.Cluster = None,
    family: o.Family = "gaussian",
    collaborators: Collaborators = 10,
    within: Within = "all",
    prior: Prior = "auto",
    main: For = None,
    offset: o.Offset = None,
    weights: o.Weights = None,
    missing: o.Missing = "error",
    na_value: o.NaValue = None,
    splits: Splits = 5,
    test_fraction: o.TestFraction = 0.25,
    seed: o.Seed = 0,
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
    from coterie.report.advice import advice_table, collaborators_table
    from coterie.report.tables import render_text

    tables = [collaborators_table(advice, main)] if main is not None else []
    print()
    for each in (*tables, advice_table(advice)):
        print(render_text(each, width()))
    for sentence in advice.sentences:
        say(sentence)
    from coterie.data.table import write_table

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
        from coterie.data.table import read_table
        from coterie.results.advice import advise as advise_frame

        labels = [options["client"], *options["cluster"]]
        df = read_table(context.params["table"], labels, na_values)
    with told(df, context.params["table"], labels), status("Choosing collaborators ..."):
        return advise_frame(df, **options)
