"""A site of sites: what it is asked it asks the sites below, and it answers with their sums as one site would.

So the coordinator has as many links as there are aggregators, and an aggregator as many as it has sites, however many
there are below. Exchanges keep the numbers of the coordinator, which alone says what was counted: state at the sites is
theirs to commit, as without a tree. An aggregator answers for all its sites or for none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from coterie.data.labels import travelling
from coterie.engines import wire
from coterie.engines.checkpoint_and_journal import read_durable, write_durable
from coterie.engines.header_compression import CoordinatorLink
from coterie.engines.message_checks import TOLD, Refusal, failed, need_form
from coterie.engines.retry_and_quorum import BelowQuorum, Policy, Refused
from coterie.engines.routing import pick, unequal
from coterie.engines.site import NO_RECORD, Exchange, clients
from coterie.engines.site_enrolment import Remote, Transport
from coterie.federation import Clusters, Ints, PerCluster, find_work


class Aggregator:
    """A receiver, as a site's :class:`~coterie.engines.site.Node`, of sites that a transport reaches.

    ``policy`` is that towards the sites below, of whom all must answer. Runs, and what a site has counted, are kept in
    the ``folder``; without one a new process has forgotten them. Sums that are masked cannot be added here in parts, so
    they are refused: secure sums are of sites without a tree.
    """

    def __init__(
        self, name: str, transport: Transport, *, policy: Policy | None = None, folder: str | Path | None = None
    ) -> None:
        self._name, self._transport, self._policy = name, transport, replace(policy or Policy(), min_clients="all")
        self._folder = None if folder is None else Path(folder)
        self._link, self._lock = CoordinatorLink(), Lock()
        self._runs: dict[str, _Below] = {}

    def receive(self, data: bytes) -> bytes:
        """Answer one message: one that comes again while it is worked on waits for the same reply."""
        with self._lock:
            return self._link.answered(data, self._answered)

    def _answered(self, request: Any, key: bytes) -> bytes:
        try:
            return self._answer(request, key)
        except (Refusal, Refused) as problem:
            return wire.encode({"refused": str(problem)})
        except BelowQuorum as problem:
            return wire.encode({"busy": str(problem)})
        except Exception as problem:
            return failed(problem)

    def _answer(self, request: Mapping[str, Any], key: bytes) -> bytes:
        kind = request["kind"]
        below = self._below(str(request.get("run", "run")), request if kind in ("open", "about") else None)
        if kind in ("open", "about"):
            return wire.encode({"done": kind, "name": self._name, **below.about()})
        last, before, reply = below.last
        if kind == "last":
            return wire.encode({"done": "last", "number": last})
        if kind not in ("ask", "total", "mark", "restore") or "secure" in request:
            raise Refusal(f"{self._name} adds sums of its sites in the clear: ask for secure sums without a tree.")
        need_form(request)
        number = request.get("number", last if key == before else last + 1)
        if number == last and key == before:
            return reply
        about = {"site": self._name, "to": key[:TOLD]}
        if number <= last:
            return wire.encode({"late": last, **about})
        reply = wire.encode({**below.relay(request, self._name), **about})
        below.last = (number, key, reply)
        below.write()
        return reply

    def _below(self, run: str, opening: Mapping[str, Any] | None) -> _Below:
        """The sites below in a run that is opened, or was by this process or an earlier one."""
        if run not in self._runs:
            if run in ("", ".", "..") or "/" in run or "\\" in run:
                raise Refusal(f"{run!r} is no name of a run.")
            path = None if self._folder is None else self._folder / run
            kept = read_durable(path) if path is not None and path.exists() else None
            if (opening := opening or (kept and kept[0])) is None:
                raise Refusal(f"{self._name} does not know the run {run!r}: begin a new one.")
            self._runs[run] = _Below(self._transport, opening, self._policy, path, kept)
        return self._runs[run]


class _Below(Remote):
    """The sites below in one run. They stand where the coordinator above says, not where this one has been."""

    def __init__(
        self, transport: Transport, opening: Mapping[str, Any], policy: Policy, path: Path | None, kept: Any
    ) -> None:
        self._given = {name: opening[name] for name in ("run", "task", "seed") if name in opening}
        super().__init__(transport, policy=policy, **self._given)
        self._path = path
        self._committed: Exchange = [0, 0]
        self._pending: Exchange | None = None
        self._before = list(self._counted)  # what each site had counted before the exchange that is pending
        self.last = (0, b"", b"")
        if kept is None:
            self.write()
        else:
            _, self._committed, self._pending, self._before, self._counted, due, last, self._retry.number = kept
            self.last, self._stands, self._due = (last[0], last[1], last[2]), list(self._counted), list(map(tuple, due))

    def write(self) -> None:
        """Keep where the sites stand."""
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            stand: list[Any] = [self._given, self._committed, self._pending, self._before, self._counted]
            stand += [list(map(list, self._due)), list(self.last), self._retry.number]
            write_durable(self._path, wire.pieces(stand))

    def about(self) -> dict[str, Any]:
        """Who is below, as one site has them: sorted by cluster."""
        p, at, levels = self.participants, self.clients.clusters, []
        for level in p.levels:
            levels.append(travelling(np.asarray(level.labels)[at]))
            at = level.parent[at]
        told = p.info.values()
        info = {"notes": p.notes, "min_group": max(t.get("min_group", 0) for t in told)}
        info |= {n: v for t in told for n, v in t.items() if n not in info}
        found = {"ids": self.clients.ids, "clusters": self.clients.clusters, "labels": travelling(np.asarray(p.labels))}
        return {**found, "weights": p.weights, "counts": p.counts, "levels": levels, "info": info}

    def relay(self, request: Mapping[str, Any], name: str) -> dict[str, Any]:
        """What all sites answer to one request, as one."""
        kind = request["kind"]
        if kind != "restore":
            self._settle(request["counted"], name)
            for tag in request.get("marks", ()):
                self.mark(tag)
            if kind != "mark":
                return self._asked(request, kind == "total")
        lost = self.make_marks()
        if kind == "restore" and not len(lost):
            here = request["exchange"]
            with self._all_or_nothing():
                lost = self._return(request["tag"], here)
            self._pending, self._committed, self._before = None, here, list(self._counted)
        if len(lost):
            raise BelowQuorum(f"{len(lost)} clients below {name} were not reached.")
        return {"done": kind}

    def _settle(self, counted: Exchange, name: str) -> None:
        """Go on from the last exchange that the coordinator above counted."""
        if self._pending is not None and counted == self._pending:
            self._committed = counted
        elif counted == self._committed:
            self._counted, self._stands = self._before, list(self._before)
        else:
            raise Refusal(f"{name} stands at exchange {self._committed[1]} and {NO_RECORD}: begin a new run.")
        self._pending, self._before = None, list(self._counted)

    def _asked(self, request: Mapping[str, Any], total: bool) -> dict[str, Any]:
        work, message, told, by = find_work(request["work"]), request["message"], request["rows"], request.get("by")
        self._life, self.number = request["exchange"][0], request["exchange"][1] - 1
        before = self.ledger.gradient_calls
        to = Clusters(told) if told is not None and told.dtype == bool else told
        rows = clients(told, self.clients.clusters)
        here = np.unique(self.clients.clusters if rows is None else self.clients.clusters[rows])
        lists, message = unequal(message), _widened(message, here, self.clients.k)
        if total:
            found: Any = self.total(work, to=to, by=by, **message)
        else:
            found = self.ask(work, to=to, **message)
        if len(found.missing):
            raise BelowQuorum(f"{len(found.missing)} clients did not answer.")
        self._pending = request["exchange"]
        values = dict(found)
        if isinstance(by, str):  # sums of the clusters that were asked, and of no others
            values = {n: [v[c] for c in here] if lists else v[here] for n, v in values.items()}
        return {"exchange": request["exchange"], "values": values, "gradients": self.ledger.gradient_calls - before}


def _widened(value: Any, here: Ints, k: int) -> Any:
    """A message with a row for each of k clusters, which came with those of the clusters ``here`` that are asked."""
    if isinstance(value, PerCluster):
        at = np.searchsorted(here, np.arange(k)).clip(max=len(here) - 1)  # a row of any other is read by nobody
        return PerCluster(pick(value.value, at))
    if isinstance(value, Mapping):
        return {name: _widened(v, here, k) for name, v in value.items()}
    return [_widened(v, here, k) for v in value] if isinstance(value, list | tuple) else value
