"""A method of the user's own, found by its import path, and what it must have."""

from __future__ import annotations

import inspect
import sys
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError, nearest
from coterie.methods.trainer import Trainer

PARTS = {
    "init": "init(fed), which gives the state before the first round",
    "run": "run(fed, stops, state), which gives the states after these rounds: derive it from "
    "coterie.methods.stepwise.Stepwise, which makes it of step(fed, state)",
    "models": "models(fed, state), which gives a row of parameters for each client",
}
"""What a method has."""


def own(path: str, folder: Path | None = None) -> Trainer:
    """A method of the user's own: a dataclass with what :data:`PARTS` says, whose fields are its hyper-parameters.

    The engine gives it a ``seed`` where it has such a field, and known groups where it says ``known_groups = True``.
    A CoterieError says what is missing.
    """
    made = imported(path, "The method", folder)
    if not (isinstance(made, type) and is_dataclass(made)):
        raise CoterieError(f"The method '{path}' is no dataclass, whose fields would be its hyper-parameters.")
    for name, what in PARTS.items():
        if not callable(getattr(made, name, None)):
            raise CoterieError(f"The method '{path}' lacks {what}.")
    if inspect.isabstract(made):
        raise CoterieError(f"The method '{path}' lacks {', '.join(sorted(made.__abstractmethods__))}.")
    plain = {f.name: f.default for f in fields(made) if isinstance(f.default, str | bool | int | float)}
    plain.pop("seed", None)  # what is left tells one version of the code from another in hashes and reports
    what = (inspect.getdoc(made) or "").partition("\n")[0].rstrip(".")
    return Trainer(path, path, what, plain, groups=getattr(made, "known_groups", False) is True)


def imported(path: str, what: str, folder: Path | None = None) -> Any:
    """What "package.module:name" names; modules in ``folder`` are found too.

    Raises
    ------
    CoterieError
        For a path of another form, a module that is not there or fails, and a name that it does not have.
    """
    module, _, name = path.partition(":")
    if not module or not name:
        raise CoterieError(f"{what} '{path}' is no import path: write it as package.module:name.")
    if folder is not None and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        found = import_module(module)
    except ImportError as e:
        raise CoterieError(f"{what} '{path}' cannot be imported: {e}.") from e
    except Exception as e:
        raise CoterieError(f"{what} '{path}' cannot be imported: {module} raises {type(e).__name__}: {e}.") from e
    for part in name.split("."):
        if not hasattr(found, part):
            raise CoterieError(f"{what} '{path}': {module} has no '{name}'.{nearest(part, vars(found))}")
        found = getattr(found, part)
    return found
