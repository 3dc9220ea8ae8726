"""`coterie compare`: only the evidence, no model. A table's methods, or those that a configuration describes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli import options as o
from coterie.cli.common import Force, check_table, need_room, our_page, ours, place, say, wrote
from coterie.cli.fit import fit_table, inputs, print_comparison, say_notes
from coterie.errors import CoterieError
from coterie.options import declared
from coterie.results.options import Columns

EXAMPLE = 'Example: coterie compare students.csv --formula "mAch ~ cses" --client school --cluster sector'
_TRAINING = "Training from a configuration"

TableOrConfig = Annotated[
    Path,
    typer.Argument(
        parser=place,
        metavar="TABLE",
        help="CSV, TSV (also .gz), Parquet, Feather or NPZ; or a .toml file, as of coterie train.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", parser=place, metavar="FILE", help="Write the comparison as .csv or .parquet, with all its columns."
    ),
]
Methods = Annotated[
    str | None,
    typer.Option(
        "--methods",
        metavar="NAMES",
        help="Methods with commas between them, or all; local and pooled are always in.",
        rich_help_panel=_TRAINING,
    ),
]
Report = Annotated[
    Path | None,
    typer.Option(
        "--report", parser=place, metavar="FILE", help="Write the report as .html.", rich_help_panel=_TRAINING
    ),
]


NEEDED = ("formula", "client")
OPTIONS = {name: p for name, p in o.FIT.items() if name not in ("method", "rounds")}
OPTIONS |= {name: o.optional(declared(Columns)[name], " A table needs it.") for name in NEEDED}


@o.takes(OPTIONS)
def compare(
    context: typer.Context,
    table: TableOrConfig,
    na_value: o.NaValue = None,
    methods: Methods = None,
    report: Report = None,
    out: Out = None,
    force: Force = False,
) -> None:
    """Compare the methods on held-out rows of every client; no model is kept."""
    training = table.suffix.lower() == ".toml"
    if out is not None:
        check_table(out)
        need_room(out, inputs(table, context.params["network"]), force, ours("compare"))
    if report is not None:
        need_room(report, [table], force, our_page)
    of_training = {"methods": methods, "report": report}
    if training:
        why = "is a configuration, which says all that is trained"
        _refuse(context, {"table", "out", "force", *of_training}, f"'{table}' {why}")
        compare_trained(table, methods, report, out)
        return
    _refuse(context, context.params.keys() - of_training, f"'{table}' is a table")
    for name in NEEDED:
        if context.params[name] is None:
            raise CoterieError(f"Missing option '--{name}'. See 'coterie compare --help'.")
    if context.params["splits"] == 0:
        raise CoterieError("A comparison needs at least one split.")
    for name in of_training:
        context.params.pop(name)
    result = fit_table(context)
    if result.comparison.empty:
        raise CoterieError(f"{result.reason} There is nothing to compare the methods on.")
    print_comparison(result)
    say_notes(result)
    if out is not None:
        from coterie.data.table_files import write_table

        write_table(result.comparison.reset_index(), out)
        wrote("compare", out)


def _refuse(context: typer.Context, allowed: set[str], why: str) -> None:
    """A CoterieError for options that were given and have no meaning here."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if wrong := [f"--{name.replace('_', '-')}" for name in given if name not in allowed]:
        raise CoterieError(f"{why}: leave out {', '.join(wrong)}.")


def compare_trained(path: Path, methods: str | None, report: Path | None, out: Path | None) -> None:
    """Train methods on every seed of a configuration, and show how they compare."""
    from coterie.cli.progress import Progress
    from coterie.cli.train import show
    from coterie.data.table_files import write_table
    from coterie.evidence.compare_trainings import compare as over_seeds
    from coterie.report.training_page import write_report
    from coterie.runs.callbacks import callbacks
    from coterie.runs.config import read

    if report is not None and report.suffix.lower() not in (".html", ".htm"):
        raise CoterieError(f"'{report.name}' does not end in .html; the report is a page for a browser.")
    config = read(path)
    names = [n.strip() for n in (methods or config.method).split(",") if n.strip()]
    watching = callbacks(config)
    result = over_seeds(config, names, lambda what: [Progress(what), *watching])
    show(result)
    if out is not None:
        write_table(result.table.reset_index(), out)
        wrote("compare", out)
    if report is not None:
        write_report(result, report)
        say(f"Report: {report}")
