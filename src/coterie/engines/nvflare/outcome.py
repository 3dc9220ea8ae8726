"""How the job of a run ended, in a file, and a lock that one process alone holds."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from coterie import files
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
        files.write(run / _FILE, [json.dumps(asdict(self)).encode()])


def held(path: Path) -> bool:
    """Whether a living process holds a lock."""
    try:
        with files.locked(path, 0.0, f"{path.name} is held."):
            return False
    except (CoterieError, OSError):
        return path.exists()


def sole(path: Path, wait: float = _WAIT) -> AbstractContextManager[None]:
    """Hold a lock that ends with the process, however it ends; a CoterieError if another holds it for ``wait`` s."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return files.locked(path, wait, f"Another process holds {path.name}: end it, then run again.")
