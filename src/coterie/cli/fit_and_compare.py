"""`coterie fit` and `coterie compare`: from a table to the best model for every client, or the evidence alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from coterie.cli import declared_options as o
from coterie.cli import fit_and_compare_nets as nets
from coterie.cli import fit_over_sites as sites
from coterie.cli.declared_options import TABLES, Force, Place, new_file, own_option, place
from coterie.cli.outputs import (
    check_folder,
    check_page,
    check_table,
    need_room,
    our_document,
    our_page,
    write_fit,
    write_table,
)
from coterie.cli.terminal import found, say, width
from coterie.deployment.federation_toml import LONGEST, is_federation
from coterie.errors import CoterieError, plural
from coterie.status_line import status

if TYPE_CHECKING:
    import pandas as pd

    from coterie.evidence.training_comparison import TrainingComparison
    from coterie.results.fit_result import FitResult

TableOrConfig = Annotated[
    Place, typer.Argument(parser=place, metavar="ROWS", help=f"{TABLES}; a federation's folder; or a configuration.")
]
OPTIONS = o.FIT | {"engine": o.ENGINE}
"""The arguments of :func:`coterie.fit` for a table by their names."""
BytesPerUpdate = Annotated[
    int | None,
    own_option(
        "--bytes-per-update",
        "N",
        "Let similarity-network compress every update of a client to so many bytes.",
        "Over rounds",
    ),
]

Summary = Annotated[
    bool, typer.Option("--summary", help="Print coefficients with tests, variances with intervals, AIC and BIC.")
]


@o.takes(OPTIONS)
def fit(
    context: typer.Context,
    table: TableOrConfig,
    na_value: o.NaValue = None,
    bytes_per_update: BytesPerUpdate = None,
    methods: nets.Methods = None,
    resume: nets.Resume = False,
    strict: nets.Strict = False,
    objective: sites.Objective = None,
    objective_option: sites.ObjectiveOption = None,
    name: sites.RunName = None,
    timeout: sites.RunTimeout = LONGEST,
    as_json: o.Json = False,
    summary: Summary = False,
    out: Annotated[
        Place | None, new_file("--out", "DIR", "Folder for the model and report.html; nothing is written without it.")
    ] = None,
    force: Force = False,
) -> None:
    """Find the best model for every client, and show that it is the best."""
    kind = kind_of(context, table, {"out", "force", "methods", "summary", "as_json", *nets.OWN})
    if kind == "configuration" and of_nets(table):
        there = sites.of_configuration(context, table, nets.names(methods))
        return nets.fit_nets(table, methods, out, resume, strict, force, there)
    read = inputs(table, context.params["network"])
    if out is not None:
        check_folder(out)
        need_room(out / "model.json", read, force, our_document("coterie model"), "another folder")
        need_room(out / "report.html", read, force, our_page, "another folder")
    asked = nets.names(methods)
    if kind != "federation":
        show(fit_rows(context, kind, asked), out, force, summary=summary)
        return
    run, result = sites.run(context, table, asked)
    if result is None:
        return
    if is_of_nets(result):
        return nets.keep(result, out)
    show(result, out, force, run / "result", summary)


@o.takes({name: one for name, one in OPTIONS.items() if name != "method"})
def compare(
    context: typer.Context,
    table: TableOrConfig,
    na_value: o.NaValue = None,
    methods: nets.Methods = None,
    report: nets.Report = None,
    objective: sites.Objective = None,
    objective_option: sites.ObjectiveOption = None,
    name: sites.RunName = None,
    timeout: sites.RunTimeout = LONGEST,
    as_json: o.Json = False,
    out: Annotated[
        Place | None, new_file("--out", "FILE", "Write the comparison as .csv or .parquet, with all its columns.")
    ] = None,
    force: Force = False,
) -> None:
    """Compare the methods on held-out rows of every client; no model is kept."""
    if out is not None:
        check_table(out, inputs(table, context.params["network"]), force, "compare")
    if report is not None:
        check_page(report, [table], force)
    kind = kind_of(context, table, {"out", "force", "methods", "report", "as_json"})
    if kind == "configuration" and of_nets(table):
        trained = nets.compare_nets(table, methods, sites.of_configuration(context, table, nets.names(methods)))
        return keep_nets(trained, out, report)
    if context.params["splits"] == 0:
        raise CoterieError("A comparison needs at least one split.")
    asked = nets.names(methods) or ["auto"]
    over_sites = kind == "federation"
    result: Any = sites.run(context, table, asked)[1] if over_sites else fit_rows(context, kind, asked)
    if is_of_nets(result):
        nets.show(result.evidence)
        return keep_nets(result.evidence, out, report)
    if result.comparison.empty:
        why = f"{result.reason} There is nothing to compare the methods on."
        raise CoterieError(result.notes[-1] if over_sites else why)
    print_comparison(result)
    say_notes(result)
    if out is not None:
        write_table(result.comparison.reset_index(), out, "compare")
    if report is not None:
        result.report(report)
        say(f"Report: {report}")


def is_of_nets(result: Any) -> bool:
    """Whether what came back from sites are nets."""
    from coterie.results.training_result import TrainingResult

    return isinstance(result, TrainingResult)


def keep_nets(trained: TrainingComparison, out: Path | None, report: Path | None) -> None:
    """Keep what is asked for of nets that were compared."""
    if out is not None:
        write_table(trained.table.reset_index(), out, "compare")
    if report is not None:
        from coterie.report.training_page import write_report

        write_report(trained, report)
        say(f"Report: {report}")
    nets.need_finite(trained)


def show(result: FitResult, out: Path | None, force: bool, lies: Path | None = None, summary: bool = False) -> None:
    """Keep what is asked for, and say what was found, and where it ``lies``; with its summary, if that is wanted."""
    from coterie.report.words import one

    if out is not None:
        with status("Writing the report ..."):
            write_fit(result, out, force)
    print_comparison(result)
    print()
    explain(result)
    print()
    found(method=result.method, recommended=result.recommended, reason=result.reason)
    if summary:
        from coterie.report.tables import summary_text

        whole = result.summary()
        print(f"{summary_text(whole, width())}\n")
        found(coefficients=whole.coefficients, variances=whole.variances)
    if out is None and lies is not None:
        say(f"Model:  {lies}")
        say("Report: add --out DIR for it, or make it with 'coterie report'.")
    elif out is None:
        say("Nothing was written: add --out DIR for the model and its report.")
    else:
        say(f"Model:  {out}")
        say(f"Report: {out / 'report.html'}")
        found(model=out, report=out / "report.html")
    if result.merged is not None and result.merged.nunique() < len(result.merged):
        noun = one(result.model.client_name)
        where = "add --out DIR for the report, which" if out is None else "the report"
        say(f"Groups: {where} lists who is in which; in Python, result.merged has the group of every {noun}.")


def kind_of(context: typer.Context, rows: Path, outputs: set[str]) -> str:
    """What rows are: a configuration, a federation, or a table.

    A CoterieError for an option that goes with other rows; ``outputs`` are those that go with a configuration.
    """
    known, all_of_it = context.params.keys(), "a configuration, which says all that is fitted"
    kind, what, own = "table", "a table", known - nets.OWN - sites.OWN
    if rows.suffix.lower() == ".toml":
        kind, what, own = "configuration", all_of_it, {"table", *outputs}
        own -= set() if of_nets(rows) else nets.OWN
        own |= {"name", "timeout"} if sites.source(rows) else set()
    elif is_federation(rows):
        kind, what, own = "federation", "the folder of a federation", known - nets.OWN - sites.NOT_HERE
    typed = {one.name: max(one.opts, key=len) for one in context.command.params}
    if wrong := [typed[name] for name in context.params if name in o.given(context) - own]:
        raise CoterieError(f"'{rows}' is {what}: leave out {', '.join(wrong)}.")
    if kind == "table":
        o.need_columns(context)
    return kind


def fit_rows(context: typer.Context, kind: str, methods: list[str] | None) -> FitResult:
    """Read a table and fit it, whose options are the arguments of coterie.fit; or the one of a configuration."""
    if kind == "configuration":
        with status("Comparing the methods ..."):
            return _fitted(str(context.params["table"]), methods=methods)
    options = o.arguments(context.params)
    with status("Checking what is asked for ..."):
        from coterie.api import check_call
        from coterie.engines.local_engines import actors_read

        check_call(methods=methods, **options)
    if actors_read(context.params["table"], options.get("engine"), options.get("splits"), methods):
        return _fitted(context.params["table"], options.pop("formula"), methods=methods, **options)
    with reading(context.params, "Comparing the methods ...") as df:
        return _fitted(df, options.pop("formula"), methods=methods, **options)


def _fitted(*arguments: Any, methods: list[str] | None, **options: Any) -> FitResult:
    from coterie import api

    made = api.compared(*arguments, methods=methods, **options) if methods else api.fit(*arguments, **options)
    return cast("FitResult", made)


def of_nets(path: Path) -> bool:
    """Whether a configuration has no formula."""
    from coterie.results.call_as_config import is_of_table
    from coterie.runs.config import document

    return not is_of_table(document(path))


@contextmanager
def reading(params: dict[str, Any], doing: str) -> Iterator[pd.DataFrame]:
    """The table of a command; what was read is said as soon as it is checked, before the first method is fitted."""
    labels = [params["client"], *(params["cluster"] or ())]
    split_by = [params["split_by"]] if params.get("split_by") is not None else []
    with status("Reading the table ..."):
        from coterie.data.table_files import read_table
        from coterie.numerics.arrays import kept
        from coterie.objectives.row_kernels import totals
        from coterie.runs.run_table_method import STARTING

        first = "" if kept(totals)[1] else "Compiling kernels, once on this machine; then: "
        df = read_table(params["table"], [*labels, *split_by], o.na_values(params["na_value"]))
        df.attrs.setdefault("coterie", {})["source"] = str(params["table"])
    stream = sys.stdout  # before anything that moves on a terminal takes its place

    def starting() -> None:
        with redirect_stdout(stream):
            say(what_was_read(df, params["table"], labels))

    token = STARTING.set(starting)
    try:
        with status(first + doing):
            yield df
    finally:
        STARTING.reset(token)


def inputs(table: Path, network: list[str] | None) -> list[Path]:
    """The files that a command reads."""
    edges = o.assignments("--network", network, names=("covariates",)).get("edges")
    return [table, *([] if edges is None else [place(edges)])]


def what_was_read(df: pd.DataFrame, table: Path, labels: list[str]) -> str:
    """Rows, clients and clusters of the table in one sentence."""
    from coterie.data.labels import encode
    from coterie.report.words import counted, several

    sizes = {name: len(encode(df[name]).labels) for name in labels}
    groups = [counted(size, name) for name, size in sizes.items() if size]
    rows = plural(len(df), "row")
    return f"Read {rows} of {' in '.join(groups) or 'no ' + several(labels[0])} from {table}."


def print_comparison(result: FitResult) -> None:
    """The comparison as wide as the terminal, below an empty line."""
    print()
    found(comparison=result.comparison, notes=result.notes)
    if result.comparison.empty:
        say("No methods were compared.")
        return
    from coterie.report.tables import comparison_table, render_text

    print(render_text(comparison_table(result), width()), end="")


def explain(result: FitResult) -> None:
    """What is recommended and why, what was fitted, how clients differ, and what else a user should know."""
    from coterie.report.method_section import method_section
    from coterie.report.words import variance_sentences, who_loses

    if not result.comparison.empty:
        say(f"Recommended: {result.recommended}. {result.reason} {who_loses(result)}".rstrip())
    elif result.reason:
        say(result.reason)
    if result.comparison.empty or result.method != result.recommended:
        say(f"Fitted: {result.method}.")
    for sentence in variance_sentences(result) if result.model.has_variances else []:
        say(sentence)
    section = method_section(result)
    for sentence in section.sentences if section else []:
        say(sentence)
    say_notes(result)


def say_notes(result: FitResult) -> None:
    """What else a user should know: of the table, and of what was fitted."""
    for note in result.notes:
        say(f"Note: {note}")
