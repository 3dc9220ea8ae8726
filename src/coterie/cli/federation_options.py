"""Arguments and options that the commands of a federation share, and what they make of a program."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, BadParameter, Option

from coterie.cli.common import place
from coterie.cli.options import assignments
from coterie.errors import CoterieError

_PROGRAM, _TABLE = "The program", "The table"


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
Formula = Annotated[
    str | None, Option("--formula", metavar="FORMULA", help="'outcome ~ columns', as in R.", rich_help_panel=_TABLE)
]
Client = Annotated[
    str | None,
    Option(
        "--client",
        metavar="COLUMN",
        help="The column that says whose row it is; without it every site is one client.",
        rich_help_panel=_TABLE,
    ),
]
_FORMULA = ("client", "cluster", "offset", "weights")


def described(given: dict[str, Any]) -> dict[str, Any]:
    """What ``run.toml`` says, of a command's options.

    Parameters
    ----------
    given : dict
        ``program``, ``option``, ``seed``, ``objective``, ``objective_option`` and those of the table, by name.
    """
    options = assignments("--option", given["option"])
    if given["objective_option"] and given["objective"] is None:
        raise CoterieError("--objective-option needs --objective.")
    named = {name: given[name] for name in _FORMULA if given[name]}
    if given["objective"] is not None:
        if given["formula"] is not None or named:
            raise CoterieError("--objective stands for a table: leave out --formula and the names of columns.")
        if not re.fullmatch(r"[\w.]+:\w+", given["objective"]):
            raise CoterieError(f"--objective takes module:function, not '{given['objective']}'.")
        made = assignments("--objective-option", given["objective_option"])
        task: dict[str, Any] = {"factory": given["objective"], "options": made}
    elif given["formula"] is not None:
        task = {"formula": given["formula"], "family": given["family"], "missing": given["missing"], **named}
    else:
        raise CoterieError("Say what is modelled: add --formula 'outcome ~ columns', or --objective module:function.")
    out: dict[str, Any] = {"program": given["program"]}
    if given["seed"] is not None:
        out["seed"] = given["seed"]
    return out | {"task": task, "options": options}
