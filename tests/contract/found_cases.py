"""Rows of the registry for groups that are found before they are trained."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from coterie.methods.found_groups import FoundGroups
from tests.contract.baseline_cases import classes, training
from tests.contract.cases import Case, State, last, streamed


def stream(method: FoundGroups, fed: Any, state: State | None = None) -> Iterator[State]:
    """Five rounds, each a state."""
    yield from training(method, fed, state, 5)


def finish(method: FoundGroups, fed: Any, state: State) -> dict[str, Any]:
    """Every client's model."""
    return {"theta": method.models(fed, state), "t": state["t"], "groups": len(set(state["group"].tolist()))}


def by_updates(name: str, method: FoundGroups, **fields: Any) -> Case:
    """A row for groups by updates."""
    over: Any = {"finish": partial(finish, method), "problem": classes, "per_client": ("theta",)}
    return streamed(name, partial(stream, method), **over, **fields)


def restarts(fed: Any) -> dict[str, Any]:
    """Groups by restarts, in one go: looking for them is one step of a run, too long to die in at every message."""
    method = FoundGroups(eta=0.3, by="restarts", k=2, steps=10, restarts=3, rounds=4, tau=2)
    return finish(method, fed, last(stream(method, fed)))


FOUND = [
    by_updates("found-by-updates", FoundGroups(eta=0.3, steps=20, tau=2)),
    by_updates("found-by-updates-rows", FoundGroups(eta=0.3, steps=20, k=2, B=2, shared=("0",)), random=True),
    Case("found-by-restarts", restarts, problem=classes, per_client=("theta",)),
]
