"""`coterie predict`: answer the rows of a table, and say which model answered."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.common import ModelPath, TablePath, check_table, load_model, place, say, status
from coterie.errors import CoterieError, listed, nearest

if TYPE_CHECKING:
    import pandas as pd

    from coterie.results.model import Model

EXAMPLE = "Example: coterie predict model new_students.csv --interval 0.9 --out predictions.csv"


def predict(
    model: ModelPath,
    table: TablePath,
    interval: Annotated[
        float | None,
        typer.Option(
            "--interval",
            metavar="SHARE",
            help="Add lower and upper bounds that hold with this probability. Gaussian: of a new outcome; binomial and "
            "Poisson: of the mean.",
        ),
    ] = None,
    client: Annotated[
        str | None,
        typer.Option("--client", metavar="NAME", help="Whose rows all of them are, where the table does not say."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            parser=place,
            metavar="FILE",
            help="A .csv, .csv.gz, .parquet or .feather file; otherwise CSV is printed.",
        ),
    ] = None,
) -> None:
    """Predict the rows of a table, in their order.

    A client never seen gets its cluster's model, then the global one; the column 'source' says which model answered.
    """
    if out is not None:
        check_table(out)
        if out.exists() and table.exists() and out.samefile(table):
            raise CoterieError(f"'{out}' is the table itself; name another file for the predictions.")
    result = load_model(model)
    from coterie.data.table import read_table, write_table

    with status("Reading the table ..."):
        df = read_table(table, [result.model.client_name, *(level.name for level in result.model.levels)])
    df = of_client(df, result.model, client)
    answers = result.predict(df, interval=interval)
    frame = with_client(df[result.model.client_name], answers)
    if out is not None:
        write_table(frame, out)
    else:
        frame.to_csv(sys.stdout, index=False)
    counts = answers["source"].value_counts(sort=False)
    by = ", ".join(f"{count:,} by {name}" for name, count in counts.items() if count)
    say(f"Predicted {len(frame):,} rows: {by}.", error=out is None)
    for note in answers.attrs["notes"]:
        say(f"Note: {note}", error=out is None)
    if out is not None:
        say(f"Written to {out}.")


def of_client(df: pd.DataFrame, model: Model, client: str | None) -> pd.DataFrame:
    """The table with a column that says whose rows they are, where it has none and one client was named."""
    from coterie.data.labels import label_text

    name = model.client_name
    if client is None:
        if name not in df.columns:
            raise CoterieError(
                f"The client column '{name}' is not in the table.{nearest(name, df.columns)} Name the client with "
                "--client if all rows are of one, or leave the column's cells empty to predict for clients never seen."
            )
        return df
    if name in df.columns:
        raise CoterieError(f"The table says in '{name}' whose rows they are: leave --client out.")
    known = {label_text(label): label for label in model.labels}
    if client not in known:
        hint = nearest(client, known) or f" There are {listed(known)}."
        raise CoterieError(f"The model has no client '{client}'.{hint}")
    return df.assign(**{name: known[client]})


def with_client(client: pd.Series, answers: pd.DataFrame) -> pd.DataFrame:
    """The answers beside the client of each row."""
    frame = answers.astype({"source": str})
    name = str(client.name)
    frame.insert(0, f"{name} (client)" if name in frame.columns else name, client)
    return frame
