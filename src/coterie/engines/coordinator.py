"""The coordinator's half of an exchange, over any transport that carries bytes to sites and back."""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.engines import secure_sum, wire
from coterie.engines.checkpoint_and_journal import Journal
from coterie.engines.cost_ledger import Ledger, measure
from coterie.engines.message_checks import disagreeing, not_numbers
from coterie.engines.reduction import Adder, Gather
from coterie.engines.retry_and_quorum import Policy, Retry
from coterie.engines.routing import Address, Addresses, Grouping, Part, compact, localise, unequal
from coterie.engines.site import Exchange
from coterie.errors import CoterieError, fitting
from coterie.federation import Ints, Replies, Roster, Sums, work_name
from coterie.queries import Answering, Query

Answers = list[tuple[Part, dict[str, Any]]]


@dataclass(frozen=True)
class Exchanged:
    """One exchange, for logs.

    ``kind`` is "ask" or "total"; ``work`` its name; ``asked`` and ``answered`` are names of sites, ``missing`` those
    without a counted reply, and why; ``clients`` are the requests that were answered, and all; ``down`` and ``up`` are
    bytes.
    """

    number: int
    kind: str
    work: str
    asked: tuple[str, ...]
    answered: tuple[str, ...]
    missing: Mapping[str, str] = field(default_factory=dict)
    clients: tuple[int, int] = (0, 0)
    down: int = 0
    up: int = 0
    seconds: float = 0.0


