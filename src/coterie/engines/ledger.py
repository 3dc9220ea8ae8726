"""What a run cost: kept by the engine, never guessed by a method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from time import perf_counter


@dataclass
class Ledger:
    """Costs of a federation since it began; a resumed run goes on adding.

    Attributes
    ----------
    exchanges : int
        Calls of ``ask`` and ``total``. Repeats of a lost message are not new exchanges.
    bytes_down, bytes_up : int
        To and from the sites. Engines that send count what they sent, lost messages included. In process nothing
        is sent: there these are the bytes of the numbers that would travel if every client were a site of its own.
    gradient_calls : int
        Client gradients evaluated, as work told by ``site.count(gradients)``.
    seconds : float
        Wall time spent in exchanges.
    """

    exchanges: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    gradient_calls: int = 0
    seconds: float = 0.0

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count one exchange and the time it takes."""
        start = perf_counter()
        self.exchanges += 1
        try:
            yield
        finally:
            self.seconds += perf_counter() - start

    def as_dict(self) -> dict[str, float]:
        """All entries by name."""
        return asdict(self)

    def load(self, entries: Mapping[str, float]) -> None:
        """Set all entries, as :meth:`as_dict` gave them."""
        for name in asdict(self):
            setattr(self, name, type(getattr(self, name))(entries[name]))
