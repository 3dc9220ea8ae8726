"""Code of the user's own, found by its import path: who may name it, and what a method must have."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError, listed
from coterie.methods.code_digest import digest
from coterie.methods.method import Method
from coterie.user_code import import_object

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


@dataclass(frozen=True)
class Permitted:
    """What a caller lets a file that was read name of code that is not coterie's. By default nothing."""

    allow: frozenset[str] = frozenset()  # import paths
    given: Mapping[str, Any] = field(default_factory=dict)  # what the caller gives for an import path
    digests: Mapping[str, str] = field(default_factory=dict)  # of each import path when the file was written
    changed: bool = False  # whether code may be another than that
    said: set[str] = field(default_factory=set)  # import paths of which it was said what no digest sees

    def get(self, path: str, what: str, folder: Path | None = None) -> Any:
        """What an import path names; a CoterieError unless the caller named it in the call, and it did not change."""
        if path not in self.given and path not in self.allow:
            model = what.endswith("model")
            remedy = f"if you trust it, name it in the call, with allow=['{path}']{' or as model=' * model}, or --allow"
            if " " in path:  # it was in memory, and has no import path
                remedy = "give it in the call, as model=" if model else "write it into a module, and train again"
            raise CoterieError(
                f"{what} '{path}' is code that is not coterie's, and a file that is read chooses none: {remedy}."
            )
        made = self.given[path] if path in self.given else named(path, what, folder)
        if self.changed:
            return made
        found = digest(made, numbers=not what.endswith("model"))
        if found.unseen and path not in self.said:
            self.said.add(path)
            warnings.warn(
                f"{what} '{path}' holds values that no digest sees, and that may be others than in training: "
                f"{listed(found.unseen)}.",
                stacklevel=2,
            )
        if found.sha256 != self.digests.get(path):
            raise CoterieError(
                f"{what} '{path}' is not the code that was there when these models were trained: put that version of "
                "its file back, train again, or take it as it is with changed=True."
            )
        return made


def named(path: str, what: str, folder: Path | None = None, copies: bool = True) -> Any:
    """What "package.module:name" names, in a module of ``folder`` first: :func:`coterie.user_code.import_object`."""
    if not all(path.partition(":")[::2]):
        raise CoterieError(f"{what} '{path}' is no import path: write it as package.module:name.")
    return import_object(path, what, folder, first=True, copies=copies)
