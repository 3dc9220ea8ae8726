"""A run of states: who looks may end it, what is kept, and how it is said to have ended."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from coterie.runs.loop_and_callbacks import State, follow


class Counting:
    """States that count rounds, and say after ``broken`` of them that they diverged."""

    def __init__(self, broken: int = 99) -> None:
        self.broken = broken

    def run(self, fed: Any, stops: Sequence[int], state: State) -> Iterator[State]:
        assert fed == "fed" and stops[0] == state["t"] + 1
        for t in stops:
            yield {"t": t, "status": "diverged" if t >= self.broken else "running"}
            if t >= self.broken:
                return


def states(start: int = 0) -> State:
    return {"t": start, "status": "running"}


def test_all_rounds_are_seen_and_kept_and_the_last_is_told() -> None:
    seen: list[int] = []
    kept: list[tuple[int, bool]] = []
    last, status = follow(
        Counting(), "fed", states(2), 5, [lambda s: seen.append(s["t"])], lambda s, end: kept.append((s["t"], end))
    )
    assert (last["t"], status, seen) == (5, "running", [3, 4, 5])
    assert kept == [(3, False), (4, False), (5, True)]


def test_every_look_is_told_though_one_ends_the_run() -> None:
    told: list[int] = []
    last, status = follow(Counting(), "fed", states(), 9, [lambda s: s["t"] == 3, lambda s: told.append(s["t"])])
    assert (last["t"], status, told) == (3, "stopped", [1, 2, 3])


@pytest.mark.parametrize("at", [1, 4])
def test_a_run_that_diverged_says_so_and_its_end_is_not_kept(at: int) -> None:
    kept: list[int] = []
    last, status = follow(Counting(at), "fed", states(), 9, [lambda s: s["t"] == at], lambda s, _: kept.append(s["t"]))
    assert (last["t"], status, kept) == (at, "diverged", list(range(1, at)))


def test_a_run_with_no_round_left_is_as_it_was() -> None:
    class Nothing:
        def run(self, fed: Any, stops: Sequence[int], state: State) -> Iterator[State]:
            return iter(())

    assert follow(Nothing(), "fed", states(5), 5) == (states(5), "running")