class Coordinator(Answering):
    """Speaks to all sites at once, and adds their sums in a fixed order.

    ``sites`` are the clients (m_s,) of each site, rising; every client has one. The ``policy`` says how long to wait,
    how often to ask again and how many must answer; the ``journal`` is a folder that remembers every counted exchange,
    and a run with the same one goes on where it stood; ``watch(Exchanged)`` is told of every exchange that happened;
    ``secure`` hides what each site sends to :meth:`total`, and the sites must be set so too.
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
        secure: secure_sum.Secure | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.clients, self.sites = clients, list(sites)
        self.names = list(names) if names is not None else [f"site {s}" for s in range(len(self.sites))]
        self.ledger = ledger or Ledger()
        self.number = 0
        self._beside: dict[str, Any] = {}  # what every request says beside
        self._retry = Retry(self.names, policy or Policy(), self.exchange)
        self._journal = Journal(journal) if isinstance(journal, str | Path) else journal
        self._watch = watch
        self._keys = None if secure is None else secure_sum.KeyOffers(secure)
        # Numbers of different lives never meet: a site that missed a restore cannot be taken for one that did not.
        self._life = int.from_bytes(os.urandom(6), "little")
        self._counted: list[Exchange] = [[0, 0] for _ in self.sites]
        self._stands = list(self._counted)  # where each site is: elsewhere only if a restore did not reach it
        self._due: list[tuple[str, ...]] = [()] * len(self.sites)  # marks that a site's next request brings along
        self._addresses = Addresses(clients, self.sites)
        if self._journal is not None and self._journal.base is not None:
            self._load_position(self._journal.base["engine"])

    @abstractmethod
    def exchange(self, messages: Mapping[int, bytes], attempt: int, timeout: float) -> Mapping[int, bytes | None]:
        """Carry messages to sites and replies back, at once, counting the bytes of both in the ledger.

        ``attempt`` is 0 for the first time, then 1, 2, ... No reply is waited for after ``timeout`` seconds, which may
        be infinite. Sites that did not reply are left out, or None.
        """

    def _answer(self, query: Query) -> Replies | Sums:
        with self.ledger.timed():
            kind, message, address = query.kind, query.message, self._addresses.of(query.to)
            measure(message, len(address.rows), self.clients.k)
            grouping = None if kind == "ask" else Grouping(query.by, query.groups, address, self.clients)
            request = {"kind": kind, "work": work_name(query.work)} | ({} if grouping is None else {"by": grouping.by})
            key = b""  # what tells this exchange from another in the journal
            if self._journal is not None:
                labels = None if grouping is None else grouping.labels
                asked = {**request, "to": address.to, "labels": labels, "message": dict(message)}
                key = wire.digest(wire.encode(asked))
            if (past := self._past(kind, key)) is not None:
                return _told(grouping, past["values"], address.rows, past["rows"], past["missing"])
            with self._all_or_nothing():
                lists = unequal(message)
                hidden = None if grouping is None else self._hidden(address, grouping, lists)
                answers, event = self._exchange(request, address, query, grouping, hidden)
                answered, missing = _answered(address, answers)
                if grouping is None:
                    values = _gathered(address, answers, answered, lists)
                else:
                    values = _added(grouping, answers, lists, hidden)
                found = _told(grouping, values, address.rows, answered, missing)
                self._record(kind, key, {"values": values, "rows": answered, "missing": missing})
            if self._watch is not None:
                self._watch(event)
            return found

    def mark(self, tag: str) -> Ints:
        """Let every site keep its present state under ``tag``; the clients whose sites have yet to be restored.

        The mark is due: a site's next request, whichever it is, brings it along.
        """
        astray = self._astray()
        for s, rows in enumerate(self.sites):
            if len(rows) and s not in astray and tag not in self._due[s]:
                self._due[s] = (*self._due[s], tag)
        return self._of(astray)

    def restore(self, tag: str) -> Ints:
        """Return every site to the state of ``mark(tag)``; the clients that were not reached.

        A site that was not reached refuses further exchanges until it is restored.
        """
        self.make_marks()
        with self._all_or_nothing():
            self._life = int.from_bytes(os.urandom(6), "little")
            return self._return(tag, [self._life, self.number])

    def make_marks(self) -> Ints:
        """Have the marks made that are due; the clients that were not reached, whose marks stay due."""
        due = {s: list(tags) for s, tags in enumerate(self._due) if tags}
        if due:
            asked = {s: {"kind": "mark", "marks": tags, "counted": self._stands[s]} for s, tags in due.items()}
            with self._all_or_nothing():
                self._command("mark", "", asked)
        return self._of(s for s, tags in enumerate(self._due) if tags)

    def snapshot(self, tag: str) -> dict[str, Any]:
        """The coordinator's part of a checkpoint; the sites mark theirs."""
        self.mark(tag)
        self.make_marks()
        return {"ledger": self.ledger.as_dict(), "number": self.number, "tag": tag}

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        """Go on from :meth:`snapshot`, here or in another process with the same sites."""
        if "tag" not in snapshot:
            raise CoterieError("The checkpoint was made by another engine: resume it with that one.")
        with self._all_or_nothing():
            self.number = snapshot["number"]
            self.restore(snapshot["tag"])
        self.ledger.load(snapshot["ledger"])

    def keep(self, state: Mapping[str, Any]) -> None:
        """Let the journal begin at ``state``, what a method's generator of states gave last; it forgets the rest."""
        if self._journal is not None:
            self._journal.keep(state, self._position())

    @property
    def kept(self) -> dict[str, Any] | None:
        """The state of the last :meth:`keep` in the journal; None if there is none."""
        return None if self._journal is None or self._journal.base is None else self._journal.base["state"]

    @property
    def quarantined(self) -> dict[str, str]:
        """Sites that were left out for the rest of the run, and why."""
        return self._retry.quarantined

    @property
    def troubles(self) -> dict[str, str]:
        """Why each site that is missing from the last exchange is missing."""
        return self._retry.troubles

    def _exchange(
        self,
        request: dict[str, Any],
        address: Address,
        query: Query,
        grouping: Grouping | None,
        hidden: secure_sum.SecureExchange | None,
    ) -> tuple[Answers, Exchanged]:
        """One exchange: the values of every site that is counted, in the order of the sites; and what to tell of it."""
        started, before = time.perf_counter(), replace(self.ledger)
        exchange = [self._life, self.number + 1]
        requests: dict[int, dict[str, Any]] = {}
        parts = {part.site: part for part in address.parts}
        for s, part in parts.items():
            own = requests[s] = {**request, **self._beside, "exchange": exchange, "counted": self._counted[s]}
            if self._due[s] and self._stands[s] == self._counted[s]:
                own["marks"] = list(self._due[s])
            own |= {"rows": part.rows, "message": localise(query.message, part, wrapped=True)}
            if grouping is not None:
                own["by"] = grouping.site_labels(part)
        rows = {s: part.n if grouping is None else grouping.rows(part) for s, part in parts.items()}
        self.number += 1
        if hidden is not None:
            requests = hidden.requests(requests)
        found = self._retry.collect(requests, parts)
        if hidden is not None:
            hidden.take(found)
        else:
            self._retry.leave_out(disagreeing(found, rows, unequal(query.message)), found)
            if not self._retry.policy.strict:
                self._retry.leave_out(not_numbers(found, getattr(query.work, "nonnegative", ())), found)
            if (check := query.check) is not None:
                at = {s: _numbers(address, parts[s]) for s in found}
                text = "its answer cannot be used ({})"
                self._retry.judge(found, lambda s, reply: check(at[s], reply["values"]), text)
        self._retry.require_quorum(parts, found)
        if hidden is not None:
            hidden.open(found)
        for site, reply in found.items():
            self._counted[site] = self._stands[site] = exchange
            self._due[site] = ()
            self.ledger.gradient_calls += reply["gradients"]
        event = Exchanged(
            number=self.number,
            kind=request["kind"],
            work=request["work"],
            asked=tuple(self.names[s] for s in parts),
            answered=tuple(self.names[s] for s in sorted(found)),
            missing=dict(self._retry.troubles),
            clients=(sum(parts[s].n for s in found), sum(part.n for part in parts.values())),
            down=self.ledger.bytes_down - before.bytes_down,
            up=self.ledger.bytes_up - before.bytes_up,
            seconds=time.perf_counter() - started,
        )
        return [(part, found[s]["values"]) for s, part in parts.items() if s in found], event

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Count what happens within once all of it is done and on disk, or else nothing: then it may be tried again."""
        stood = self.number, self._life, self.ledger.gradient_calls
        sites = list(self._counted), list(self._stands), list(self._due)
        length = 0 if self._journal is None else self._journal.length()
        try:
            yield
        except BaseException:
            self.number, self._life, self.ledger.gradient_calls = stood
            self._counted, self._stands, self._due = sites
            if self._journal is not None:
                self._journal.cut(length)  # an interrupt may come when the entry is on disk already
            raise

    def _hidden(self, address: Address, grouping: Grouping, unequal: bool) -> secure_sum.SecureExchange | None:
        """The secure sum that a total is to be; None where sums are in the clear."""
        if self._keys is None:
            return None
        lists = unequal and grouping.by is not None
        groups = {self.names[part.site]: grouping.of(part) for part in address.parts}
        return secure_sum.SecureExchange(self._retry, self._keys, groups, lists, self._beside)

    def _return(self, tag: str, here: Exchange) -> Ints:
        """Have sites return to a mark and go on from the exchange ``here``; the clients that were not reached."""
        # A site that has yet to make a mark could return to an older one of that name.
        able = [s for s, tags in enumerate(self._due) if not tags and len(self.sites[s])]
        asked = {s: {"kind": "restore", "tag": tag, "exchange": here} for s in able}
        self._counted = [here for _ in self.sites]
        self._command("restore", tag, asked)
        return self._of(self._astray())

    def _command(self, kind: str, tag: str, requests: Mapping[int, dict[str, Any]]) -> None:
        """Have sites mark their states, or restore them, unless that was done before this process was started."""
        if self._past(kind, tag.encode()) is not None:
            return
        found = self._retry.collect({s: request | self._beside for s, request in requests.items()}, {})
        if self._retry.policy.min_clients == "all":  # else the site would refuse all that follows
            asked = {part.site: part for part in self._addresses.of(None).parts if part.site in requests}
            self._retry.require_quorum(asked, found)
        for s in found:
            if kind == "mark":
                self._due[s] = ()
            else:
                self._stands[s] = requests[s]["exchange"]
        self._record(kind, tag.encode(), {})

    def _astray(self) -> list[int]:
        """Sites that a restore did not reach."""
        return [s for s, stands in enumerate(self._stands) if stands != self._counted[s]]

    def _of(self, sites: Iterable[int]) -> Ints:
        """The clients of some sites."""
        return np.sort(np.concatenate([np.empty(0, np.int64), *(self.sites[s] for s in sites)]))

    def _past(self, kind: str, key: bytes) -> dict[str, Any] | None:
        """What an exchange gave before this process was started; None if it has yet to happen."""
        past = None if self._journal is None else self._journal.next(kind, key)
        if past is not None:
            with fitting("The journal of the run", "Begin again without it."):
                self._load_position(past["engine"])
                told = [] if kind in ("mark", "restore") else [past["rows"], past["missing"]]
                if not all(isinstance(a, np.ndarray) and a.dtype.kind in "iu" and a.ndim == 1 for a in told):
                    raise ValueError
                if told and not isinstance(past["values"], dict):
                    raise ValueError
        return past

    def _record(self, kind: str, key: bytes, entry: dict[str, Any]) -> None:
        if self._journal is not None:
            self._journal.add(kind, key, entry | {"engine": self._position()})

    def _position(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "sent": self._retry.number,
            "life": self._life,
            "counted": self._counted,
            "stands": self._stands,
            "due": [list(tags) for tags in self._due],
            "ledger": self.ledger.as_dict(),
            "quarantined": self._retry.quarantined,
        }

    def _load_position(self, engine: Mapping[str, Any]) -> None:
        with fitting("The journal or checkpoint of the run", "Begin again without it."):
            number, life, sent = engine["number"], engine["life"], engine["sent"]
            counted, stands = ([list(exchange) for exchange in engine[name]] for name in ("counted", "stands"))
            due = [tuple(map(str, tags)) for tags in engine["due"]]
            whole = type(number) is type(life) is type(sent) is int and min(number, sent) >= 0
            if not (whole and len(counted) == len(stands) == len(due) == len(self.sites)):
                raise ValueError
            self.number, self._life, self._counted, self._stands, self._due = number, life, counted, stands, due
            self._retry.number = sent
            self.ledger.load(engine["ledger"])
            self._retry.quarantined = {str(site): str(why) for site, why in engine["quarantined"].items()}


def _answered(address: Address, answers: Answers) -> tuple[Ints, Ints]:
    """Positions of the requests that were answered, and of the others."""
    n = len(address.rows)
    if len(answers) == len(address.parts):
        return address.rows if address.to is None else np.arange(n), np.empty(0, np.int64)
    mask = np.zeros(n, dtype=bool)
    for part, _ in answers:
        mask[part.at] = True
    return np.flatnonzero(mask), np.flatnonzero(~mask)


def _gathered(address: Address, answers: Answers, answered: Ints, lists: bool) -> dict[str, Any]:
    """The rows of all replies, where their requests stand among those that were answered."""
    gather = Gather(len(answered), lists)
    for part, values in answers:
        whole = len(answered) == len(address.rows)
        gather.add(part.at if whole else np.searchsorted(answered, _numbers(address, part)), values)
    return gather.result()


def _added(
    grouping: Grouping, answers: Answers, lists: bool, hidden: secure_sum.SecureExchange | None
) -> dict[str, Any]:
    """The sums of all sites, in their order, or those that were hidden."""
    adder = Adder(grouping.size, lists and grouping.by is not None)
    for part, values in answers:
        types = {n: (v[0] if isinstance(v, list) else v).dtype for n, v in values.items()}
        sums = {n: (v[None] if grouping.size is None else v, types[n]) for n, v in values.items()}
        adder.add(compact(grouping.of(part)), sums)
    if hidden is not None:
        adder.add(*hidden.sums)
    return adder.result()


def _told(grouping: Grouping | None, values: dict[str, Any], to: Ints, answered: Ints, missing: Ints) -> Replies | Sums:
    if grouping is None:
        return Replies(values, to, answered, missing)
    return Sums(values, to, answered, missing, grouping.count(answered))


def _numbers(address: Address, part: Part) -> Ints:
    """Positions of a site's clients in the request, one by one."""
    return np.arange(len(address.rows))[part.at]
