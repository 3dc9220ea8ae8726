"""`coterie compare`: only the evidence, no model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli import options as o
from coterie.cli.common import TablePath, check_table, place, say
from coterie.cli.fit import fit_table, print_comparison
from coterie.errors import CoterieError

EXAMPLE = 'Example: coterie compare students.csv --formula "mAch ~ cses" --client school --cluster sector'

Out = Annotated[
    Path | None,
    typer.Option(
        "--out", parser=place, metavar="FILE", help="Write the comparison as .csv or .parquet, with all its columns."
    ),
]


def compare(
    context: typer.Context,
    table: TablePath,
    formula: o.Formula,
    client: o.Client,
    cluster: o.Cluster = None,
    family: o.Family = "gaussian",
    shared: o.Shared = None,
    covariance: o.Covariance = "auto",
    cluster_variance: o.ClusterVariance = "common",
    residual: o.Residual = "common",
    reml: o.Reml = True,
    gamma: o.Gamma = None,
    lam: o.Lam = None,
    alpha: o.Alpha = None,
    network: o.Network = None,
    offset: o.Offset = None,
    weights: o.Weights = None,
    missing: o.Missing = "error",
    splits: o.Splits = 5,
    test_fraction: o.TestFraction = 0.25,
    order_by: o.OrderBy = None,
    split_by: o.SplitBy = None,
    seed: o.Seed = 0,
    out: Out = None,
) -> None:
    """Compare the methods on held-out rows of every client; no model is kept."""
    if splits == 0:
        raise CoterieError("A comparison needs at least one split.")
    if out is not None:
        check_table(out)
    _, result = fit_table(context)
    if result.comparison.empty:
        raise CoterieError(f"{result.reason} There is nothing to compare the methods on.")
    print_comparison(result)
    if out is not None:
        from coterie.data.table import write_table

        write_table(result.comparison.reset_index(), out)
        say(f"Written to {out}.")
