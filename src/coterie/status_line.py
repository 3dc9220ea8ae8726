"""A line that says what is going on while it goes on, to a person at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Timer
from time import monotonic
from typing import Any, TextIO, TypeVar

T = TypeVar("T")

AFTER = 2.0
"""Seconds after which a call in Python says what it is at."""
_SHOWN: ContextVar[Line | None] = ContextVar("shown", default=None)


class Line:
    """A line that changes while something goes on, from ``after`` seconds on: for a person, and never two at once."""

    def __init__(self, text: str, stream: TextIO, after: float = 0.0) -> None:
        self.live: Any = None
        self.text, self.counting = text, False
        if stream.isatty() and _SHOWN.get() is None:
            from rich.console import Console

            self.live = Console(file=stream).status(text)
            self.timer = Timer(after, self.live.start)
            self.timer.daemon = True

    def start(self) -> None:
        """Show it, once it is time."""
        if self.live is not None:
            self.token = _SHOWN.set(self)
            self.timer.start()

    def stop(self) -> None:
        """Take it away."""
        if self.live is not None:
            self.timer.cancel()
            self.timer.join()
            self.live.stop()
            _SHOWN.reset(self.token)


@contextmanager
def status(text: str, after: float = 0.0) -> Iterator[Line]:
    """Show what is going on while it goes on, to a person only."""
    line = Line(text, sys.stderr, after)
    line.start()
    try:
        yield line
    finally:
        line.stop()


def steps(items: Iterable[T], n: int, what: str) -> Iterator[T]:
    """Items, n of them, while the line that is shown says how many are done and how long the others take.

    Where none is shown, it is one of its own, after a while; of loops in loops the outer one is counted.
    """
    line = _SHOWN.get()
    if line is None:
        with status(f"{what} ...", AFTER):
            yield from items if _SHOWN.get() is None else steps(items, n, what)
        return
    if line.counting:
        yield from items
        return
    line.counting, begun = True, monotonic()
    try:
        for done, item in enumerate(items, start=1):
            yield item
            left = (monotonic() - begun) * (n - done) / done
            line.live.update(f"{what}: {done:,} of {n:,}, {left:,.0f} s left")
    finally:
        line.counting = False
        line.live.update(line.text)
