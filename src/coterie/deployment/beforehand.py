"""What is wrong with a program, found before any site is asked: a slip in a command costs no exchange and no wait."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from coterie.deployment import prepared, tasks
from coterie.deployment.config import SCHEMA, Config
from coterie.deployment.program import CHECK, Program
from coterie.deployment.schema import Schema
from coterie.errors import CoterieError, nearest
from coterie.methods.training import TRAINERS, trainer


def verify(folder: Path, program: Program, config: Config) -> None:
    """Raise for what a program's coordinator can know to be wrong without a row.

    Parameters
    ----------
    folder : path
        The coordinator's, with its schema and the modules of its owner.
    program : Program
    config : Config

    Raises
    ------
    CoterieError
        For options and values that the method does not have, a formula that does not fit the schema, and a function
        that cannot be found or called with the options.
    """
    seed = config.seed if program.seed is None else program.seed
    if program.program == CHECK:
        return
    if "factory" not in program.task:
        _table(folder, program)
    if program.fits:
        from coterie.deployment.fits import settled

        if config.privacy:
            raise CoterieError(
                f"The sums of method '{program.program}' have no bound, so noise cannot make them private: leave "
                "[privacy] out of federation.toml, or train a model by its name."
            )
        settled(program, schema_of(folder), seed)
    elif program.program in TRAINERS:
        training(program, seed)
    else:
        function(folder, program)


def schema_of(folder: Path) -> Schema:
    """The coordinator's schema."""
    path = folder / SCHEMA
    if not path.exists():
        raise CoterieError(f"The coordinator has no {SCHEMA}: 'coterie federation check --unite' makes one.")
    return Schema.read(path)


def training(program: Program, seed: int) -> tuple[Any, int, int]:
    """A method that trains at home, its rounds, and after how many of them its state is kept."""
    options, name = dict(program.options), program.program
    counts = []
    for key, default in (("rounds", 20), ("keep_every", 10)):
        value = options.pop(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise CoterieError(f"{key} must be a whole number from 1, not {value!r}.")
        counts.append(value)
    found = trainer(name)
    found.check(options)
    if several := [key for key, value in options.items() if found.several(key, value)]:
        raise CoterieError(
            f"{several[0]} must be one value: the best of several is chosen where all rows are together."
        )
    return found.make(seed, **options), counts[0], counts[1]


def function(folder: Path, program: Program) -> Any:
    """A program of the coordinator's owner, which takes the federation and the options."""
    found = tasks.imported(folder, program.program)
    if isinstance(found, type):
        raise CoterieError(
            f"'{program.program}' is a class, and a program is a function that is called with the federation: write "
            "one that runs the method and returns what is to be kept."
        )
    try:
        inspect.signature(found).bind(None, **program.options)
    except (TypeError, ValueError) as problem:
        raise CoterieError(
            f"'{program.program}' cannot be called with the federation and these options: {problem}."
        ) from problem
    return found


def _table(folder: Path, program: Program) -> None:
    """What sites are asked to prepare of their tables."""
    from coterie.data.reading import check_choices

    task = program.task
    check_choices(task.get("family", "gaussian"), task.get("missing", "error"))
    if "formula" not in task or not (folder / SCHEMA).exists():
        return
    schema = Schema.read(folder / SCHEMA)
    prepared.design_of(schema, task)
    clusters = task.get("cluster") or ()
    named = [task.get(role) for role in ("client", "offset", "weights")]
    for name in filter(None, [*named, *([clusters] if isinstance(clusters, str) else clusters)]):
        if name not in schema.columns:
            raise CoterieError(f"The schema has no column '{name}'.{nearest(name, schema.columns)}")
