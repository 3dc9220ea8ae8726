"""What a run cost, and the bytes of messages: kept by the engine, never guessed by a method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import numpy as np

from coterie.engines.wire import lengths
from coterie.errors import CoterieError
from coterie.federation import Array, PerCluster, PerRow, Ragged

_PLAIN = (bool, int, float, str, bytes, np.generic)


@dataclass
class Ledger:
    """Costs of a federation since it began; a resumed run goes on adding.

    Engines that send count the bytes that they sent, lost messages included. In process nothing is sent: there these
    are the bytes of the numbers that would travel if every client were a site of its own.
    """

    exchanges: int = 0  # calls of ask and total; repeats of a lost message are not new ones
    bytes_down: int = 0  # to the sites
    bytes_up: int = 0
    gradient_calls: int = 0  # of clients, as work told by site.count(gradients)
    seconds: float = 0.0  # of wall time in exchanges

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


def measure(value: Any, n: int, k: int) -> tuple[float, float]:
    """Check one message value; (bytes sent to every client, bytes sent once because every client has its own).

    A CoterieError for a value that cannot travel, or one not aligned with ``n`` requests or ``k`` clusters.
    """
    if isinstance(value, (np.ndarray, Ragged)):
        return float(nbytes(value)), 0.0
    if value is None or isinstance(value, _PLAIN):
        return (len(value) if isinstance(value, (str, bytes)) else 8.0), 0.0
    if isinstance(value, (PerRow, PerCluster)):
        length, what = (n, "request") if isinstance(value, PerRow) else (k, "cluster")
        size = 0.0
        for array in value.value.values() if isinstance(value.value, dict) else [value.value]:
            if getattr(array, "ndim", 1) == 0 or len(array) != length:
                raise CoterieError(f"{type(value).__name__} needs one row for each {what} ({length}).")
            size += sum(nbytes(a) for a in array) if isinstance(array, list) else nbytes(array)
        return (0.0, size) if isinstance(value, PerRow) else (size / max(k, 1), 0.0)
    if isinstance(value, Mapping):
        parts = [measure(v, n, k) for v in value.values()]
    elif isinstance(value, (list, tuple)):
        parts = [measure(v, n, k) for v in value]
    else:
        raise CoterieError(f"A message cannot hold a {type(value).__name__}: send numbers, text, arrays or Ragged.")
    return sum(p[0] for p in parts), sum(p[1] for p in parts)


def nbytes(value: Array | Ragged) -> int:
    """Bytes of the numbers in an array or a Ragged (its lengths included)."""
    if isinstance(value, Ragged):
        return value.values.nbytes + lengths(value).nbytes
    if value.dtype.hasobject:
        raise CoterieError("Arrays of Python objects cannot travel: send numbers or text.")
    return value.nbytes
