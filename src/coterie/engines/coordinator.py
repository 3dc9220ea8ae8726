"""The coordinator's half of an exchange, over any transport that carries bytes to a site and back."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from coterie.engines import wire
from coterie.engines.assemble import Adder, Gather, counts
from coterie.engines.base import addressed, compact, grouped, measure, shared_out, unequal
from coterie.engines.ledger import Ledger
from coterie.engines.node import Exchange
from coterie.errors import CoterieError
from coterie.federation import By, Ints, Replies, Roster, Rows, Sums, To, Work, readonly, work_name


@dataclass(frozen=True)
class Part:
    """One site's share of a request: positions in the request, clients of the site (None: all), and clusters."""

    site: int
    at: Ints
    local: Ints | None
    present: Rows


class Coordinator(ABC):
    """Speaks to sites in a fixed order, and adds their sums in that order.

    Parameters
    ----------
    clients : Roster
        All clients.
    sites : sequence of (m_s,) int64
        Clients of each site, rising; every client has one site.
    retries : int
        How often a message without a reply is sent again before its site counts as missing.
    refused : {"raise", "missing"}
        What a site that refuses means: an error that ends the run, or a site that is missing (and is listed in
        ``refusals``).
    """

    def __init__(
        self,
        clients: Roster,
        sites: Sequence[Ints],
        *,
        retries: int = 10,
        refused: Literal["raise", "missing"] = "raise",
    ) -> None:
        self.clients, self.sites = clients, list(sites)
        self.ledger = Ledger()
        self.refusals: list[tuple[int, str]] = []
        self.number = 0
        self._retries, self._refused = retries, refused
        # Numbers of different lives never meet: a site that missed a restore cannot be taken for one that did not.
        self._life = int.from_bytes(os.urandom(6), "little")
        self._counted: list[Exchange] = [[0, 0] for _ in self.sites]
        self._owner = np.empty(len(clients), np.int64)
        self._local = np.empty(len(clients), np.int64)
        for s, rows in enumerate(self.sites):
            self._owner[rows], self._local[rows] = s, np.arange(len(rows))
        self._everyone = readonly(np.arange(len(clients)))
        self._all = [Part(s, rows, None, self._present(rows)) for s, rows in enumerate(self.sites) if len(rows)]

    @abstractmethod
    def deliver(self, site: int, data: bytes, attempt: int) -> bytes | None:
        """Carry ``data`` to a site and its reply back, counting both in the ledger; None if no reply came."""

    def ask(self, work: Work, /, to: To = None, **message: Any) -> Replies:
        """A row for each request: see :meth:`coterie.federation.Federation.ask`."""
        with self.ledger.timed():
            rows, parts = self._request(to, message)
            request = {"kind": "ask", "work": work_name(work)}
            answers = [(p, reply["values"]) for p, reply in self._exchange(request, parts, message)]
            answered, missing = self._answered(len(rows), [p for p, _ in answers])
            gather = Gather(len(answered), unequal(message))
            for part, values in answers:
                gather.add(np.searchsorted(answered, part.at), values)
            return Replies(gather.result(), rows, answered, missing)

    def total(self, work: Work, /, to: To = None, by: By = None, groups: int | None = None, **message: Any) -> Sums:
        """Sums over requests, within groups: see :meth:`coterie.federation.Federation.total`."""
        with self.ledger.timed():
            rows, parts = self._request(to, message)
            labels, size = (None, None) if by is None else grouped(by, self.clients.clusters[rows], groups, self._k)
            adder = Adder(size, unequal(message) and isinstance(by, str))
            request = {"kind": "total", "work": work_name(work), "by": by if isinstance(by, str) else None}
            answers = []
            for part, reply in self._exchange(request, parts, message, None if isinstance(by, str) else labels):
                answers.append(part)
                values = reply["values"]
                present: Rows = slice(0, 1) if labels is None else np.unique(labels[part.at])
                wrap = labels is None
                adder.add(present, {n: (v[None] if wrap else v, _dtype(v)) for n, v in values.items()})
            answered, missing = self._answered(len(rows), answers)
            return Sums(adder.result(), rows, answered, missing, counts(labels, size, answered))

    def mark(self, tag: str) -> Ints:
        """Let every site keep its state under ``tag``; the clients that were not reached."""
        return self._tell(lambda s: {"kind": "mark", "tag": tag, "counted": self._counted[s]})

    def restore(self, tag: str) -> Ints:
        """Return every site to the state of ``mark(tag)``; the clients that were not reached.

        A site that was not reached refuses further exchanges until it is restored.
        """
        self._life = int.from_bytes(os.urandom(6), "little")
        here = [self._life, self.number]
        self._counted = [here for _ in self.sites]
        return self._tell(lambda s: {"kind": "restore", "tag": tag, "exchange": here})

    def snapshot(self, tag: str) -> dict[str, Any]:
        """The coordinator's part of a checkpoint; the sites mark theirs."""
        unreached = self.mark(tag)
        return {"ledger": self.ledger.as_dict(), "number": self.number, "tag": tag, "unreached": unreached}

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        """Go on from :meth:`snapshot`, here or in another process with the same sites."""
        if "tag" not in snapshot:
            raise CoterieError("The checkpoint was made by another engine: resume it with that one.")
        self.number = snapshot["number"]
        self.restore(snapshot["tag"])
        self.ledger.load(snapshot["ledger"])

    @property
    def _k(self) -> int:
        return self.clients.k

    def _present(self, rows: Ints) -> Rows:
        return compact(np.unique(self.clients.clusters[rows]))

    def _request(self, to: To, message: Mapping[str, Any]) -> tuple[Ints, list[Part]]:
        rows = addressed(to, self.clients)
        measure(message, len(self.clients) if rows is None else len(rows), self._k)
        if rows is None:
            return self._everyone, self._all
        owners = self._owner[rows]
        order = np.argsort(owners, kind="stable")
        edges = np.searchsorted(owners[order], np.arange(len(self.sites) + 1))
        return rows, [
            Part(s, at, self._local[rows[at]], self._present(rows[at]))
            for s, at in enumerate(np.split(order, edges[1:-1]))
            if len(at)
        ]

    def _exchange(
        self, request: dict[str, Any], parts: list[Part], message: Mapping[str, Any], labels: Ints | None = None
    ) -> Iterator[tuple[Part, dict[str, Any]]]:
        self.number += 1
        exchange = [self._life, self.number]
        for part in parts:
            own = request | {
                "exchange": exchange,
                "counted": self._counted[part.site],
                "rows": None if part.local is None else _small(part.local),
                "message": shared_out(dict(message), part.at, part.present),
            }
            if labels is not None:
                own["by"] = _small(np.unique(labels[part.at], return_inverse=True)[1])
            reply = self._send(part.site, own)
            if reply is not None:
                self._counted[part.site] = exchange
                self.ledger.gradient_calls += reply["gradients"]
                yield part, reply

    def _send(self, site: int, request: Mapping[str, Any]) -> dict[str, Any] | None:
        data = wire.encode(request)
        for attempt in range(self._retries + 1):
            answer = self.deliver(site, data, attempt)
            try:
                reply: dict[str, Any] = {"garbled": ""} if answer is None else wire.decode(answer)
            except CoterieError:
                continue  # damaged on the way: as good as lost
            if "garbled" in reply:
                continue
            if "failed" in reply:
                raise CoterieError(f"Work failed at site {site}: {reply['failed']}")
            if "refused" in reply:
                self.refusals.append((site, reply["refused"]))
                if self._refused == "raise":
                    raise CoterieError(reply["refused"])
                return None
            return reply
        return None

    def _tell(self, request: Any) -> Ints:
        lost = [s for s in range(len(self.sites)) if self._send(s, request(s)) is None]
        return np.sort(np.concatenate([np.empty(0, np.int64), *(self.sites[s] for s in lost)]))

    @staticmethod
    def _answered(n: int, parts: list[Part]) -> tuple[Ints, Ints]:
        mask = np.zeros(n, dtype=bool)
        for part in parts:
            mask[part.at] = True
        return np.flatnonzero(mask), np.flatnonzero(~mask)


def _small(numbers: Ints) -> Any:
    """Whole numbers from 0 in the smallest type that holds them, for the wire."""
    return numbers.astype(np.min_scalar_type(int(numbers.max()) if len(numbers) else 0))


def _dtype(value: Any) -> np.dtype[Any]:
    found: np.dtype[Any] = value[0].dtype if isinstance(value, list) else value.dtype
    return found
