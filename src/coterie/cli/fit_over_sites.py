"""What the commands do where rows are those of a federation's sites: their options, and how a run is followed."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, BadParameter
from typer import Option as Flag

from coterie.cli import declared_options as o
from coterie.cli.declared_options import own_option, place
from coterie.cli.outputs import OUTPUTS
from coterie.cli.terminal import found, say
from coterie.deployment import logs
from coterie.deployment.federation_toml import LONGEST, named_in
from coterie.errors import CoterieError, listed
from coterie.options import declared
from coterie.results.fit_options import Columns

if TYPE_CHECKING:
    from coterie.results.training_result import TrainingResult

_PANEL = "A federation's folder"
_LOOK, _QUIET = 0.5, 120  # seconds between looks into the log, and looks without news until that is said


def _seconds(value: float) -> float:
    if not value > 0.0:
        raise BadParameter(f"it must be a number of seconds above 0, not {value:g}.")
    return value


Root = Annotated[
    Path, Argument(parser=place, metavar="FOLDER", help="The federation's folder, or the coordinator's in it.")
]
SiteFolder = Annotated[Path, Argument(parser=place, metavar="SITE", help="The site's folder.")]
Either = Annotated[Path, Argument(parser=place, metavar="FOLDER", help="The coordinator's or a site's folder.")]
_TIME: dict[str, Any] = {"metavar": "SECONDS", "callback": _seconds}
_GIVE_UP = "When to give up; a run can go on later."
Timeout = Annotated[float, Flag("--timeout", help=_GIVE_UP, **_TIME)]
Foreground = Annotated[bool, Flag("--foreground", help="Stay until it ends; Ctrl-C stops it.")]
Objective = Annotated[
    str | None,
    own_option(
        "--objective",
        "MODULE:FUNCTION",
        "Instead of a formula: what makes a site's objective; every site must allow it in its site.toml.",
        _PANEL,
    ),
]
ObjectiveOption = Annotated[
    list[str] | None,
    own_option(
        "--objective-option", "NAME=VALUE", "An argument of what makes the objective; several are allowed.", _PANEL
    ),
]
ObjectiveRounds = Annotated[
    list[str] | None,
    own_option("--rounds", "NAME=VALUE", "Of methods that train the objective: rounds, eta, ...", _PANEL),
]
RunName = Annotated[
    str | None,
    own_option("--name", "RUN", "By default the method's with a number; one that is there goes on.", _PANEL),
]
RunTimeout = Annotated[float, Flag("--timeout", help=_GIVE_UP, rich_help_panel=_PANEL, **_TIME)]
_OF_NETS = ("rounds", "seed", "test_fraction", "network")
OWN = {"objective", "objective_option", "name", "timeout"}
"""Options that rows elsewhere have not."""
NOT_HERE = {"na_value", "bytes_per_update", "engine"}
"""Options of a table that sites do not take."""
OPTIONS = {name: one for name, one in o.FIT.items() if name not in NOT_HERE}
OPTIONS |= {
    name: o.optional(declared(Columns)[name], text)
    for name, text in {"formula": "", "client": " Without it every site is one client."}.items()
}
"""The arguments of :func:`coterie.fit` that a program is made of."""


def program(context: typer.Context, **defaults: Any) -> dict[str, Any]:
    """What ``run.toml`` says, of the options that a command was given; ``defaults`` stand below them."""
    from coterie.deployment.coordinator.run_toml import program_of_call

    params, objective = context.params, context.params.get("objective")
    given = o.given(context)
    if "objective_option" in given and objective is None:
        raise CoterieError("--objective-option needs --objective.")
    objective = None if objective is None else objective_of(context)
    said = {name: value for name, value in o.arguments(params).items() if name in given and name in OPTIONS}
    return program_of_call(said.pop("formula", None), defaults | said, objective)


def run(context: typer.Context, folder: Path, methods: list[str] | None = None) -> tuple[Path, Any]:
    """Run what a command asks for to its end, with a line for each exchange: the run's folder, and its result.

    Where ``methods`` are to be compared, rows are held out once if nothing is said of that. There is no result of one
    method that trains an objective.
    """
    from coterie.deployment.calls_over_sites import result_in
    from coterie.deployment.coordinator.run_toml import comparing

    if methods is not None and context.params.get("objective") is not None:
        there = carried(context, folder, nets_compared(context, folder, methods))
    else:
        there = carried(context, folder, program(context, **({} if methods is None else comparing(methods))))
    return there, result_in(there)


def source(path: Path) -> Path | None:
    """The federation's folder whose rows a configuration names; None of other rows."""
    from coterie.runs.config import document

    return named_in(document(path), path.absolute().parent)


