"""The command in this process, as a user sees it: exit code, what is printed, what is written."""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from coterie.cli.main import main

N = 60


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def message(self) -> str:
        """The one line of an error."""
        assert self.code == 2, f"exit code {self.code}\n{self.out}{self.err}"
        assert self.out == "" or (self.out.startswith("Read ") and self.out.count("\n") == 1)  # while it fitted
        assert self.err.startswith("Error: ")
        assert self.err.count("\n") == 1, self.err
        text = self.err.removeprefix("Error: ").rstrip("\n")
        assert text.endswith((".", "?")), text
        assert text == " ".join(text.split())
        for word in ("Traceback", "Error", "Exception", "singular", "np.", "dtype"):
            assert word not in text, text
        return text


def coterie(*arguments: object) -> Ran:
    """Run the command; warnings are errors, as everywhere in these tests."""
    out, err = io.StringIO(), io.StringIO()
    before = list(sys.warnoptions)
    sys.warnoptions[:] = ["error"]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main([str(a) for a in arguments])
    except SystemExit as stop:
        return Ran(stop.code, out.getvalue(), err.getvalue())
    finally:
        sys.warnoptions[:] = before
    raise AssertionError("the command did not leave by an exit code")


def table(**columns: object) -> pd.DataFrame:
    """Six schools of ten rows in two sectors; columns can be replaced, added, or left out with None."""
    rng = np.random.default_rng(5)
    school = np.repeat(np.arange(6), N // 6)
    hours = rng.normal(size=N).round(4)
    data: dict[str, object] = {
        "school": np.array(["ash", "birch", "cedar", "elm", "fir", "oak"])[school],
        "sector": np.array(["town", "land"])[school // 3],
        "hours": hours,
        "score": (rng.normal(size=6)[school] + hours + rng.normal(size=N)).round(4),
        "level": np.tile(["lo", "hi", "mid"], N // 3),
        "passed": (rng.random(N) < 0.5).astype(int),
        "visits": rng.poisson(2, N),
        "day": np.tile(np.arange(N // 6), 6),
    }
    return pd.DataFrame({k: v for k, v in (data | columns).items() if v is not None})


def changed(column: str, rows: list[int], value: object) -> dict[str, object]:
    """A column with another value in some rows (counted from 1)."""
    values = list(table()[column])
    for row in rows:
        values[row - 1] = value
    return {column: values}


def files(folder: Path) -> set[str]:
    """Everything in a folder, hidden files included."""
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*")}


def with_model(folder: Path, formula: str, *options: object) -> Path:
    """The folder, with ``table.csv`` and a fit of it in ``model``."""
    with contextlib.chdir(folder):
        table().to_csv("table.csv", index=False)
        assert coterie("fit", "table.csv", "--formula", formula, *options, "--out", "model").code == 0
    return folder
