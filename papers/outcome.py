"""What an experiment gives: tables to read, a figure, and every number behind them; and how these are written."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie import files
from coterie.errors import CoterieError
from coterie.results.saved_values import plain
from papers.pictures import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from coterie.report.tables import Table


def _silent(text: str) -> None:
    """Nobody is told."""


@dataclass(frozen=True)
class Settings:
    """What a user may change about an experiment.

    Attributes
    ----------
    seeds : int, optional
        Independent runs, with seeds 0, 1, ...; by default as many as the paper made.
    quick : bool, default False
        A smaller experiment in seconds: fewer runs, steps or clients.
    tell : callable
        Is told what goes on, in a few words.
    """

    seeds: int | None = None
    quick: bool = False
    tell: Callable[[str], None] = _silent

    def runs(self, usual: int, quick: int = 2) -> range:
        """Seeds of the runs: as many as were asked for, else the usual or the quick number."""
        return range(self.seeds or (quick if self.quick else usual))


@dataclass(frozen=True)
class Outcome:
    """An experiment that was run.

    Attributes
    ----------
    tables : tuple of Table
        The paper's numbers beside those found.
    draw : callable
        Draws the figure.
    settings : dict
        All that was chosen: sizes, steps, probabilities, seeds.
    numbers : dict
        Arrays and numbers behind the tables and the figure.
    notes : tuple of str
        What a reader must know to compare: one sentence each.
    """

    tables: tuple[Table, ...]
    draw: Callable[[], Figure]
    settings: Mapping[str, Any]
    numbers: Mapping[str, Any]
    notes: tuple[str, ...] = field(default=())


def document(name: str, outcome: Outcome, seconds: float) -> str:
    """The outcome as JSON: settings, numbers, notes, versions and the time it took."""
    names = ("coterie", "numpy", "scipy", "numba", "pandas", "matplotlib")
    versions = {"python": platform.python_version(), **{package: version(package) for package in names}}
    values = {
        "experiment": name,
        "settings": outcome.settings,
        "numbers": outcome.numbers,
        "notes": list(outcome.notes),
        "versions": versions,
        "seconds": round(seconds, 2),
    }
    return json.dumps(plain(values), indent=1, allow_nan=False) + "\n"


def write(name: str, outcome: Outcome, seconds: float, folder: Path) -> list[Path]:
    """Write the figure (``001-table1.svg``) and the numbers (``001-table1.json``) into a folder: both or none.

    Parameters
    ----------
    name : str
        The experiment's.
    outcome : Outcome
    seconds : float
        That it took.
    folder : path
        Made if it is not there.

    Returns
    -------
    list of Path
        What was written.

    Raises
    ------
    CoterieError
        If it cannot be written.
    """
    file = folder / name.replace("/", "-")
    content = {
        file.with_suffix(".svg"): render(outcome.draw),
        file.with_suffix(".json"): document(name, outcome, seconds).encode(),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as drafts:  # which take their names when all are written, the last first
            for path, data in reversed(content.items()):
                drafts.enter_context(files.replacing(path)).write_bytes(data)
    except OSError as e:
        where = next((path for path in content if str(e.filename or "").startswith(str(path.parent))), folder)
        raise CoterieError(f"'{where}' cannot be written: {e.strerror or e}.") from e
    return list(content)
