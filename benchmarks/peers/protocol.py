"""What a problem and an answer are, and the process in which a peer fits: ``python -m benchmarks.peers.protocol``.

Both sides of a pair are processes of their own with one thread, which fit when they are told to, so that they can take
turns; what counts is the processor time of the fit, that of the processes it starts included.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

ONE_THREAD = {
    f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "BLIS", "NUMBA", "RAYON", "VECLIB", "NUMEXPR")
}


@dataclass
class Problem:
    """Rows and what is asked of them: ``arrays`` beside ``settings`` of plain numbers and texts."""

    name: str
    what: str
    settings: dict[str, Any]
    arrays: dict[str, np.ndarray]
    agree: dict[str, float] = field(default_factory=dict)
    objective: str = "log-likelihood"
    folder: str = ""

    def save(self, root: Path) -> Path:
        """The problem as files: arrays, settings, and a table for R."""
        import pandas as pd

        folder = root / self.name
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / "arrays.npz", **self.arrays)
        about = {"name": self.name, "what": self.what, "settings": self.settings}
        (folder / "problem.json").write_text(json.dumps(about | {"agree": self.agree, "objective": self.objective}))
        tables = {name: pd.DataFrame(array) for name, array in self.arrays.items() if array.ndim == 2}
        for name, table in (tables | ({"table": self.table()} if "outcome" in self.settings else {})).items():
            table.to_csv(folder / f"{name}.csv", index=False)
        return folder

    @classmethod
    def load(cls, folder: Path) -> Problem:
        """What :meth:`save` wrote."""
        with np.load(folder / "arrays.npz") as file:
            arrays = dict(file)
        return cls(**json.loads((folder / "problem.json").read_text()), arrays=arrays, folder=str(folder))

    def table(self) -> Any:
        """Arrays of one column each as a table."""
        import pandas as pd

        return pd.DataFrame({name: column for name, column in self.arrays.items() if column.ndim == 1})


@dataclass
class Answer:
    """The objective that was reached, estimates in the problem's order, and seconds where the peer measures them."""

    objective: float
    estimates: list[float] = field(default_factory=list)
    seconds: float | None = None
    note: str = ""


class R:
    """A process of R that runs a fit whenever it is asked, timed within R (user and system)."""

    def __init__(self, setup: str, fit: str, answer: str, *arguments: str) -> None:
        loop = (
            f"arguments <- commandArgs(TRUE); {setup}\n"
            "input <- file('stdin', 'r')\n"
            "while (length(readLines(input, 1))) {\n"
            f"  gc(); t <- system.time(m <- {{ {fit} }})\n"
            f"  cat('ANSWER', format(c(t[[1]] + t[[2]], {answer}), digits = 15), '\\n')\n}}\n"
        )
        command = ["Rscript", "-e", loop, *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self) -> list[float]:
        """Seconds, then what ``answer`` says."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("fit\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("ANSWER"):
                return [float(word) for word in line.split()[1:]]
        raise RuntimeError("R ended without an answer")


def release_in_r(package: str) -> str:
    """The release of an R package."""
    script = f"cat(as.character(packageVersion('{package}')))"
    return subprocess.run(["Rscript", "-e", script], check=True, capture_output=True, text=True).stdout.strip()


def used() -> float:
    """Processor seconds of this process and of those below it that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def wait_for_processes(most: float = 60.0) -> None:
    """Until processes that the fit left behind have ended, whose time then counts."""
    end = time.monotonic() + most
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < end:
            if not os.waitpid(-1, os.WNOHANG)[0]:
                time.sleep(0.05)


def main(peer: str, folder: str) -> None:
    """Say the release, then answer each line with a fit."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what peers print, and the processes that they start
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: whom daemons leave behind is counted here
    module, problem = import_module(f"benchmarks.peers.{peer}"), Problem.load(Path(folder))
    print(json.dumps({"release": module.release()}), file=answers, flush=True)
    for _ in sys.stdin:
        gc.collect()
        before, clock = used(), time.perf_counter()
        answer = module.fit(problem)
        wall = time.perf_counter() - clock
        if getattr(module, "STARTS_PROCESSES", False):
            wait_for_processes()
        said = asdict(answer)
        said["seconds"] = said["seconds"] if said["seconds"] is not None else used() - before
        print(json.dumps(said | {"wall": wall}), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
