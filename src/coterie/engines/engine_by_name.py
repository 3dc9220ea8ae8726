"""Engines by name: where the clients of rows that a call holds are."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from coterie.engines.block_runner import BLOCK
from coterie.engines.inprocess import InProcess
from coterie.engines.loopback import Loopback

if TYPE_CHECKING:
    from coterie.engines.ray import Ray


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
    address: str | None = None,
) -> InProcess | Loopback | Ray:
    """The clients of an objective, in one site, or as neighbouring parts behind a wire, whose state is in ``folder``.

    ``address`` is that of a Ray cluster, for the kind "ray", whose parts are actors.
    """
    if kind == "inprocess":
        return InProcess(objective, clusters, ids=ids, seed=seed, threads=threads, block=block)
    parts = max(min(sites, len(objective)), 1)
    apart: dict[str, Any] = {"ids": ids, "sites": parts, "seed": seed, "folder": folder, "block": block}
    if kind == "loopback":
        return Loopback(objective, clusters, **apart, threads=threads or 1)
    from coterie.engines.ray import Ray

    return Ray(objective, clusters, **apart, threads=threads or 1, address=address)


def ready(engine: Mapping[str, Any]) -> AbstractContextManager[None]:
    """What an engine, by the keys of ``[engine]``, keeps for all federations of a call: Ray and its actors."""
    if engine.get("kind") != "ray":
        return nullcontext()
    from coterie.engines.ray import actors

    return actors.kept(engine.get("address"))
