"""A line that says what is going on while it goes on, to a person at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Timer
from time import monotonic
from typing import Any, TextIO, TypeVar

T = TypeVar("T")

AFTER = 2.0
"""Seconds after which a call in Python says what it is at."""
_SHOWN: ContextVar[Line | Elsewhere | None] = ContextVar("shown", default=None)


class Elsewhere:
    """Stands for a line that is shown in another process: what it would say goes to a function."""

    def __init__(self, update: Callable[[str], None]) -> None:
        self.text, self.counting, self.update = "", False, update
        self.live: Any = self


class Line:
    """A line that changes while something goes on, from ``after`` seconds on: for a person, and never two at once."""

    def __init__(self, text: str, stream: TextIO, after: float = 0.0) -> None:
        shown = _SHOWN.get()
        self.live: Any = shown if isinstance(shown, Elsewhere) else None
        self.text, self.counting = text, False
        self.timer: Timer | None = None
        if stream.isatty() and shown is None:
            from rich.console import Console

            self.live = Console(file=stream).status(text)
            self.timer = Timer(after, self.live.start)
            self.timer.daemon = True

    def start(self) -> None:
        """Show it, once it is time."""
        if self.live is not None:
            self.token = _SHOWN.set(self)
        if self.timer is not None:
            self.timer.start()

    def stop(self) -> None:
        """Take it away."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer.join()
            self.live.stop()
        if self.live is not None:
            _SHOWN.reset(self.token)


@contextmanager
def told(update: Callable[[str], None]) -> Iterator[None]:
    """Have loops tell a function meanwhile where they are, in place of a terminal."""
    token = _SHOWN.set(Elsewhere(update))
    try:
        yield
    finally:
        _SHOWN.reset(token)


@contextmanager
def status(text: str, after: float = 0.0) -> Iterator[Line]:
    """Show what is going on while it goes on, to a person only."""
    line = Line(text, sys.stderr, after)
    line.start()
    try:
        yield line
    finally:
        line.stop()


def steps(
    items: Iterable[T], n: int, what: str, done: Callable[[T], int] | None = None, since: int = 0, most: bool = False
) -> Iterator[T]:
    """Items, while the line that is shown says how many of n are done and how long the others take.

    Where none is shown, it is one of its own, after a while; of loops in loops the outer one of several items is
    counted. ``done`` says it of an item that stands for more than one, of which ``since`` were there before; there are
    n at ``most`` where a loop may end earlier.
    """
    line = _SHOWN.get()
    if line is None:
        with status(f"{what} ...", AFTER):
            yield from items if _SHOWN.get() is None else steps(items, n, what, done, since, most)
        return
    if line.counting or n < 2:
        yield from items
        return
    line.counting, begun = True, monotonic()
    try:
        for k, item in enumerate(items, start=1):
            yield item
            at, limit = k if done is None else done(item), "at most " if most else ""
            left = (monotonic() - begun) * (n - at) / max(at - since, 1)
            line.live.update(f"{what}: {at:,} of {limit}{n:,}, {limit}{left:,.0f} s left")
    finally:
        line.counting = False
        line.live.update(line.text)
