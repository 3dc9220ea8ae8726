"""Engines of this process by name: where the clients of rows that a call holds are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy.typing as npt

from coterie.engines.block_runner import BLOCK
from coterie.engines.inprocess import InProcess
from coterie.engines.loopback import Loopback


def local_engine(
    objective: Any,
    clusters: npt.ArrayLike | None,
    ids: npt.ArrayLike | None,
    *,
    seed: int = 0,
    kind: str = "inprocess",
    sites: int = 2,
    threads: int | None = None,
    block: int = BLOCK,
    folder: Path | None = None,
) -> InProcess | Loopback:
    """The clients of an objective, in one site or as neighbouring parts behind a wire, whose state is in ``folder``."""
    if kind == "inprocess":
        return InProcess(objective, clusters, ids=ids, seed=seed, threads=threads, block=block)
    parts = max(min(sites, len(objective)), 1)
    return Loopback(
        objective, clusters, ids=ids, sites=parts, seed=seed, folder=folder, block=block, threads=threads or 1
    )
