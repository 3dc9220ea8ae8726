"""The reference and default engine: all clients are one site in this process, and nothing is serialised."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.engines.block_runner import BLOCK, Runner, owned
from coterie.engines.client_state import Store
from coterie.engines.ledger import Ledger, measure
from coterie.engines.routing import addressed, counts, grouped, roster, shares, unequal
from coterie.errors import CoterieError
from coterie.federation import Array, Ints, Replies, Site, State, Sums, Work, work_name
from coterie.queries import Answering, Query

_NOBODY = np.empty(0, np.int64)


class InProcess(Answering):
    """A federation in one process.

    State is committed as blocks of clients end: when work raises, blocks that had ended keep their new state, so
    restore a mark before going on.

    Parameters
    ----------
    objective : Objective
        The data of m clients, in cluster order: any object with ``take(rows)`` and ``len()``.
    clusters : (m,) int, optional
        Cluster of each client, sorted, from 0; by default one cluster.
    weights : (m,) float, optional
        Weight of each client; by default 1.
    ids : (m,) uint64, optional
        Hash of each client's label, which keys its random numbers; by default its position.
    seed : int, default 0
        Seed of all keyed random numbers.
    threads : int, optional
        Blocks that run at a time; by default the number of cores. Results do not depend on it.
    block : int, default 4096
        Clients handed to work at a time.

    Attributes
    ----------
    clients : Roster
    ledger : Ledger
        Bytes are those of the numbers that would travel if every client were a site of its own.
    """

    def __init__(
        self,
        objective: Any,
        clusters: npt.ArrayLike | None = None,
        weights: npt.ArrayLike | None = None,
        ids: npt.ArrayLike | None = None,
        *,
        seed: int = 0,
        threads: int | None = None,
        block: int = BLOCK,
    ) -> None:
        m = len(objective)
        self.clients = roster(m, clusters, ids)
        self.ledger = Ledger()
        store = Store(m)
        everyone = State(store.arrays, slice(None), m)
        site = Site(objective, self.clients.clusters, shares(m, weights), self.clients.ids, everyone, seed)
        self._run = Runner(site, store, threads, block)
        self._everyone = np.arange(m)
        self._everyone.flags.writeable = False
        self._marks: dict[str, dict[str, Array]] = {}

    def _answer(self, query: Query) -> Replies | Sums:
        start = perf_counter()
        _, work, message, to, _, by, groups = query  # nobody's word needs a check
        work_name(work)
        own_shapes = bool(message) and unequal(message)
        rows = addressed(to, self.clients)
        plan = self._run.planned(rows, own_shapes)
        each, once = measure(message, plan.n, self.clients.k) if message else (0.0, 0.0)
        positions = self._everyone[: plan.n] if plan.n <= len(self._everyone) else np.arange(plan.n)
        told = self._everyone if rows is None else rows, positions, _NOBODY
        found: Replies | Sums
        if query.kind == "ask":
            values, up = self._run.rows(plan, work, message, own_shapes)
            found = Replies(values, *told)
        else:
            labels, size = (None, None) if by is None else grouped(by, plan.clusters, groups, self.clients.k)
            values, up = self._run.sums(plan, work, message, by if isinstance(by, str) else labels, size, own_shapes)
            found = Sums(values, *told, counts(labels, size, slice(0, plan.n)))
        self.ledger.exchanges += 1
        self.ledger.bytes_down += int(each * plan.n + once)
        self.ledger.bytes_up += int(up)
        self._book(start)
        return found

    def together(self, work: Work, /, **message: Any) -> None:
        """Run work once on all clients, undivided, where they may speak among themselves: nothing travels."""
        start = perf_counter()
        work_name(work)
        for _ in self._run.run(self._run.planned(None, False, whole=True), work, message, owned):
            pass
        self._book(start)

    def mark(self, tag: str) -> Ints:
        """Keep the present state under ``tag``; it is copied only when it is next written."""
        self._marks[tag] = self._run.store.keep()
        return _NOBODY

    def restore(self, tag: str) -> Ints:
        """Return to the state at ``mark(tag)``; a CoterieError if there is no such mark."""
        if tag not in self._marks:
            raise CoterieError(f"There is no mark {tag!r} to restore: the marks are {sorted(self._marks)}.")
        self._run.store.replace(self._marks[tag])
        return _NOBODY

    def snapshot(self, tag: str) -> dict[str, Any]:
        """All that :meth:`resume` needs in another process: personal state and the ledger."""
        return {"ledger": self.ledger.as_dict(), "state": self._run.store.keep()}

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        """Go on from :meth:`snapshot`, taken by a federation of the same clients."""
        if "state" not in snapshot:
            raise CoterieError("The checkpoint was made by another engine: resume it with that one.")
        state = dict(snapshot["state"])
        if any(len(array) != len(self.clients) for array in state.values()):
            raise CoterieError("The checkpoint has another number of clients: resume it on its own data.")
        self._run.store.replace(state)
        self.ledger.load(snapshot["ledger"])

    def _book(self, start: float) -> None:
        self.ledger.gradient_calls += self._run.gradients
        self.ledger.seconds += perf_counter() - start
