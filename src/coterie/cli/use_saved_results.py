"""Commands that take a saved result: `coterie predict`, `coterie report` and `coterie export`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer

from coterie.cli import declared_options as o
from coterie.cli.declared_options import Force, ModelPath, Place, TablePath, here, load_model, new_file, own_option
from coterie.cli.fit_and_compare import what_was_read
from coterie.cli.outputs import check_folder, check_page, check_table, need_room, ours, wrote
from coterie.cli.terminal import found, say
from coterie.data.labels import label_text, resembling
from coterie.data.table import Table, meant
from coterie.errors import CoterieError, listed, nearest, plural
from coterie.lazy_modules import pd
from coterie.results.fit_options import Prediction
from coterie.status_line import status

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from coterie.results.fit_result import FitResult
    from coterie.results.model import Model


OPTIONS = o.flags(Prediction, "interval", "interval_of", "missing")

Client = Annotated[
    str | None,
    typer.Option("--client", metavar="NAME", help="Whose rows all of them are, where the table does not say."),
]
Keep = Annotated[
    list[str] | None,
    own_option(
        "--keep",
        "COLUMN",
        "Copy this column of the table, such as a row's number, beside the predictions; 'all' for all of "
        "them. May be given more than once.",
    ),
]
Out = Annotated[
    Place | None, new_file("--out", "FILE", "A .csv, .csv.gz, .parquet or .feather file; otherwise CSV is printed.")
]


@o.takes(OPTIONS)
def predict(
    context: typer.Context,
    model: ModelPath,
    table: TablePath,
    client: Client = None,
    keep: Keep = None,
    na_value: o.NaValue = None,
    out: Out = None,
    as_json: o.Json = False,
    force: Force = False,
) -> None:
    """Predict the rows of a table, in their order.

    A client never seen gets its cluster's model, then the global one; the column 'source' says which model answered.
    """
    if out is not None:
        check_table(out, [table], force, "predict")
    from coterie.results.fit_result import FitResult

    result = load_model(model)
    if not isinstance(result, FitResult):
        raise CoterieError(f"'{model}' has nets, which answer arrays: in Python, coterie.load(...).predict(X, client).")
    if client is not None:
        need_client(result.model, client)
    with status("Reading the table ..."):
        from coterie.data.table_files import write_table

        df, kept = read(table, result, keep or [], o.na_values(na_value))
    df = of_client(df, result.model, client)
    labels = [result.model.client_name, *(level.name for level in result.model.levels if level.name in df.columns)]
    quiet = out is None and not as_json
    if not quiet or sys.stderr.isatty():
        say(what_was_read(df, table, labels), error=quiet)
    answers = result.predict(df, **{name: context.params[name] for name in OPTIONS})
    frame = beside(df, [result.model.client_name, *kept], answers)
    if out is not None:
        write_table(frame, out)
        found(out=out)
    elif as_json:
        found(predictions=frame)
    else:
        frame.to_csv(sys.stdout, index=False)
    said = list(sentences(answers))
    found(rows=len(answers), sources=answers["source"].value_counts().to_dict(), sentences=said)
    for sentence in said:
        say(sentence, error=quiet)
    if out is not None:
        wrote("predict", out)


def read(
    table: Path, result: FitResult, keep: list[str], na_values: list[str] | None
) -> tuple[pd.DataFrame, list[str]]:
    """The table, and which of its columns to keep; those the model does not use are read as they are written."""
    from coterie.data.table_files import read_table

    m, design = result.model, result.design
    used = {*(m.terms if design is None else design.columns), result.offset, result.weights}
    labels = [m.client_name, *(level.name for level in m.levels)]
    na_values = result.settings.get("na_values") if na_values is None else na_values
    df = read_table(table, [*labels, *(name for name in keep if name not in used)], na_values)
    if "all" in keep:
        keep = list(df.columns)
        df = read_table(table, [*labels, *(name for name in keep if name not in used)], na_values)
    Table.of(df).need(keep, "kept")
    return df, [name for name in dict.fromkeys(keep) if name != m.client_name]


def sentences(answers: pd.DataFrame) -> Iterator[str]:
    """What answered how many rows, how many nothing could and why, and what else a reader should know."""
    from coterie.results.predict import NOTHING

    counts = {str(name): count for name, count in answers["source"].value_counts(sort=False).items() if count}
    by = [f"{count:,} by {name}" for name, count in counts.items() if not name.startswith(NOTHING)]
    why = [f"{count:,} for {n.removeprefix(NOTHING)}" for n, count in counts.items() if n.startswith(NOTHING)]
    empty = sum(count for name, count in counts.items() if name.startswith(NOTHING))
    yield f"Predicted {plural(len(answers) - empty, 'row')}{': ' if by else ''}{', '.join(by)}."
    if empty:
        yield f"Left {plural(empty, 'row')} empty: {', '.join(why)}."
    yield from (f"Note: {note}" for note in answers.attrs["notes"])


def of_client(df: pd.DataFrame, model: Model, client: str | None) -> pd.DataFrame:
    """The table with a column that says whose rows they are, where it has none and one client was named."""
    name = model.client_name
    if client is None:
        if name not in df.columns:
            raise CoterieError(
                f"The client column '{name}' is not in the table.{meant(name, list(df.columns))} Name the client with "
                "--client if all rows are of one, or leave the column's cells empty to predict for clients never seen."
            )
        return df
    if name in df.columns:
        raise CoterieError(f"The table says in '{name}' whose rows they are: leave --client out.")
    return df.assign(**{name: need_client(model, client)})


def need_client(model: Model, client: str) -> Any:
    """The label of a client that is named; a CoterieError for one that the model has not."""
    known = {label_text(label): label for label in model.labels}
    if label_text(client) not in known:
        pairs = resembling(np.array([client], dtype=object), np.array(list(known), dtype=object))
        hint = f" Did you mean {pairs[0][1]!r}?" if pairs else nearest(client, known) or f" There are {listed(known)}."
        raise CoterieError(f"The model has no client '{client}'.{hint}")
    return known[label_text(client)]


def beside(df: pd.DataFrame, columns: list[str], answers: pd.DataFrame) -> pd.DataFrame:
    """The answers beside columns of the table, the client's first; those named like answers get another name."""
    frame = answers.astype({"source": str})
    names: list[str] = []
    for j, column in enumerate(columns):
        name = column
        while name in frame.columns or name in names or (name != column and name in columns):
            name = f"{name} ({'table' if j else 'client'})"
        names.append(name)
    return pd.concat([df[columns].set_axis(names, axis=1), frame], axis=1)


