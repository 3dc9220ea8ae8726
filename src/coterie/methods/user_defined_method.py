"""Code of the user's own, found by its import path: who may name it, and what a method must have."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError
from coterie.imports import import_object
from coterie.methods.method import Method

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

    def get(self, path: str, what: str, folder: Path | None = None) -> Any:
        """What an import path names; a CoterieError unless the caller named it in the call, and it did not change."""
        if path not in self.given and path not in self.allow:
            model = what.endswith("model")
            remedy = f"if you trust it, name it in the call, with allow=[...]{' or as model=' * model}"
            if " " in path:  # it was in memory, and has no import path
                remedy = "give it in the call, as model=" if model else "write it into a module, and train again"
            raise CoterieError(
                f"{what} '{path}' is code that is not coterie's, and a file that is read chooses none: {remedy}."
            )
        made = self.given[path] if path in self.given else named(path, what, folder)
        if not self.changed and digest(made) != self.digests.get(path):
            raise CoterieError(
                f"{what} '{path}' is not the code that was there when these models were trained: put that version of "
                "its file back, train again, or take it as it is with changed=True."
            )
        return made


def digest(made: Any) -> str:
    """SHA-256, in hexadecimal, of what defines a function or a class: the file that it is in and its name there.

    A lambda, a function within another and one of a notebook have no such name or file: theirs is of what they compile
    to as well, which another version of Python may do otherwise; that of a torch module is of its layers, too.
    """
    while isinstance(made, partial):
        made = made.func
    made = inspect.unwrap(made)
    layers = repr(made) if hasattr(made, "state_dict") and not isinstance(made, type) else ""
    made = made if isinstance(made, type) or inspect.isroutine(made) else type(made)
    name, file = made.__qualname__, getattr(sys.modules.get(made.__module__), "__file__", None)
    parts: list[Any] = [Path(file).read_bytes() if file else b"", layers]
    if file and "<" not in name:
        parts.append(name)
    elif not isinstance(made, type):
        parts += [_compiled(getattr(made, "__code__", None)), _defaults(made)]
    else:
        each = vars(made).items()
        parts += [(key, _compiled(getattr(part, "__code__", None)), _defaults(part)) for key, part in each]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _defaults(function: Any) -> list[Any]:
    """Arguments that a function has by default, where they are numbers or texts."""
    named = getattr(function, "__kwdefaults__", None) or {}
    return [v for v in (*(getattr(function, "__defaults__", None) or ()), *named.items()) if _is_plain(v)]


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, tuple) else isinstance(value, str | bool | int | float)


def _compiled(code: Any) -> Any:
    """What a function does, wherever it stands."""
    if not hasattr(code, "co_code"):
        return sorted(map(repr, code)) if isinstance(code, frozenset) else repr(code)
    return code.co_code, code.co_names, [_compiled(const) for const in code.co_consts]


def named(path: str, what: str, folder: Path | None = None, copies: bool = True) -> Any:
    """What "package.module:name" names, in a module of ``folder`` first: see :func:`coterie.imports.import_object`."""
    if not all(path.partition(":")[::2]):
        raise CoterieError(f"{what} '{path}' is no import path: write it as package.module:name.")
    return import_object(path, what, folder, first=True, copies=copies)
