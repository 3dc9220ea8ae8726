"""Arguments and options that the commands of a federation share, and what they make of a program."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, BadParameter, Option

from coterie.cli import options as table
from coterie.cli.common import place
from coterie.errors import CoterieError
from coterie.options import declared
from coterie.results.options import Columns
from coterie.results.options import Options as FitOptions

_PROGRAM = "The program"


def _seconds(value: float) -> float:
    if not value > 0.0:
        raise BadParameter(f"it must be a number of seconds above 0, not {value:g}.")
    return value


Root = Annotated[
    Path, Argument(parser=place, metavar="FOLDER", help="The federation's folder, or the coordinator's in it.")
]
SiteFolder = Annotated[Path, Argument(parser=place, metavar="SITE", help="The site's folder.")]
Either = Annotated[Path, Argument(parser=place, metavar="FOLDER", help="The coordinator's or a site's folder.")]
Timeout = Annotated[
    float, Option("--timeout", metavar="SECONDS", callback=_seconds, help="When to give up; a run can go on later.")
]
Json = Annotated[bool, Option("--json", help="Print JSON, for other programs.")]
Foreground = Annotated[bool, Option("--foreground", help="Stay until it ends; Ctrl-C stops it.")]

Program = Annotated[
    str,
    Option(
        "--program",
        metavar="NAME",
        help="A method of 'coterie fit' or of 'coterie train' by its name, or module:function.",
        rich_help_panel=_PROGRAM,
    ),
]
Options = Annotated[
    list[str] | None,
    Option(
        "--option",
        metavar="NAME=VALUE",
        help="An option of the program, such as steps=500; several are allowed.",
        rich_help_panel=_PROGRAM,
    ),
]
Seed = Annotated[
    int | None,
    Option("--seed", metavar="N", help="By default that of the federation.", rich_help_panel=_PROGRAM),
]
Objective = Annotated[
    str | None,
    Option(
        "--objective",
        metavar="MODULE:FUNCTION",
        help="Instead of a table: what makes a site's objective; every site must allow it in its site.toml.",
        rich_help_panel=_PROGRAM,
    ),
]
ObjectiveOptions = Annotated[
    list[str] | None,
    Option(
        "--objective-option",
        metavar="NAME=VALUE",
        help="An argument of what makes the objective; several are allowed.",
        rich_help_panel=_PROGRAM,
    ),
]
_NOT_NEEDED = {"formula": "", "client": " Without it every site is one client."}
TABLE = table.flags(Columns) | table.flags(FitOptions, "family")
TABLE |= {name: table.optional(declared(Columns)[name], more) for name, more in _NOT_NEEDED.items()}


def described(
    program: Program,
    objective: Objective = None,
    objective_option: ObjectiveOptions = None,
    option: Options = None,
    seed: Seed = None,
    **given: Any,
) -> dict[str, Any]:
    """What ``run.toml`` says, of a command's options."""
    options = table.assignments("--option", option)
    if objective_option and objective is None:
        raise CoterieError("--objective-option needs --objective.")
    formula, named = given["formula"], {n: given[n] for n in ("client", "cluster", "offset", "weights") if given[n]}
    if objective is not None:
        if formula is not None or named:
            raise CoterieError("--objective stands for a table: leave out --formula and the names of columns.")
        if not re.fullmatch(r"[\w.]+:\w+", objective):
            raise CoterieError(f"--objective takes module:function, not '{objective}'.")
        made = table.assignments("--objective-option", objective_option)
        task: dict[str, Any] = {"factory": objective, "options": made}
    elif formula is not None:
        task = {"formula": formula, "family": given["family"], "missing": given["missing"], **named}
    else:
        raise CoterieError("Say what is modelled: add --formula 'outcome ~ columns', or --objective module:function.")
    return {"program": program, **({} if seed is None else {"seed": seed}), "task": task, "options": options}


def takes_program(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options of :func:`described`, of which its first argument is what ``run.toml`` says."""
    program, own = (dict(inspect.signature(f, eval_str=True).parameters) for f in (described, command))
    program = {name: p for name, p in program.items() if name != "given"} | TABLE
    own.pop("run_toml")
    folder = own.pop("folder")

    def takes(**given: Any) -> None:
        command(described(**{name: given.pop(name) for name in program}), **given)

    every = [p.replace(kind=p.KEYWORD_ONLY) for p in (folder, *program.values(), *own.values())]
    takes.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    takes.__doc__ = command.__doc__
    return takes
