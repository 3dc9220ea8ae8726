"""How the job of a run ended, in a file, and a lock that one process alone holds."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from coterie.errors import CoterieError

_FILE, LOCK = "job.json", "coordinator.lock"
_WAIT = 30.0  # seconds


@dataclass(frozen=True)
class Outcome:
    """What a job made of a run.

    Attributes
    ----------
    job : str
        NVFlare's number of the job.
    state : {"running", "finished", "failed", "lost", "late"}
        The last two are no job's own words.
    error, message : str
        Type and text of the error that ended it.
    """

    job: str
    state: str
    error: str = ""
    message: str = ""

    @classmethod
    def read(cls, run: Path) -> Self | None:
        """The last outcome in a run's folder, or None."""
        try:
            return cls(**json.loads((run / _FILE).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, run: Path) -> None:
        """Write it whole or not at all."""
        partial = run / f"{_FILE}.partial"
        partial.write_text(json.dumps(asdict(self)), encoding="utf-8")
        os.replace(partial, run / _FILE)


def held(path: Path) -> bool:
    """Whether a living process holds a lock."""
    try:
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return path.exists()
    return False


@contextmanager
def sole(path: Path, wait: float = _WAIT) -> Iterator[None]:
    """Hold a lock that ends with the process, however it ends; a CoterieError if another holds it for ``wait`` s."""
    path.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + wait
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > end:
                    raise CoterieError(f"Another process holds {path.name}: end it, then run again.") from None
                time.sleep(0.1)
        yield