def report(
    model: ModelPath,
    out: Annotated[Place, new_file("--out", "FILE", "The page; it needs no network and no other file.")] = Path(
        "report.html"
    ),
    force: Force = False,
) -> None:
    """Write the report of a saved model as one HTML page."""
    check_page(out, [], force)
    load_model(model).report(out)
    say(f"Report: {out}")


To = Annotated[
    Path, own_option("--to", "PATH", "A .onnx or .safetensors file; without --client, a folder.", parser=here)
]
Whose = Annotated[str | None, own_option("--client", "NAME", "Whose net; by default those of all clients.")]
Kind = Annotated[Literal["onnx", "safetensors"], own_option("--form", None, "Of the files of all clients.")]
Allow = Annotated[
    list[str] | None,
    own_option("--allow", "CODE", "package.module:name of code of your own that may be imported; more than once."),
]
Code = Annotated[Path, own_option("--code", "FOLDER", "Where that code is imported from first.", parser=here)]


def export(
    model: ModelPath,
    to: To,
    client: Whose = None,
    form: Kind = "onnx",
    allow: Allow = None,
    code: Code = Path(),
    force: Force = False,
) -> None:
    """Write the nets of a saved result for other programs: the whole net in ONNX, or its numbers in safetensors.

    Nothing in the folder runs: code of your own, such as the module, is imported only where --allow names it.
    """
    if client is None:
        check_folder(to, "--to")
    else:
        need_room(to, [model], force, ours("export"))
    from coterie.results.saved_results import load
    from coterie.results.training_result import TrainingResult

    home = model.parent if model.name == "training.json" else model
    given = {"allow": allow} if allow else {}
    result = load(home, code, **given)
    if not isinstance(result, TrainingResult):
        raise CoterieError(f"'{model}' has the model of a table, which has no net to export: take coterie predict.")
    if client is not None:
        result.export(client, to)
        wrote("export", to)
        return
    index = result.export_all(to, form)
    say(f"Written to {to}: the nets of {len(index):,} clients, and clients.csv, which says whose each is.")