def of_configuration(
    context: typer.Context, path: Path, methods: list[str] | None
) -> Callable[[], TrainingResult] | None:
    """What trains the nets of a configuration whose rows lie at sites; None where they do not."""
    from coterie.deployment.calls_over_sites import result_in
    from coterie.deployment.coordinator.run_toml import program_of_nets
    from coterie.runs.config import document

    if (folder := source(path)) is None:
        return None
    sections = document(path)
    sections["data"] = sections["data"] | {"source": str(folder)}
    what = program_of_nets(sections, methods)
    return lambda: result_in(carried(context, folder, what))  # type: ignore[return-value]


def nets_compared(context: typer.Context, folder: Path, methods: list[str]) -> dict[str, Any]:
    """What ``run.toml`` says of methods compared on what makes a site's objective."""
    from coterie.deployment.coordinator.run_toml import program_of_nets
    from coterie.results.call_as_config import net_sections_over_sites
    from coterie.runs.config_keys import Torch

    made = objective_of(context)
    given = {k: v for k, v in o.arguments(context.params).items() if k in o.given(context) and k in OPTIONS}
    of_formula = {*OPTIONS, "collaborators", "within", "prior"} - {*_OF_NETS}
    if wrong := sorted(of_formula & o.given(context)):
        raise CoterieError(f"{listed(wrong)} {'is' if len(wrong) == 1 else 'are'} of a formula: leave that out.")
    net = Torch(made["factory"], args=made["options"])
    return program_of_nets(net_sections_over_sites(folder, net, given), methods)


def objective_of(context: typer.Context) -> dict[str, Any]:
    """What --objective and --objective-option say."""
    objective = context.params["objective"]
    if not re.fullmatch(r"[\w.]+:\w+", objective):
        raise CoterieError(f"--objective takes module:function, not '{objective}'.")
    if "out" in o.given(context) and context.info_name == "fit":
        raise CoterieError("--out keeps a formula's model and report; an objective's stays in the run's folder.")
    return {"factory": objective, "options": o.assignments("--objective-option", context.params["objective_option"])}


def carried(context: typer.Context, folder: Path, what: Mapping[str, Any]) -> Path:
    """The folder of a run of a program that was followed to its end."""
    from coterie.deployment.calls_over_sites import carried_out

    def go(engine: Any, home: Path, run_id: str, timeout: float) -> None:
        try:
            follow(engine, home, run_id, timeout)
        except KeyboardInterrupt:
            place, again = home / "runs" / run_id, f"the same command with --name {run_id} shows it again"
            end = f"'coterie federation stop {shlex.quote(str(home))}' ends it"
            known = f"Run '{run_id}' goes on at the coordinator"
            if not (place / logs.STATUS).exists():
                known, again = f"Run '{run_id}' had not begun, or begins just now", f"{again}, or begins it"
            say(f"{known}: {again}, and {end}.", error=True)
            OUTPUTS.append((place, None))
            raise

    params = context.params
    there = carried_out(folder, what, params["name"], params["timeout"], go)
    say(f"Run '{there.name}' has ended: its result is in {there / 'result'}.")
    found(run=there.name, result=there / "result")
    return there


def follow(engine: Any, home: Path, run_id: str, timeout: float = LONGEST) -> None:
    """Run to the end, and print a line for each exchange as it happens."""
    from threading import Event, Thread

    path = home / "runs" / run_id / logs.LOG
    who = f"'coterie federation status {shlex.quote(str(home))}' says who is connected."
    _, before = logs.news(path)
    ended, out = Event(), None if sys.stdout.isatty() else sys.stdout  # a line on a terminal redirects what is printed

    def watch() -> None:
        seen, last, quiet = before, False, 0
        while not last:
            last = ended.wait(_LOOK)
            entries, seen = logs.news(path, seen)
            quiet = 0 if entries else quiet + 1
            if quiet == _QUIET:
                say(f"Nothing new in {_QUIET * _LOOK:.0f} s: sites are away, or have much to do. {who}")
            for entry in entries:
                if entry.get("why") and entry.get("state") != logs.AGAIN:
                    continue  # the error that the command ends with says it
                print(logs.words(entry), file=out, flush=True)

    follower = Thread(target=watch, daemon=True)
    follower.start()
    try:
        engine.run(home, run_id, timeout)
    finally:
        ended.set()
        follower.join()
        found(exchanges=logs.news(path, before)[0])
