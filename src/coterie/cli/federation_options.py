"""Arguments and options that the commands of a federation share, and what they make of a program."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, BadParameter
from typer import Option as Flag

from coterie.cli import options as table
from coterie.cli.common import place
from coterie.errors import CoterieError
from coterie.options import Option, declared
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
    float, Flag("--timeout", metavar="SECONDS", callback=_seconds, help="When to give up; a run can go on later.")
]
Json = Annotated[bool, Flag("--json", help="Print JSON, for other programs.")]
Foreground = Annotated[bool, Flag("--foreground", help="Stay until it ends; Ctrl-C stops it.")]


@dataclass(frozen=True)
class Program:
    """What is run, beside the columns of a table."""

    program: Annotated[str, Option("A method by its name, or module:function.", group=_PROGRAM)]
    objective: Annotated[
        str | None,
        Option(
            "Instead of a table: what makes a site's objective; every site must allow it in its site.toml.",
            group=_PROGRAM,
            metavar="MODULE:FUNCTION",
        ),
    ] = None
    objective_option: Annotated[
        dict[str, Any], Option("An argument of what makes the objective; several are allowed.", group=_PROGRAM)
    ] = field(default_factory=dict)
    option: Annotated[
        dict[str, Any], Option("An option of the program, such as steps=500; several are allowed.", group=_PROGRAM)
    ] = field(default_factory=dict)
    seed: Annotated[int | None, Option("By default that of the federation.", group=_PROGRAM)] = None


_NOT_NEEDED = {"formula": "", "client": " Without it every site is one client."}
PROGRAM = table.flags(Program) | table.flags(Columns) | table.flags(FitOptions, "family")
PROGRAM |= {name: table.optional(declared(Columns)[name], more) for name, more in _NOT_NEEDED.items()}
"""The options of commands that run a program."""


def described(given: Mapping[str, Any]) -> dict[str, Any]:
    """What ``run.toml`` says, of a command's options (:data:`PROGRAM`)."""
    options = table.assignments("--option", given["option"])
    objective, formula = given["objective"], given["formula"]
    if given["objective_option"] and objective is None:
        raise CoterieError("--objective-option needs --objective.")
    named = {name: given[name] for name in ("client", "cluster", "offset", "weights") if given[name]}
    if objective is not None:
        if formula is not None or named:
            raise CoterieError("--objective stands for a table: leave out --formula and the names of columns.")
        if not re.fullmatch(r"[\w.]+:\w+", objective):
            raise CoterieError(f"--objective takes module:function, not '{objective}'.")
        made = table.assignments("--objective-option", given["objective_option"])
        task: dict[str, Any] = {"factory": objective, "options": made}
    elif formula is not None:
        task = {"formula": formula, "family": given["family"], "missing": given["missing"], **named}
    else:
        raise CoterieError("Say what is modelled: add --formula 'outcome ~ columns', or --objective module:function.")
    seed = {} if given["seed"] is None else {"seed": given["seed"]}
    return {"program": given["program"], **seed, "task": task, "options": options}
