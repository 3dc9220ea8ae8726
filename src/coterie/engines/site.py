"""The site's half of an exchange: bytes in, bytes out. Any transport can carry it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from coterie.engines import secure_sum, wire
from coterie.engines.checkpoint_and_journal import ANEW, Folder
from coterie.engines.client_work_and_state import BLOCK, Runner, Store
from coterie.engines.header_compression import CoordinatorLink
from coterie.engines.message_checks import NUMBERED, TOLD, Refusal, failed, need_form, numbers
from coterie.engines.routing import unequal
from coterie.errors import CoterieError, fitting, plural
from coterie.federation import Array, Ints, Site, State, Work, find_work

Exchange = list[int]  # [life of the coordinator, number within it]
NO_RECORD = "the coordinator has no record of this run"


class Node:
    """One site: it runs work on its m clients and keeps their state.

    An exchange has happened here if and only if its reply was counted. New state is tentative until the next call tells
    the number of the last counted exchange; then it is committed or forgotten. Requests that change anything are
    numbered: the last one again returns the stored reply, and an older one, which was late, says only how far this site
    is. With a ``folder``, state and reply are durable before the reply leaves; without one they are in memory.

    ``clusters`` (m,) are from 0 to the number of clusters here less 1, sorted, as the clients of the objective are; the
    ``seed`` is the run's, the same at all sites. ``labels`` are what the clients are called, where the coordinator is
    to know (by default their ids), ``levels`` the labels of each client's clusters, fine to coarse, and ``info`` what
    else it is told when it asks what is here. A reply about a client, or a group of a sum, that covers fewer rows than
    ``min_group`` is refused. ``secure`` masks every sum; sums that are asked for in the clear are then refused.
    ``around`` makes of a work the one that is run, such as one whose errors say nothing of rows.
    """

    def __init__(
        self,
        name: str,
        objective: Any,
        clusters: Ints,
        weights: Array,
        ids: np.ndarray[Any, np.dtype[np.uint64]],
        *,
        seed: int = 0,
        folder: str | Path | None = None,
        block: int = BLOCK,
        threads: int = 1,
        labels: Array | None = None,
        levels: Sequence[Array] = (),
        info: Mapping[str, Any] | None = None,
        min_group: int = 0,
        secure: secure_sum.SecureSite | None = None,
        around: Callable[[Work], Work] | None = None,
    ) -> None:
        self._name, self._secure, self._around = name, secure, around
        self._link = CoordinatorLink()
        m = len(ids)
        counts = getattr(objective, "covers", getattr(objective, "counts", None))
        self._rows = np.ones(m, np.int64) if counts is None else np.asarray(counts, dtype=np.int64)
        self._about = {"labels": ids if labels is None else labels, "levels": list(levels), "info": dict(info or {})}
        self._min_group = min_group
        self._store = Store(m, tentative=True, durable=folder is not None)
        site = Site(objective, clusters, weights, ids, State(self._store.arrays, slice(None), m), seed)
        self._run = Runner(site, self._store, threads, block)
        self._committed: Exchange = [0, 0]
        self._pending: Exchange | None = None
        self._last = (0, b"", b"")  # number, key and reply of the last request that changed anything
        self._marks: dict[str, dict[str, Array]] = {}
        self._owner = blake2b(np.ascontiguousarray(ids).tobytes(), digest_size=8).hexdigest()
        self._folder = None if folder is None else Folder(folder)
        self._load()

    def receive(self, data: bytes) -> bytes:
        """Answer one message. What goes wrong here is an answer too: the coordinator decides what it means."""
        return self._link.answered(data, self.answer)

    def answer(self, request: dict[str, Any], key: bytes) -> bytes:
        """Answer a request that was decoded; ``key`` is the digest of its message."""
        try:
            return self._answer(request, key)
        except Refusal as problem:
            return wire.encode({"refused": str(problem)})
        except Exception as problem:
            return failed(problem)

    def _answer(self, request: dict[str, Any], key: bytes) -> bytes:
        kind = request["kind"]
        if kind == "about":
            return wire.encode(self.about())
        if kind == "last":
            return wire.encode({"done": "last", "number": self._last[0]})
        if kind not in NUMBERED:
            raise Refusal(f"{self._name} does not know the request {kind!r}: use one version at all sites.")
        need_form(request)
        last, before, reply = self._last
        number = request.get("number", last if key == before else last + 1)
        if number == last and key == before:
            return reply
        about = {"site": self._name, "to": key[:TOLD]}  # what tells the reply from all others
        if number <= last:
            return wire.encode({"late": last, **about})
        held = None if self._secure is None else dict(self._secure.state)
        reply = wire.encode({**self._change(request, kind), **about})
        undone, self._last = self._last, (number, key, reply)
        try:
            self._save()
        except OSError as problem:  # such as a full disk, which may have room again when it is asked once more
            self._last = undone
            if self._secure is not None and held is not None:
                self._secure.state = held
            if kind in ("ask", "total"):
                self._pending = None
                self._store.forget()
            return wire.encode({"busy": f"its state cannot be written ({(problem.strerror or str(problem)).lower()})"})
        return reply

    def _change(self, request: dict[str, Any], kind: str) -> dict[str, Any]:
        if "counted" in request:
            self._settle(request["counted"])
            self._marks |= {tag: self._store.keep() for tag in request.get("marks", ())}
        if kind in ("ask", "total"):
            reply = self._work(request, kind == "total")
            self._pending = request["exchange"]
            return reply
        told: dict[str, Any] = {}
        if kind == "restore":
            if request["tag"] not in self._marks:
                raise Refusal(f"{self._name} has no mark {request['tag']!r}, only {sorted(self._marks)}.")
            self._store.replace(self._marks[request["tag"]])
            self._pending, self._committed = None, request["exchange"]
        elif kind != "mark":
            told = self._secret(kind, request)
        return {"done": kind, **told}

    def _settle(self, counted: Exchange) -> None:
        """Commit or forget the tentative state, by the last exchange that the coordinator counted."""
        if self._pending is not None and counted == self._pending:
            self._store.commit()
            self._committed, self._pending = counted, None
        elif counted == self._committed:
            self._store.forget()
            self._pending = None
        else:
            whose = f"the coordinator counted {counted[1]} of another course" if counted[1] else NO_RECORD
            raise Refusal(
                f"{self._name} stands at exchange {self._committed[1]} and {whose}: give a new run another name, "
                "restore a mark, or begin with empty folders."
            )

    def _work(self, request: dict[str, Any], total: bool) -> dict[str, Any]:
        work, message, by = find_work(request["work"]), request["message"], request.get("by")
        work = work if self._around is None else self._around(work)
        rows = clients(request["rows"], self._run.site.clusters)
        cut = unequal(message)
        round_ = self._checked(request) if total else None
        plan = self._run.planned(rows, cut, renumber=True)
        labels = plan.clusters if isinstance(by, str) else None if by is None else by.astype(np.int64)
        if labels is not None and len(labels) != plan.n:
            raise CoterieError(
                f"A sum by {plural(len(labels), 'group')} was asked of {plural(plan.n, 'client')}: each has one."
            )
        if self._min_group:
            one_by_one = np.zeros(plan.n, np.int64) if total else np.arange(plan.n)
            self._need_rows(rows, one_by_one if labels is None else labels)
        if total:
            groups = None if labels is None else int(labels.max()) + 1
            values, _ = self._run.sums(plan, work, message, by if isinstance(by, str) else labels, groups, cut)
            if self._secure is not None and round_ is not None:
                values = self._secure.masked(round_, values, labels is not None)
        else:
            values, _ = self._run.rows(plan, work, message, cut)
        return {"exchange": request["exchange"], "values": values, "gradients": self._run.gradients}

    def _checked(self, request: Mapping[str, Any]) -> Any:
        """The secure sum that a total is part of; None if this site does without. The two ends must agree on that."""
        if self._secure is None and "secure" not in request:
            return None
        if self._secure is None or "secure" not in request:
            does, asked = ("masks all", "in the clear") if self._secure is not None else ("does not mask its", "masked")
            raise Refusal(f"{self._name} {does} sums and is asked for one {asked}: set `secure` alike everywhere.")
        return self._secure.check(request["secure"])

    def _secret(self, kind: str, request: Mapping[str, Any]) -> dict[str, Any]:
        if self._secure is None:
            raise Refusal(f"{self._name} takes no part in secure sums: set `secure` alike everywhere.")
        if kind == "join":
            return self._secure.join(request["lives"])
        return self._secure.confirm(request) if kind == "confirm" else self._secure.unmask(request)

    def about(self) -> dict[str, Any]:
        """Who is here: what a coordinator that does not know the clients asks first."""
        site = self._run.site
        found = {"name": self._name, "ids": site.ids, "clusters": site.clusters, "weights": site.weights}
        return {"done": "about", "counts": self._rows, **found, **self._about}

    def _need_rows(self, rows: Ints | None, labels: Ints) -> None:
        groups = covers(self._rows, rows, labels)
        if len(groups) and groups.min() < self._min_group:
            raise Refusal(
                f"{self._name} does not answer about so few rows: the smallest group it speaks of has "
                f"{self._min_group} (min_group)."
            )

    def _save(self) -> None:
        if self._folder is None:
            return
        sets = {f"mark {tag}": arrays for tag, arrays in self._marks.items()}
        sets |= {"state": self._store.arrays, "staged": self._store.staged}
        head: dict[str, Any] = {"owner": self._owner, "committed": self._committed}
        head |= {"pending": self._pending, "last": list(self._last)}
        if self._secure is not None:
            head["secure"] = self._secure.state
        self._folder.save(head, sets)

    def _load(self) -> None:
        saved = None if self._folder is None else self._folder.load()
        if saved is None:
            return
        head, sets = saved
        with fitting(f"The state of {self._name}", f"{ANEW.capitalize()}."):
            if head["owner"] != self._owner:
                text = f"The folder of {self._name} holds the state of other clients: give it an empty one."
                raise CoterieError(text)
            number, key, reply = head["last"]
            known = [[number, 0], head["committed"], head["pending"] or [0, 0]]
            m = len(self._rows)
            sound = all(map(numbers, known)) and isinstance(key, bytes) and isinstance(reply, bytes)
            if not sound or any(len(a) != m for arrays in sets.values() for a in arrays.values()):
                raise ValueError
            self._committed, self._pending, self._last = head["committed"], head["pending"], (number, key, reply)
            if self._secure is not None and "secure" in head:
                self._secure.state = head["secure"]
            self._store.replace(sets.pop("state"))
            self._store.staged.update(sets.pop("staged"))
            self._marks = {key.removeprefix("mark "): arrays for key, arrays in sets.items()}


def clients(rows: Array | None, clusters: Ints) -> Ints | None:
    """The client of each request (None: all) of ``rows``: clients, or a mask over the site's sorted clusters (m,)."""
    if rows is None or rows.dtype != bool:
        return None if rows is None else rows.astype(np.int64)
    if len(rows) != (int(clusters[-1]) + 1 if len(clusters) else 0):
        raise CoterieError(f"A request names {len(rows)} clusters, and here are others: begin a new run.")
    return np.flatnonzero(rows[clusters])


def covers(counts: Array, rows: Ints | None, labels: Ints) -> Ints:
    """How many of the clients' rows (m,) each group of a request covers; a client that is asked twice counts once."""
    clients = np.arange(len(labels)) if rows is None else np.asarray(rows, dtype=np.int64)
    if rows is not None and len(np.unique(clients)) < len(clients):
        labels, clients = np.divmod(np.unique(np.asarray(labels, dtype=np.int64) * len(counts) + clients), len(counts))
    sums: Ints = np.bincount(labels, counts[clients])[np.unique(labels)].astype(np.int64)
    return sums
