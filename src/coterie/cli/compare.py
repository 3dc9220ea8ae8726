"""`coterie compare`: only the evidence, no model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli import declared_options as o
from coterie.cli import nets, sites
from coterie.cli.declared_options import Force, new_file
from coterie.cli.fit import OPTIONS as FIT
from coterie.cli.fit import (
    TableOrConfig,
    fit_rows,
    inputs,
    kind_of,
    of_nets,
    print_comparison,
    say_notes,
)
from coterie.cli.outputs import check_page, check_table, write_table
from coterie.cli.terminal import say
from coterie.deployment.federation_toml import LONGEST
from coterie.errors import CoterieError

EXAMPLE = 'Example: coterie compare students.csv --formula "mAch ~ cses" --client school --cluster sector'

Out = Annotated[
    Path | None, new_file("--out", "FILE", "Write the comparison as .csv or .parquet, with all its columns.")
]
OPTIONS = {name: p for name, p in FIT.items() if name != "method"}


@o.takes(OPTIONS)
def compare(
    context: typer.Context,
    table: TableOrConfig,
    na_value: o.NaValue = None,
    methods: nets.Methods = None,
    report: nets.Report = None,
    name: sites.RunName = None,
    timeout: sites.RunTimeout = LONGEST,
    as_json: sites.RunJson = False,
    out: Out = None,
    force: Force = False,
) -> None:
    """Compare the methods on held-out rows of every client; no model is kept."""
    if out is not None:
        check_table(out, inputs(table, context.params["network"]), force, "compare")
    if report is not None:
        check_page(report, [table], force)
    kind = kind_of(context, table, {"out", "force", "methods", "report"})
    if kind == "configuration" and of_nets(table):
        found = nets.compare_nets(table, methods)
        if out is not None:
            write_table(found.table.reset_index(), out, "compare")
        if report is not None:
            from coterie.report.training_page import write_report

            write_report(found, report)
            say(f"Report: {report}")
        return nets.need_finite(found)
    if context.params["splits"] == 0:
        raise CoterieError("A comparison needs at least one split.")
    asked = nets.names(methods) or ["auto"]
    over_sites = kind == "federation"
    result = sites.run(context, table, asked)[1] if over_sites else fit_rows(context, kind, asked)
    if result is None:
        raise CoterieError("An objective of one's own has no comparison over sites: name a formula (--formula).")
    if result.comparison.empty:
        why = f"{result.reason} There is nothing to compare the methods on."
        raise CoterieError(result.notes[-1] if over_sites else why)
    if not as_json:
        print_comparison(result)
        say_notes(result)
    if out is not None:
        write_table(result.comparison.reset_index(), out, "compare")
    if report is not None:
        result.report(report)
        say(f"Report: {report}")
