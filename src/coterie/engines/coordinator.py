"""The coordinator's half of an exchange, over any transport that carries bytes to sites and back."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.engines import replies, wire
from coterie.engines.assemble import Adder, Gather, counts
from coterie.engines.base import addressed, compact, grouped, measure, shared_out, unequal
from coterie.engines.courier import Courier
from coterie.engines.journal import Journal
from coterie.engines.ledger import Ledger
from coterie.engines.node import Exchange
from coterie.engines.policy import Exchanged, Policy
from coterie.errors import CoterieError
from coterie.federation import By, Check, Ints, Replies, Roster, Rows, Sums, To, Work, readonly, work_name

if TYPE_CHECKING:
    from coterie.engines.secure_sum import Secure
    from coterie.engines.secure_sum.relay import Hidden


@dataclass(frozen=True)
class Part:
    """One site's share of a request: positions in the request, clients of the site (None: all), and clusters."""

    site: int
    at: Ints
    local: Ints | None
    present: Rows


class Coordinator(ABC):
    """Speaks to all sites at once, and adds their sums in a fixed order.

    Parameters
    ----------
    clients : Roster
        All clients.
    sites : sequence of (m_s,) int64
        Clients of each site, rising; every client has one site.
    names : sequence of str, optional
        What the sites are called.
    policy : Policy, optional
        How long to wait, how often to ask again, how many must answer.
    journal : path, optional
        Folder that remembers every counted exchange; a run with the same journal goes on where it stood.
    watch : callable, optional
        ``watch(Exchanged)`` is told of every exchange that happened.
    secure : Secure, optional
        Hide what each site sends to :meth:`total`; the sites must be set so too.

    """

    def __init__(
        self,
        clients: Roster,
        sites: Sequence[Ints],
        *,
        names: Sequence[str] | None = None,
        policy: Policy | None = None,
        journal: str | Path | Journal | None = None,
        watch: Callable[[Exchanged], None] | None = None,
        secure: Secure | None = None,
    ) -> None:
        self.clients, self.sites = clients, list(sites)
        self.names = list(names) if names is not None else [f"site {s}" for s in range(len(self.sites))]
        self.ledger = Ledger()
        self.number = 0
        self._beside: dict[str, Any] = {}  # what every request says beside
        self._courier = Courier(self.names, policy or Policy(), self.exchange)
        self._journal = Journal(journal) if isinstance(journal, str | Path) else journal
        self._watch = watch
        self._relay = None
        if secure is not None:
            from coterie.engines.secure_sum import Relay

            self._relay = Relay(secure, self._courier)
        # Numbers of different lives never meet: a site that missed a restore cannot be taken for one that did not.
        self._life = int.from_bytes(os.urandom(6), "little")
        self._counted: list[Exchange] = [[0, 0] for _ in self.sites]
        self._owner = np.empty(len(clients), np.int64)
        self._local = np.empty(len(clients), np.int64)
        for s, rows in enumerate(self.sites):
            self._owner[rows], self._local[rows] = s, np.arange(len(rows))
        self._everyone = readonly(np.arange(len(clients)))
        self._all = [Part(s, rows, None, self._present(rows)) for s, rows in enumerate(self.sites) if len(rows)]
        if self._journal is not None and self._journal.base is not None:
            self._stand(self._journal.base["engine"])

    @abstractmethod
    def exchange(self, messages: Mapping[int, bytes], attempt: int, timeout: float) -> Mapping[int, bytes | None]:
        """Carry messages to sites and replies back, at once, counting the bytes of both in the ledger.

        Parameters
        ----------
        messages : dict of int to bytes
            What each site is sent.
        attempt : int
            0 for the first time, then 1, 2, ...
        timeout : float
            Seconds after which no reply is waited for; may be infinite.

        Returns
        -------
        dict of int to bytes
            Sites that did not reply are left out, or None.
        """

    def ask(self, work: Work, /, to: To = None, *, check: Check | None = None, **message: Any) -> Replies:
        """A row for each request: see :meth:`coterie.federation.Federation.ask`."""
        with self.ledger.timed():
            rows, parts = self._request(to, message)
            request = {"kind": "ask", "work": work_name(work)}
            key = self._key(request, rows, None, message)
            if (past := self._past("ask", key)) is not None:
                return Replies(past["values"], rows, past["rows"], past["missing"])
            answers = self._exchange(request, parts, message, check=check)
            answered, missing = self._answered(len(rows), [p for p, _ in answers])
            gather = Gather(len(answered), unequal(message))
            for part, values in answers:
                gather.add(np.searchsorted(answered, part.at), values)
            found = Replies(gather.result(), rows, answered, missing)
            self._record("ask", key, found)
            return found

    def total(self, work: Work, /, to: To = None, by: By = None, groups: int | None = None, **message: Any) -> Sums:
        """Sums over requests, within groups: see :meth:`coterie.federation.Federation.total`."""
        with self.ledger.timed():
            rows, parts = self._request(to, message)
            labels, size = (None, None) if by is None else grouped(by, self.clients.clusters[rows], groups, self._k)
            request = {"kind": "total", "work": work_name(work), "by": by if isinstance(by, str) else None}
            key = self._key(request, rows, labels, message)
            if (past := self._past("total", key)) is not None:
                count = counts(labels, size, past["rows"])
                return Sums(past["values"], rows, past["rows"], past["missing"], count)
            lists = unequal(message) and isinstance(by, str)
            adder, hidden = Adder(size, lists), self._hidden(parts, labels, lists)
            answers = self._exchange(request, parts, message, None if isinstance(by, str) else labels, hidden)
            for part, values in answers:
                present: Rows = slice(0, 1) if labels is None else np.unique(labels[part.at])
                wrap = labels is None
                adder.add(present, {n: (v[None] if wrap else v, _dtype(v)) for n, v in values.items()})
            if hidden is not None:
                adder.add(*hidden.sums)
            answered, missing = self._answered(len(rows), [p for p, _ in answers])
            sums = Sums(adder.result(), rows, answered, missing, counts(labels, size, answered))
            self._record("total", key, sums)
            return sums

    def mark(self, tag: str) -> Ints:
        """Let every site keep its state under ``tag``; the clients that were not reached."""
        return self._tell("mark", tag, lambda s: {"kind": "mark", "tag": tag, "counted": self._counted[s]})

    def restore(self, tag: str) -> Ints:
        """Return every site to the state of ``mark(tag)``; the clients that were not reached.

        A site that was not reached refuses further exchanges until it is restored.
        """
        self._life = int.from_bytes(os.urandom(6), "little")
        here = [self._life, self.number]
        self._counted = [here for _ in self.sites]
        return self._tell("restore", tag, lambda s: {"kind": "restore", "tag": tag, "exchange": here})

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

    def keep(self, state: Mapping[str, Any]) -> None:
        """Let the journal begin at ``state``, what a method's generator of states gave last; it forgets the rest."""
        if self._journal is not None:
            self._journal.keep(state, self._standing())

    @property
    def kept(self) -> dict[str, Any] | None:
        """The state of the last :meth:`keep` in the journal; None if there is none."""
        return None if self._journal is None or self._journal.base is None else self._journal.base["state"]

    @property
    def quarantined(self) -> dict[str, str]:
        """Sites that were left out for the rest of the run, and why."""
        return self._courier.quarantined

    @property
    def troubles(self) -> dict[str, str]:
        """Why each site that is missing from the last exchange is missing."""
        return self._courier.troubles

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
        self,
        request: dict[str, Any],
        parts: list[Part],
        message: Mapping[str, Any],
        labels: Ints | None = None,
        hidden: Hidden | None = None,
        check: Check | None = None,
    ) -> list[tuple[Part, dict[str, Any]]]:
        """One exchange: the values of every site that is counted, in the order of the sites."""
        started, before = time.perf_counter(), replace(self.ledger)
        exchange = [self._life, self.number + 1]
        requests: dict[int, dict[str, Any]] = {}
        for part in parts:
            own = requests[part.site] = {
                **request,
                **self._beside,
                "exchange": exchange,
                "counted": self._counted[part.site],
                "rows": None if part.local is None else _small(part.local),
                "message": shared_out(dict(message), part.at, part.present),
            }
            if labels is not None:
                own["by"] = _small(np.unique(labels[part.at], return_inverse=True)[1])
        clusters = {part.site: self._clusters(part) for part in parts}
        rows = {p.site: _rows(p, request, requests[p.site].get("by")) for p in parts}
        self.number += 1
        try:
            if hidden is not None:
                requests = hidden.requests(requests)
            found = self._courier.collect(requests, clusters)
            if hidden is not None:
                hidden.take(found)
            else:
                self._courier.judge(replies.disagreeing(found, rows, unequal(message)), found)
                if not self._courier.policy.strict:
                    self._courier.judge(replies.not_numbers(found), found)
                if check is not None:
                    self._courier.judge(replies.unusable(found, {p.site: p.at for p in parts}, check), found)
            self._courier.need(clusters, found)
            if hidden is not None:
                hidden.open(found)
        except BaseException:
            self.number -= 1  # nothing was counted: the same exchange may be tried again
            raise
        for site, reply in found.items():
            self._counted[site] = exchange
            self.ledger.gradient_calls += reply["gradients"]
        self._seen(request, parts, found, started, before)
        return [(part, found[part.site]["values"]) for part in parts if part.site in found]

    def _hidden(self, parts: list[Part], labels: Ints | None, lists: bool) -> Hidden | None:
        """The secure sum that a total is to be; None where sums are in the clear."""
        if self._relay is None:
            return None
        nowhere = np.zeros(1, np.int64)
        groups = {p.site: nowhere if labels is None else np.unique(labels[p.at]) for p in parts}
        return self._relay.total(groups, lists, self._beside)

    def _clusters(self, part: Part) -> Ints:
        rows = self.sites[part.site]
        return self.clients.clusters[rows if part.local is None else rows[part.local]]

    def _seen(
        self, request: Mapping[str, Any], parts: list[Part], found: Mapping[int, Any], start: float, before: Ledger
    ) -> None:
        if self._watch is None:
            return
        down, up = self.ledger.bytes_down - before.bytes_down, self.ledger.bytes_up - before.bytes_up
        answered = sum(len(p.at) for p in parts if p.site in found)
        self._watch(
            Exchanged(
                number=self.number,
                kind=request["kind"],
                work=request["work"],
                asked=tuple(self.names[p.site] for p in parts),
                answered=tuple(self.names[s] for s in sorted(found)),
                missing=dict(self._courier.troubles),
                clients=(answered, sum(len(p.at) for p in parts)),
                down=down,
                up=up,
                seconds=time.perf_counter() - start,
            )
        )

    def _tell(self, kind: str, tag: str, request: Callable[[int], dict[str, Any]]) -> Ints:
        if (past := self._past(kind, tag.encode())) is not None:
            unreached: Ints = past["unreached"]
            return unreached
        found = self._courier.collect({s: request(s) | self._beside for s in range(len(self.sites))}, {})
        lost = [rows for s, rows in enumerate(self.sites) if s not in found]
        unreached = np.sort(np.concatenate([np.empty(0, np.int64), *lost]))
        if self._journal is not None:
            self._journal.add(kind, tag.encode(), {"unreached": unreached, "engine": self._standing()})
        return unreached

    def _key(self, request: Mapping[str, Any], rows: Ints, labels: Ints | None, message: Mapping[str, Any]) -> bytes:
        """What tells this exchange from another in the journal."""
        if self._journal is None:
            return b""
        return wire.encode({**request, "to": rows, "labels": labels, "message": dict(message)})[-16:]

    def _past(self, kind: str, key: bytes) -> dict[str, Any] | None:
        """What an exchange gave before this process was started; None if it has yet to happen."""
        past = None if self._journal is None else self._journal.next(kind, key)
        if past is not None:
            self._stand(past["engine"])
        return past

    def _record(self, kind: str, key: bytes, found: Replies) -> None:
        if self._journal is not None:
            entry = {"values": dict(found), "rows": found.rows, "missing": found.missing}
            self._journal.add(kind, key, entry | {"engine": self._standing()})

    def _standing(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "life": self._life,
            "counted": self._counted,
            "ledger": self.ledger.as_dict(),
            "quarantined": self._courier.quarantined,
        }

    def _stand(self, engine: Mapping[str, Any]) -> None:
        self.number, self._life = engine["number"], engine["life"]
        self._counted = [list(exchange) for exchange in engine["counted"]]
        self.ledger.load(engine["ledger"])
        self._courier.quarantined = dict(engine["quarantined"])

    @staticmethod
    def _answered(n: int, parts: list[Part]) -> tuple[Ints, Ints]:
        mask = np.zeros(n, dtype=bool)
        for part in parts:
            mask[part.at] = True
        return np.flatnonzero(mask), np.flatnonzero(~mask)


def _rows(part: Part, request: Mapping[str, Any], by: Ints | None) -> int | None:
    """How many rows a site's reply must have; None: one sum, without an axis of rows."""
    if request["kind"] == "ask":
        return len(part.at)
    if request["by"] == "cluster":
        return part.present.stop - part.present.start if isinstance(part.present, slice) else len(part.present)
    return None if by is None else int(by.max()) + 1


def _small(numbers: Ints) -> Any:
    """Whole numbers from 0 in the smallest type that holds them, for the wire."""
    return numbers.astype(np.min_scalar_type(int(numbers.max()) if len(numbers) else 0))


def _dtype(value: Any) -> np.dtype[Any]:
    found: np.dtype[Any] = value[0].dtype if isinstance(value, list) else value.dtype
    return found
