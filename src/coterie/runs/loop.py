"""One run: a ``for`` loop over a method's states that tells who watches, keeps them, and ends early where asked to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

State = Mapping[str, Any]


@dataclass(frozen=True)
class Look:
    """A run after a round."""

    method: str
    round: int  # done
    rounds: int  # planned
    seconds: float  # since the run began
    bytes_up: int  # to the server since then
    bytes_down: int
    scores: Mapping[str, float] = field(default_factory=dict)  # the last held-out ones; none before the first
    fresh: bool = False  # whether they are of this round
    state: State = field(default_factory=dict)  # the method's; not to be changed


class Callback:
    """A callback that does nothing: the base of others. It gets a :class:`Look` after every round."""

    def start(self, settings: Mapping[str, Any]) -> None:
        """Before the first round, with the settings of the run."""

    def look(self, look: Look) -> bool | None:
        """After a round; True ends the run."""

    def end(self) -> None:
        """After the last round, also where the run failed."""


def follow(
    method: Any,
    fed: Any,
    state: State,
    rounds: int,
    looks: Sequence[Callable[[State], bool | None]] = (),
    keep: Callable[[State, bool], None] | None = None,
) -> tuple[State, str]:
    """All rounds from a state on; the last state, and "stopped" where a look ended the run, else the method's status.

    Every look is told of every state and may answer True, which ends the run; ``keep`` is then given each state of a
    run that goes well, and whether it is the last.
    """
    stops = range(state["t"] + 1, rounds + 1)
    for state in method.run(fed, stops, state):  # noqa: B020
        told = [look(state) for look in looks]
        last = any(told) or state["t"] == rounds
        if state["status"] != "running":
            continue
        if keep is not None:
            keep(state, last)
        if last:
            return state, "stopped" if state["t"] < rounds else "running"
    return state, str(state["status"])
