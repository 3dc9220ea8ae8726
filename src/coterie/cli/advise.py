"""`coterie advise`: whether a client should collaborate, and with whom."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli import declared_options as o
from coterie.cli import fit_over_sites as sites
from coterie.cli.declared_options import Force, Place, new_file
from coterie.cli.fit_and_compare import TableOrConfig, kind_of, reading
from coterie.cli.outputs import check_table, write_table
from coterie.cli.terminal import found, say, width
from coterie.data.labels import encode
from coterie.deployment.federation_toml import LONGEST
from coterie.errors import CoterieError
from coterie.methods.collaboration.options import Options
from coterie.options import declared
from coterie.results.fit_options import Options as FitOptions

if TYPE_CHECKING:
    from coterie.results.advice import Advice


_ADVICE = "The advice"
OPTIONS = o.COLUMNS | o.flags(FitOptions, "family", "splits", "test_fraction", "order_by", "split_by", "seed")
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
Out = Annotated[
    Place | None, new_file("--out", "FILE", "Write a row for each client as .csv or .parquet, all columns.")
]
Pairs = Annotated[
    Place | None, new_file("--pairs", "FILE", "Write a row for each client and collaborator, with weights.")
]


@o.takes(OPTIONS)
def advise(
    context: typer.Context,
    table: TableOrConfig,
    na_value: o.NaValue = None,
    main: For = None,
    objective: sites.Objective = None,
    objective_option: sites.ObjectiveOption = None,
    rounds: sites.ObjectiveRounds = None,
    name: sites.RunName = None,
    timeout: sites.RunTimeout = LONGEST,
    as_json: o.Json = False,
    out: Out = None,
    pairs: Pairs = None,
    force: Force = False,
) -> None:
    """Say with whom every client should collaborate, what that promises, and what held-out rows say of it."""
    for file in filter(None, (out, pairs)):
        check_table(file, [table], force, "advise")
    if out is not None and pairs is not None and out.resolve() == pairs.resolve():
        raise CoterieError(f"--out and --pairs both name '{out}': they are two tables, so name two files.")
    advice = advised(context, table, main)
    from coterie.report.tables import advice_table, collaborators_table, render_text

    print()
    print(render_text(advice_table(advice), width()))
    for sentence in advice.sentences:
        say(sentence)
    clients = advice.clients.reset_index()
    found(clients=clients, weights=advice.weights, sentences=advice.sentences)
    if main is not None:  # at the end, since clients of nets are known when all is trained
        print()
        print(render_text(collaborators_table(advice, main), width()))
    for path, frame in ((out, clients), (pairs, advice.weights)):
        if path is not None:
            write_table(frame, path, "advise")


def advised(context: typer.Context, table: Path, main: str | None) -> Advice:
    """The advice on a table, a federation, or the nets of a configuration."""
    from coterie.api_advise import advise as advice_on
    from coterie.deployment.calls_over_sites import advice_in, result_in
    from coterie.deployment.coordinator.run_toml import advice_asked
    from coterie.results.make_advice import advise_on_nets
    from coterie.runs.config import AUTO

    kind = kind_of(context, table, {"main", "out", "pairs", "force", "as_json"})
    if kind == "configuration":
        return advice_on(str(table))
    if context.params["objective"] is not None:
        there = sites.carried(context, table, sites.nets_compared(context, table, [AUTO]))
        return advise_on_nets(result_in(there).evidence)  # type: ignore[union-attr]
    if alone := sorted({"objective_option", "rounds"} & o.given(context)):
        raise CoterieError(f"--{alone[0].replace('_', '-')} needs --objective.")
    options = {name: context.params[name] for name in OPTIONS}
    options["cluster"] = tuple(options["cluster"] or ())
    options |= o.assignments("--prior", [f"prior={options['prior']}"])
    if kind == "federation":
        given = {name: value for name, value in options.items() if name in o.given(context)}
        formula = given.pop("formula", None)
        return advice_in(sites.carried(context, table, advice_asked(formula, given)))
    from coterie.results.advice import client_position
    from coterie.results.make_advice import check_call

    columns = ("client", "offset", "weights")
    check_call(**{name: value for name, value in options.items() if name not in columns})
    formula = options.pop("formula")
    with reading(context.params, "Choosing collaborators ...") as df:
        if main is not None and (name := options["client"]) in df:
            client_position(encode(df[name]).labels, name, main)
        return advice_on(df, formula, **options)
