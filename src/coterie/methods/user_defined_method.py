"""A method of the user's own, found by its import path: what it must have."""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass
from pathlib import Path

from coterie.errors import CoterieError
from coterie.methods.method import Method
from coterie.user_code import named

PARTS = {
    "init": "init(fed), which gives the state before the first round",
    "run": "run(fed, stops, state), which gives the states after these rounds: derive it from "
    "coterie.methods.stepwise.Stepwise, which makes it of step(fed, state)",
    "models": "models(fed, state), which gives a row of parameters for each client",
}
"""What a method has."""


def user_defined_method(path: str, folder: Path | None = None) -> Method:
    """A method of the user's own: a dataclass with what :data:`PARTS` says, whose fields are its hyper-parameters.

    The engine gives it a ``seed`` where it has such a field, and known groups where it says ``known_groups = True``.
    A CoterieError says what is missing.
    """
    made = named(path, "The method", folder, copies=False)
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
    known = getattr(made, "known_groups", False) is True
    return Method(path, what, "groups" if known else "nothing", trains=path, defaults=plain)
