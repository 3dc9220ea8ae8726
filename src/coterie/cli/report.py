"""`coterie report`: one HTML page from a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from coterie.cli.declared_options import Force, ModelPath, load_model, new_file
from coterie.cli.outputs import check_page
from coterie.cli.terminal import say

EXAMPLE = "Example: coterie report model --out report.html"


def report(
    model: ModelPath,
    out: Annotated[Path, new_file("--out", "FILE", "The page; it needs no network and no other file.")] = Path(
        "report.html"
    ),
    force: Force = False,
) -> None:
    """Write the report of a saved model as one HTML page."""
    check_page(out, [], force)
    load_model(model).report(out)
    say(f"Report: {out}")
