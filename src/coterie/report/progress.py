"""How a run is shown while it goes on: one line that changes for a person, few plain lines for a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any, TextIO

from coterie.report.words import amount
from coterie.runs.loop_and_callbacks import Callback, Look
from coterie.status_line import AFTER, Line

_BESIDE = ("_clients", "_worst", "_10th", "_90th", "_variance", "_jain", "validation")
_MEASURED = ("gradient", "noise_", "growth_")
RARE, LINES = 30.0, 10
"""Seconds between plain lines, at least, and how many of them a run has, at most."""


class Progress(Callback):
    """Round, held-out score, bytes and seconds left of what is trained, on the error stream.

    Where nobody watches a terminal, few lines are written.
    """

    def __init__(self, what: str, stream: TextIO | None = None, after: float = 0.0) -> None:
        self.what, self.stream, self.said = what, stream or sys.stderr, monotonic()
        self.first: tuple[int, float] | None = None  # the first round that was seen, and when
        self.shown = Line(what, self.stream, after)
        self.shown.counting = True  # the line says more than a count of rounds

    def start(self, settings: Mapping[str, Any]) -> None:
        """Show the line."""
        self.shown.start()

    def look(self, look: Look) -> None:
        """Change the line, or write one where it is time."""
        now = monotonic()
        first, since = self.first = self.first or (look.round, now)
        pace = (now - since) / (look.round - first) if look.round > first else None
        text = line(self.what, look, None if pace is None else pace * (look.rounds - look.round))
        if self.shown.live is not None:
            self.shown.live.update(text)
        due = look.round * LINES // look.rounds != (look.round - 1) * LINES // look.rounds
        if self.shown.live is None and look.fresh and due and now - self.said >= RARE:
            self.said = now
            print(text, file=self.stream, flush=True)

    def end(self) -> None:
        """Take the line away."""
        self.shown.stop()


def of_a_call() -> Callable[[str], Sequence[Callback]]:
    """What watches the runs of a call in Python: a line once the call takes long, and nothing without a terminal."""
    if not sys.stderr.isatty():
        return lambda what: ()
    due = monotonic() + AFTER
    return lambda what: [Progress(what, after=max(0.0, due - monotonic()))]


def line(what: str, look: Look, left: float | None) -> str:
    """``fedavg: round 12 of 50, accuracy 0.871, loss 0.412, 1.2 MB up, 1.2 MB down, 40 s left``."""
    parts = [f"round {look.round} of {look.rounds}"]
    means = {k: v for k, v in look.scores.items() if not (k.endswith(_BESIDE) or k.startswith(_MEASURED))}
    parts += [f"{name} {value:.3f}" for name, value in means.items()]
    parts += [f"{amount(look.bytes_up)} up", f"{amount(look.bytes_down)} down"]
    parts += [] if left is None else [f"{left:,.0f} s left"]
    return f"{what}: {', '.join(parts)}"
