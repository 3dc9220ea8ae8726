"""What ``runs/<id>/run.toml`` says: a method by name, a program of its owner's, or a check.

```toml
program = "hierarchical"     # a method of `coterie fit`, one of `coterie train`, "module:function", or "check"
seed = 0                     # by default the federation's
[task]                       # what the sites prepare; see coterie.deployment.tasks
formula = "disease ~ age + sex"
family = "binomial"
missing = "drop"
[options]                    # of the program
covariance = "isotropic"
```
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from coterie import files
from coterie.deployment import toml
from coterie.deployment.config import RUN
from coterie.deployment.schema import Schema
from coterie.errors import CoterieError, nearest
from coterie.methods.registry import METHODS
from coterie.methods.training import TRAINERS

CHECK = "check"
_NETWORKED = "similarity-network"


@dataclass(frozen=True)
class Program:
    """What ``run.toml`` says.

    Attributes
    ----------
    program : str
    task : dict
        "factory" and "options", or what a table's task takes.
    options : dict
        Of the program.
    seed : int or None
        The federation's where None.
    """

    program: str
    task: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None

    def __post_init__(self) -> None:
        for part in ("task", "options"):
            if not isinstance(getattr(self, part), dict):
                raise CoterieError(f"[{part}] must be a table of names and values.")
        if not isinstance(self.program, str) or not (self.program in names() or ":" in self.program):
            known = nearest(self.program, names()) or f" There are {', '.join(names())}, or module:function."
            raise CoterieError(f"There is no program {self.program!r}.{known}")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0):
            raise CoterieError(f"The seed must be a whole number from 0, not {self.seed!r}.")
        if self.program in METHODS and "formula" not in self.task:
            raise CoterieError(f"Method '{self.program}' needs a formula in [task] (--formula).")
        if self.program in TRAINERS and "factory" not in self.task and self.program not in METHODS:
            raise CoterieError(
                f"Method '{self.program}' needs an objective that the sites make: a factory in [task] "
                "(--objective module:function)."
            )

    @property
    def fits(self) -> bool:
        """Whether it is a method of ``coterie fit`` on tables."""
        return self.program in METHODS and "factory" not in self.task

    @classmethod
    def read(cls, path: Path) -> Program:
        """From ``run.toml``; a CoterieError says what is wrong with it."""
        return toml.into(cls, path, "the program of a run", ("program",))

    def asked(self, schema: Schema | None) -> dict[str, Any]:
        """The task as it is sent to the sites."""
        if "factory" in self.task:
            options = self.task.get("options", {})
            return {"kind": "factory", "name": self.task["factory"], "options": options}
        return {"kind": "table", **self.task, "schema": None if schema is None else schema.plain()}


def digest(folder: Path, run_id: str) -> str:
    """Of the ``run.toml`` that a command has written, so that an engine's process runs no other; "" of none."""
    path = folder / "runs" / run_id / RUN
    return blake2b(files.content(path), digest_size=16).hexdigest() if path.exists() else ""


def names() -> list[str]:
    """Programs by name."""
    fits = [name for name in METHODS if name != _NETWORKED]
    return [*fits, *(t for t in TRAINERS if t not in METHODS and not TRAINERS[t].pool_rows), CHECK]
