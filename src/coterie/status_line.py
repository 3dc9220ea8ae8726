"""A line that says what is going on while it goes on, to a person at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Timer
from typing import Any, TextIO

AFTER = 2.0
"""Seconds after which a call in Python says what it is at."""
_SHOWN: ContextVar[bool] = ContextVar("shown", default=False)


class Line:
    """A line that changes while something goes on, from ``after`` seconds on: for a person, and never two at once."""

    def __init__(self, text: str, stream: TextIO, after: float = 0.0) -> None:
        self.live: Any = None
        if stream.isatty() and not _SHOWN.get():
            from rich.console import Console

            self.live = Console(file=stream).status(text)
            self.timer = Timer(after, self.live.start)
            self.timer.daemon = True

    def start(self) -> None:
        """Show it, once it is time."""
        if self.live is not None:
            self.token = _SHOWN.set(True)
            self.timer.start()

    def stop(self) -> None:
        """Take it away."""
        if self.live is not None:
            self.timer.cancel()
            self.timer.join()
            self.live.stop()
            _SHOWN.reset(self.token)


@contextmanager
def status(text: str, after: float = 0.0) -> Iterator[None]:
    """Show what is going on while it goes on, to a person only."""
    line = Line(text, sys.stderr, after)
    line.start()
    try:
        yield
    finally:
        line.stop()
