"""What `coterie fit` and `coterie compare` do with the configuration of nets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.declared_options import Place, new_file, own_option
from coterie.cli.outputs import OUTPUTS, check_folder, need_room, our_document, our_page, writing
from coterie.cli.terminal import found, say, width
from coterie.errors import CoterieError, listed

if TYPE_CHECKING:
    from coterie.evidence.training_comparison import TrainingComparison
    from coterie.results.training_result import TrainingResult
    from coterie.runs.config import Config

_PANEL = "A configuration"

Methods = Annotated[
    str | None,
    own_option(
        "--methods", "NAMES", "Methods with commas between them, auto or all; local and pooled are always in.", _PANEL
    ),
]
Resume = Annotated[
    bool,
    own_option("--resume", None, "Go on from the last checkpoint; the numbers are those of a run never cut.", _PANEL),
]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="Stop at the first client whose data or steps are broken.", rich_help_panel=_PANEL),
]
Report = Annotated[Place | None, new_file("--report", "FILE", "Write the report as .html.", _PANEL)]
OWN = {"resume", "strict"}
"""Options that a table has not."""


def fit_nets(
    path: Path,
    methods: str | None,
    out: Path | None,
    resume: bool,
    strict: bool,
    force: bool,
    over_sites: Callable[[], TrainingResult] | None,
) -> None:
    """Train what a configuration names on every seed, here or ``over_sites``, and keep the models of the first."""
    if out is not None:
        check_folder(out)
        mine = out / "training.json"
        need_room(mine, [path], force, our_document("coterie training"), "another folder")
        for name in ("metrics.csv", "clients.csv", "report.html"):
            need_room(out / name, [path], force or mine.exists(), our_page, "another folder")
    keep(over_sites() if over_sites else trained(described(path, strict), methods, out, resume), out)


def keep(result: TrainingResult, out: Path | None) -> None:
    """Show what was trained, and keep it in a folder."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        with writing(out):
            result.save(out)
            result.report(out / "report.html")
    show(result.evidence)
    if out is None:
        say("Nothing was written: add --out DIR for the models and their report.")
    else:
        say(f"Models: {out}")
        found(models=out, report=out / "report.html")
        say(f"Report: {out / 'report.html'}")
    if result.run.trouble:
        raise CoterieError(f"{result.run.trouble} Take smaller steps, or look at that client's data.")
    need_finite(result.evidence)


def described(path: Path, strict: bool) -> Config:
    """A configuration, with what the command says of it."""
    from coterie.runs.config import read

    config = read(path)
    return replace(config, run=config.run | {"strict": True}) if strict else config


def trained(config: Config, methods: str | None, out: Path | None, resume: bool) -> TrainingResult:
    """Train with a line of progress; an interrupt says where checkpoints are."""
    from coterie.evidence.training_comparison import checkpoints
    from coterie.report.progress import Progress
    from coterie.results.training_result import train

    place = checkpoints(config, out, resume)
    if place is not None:
        check_folder(place, "run.checkpoint")
    try:
        return train(config, names(methods), lambda what: [Progress(what)], folder=out, resume=resume)
    except KeyboardInterrupt:
        if place is not None and any(place.glob("*/checkpoint")):
            again = "the same command with --resume goes on from it"
            say(f"The last checkpoint is in '{place}': {again}.", error=True)
            OUTPUTS.append((place, None))
        raise


def need_finite(trained: TrainingComparison) -> None:
    """Raise, after all was shown and written, for methods of which no client has a finite loss in any seed."""
    if lost := [name for name, runs in trained.runs.items() if not any(run.finite for run in runs)]:
        raise CoterieError(
            f"The models of {listed(lost)} give no client a finite loss: take smaller steps (eta), scale the inputs, "
            "or look at what the model and the method give."
        )


def names(methods: str | None) -> list[str] | None:
    """Methods with commas between them."""
    return None if methods is None else [name.strip() for name in methods.split(",") if name.strip()]


def compare_nets(
    path: Path, methods: str | None, over_sites: Callable[[], TrainingResult] | None
) -> TrainingComparison:
    """Train methods on every seed of a configuration, here or ``over_sites``, and show how they compare."""
    from coterie.evidence.training_comparison import compare
    from coterie.report.progress import Progress

    if over_sites is None:
        config = described(path, strict=False)
        trained = compare(config, names(methods) or config.compare or [config.method], lambda what: [Progress(what)])
    else:
        trained = over_sites().evidence
    show(trained)
    return trained


def show(trained: TrainingComparison) -> None:
    """The table as wide as the terminal, and what a reader should know besides."""
    from coterie.report import training_answer_and_notes as answer
    from coterie.report import training_tables
    from coterie.report.tables import render_text

    print(render_text(training_tables.comparison_table(trained), width()), end="")
    print()
    said, notes = answer.headline(trained), list(answer.notes(trained))
    for sentence in (said, *(f"Note: {note}" for note in notes)):
        say(sentence)
    found(comparison=trained.table, best=trained.best, headline=said, notes=notes)
