"""`coterie advise`: whether a client should collaborate, and with whom."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli import declared_options as o
from coterie.cli.declared_options import Force, TablePath, new_file
from coterie.cli.fit import reading
from coterie.cli.outputs import check_table, write_table
from coterie.cli.terminal import say, width
from coterie.deployment.federation_toml import is_federation
from coterie.errors import CoterieError
from coterie.methods.collaboration.options import Options
from coterie.options import declared
from coterie.results.fit_options import Columns
from coterie.results.fit_options import Options as FitOptions

EXAMPLE = 'Example: coterie advise students.csv --formula "mAch ~ cses" --client school --cluster sector'

_ADVICE = "The advice"
OPTIONS = o.flags(Columns) | o.flags(FitOptions, "family", "splits", "test_fraction", "seed")
OPTIONS |= {
    name: o.flag(replace(one, option=replace(one.option, group=_ADVICE)))
    for name, one in declared(Options).items()
    if name in ("collaborators", "within", "prior")
}
"""The arguments of :func:`coterie.advise` by their names."""

For = Annotated[
    str | None,
    typer.Option("--for", metavar="CLIENT", help="Show the collaborators of this client.", rich_help_panel=_ADVICE),
]
Out = Annotated[Path | None, new_file("--out", "FILE", "Write a row for each client as .csv or .parquet, all columns.")]
Pairs = Annotated[
    Path | None, new_file("--pairs", "FILE", "Write a row for each client and collaborator, with weights.")
]


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
    if is_federation(table):
        raise CoterieError(
            f"'{table}' is the folder of a federation, and advice is tried on held-out rows in one place: 'coterie fit "
            f"{table} --method weighted-averaging' chooses collaborators over its sites."
        )
    for file in filter(None, (out, pairs)):
        check_table(file, [table], force, "advise")
    if out is not None and pairs is not None and out.resolve() == pairs.resolve():
        raise CoterieError(f"--out and --pairs both name '{out}': they are two tables, so name two files.")
    options = {name: context.params[name] for name in OPTIONS}
    options["cluster"] = tuple(options["cluster"] or ())
    options |= o.assignments("--prior", [f"prior={options['prior']}"])
    from coterie.data.labels import encode
    from coterie.results.advice import advise as advise_frame
    from coterie.results.advice import check_call, client_position

    columns = ("client", "offset", "weights")
    check_call(**{name: value for name, value in options.items() if name not in columns})
    with reading(context.params, "Choosing collaborators ...") as df:
        if main is not None and (name := options["client"]) in df:
            client_position(encode(df[name]).labels, name, main)
        advice = advise_frame(df, **options)
    from coterie.report.tables import advice_table, collaborators_table, render_text

    tables = [collaborators_table(advice, main)] if main is not None else []
    print()
    for each in (*tables, advice_table(advice)):
        print(render_text(each, width()))
    for sentence in advice.sentences:
        say(sentence)
    for name, frame in ((out, advice.clients.reset_index()), (pairs, advice.weights)):
        if name is not None:
            write_table(frame, name, "advise")
