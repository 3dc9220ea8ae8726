"""`coterie report`: one HTML page from a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.common import Force, ModelPath, load_model, need_room, our_page, place, say
from coterie.errors import CoterieError

EXAMPLE = "Example: coterie report model --out report.html"


def report(
    model: ModelPath,
    out: Annotated[
        Path,
        typer.Option("--out", parser=place, metavar="FILE", help="The page; it needs no network and no other file."),
    ] = Path("report.html"),
    force: Force = False,
) -> None:
    """Write the report of a saved model as one HTML page."""
    if out.is_dir() and not out.suffix:
        raise CoterieError(f"'{out}' is a folder; name a file that ends in .html.")
    if out.suffix.lower() not in (".html", ".htm"):
        raise CoterieError(f"'{out.name}' does not end in .html; the report is a page for a browser.")
    need_room(out, [], force, our_page)
    from coterie.report.fit_page import write_report

    write_report(load_model(model), out)
    say(f"Report: {out}")
