"""`coterie federation check, preview, log`: before a run and after it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli import federation_options as o
from coterie.cli.common import say, status, width
from coterie.cli.federation_run import opened, unused
from coterie.cli.options import takes
from coterie.errors import CoterieError

if TYPE_CHECKING:
    from coterie.deployment.site.preview import Leaving, Preview

CHECK = "Example: coterie federation check heart"
PREVIEW = "Example: coterie federation preview heart/sites/basel --program hierarchical --formula 'disease ~ age'"
LOG = "Example: coterie federation log heart/sites/basel"


def check(
    folder: o.Root,
    unite: Annotated[
        bool, typer.Option("--unite", help="Add the sites' levels to the coordinator's schema, or make one of theirs.")
    ] = False,
    timeout: o.Timeout = 300.0,
    as_json: o.Json = False,
) -> None:
    """Ask every site for its clock, its versions and how its columns differ from those of others; no row moves."""
    from coterie.deployment import folders
    from coterie.deployment.coordinator import check as checks

    home, _, engine = opened(folder)
    run_id = unused(home, "check")
    described = {"program": "check", "options": {"unite": unite}}
    with folders.begun(home, run_id, described), status("Asking the sites ..."):
        engine.run(home, run_id, timeout)
    report = checks.read_report(home, run_id)
    if as_json:
        print(json.dumps(asdict(report), indent=1, ensure_ascii=False))
    else:
        for line in report.lines():
            say(line)
    if not report.sound:
        raise CoterieError("The federation is not ready: put right what is said above, and check again.")


@takes(o.PROGRAM)
def preview(
    context: typer.Context,
    folder: o.SiteFolder,
    min_group: Annotated[
        int | None,
        typer.Option("--min-group", metavar="ROWS", help="Instead of what site.toml says; nothing is changed there."),
    ] = None,
    as_json: o.Json = False,
) -> None:
    """Show exactly what a program would make this site send: names, shapes, bytes, rows covered. Nothing is sent."""
    from coterie.deployment import folders
    from coterie.deployment.coordinator.run import run as run_program
    from coterie.deployment.site.preview import preview as look

    run_toml, home = o.described(context.params), folders.site(folder)
    with status("Running the program on this site's own rows ..."):
        found = look(home, run_toml, run_program, min_group)
    if as_json:
        print(json.dumps(asdict(found), indent=1, ensure_ascii=False))
    else:
        show(found)
    if found.ended and not any(item.answers for item in found.leaving):
        raise CoterieError(f"Nothing would leave: {found.ended}")
    if any(item.refused for item in found.leaving):
        raise CoterieError("This site refuses a part of the program: see above.")
    if found.ended:
        raise CoterieError(f"The program ended before its end: {found.ended}")


def show(found: Preview) -> None:
    """A table of what leaves, as wide as the terminal, and what a reader should know besides."""
    from rich.console import Console
    from rich.table import Table

    grid = Table(box=None, pad_edge=False)
    for title in ("answer to", "holds", "answers", "bytes", "covers"):
        grid.add_column(title, justify="right" if title in ("answers", "bytes", "covers") else "left", overflow="fold")
    for item in found.leaving:
        what = f"{item.kind} {item.work}".rstrip()
        holds = "\n".join(f"{name}: {shape}" for name, shape in item.values.items())
        grid.add_row(what, holds, f"{item.answers:,}", f"{item.bytes:,}", _rows(item))
    Console(width=width(), markup=False, highlight=False).print(grid)
    print()
    say("Nothing was sent. The other sites were stand-ins with this site's rows, so that counts of answers may differ.")
    if found.masked:
        say("Each 'total' leaves masked, with keys and shares beside it: others see sums of all sites only.")
    for item in found.leaving:
        for reason in dict.fromkeys(item.refused):
            say(f"Refused: {reason}")


def _rows(item: Leaving) -> str:
    return "" if item.covers is None else f"{item.covers:,} rows"


def log(
    folder: o.Either,
    name: Annotated[
        str | None, typer.Option("--name", metavar="RUN", help="At the coordinator: the run, by default the last.")
    ] = None,
    last: Annotated[int, typer.Option("--last", metavar="N", help="Only so many lines; 0 for all.")] = 0,
    as_json: o.Json = False,
) -> None:
    """Print the log: at the coordinator a line for each exchange, at a site one for each answer that left."""
    from coterie.deployment import folders, logs
    from coterie.deployment.config import SITE

    home, _, _ = opened(folder, either=True)
    path: Path = home / logs.LOG if (home / SITE).is_file() else folders.run_folder(home, name) / logs.LOG
    entries = list(logs.read(path))
    if not entries:
        say(f"Nothing is logged in {path} yet.")
    for entry in entries[-last:] if last else entries:
        print(json.dumps(entry, ensure_ascii=False) if as_json else logs.words(entry))
