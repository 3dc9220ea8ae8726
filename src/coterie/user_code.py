"""Code of the user's own by its import path, "package.module:name": found in one way, and who may name it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from coterie.errors import RAISED, CoterieError, listed, nearest
from coterie.user_code_digest import digest


def find_in(folder: Path, first: bool = False) -> None:
    """Let modules of a folder be found: after all others or, with ``first``, before them."""
    here = str(folder if first else folder.resolve())
    if here not in sys.path:
        sys.path.insert(0 if first else len(sys.path), here)


def import_object(
    path: str, what: str = "", folder: Path | None = None, *, first: bool = False, copies: bool = True
) -> Any:
    """What an import path names; a module, where it has no ":name". ``what`` it is, "The method", is for messages.

    Modules in the ``folder`` are found too: after all others, or ``first``. Then one that was imported from elsewhere
    under the same name is an error, unless ``copies`` of the same text may stand for it. A CoterieError for a module
    that is not there, fails, or wishes to end the process, and for a name that it does not have.
    """
    module, _, name = path.partition(":")
    said = f"{what} '{path}'".lstrip()
    if folder is not None:
        find_in(folder, first)
    if folder is not None and first:
        _need_own(module, said, folder, copies)
    try:
        found: Any = import_module(module)
    except ImportError as problem:
        remedy = "install its module" if folder is None else f"install its module, or put it into '{folder}'"
        raise CoterieError(f"{said} cannot be imported ({problem}): {remedy}.") from problem
    except RAISED as problem:
        raised = f"it raises {type(problem).__name__}: {problem}".rstrip(". :")
        raise CoterieError(f"{said} cannot be imported ({raised}): put its module right.") from problem
    if folder is not None and first:
        _need_own(module, said, folder, copies)
    for part in filter(None, name.split(".")):
        if not hasattr(found, part):
            raise CoterieError(f"{said}: {module} has no '{name}'.{nearest(part, vars(found))}")
        found = getattr(found, part)
    return found


def _need_own(module: str, said: str, folder: Path, copies: bool) -> None:
    """A CoterieError where a module, or a package it is in, is in ``folder`` but one from elsewhere is loaded."""
    parts = module.split(".")
    for n in range(1, len(parts) + 1) if all(parts) else ():
        base, name = Path(folder, *parts[:n]), ".".join(parts[:n])
        here = next((p for p in (base / "__init__.py", base.with_name(f"{base.name}.py")) if p.is_file()), None)
        loaded = getattr(sys.modules.get(name), "__file__", None)
        if here is None or loaded is None:
            continue
        ours, theirs = here.resolve(), Path(loaded).resolve()
        same = copies and theirs.is_file() and ours.read_bytes() == theirs.read_bytes()
        if ours != theirs and ours.parent != theirs.parent and not same:
            raise CoterieError(
                f"{said} is in '{here}', but this process has imported {name} from '{loaded}': start a new process for "
                "it, or rename one of them."
            )


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
    """What "package.module:name" names, in a module of ``folder`` first: :func:`import_object`."""
    if not all(path.partition(":")[::2]):
        raise CoterieError(f"{what} '{path}' is no import path: write it as package.module:name.")
    return import_object(path, what, folder, first=True, copies=copies)


def marks_work(module: str) -> bool:
    """Whether it is a module of this package whose source marks work: a message makes a site import no other."""
    package, *parts = module.split(".")
    if package == "coterie" and parts and all(map(str.isidentifier, parts)):
        with suppress(OSError):  # there is none of this name
            return b"\n@work\ndef " in Path(__file__).parent.joinpath(*parts).with_suffix(".py").read_bytes()
    return False
