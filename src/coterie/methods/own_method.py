"""Code of the user's own, found by its import path: who may name it, and what a method must have."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from coterie.errors import RAISED, CoterieError, nearest
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
    made = imported(path, "The method", folder, copies=False)
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


@dataclass(frozen=True)
class Permitted:
    """What a caller lets a file that was read name of code that is not coterie's. By default nothing.

    Attributes
    ----------
    allow : frozenset of str
        Import paths.
    given : dict
        What the caller gives for an import path.
    digests : dict of str
        :func:`digest` of each import path when the file was written.
    changed : bool, default False
        Whether code may be another than that.
    """

    allow: frozenset[str] = frozenset()
    given: Mapping[str, Any] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    changed: bool = False

    def get(self, path: str, what: str, folder: Path | None = None) -> Any:
        """What an import path names; a CoterieError unless the caller named it in the call, and it did not change."""
        if path not in self.given and path not in self.allow:
            raise CoterieError(
                f"{what} '{path}' is code that is not coterie's, and a file that is read chooses none: if you trust "
                "it, name it in the call, with allow=[...] or as model=."
            )
        made = self.given[path] if path in self.given else imported(path, what, folder)
        if not self.changed and digest(made) != self.digests.get(path):
            raise CoterieError(
                f"{what} '{path}' is not the code that was there when these models were trained: put that version of "
                "its file back, train again, or take it as it is with changed=True."
            )
        return made


def digest(made: Any) -> str:
    """SHA-256 of the file that defines a function or a class, in hexadecimal; empty where it is in none."""
    while isinstance(made, partial):
        made = made.func
    made = inspect.unwrap(made)
    module = sys.modules.get(getattr(made, "__module__", None) or type(made).__module__)
    file = getattr(module, "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""


def imported(path: str, what: str, folder: Path | None = None, copies: bool = True) -> Any:
    """What "package.module:name" names; modules in ``folder`` are found too.

    With ``copies``, one that was imported from elsewhere may stand for one of the same text.

    Raises
    ------
    CoterieError
        For a path of another form, a module that is not there or fails, one in ``folder`` whose name is that of another
        that was imported before, and a name that it does not have.
    """
    module, _, name = path.partition(":")
    if not module or not name:
        raise CoterieError(f"{what} '{path}' is no import path: write it as package.module:name.")
    if folder is not None and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    _alone(module, path, what, folder, copies)
    try:
        found = import_module(module)
    except ImportError as e:
        raise CoterieError(f"{what} '{path}' cannot be imported: {e}.") from e
    except RAISED as e:
        raise CoterieError(f"{what} '{path}' cannot be imported: {module} raises {type(e).__name__}: {e}.") from e
    _alone(module, path, what, folder, copies)
    for part in name.split("."):
        if not hasattr(found, part):
            raise CoterieError(f"{what} '{path}': {module} has no '{name}'.{nearest(part, vars(found))}")
        found = getattr(found, part)
    return found


def _alone(module: str, path: str, what: str, folder: Path | None, copies: bool) -> None:
    """A CoterieError where a module, or a package it is in, is in ``folder`` but one from elsewhere is loaded."""
    parts = module.split(".")
    for n in range(1, len(parts) + 1) if folder is not None and all(parts) else ():
        base, name = Path(folder or "", *parts[:n]), ".".join(parts[:n])
        here = next((p for p in (base / "__init__.py", base.with_name(f"{base.name}.py")) if p.is_file()), None)
        loaded = getattr(sys.modules.get(name), "__file__", None)
        if here is None or loaded is None:
            continue
        ours, theirs = here.resolve(), Path(loaded).resolve()
        same = copies and theirs.is_file() and ours.read_bytes() == theirs.read_bytes()
        if ours != theirs and ours.parent != theirs.parent and not same:
            raise CoterieError(
                f"{what} '{path}' is in '{here}', but this process has imported {name} from '{loaded}': start a new "
                "process for it, or rename one of them."
            )
