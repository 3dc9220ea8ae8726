"""`coterie compare`: only the evidence, no model. A table's methods, or those that a configuration describes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli import options as o
from coterie.cli.common import TABLES, Force, check_page, check_table, new_file, place, say, write_table
from coterie.cli.fit import fit_table, inputs, print_comparison, say_notes
from coterie.errors import CoterieError
from coterie.options import declared
from coterie.results.options import Columns

EXAMPLE = 'Example: coterie compare students.csv --formula "mAch ~ cses" --client school --cluster sector'
_TRAINING = "Training from a configuration"

TableOrConfig = Annotated[
    Path,
    typer.Argument(parser=place, metavar="TABLE", help=f"{TABLES}; or a .toml file, as of coterie train."),
]
Out = Annotated[
    Path | None, new_file("--out", "FILE", "Write the comparison as .csv or .parquet, with all its columns.")
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
Report = Annotated[Path | None, new_file("--report", "FILE", "Write the report as .html.", _TRAINING)]

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
        check_table(out, inputs(table, context.params["network"]), force, "compare")
    of_training = {"methods", "report"}
    if training:
        why = "is a configuration, which says all that is trained"
        _refuse(context, {"table", "out", "force", *of_training}, f"'{table}' {why}")
        if report is not None:
            check_page(report, [table], force)
        compare_trained(table, methods, report, out)
        return
    _refuse(context, context.params.keys() - of_training, f"'{table}' is a table")
    for name in NEEDED:
        if context.params[name] is None:
            raise CoterieError(f"Missing option '--{name}'. See 'coterie compare --help'.")
    if context.params["splits"] == 0:
        raise CoterieError("A comparison needs at least one split.")
    result = fit_table(context)
    if result.comparison.empty:
        raise CoterieError(f"{result.reason} There is nothing to compare the methods on.")
    print_comparison(result)
    say_notes(result)
    if out is not None:
        write_table(result.comparison.reset_index(), out, "compare")


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
    from coterie.evidence.training_comparison import compare as over_seeds
    from coterie.report.training_page import write_report
    from coterie.runs.callbacks import callbacks
    from coterie.runs.config import read

    config = read(path)
    names = [n.strip() for n in (methods or config.method).split(",") if n.strip()]
    watching = callbacks(config)
    result = over_seeds(config, names, lambda what: [Progress(what), *watching])
    show(result)
    if out is not None:
        write_table(result.table.reset_index(), out, "compare")
    if report is not None:
        write_report(result, report)
        say(f"Report: {report}")
