"""Engines for rows that a call holds: in process, the default, and over loopback sites; and any engine by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coterie import files
from coterie.engines.client_work_and_state import BLOCK, Runner, Store, owned
from coterie.engines.coordinator import Coordinator, Exchanged
from coterie.engines.cost_ledger import Ledger, measure
from coterie.engines.retry_and_quorum import Policy
from coterie.engines.routing import addressed, counts, grouped, roster, shares, unequal
from coterie.engines.site import Node
from coterie.errors import CoterieError
from coterie.federation import Array, Ints, Replies, Site, State, Sums, Work, work_name
from coterie.queries import Answering, Query

if TYPE_CHECKING:
    from coterie.engines.ray import Ray
    from coterie.engines.secure_sum import Secure, SecureSite

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
        Clients handed to work at a time, at most: fewer where models are large.

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
        self._kept: dict[str, set[str]] = {}  # what was kept before each mark

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
        self._kept[tag] = set(self._run.store.kept)
        self._marks[tag] = self._run.store.keep()
        return _NOBODY

    def restore(self, tag: str) -> Ints:
        """Return to the state at ``mark(tag)``; a CoterieError if there is no such mark."""
        if tag not in self._marks:
            raise CoterieError(f"There is no mark {tag!r} to restore: the marks are {sorted(self._marks)}.")
        self._run.store.replace(self._marks[tag])
        return _NOBODY

    def forget(self, tag: str) -> None:
        """Drop a mark that was just restored, so that state is written in place again, without a copy."""
        del self._marks[tag]
        self._run.store.kept = self._kept.pop(tag)

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


class Loopback(Coordinator):
    """A federation whose sites are in this process, behind a wire of bytes.

    Parameters
    ----------
    objective, clusters, weights, ids, seed
        As for :class:`~coterie.engines.local_engines.InProcess`.
    sites : int or sequence of int arrays, default 1
        A number of neighbouring parts of about equal size, or the clients of each site, in any order.
    folder : path, optional
        Where the sites keep what must survive a fault, each in its own folder.
    policy, journal, watch, secure
        As for :class:`~coterie.engines.coordinator.Coordinator`.
    block, threads : int
        As for the in-process engine, at each site; by default one thread.
    """

    def __init__(
        self,
        objective: Any,
        clusters: npt.ArrayLike | None = None,
        weights: npt.ArrayLike | None = None,
        ids: npt.ArrayLike | None = None,
        *,
        sites: int | Sequence[npt.ArrayLike] = 1,
        seed: int = 0,
        folder: str | Path | None = None,
        policy: Policy | None = None,
        journal: str | Path | None = None,
        watch: Callable[[Exchanged], None] | None = None,
        secure: Secure | None = None,
        block: int = BLOCK,
        threads: int = 1,
    ) -> None:
        m = len(objective)
        participants, places = roster(m, clusters, ids), parts(m, sites)
        super().__init__(participants, places, policy=policy, journal=journal, watch=watch, secure=secure)
        self._secure_site: Callable[[str], SecureSite] | None = None
        if secure is not None:
            from coterie.engines.secure_sum import secure_sites

            self._secure_site = secure_sites(self.names, secure)
        self._objective, self._weights = objective, shares(m, weights)
        self._options: dict[str, Any] = {"seed": seed, "block": block, "threads": threads}
        self._folder = None if folder is None else files.place(folder)
        self._nodes = [self._node(s) for s in range(len(self.sites))]

    def exchange(self, messages: Mapping[int, bytes], attempt: int, timeout: float) -> Mapping[int, bytes | None]:
        """One site after another."""
        return {site: self.deliver(site, data, attempt) for site, data in messages.items()}

    def deliver(self, site: int, data: bytes, attempt: int) -> bytes | None:
        """Carry bytes to a site and back."""
        self.ledger.bytes_down += len(data)
        answer = self._nodes[site].receive(data)
        self.ledger.bytes_up += len(answer)
        return answer

    def _node(self, site: int, kind: type[Node] = Node) -> Node:
        rows = self.sites[site]
        return kind(
            f"site {site}",
            self._objective.take(rows),
            np.unique(self.clients.clusters[rows], return_inverse=True)[1],
            self._weights[rows],
            self.clients.ids[rows],
            folder=None if self._folder is None else self._folder / f"site-{site}",
            secure=None if self._secure_site is None else self._secure_site(self.names[site]),
            **self._options,
        )


def parts(m: int, sites: int | Sequence[npt.ArrayLike]) -> list[Ints]:
    """Clients of each site, rising; ``sites`` as for :class:`Loopback`."""
    if isinstance(sites, int):
        return list(np.array_split(np.arange(m), max(sites, 1)))
    parts = [np.sort(np.asarray(p, dtype=np.int64)) for p in sites]
    together = np.sort(np.concatenate(parts)) if parts else np.empty(0, np.int64)
    if not np.array_equal(together, np.arange(m)):
        raise CoterieError(f"`sites` must hold each of {m} clients exactly once.")
    return parts


def local_engine(
    objective: Any,
    clusters: npt.ArrayLike | None,
    ids: npt.ArrayLike | None,
    *,
    seed: int = 0,
    kind: str = "inprocess",
    sites: int = 2,
    threads: int | None = None,
    block: int = BLOCK,
    folder: Path | None = None,
    address: str | None = None,
) -> InProcess | Loopback | Ray:
    """The clients of an objective, in one site, or as neighbouring parts behind a wire, whose state is in ``folder``.

    ``address`` is that of a Ray cluster, for the kind "ray", whose parts are actors.
    """
    if kind == "inprocess":
        return InProcess(objective, clusters, ids=ids, seed=seed, threads=threads, block=block)
    parts = max(min(sites, len(objective)), 1)
    apart: dict[str, Any] = {"ids": ids, "sites": parts, "seed": seed, "folder": folder, "block": block}
    if kind == "loopback":
        return Loopback(objective, clusters, **apart, threads=threads or 1)
    from coterie.engines.ray import Ray

    return Ray(objective, clusters, **apart, threads=threads or 1, address=address)


def ready(engine: Mapping[str, Any]) -> AbstractContextManager[None]:
    """What an engine, by the keys of ``[engine]``, keeps for all federations of a call: Ray and its actors."""
    if engine.get("kind") != "ray":
        return nullcontext()
    from coterie.engines.ray import actors

    return actors.kept(engine.get("address"), engine.get("sites", 2))


def actors_read(rows: Any, engine: Any, splits: int | None, methods: Any = ()) -> bool:
    """Whether actors of Ray read a call's rows: those of a folder, and of one file if no methods are compared on it."""
    kind = engine.get("kind") if isinstance(engine, dict) else engine
    if kind != "ray" or not isinstance(rows, (str, Path)):
        return False
    place = files.place(rows)
    if place.suffix == ".parquet":
        return splits == 0 and not methods
    return place.is_dir()
