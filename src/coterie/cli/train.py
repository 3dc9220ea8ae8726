"""`coterie train`: one method on the clients that a configuration describes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie import files
from coterie.cli import options as o
from coterie.cli.common import (
    OUTPUTS,
    Force,
    check_folder,
    need_room,
    new_file,
    our_document,
    our_page,
    place,
    say,
    width,
)
from coterie.errors import CoterieError
from coterie.options import declared
from coterie.runs.config_keys import Run

if TYPE_CHECKING:
    from coterie.evidence.training_comparison import TrainingComparison
    from coterie.runs.config import Config
    from coterie.runs.training import Trained
    from coterie.runs.training_problem import TrainingProblem

EXAMPLE = "Example: coterie train digits.toml --out trained"

ConfigPath = Annotated[
    Path, typer.Argument(parser=place, metavar="CONFIG", help="A TOML file: data, model, layout, method, run.")
]
Out = Annotated[
    Path | None,
    new_file("--out", "DIR", "Folder for the models, metrics.csv, clients.csv and report.html, and for checkpoints."),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on from the last checkpoint; the numbers are those of a run never cut.")
]


@o.takes({"strict": o.flag(declared(Run)["strict"])})
def train(
    context: typer.Context, config: ConfigPath, out: Out = None, resume: Resume = False, force: Force = False
) -> None:
    """Train one method on the clients that a configuration describes."""
    if out is not None:
        check_folder(out)
        need_folder(out, config, force)
    from coterie.evidence.training_comparison import TrainingComparison
    from coterie.report.training_page import write_report
    from coterie.results.trained_models import save
    from coterie.runs.config import read
    from coterie.runs.training_problem import need_layout

    described = read(config)
    strict = {"strict": True} if context.params["strict"] else {}
    described = replace(described, run=described.run | {"seeds": described.run["seeds"][:1]} | strict)
    need_layout(described, [described.method])
    beside = described.run["checkpoint"]  # a folder that is given relative to the configuration
    checkpoints = described.folder / files.local(beside) if beside else out
    try:
        problem, run = trained(described, checkpoints, resume)
    except KeyboardInterrupt:
        if checkpoints is not None and (checkpoints / "checkpoint").exists():
            again = "the same command with --resume goes on from it"
            say(f"The last checkpoint is in '{checkpoints}': {again}.", error=True)
            OUTPUTS.append((checkpoints / "checkpoint", None))
        raise
    result = TrainingComparison(
        problem.config, {run.method: [run]}, [problem.data.group if problem.data.known else None], {}
    )
    if out is not None:
        save(out, problem, run)
        write_report(result, out / "report.html")
    show(result)
    if out is None:
        say("Nothing was written: add --out DIR for the models and their report.")
    else:
        say(f"Models: {out}")
        say(f"Report: {out / 'report.html'}")
    if run.trouble:
        raise CoterieError(f"{run.trouble} Take smaller steps, or look at that client's data.")


def need_folder(out: Path, config: Path, force: bool) -> None:
    """Refuse a folder that holds files of somebody else's under the names of those that are written."""
    mine = out / "training.json"
    need_room(mine, [config], force, our_document("coterie training"), "another folder")
    for name in ("metrics.csv", "clients.csv", "report.html"):
        need_room(out / name, [config], force or mine.exists(), our_page, "another folder")


def trained(config: Config, checkpoints: Path | None, resume: bool) -> tuple[TrainingProblem, Trained]:
    """Deal the rows out, choose among settings where there are several, and train."""
    from coterie.cli.progress import Progress
    from coterie.evidence.training_comparison import pick
    from coterie.runs.callbacks import callbacks
    from coterie.runs.training import train as run
    from coterie.runs.training_problem import TrainingProblem

    if checkpoints is not None:
        check_folder(checkpoints, "run.checkpoint")
    problem = TrainingProblem.of(config, config.run["seeds"][0])
    watching = callbacks(config)
    setting = {} if resume else pick(problem.inside(), config.method, lambda what: [Progress(what)], config.method)
    return problem, run(problem, config.method, setting, [Progress(config.method), *watching], checkpoints, resume)


def show(result: TrainingComparison) -> None:
    """The table as wide as the terminal, and what a reader should know besides."""
    from coterie.report import training_page as page
    from coterie.report.tables import render_text

    print(render_text(page.comparison_table(result), width()), end="")
    print()
    say(page.headline(result))
    for note in page.notes(result):
        say(f"Note: {note}")
