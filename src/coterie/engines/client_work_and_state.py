"""Client work at one site, in blocks and threads, and the state that clients keep between exchanges."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeVar

import numpy as np

from coterie.engines.cost_ledger import nbytes
from coterie.engines.reduction import Adder, Gather, Segments
from coterie.engines.routing import compact, localise
from coterie.errors import CoterieError
from coterie.federation import WRITTEN, Array, Ints, Ragged, Rows, Site, State, Work, readonly, work_name
from coterie.numerics import mapped_arrays

T = TypeVar("T")
_ALL = Segments(None, np.zeros(1, np.int64), slice(0, 1))
BLOCK, NUMBERS = 4096, 1 << 23


@dataclass(frozen=True)
class Block:
    """Some clients of a request: their view, positions in the request, clients, and clusters in messages."""

    site: Site
    at: Rows
    rows: Rows
    clusters: Rows


@dataclass
class Plan:
    """A request cut into blocks, in client order; kept where the same request comes again."""

    n: int
    blocks: list[Block]
    clusters: Ints
    whole: bool
    _last: tuple[Ints, list[Segments]] | None = None
    _by_cluster: list[Segments] | None = None

    def by_cluster(self) -> list[Segments]:
        """Segments of the requests' own clusters in every block."""
        if self._by_cluster is None:
            self._by_cluster = [Segments.of(self.clusters[b.at]) for b in self.blocks]
        return self._by_cluster

    def segmented(self, labels: Ints | None) -> list[Segments]:
        """Segments of ``labels`` (aligned with the request; None: all are one) in every block; the last are kept."""
        if labels is None:
            return [_ALL] * len(self.blocks)
        if self._last is None or not (self._last[0] is labels or np.array_equal(self._last[0], labels)):
            self._last = labels, [Segments.of(labels[b.at]) for b in self.blocks]
        return self._last[1]


class Runner:
    """Runs work on all clients of one site, sorted by cluster, whose state reads from ``store.arrays``.

    ``threads`` blocks run at a time (by default one for each core), of at most ``block`` clients, whose models together
    have about NUMBERS numbers. Results depend on the block
    through the order of sums alone, and on threads not at all.
    """

    def __init__(self, site: Site, store: Store, threads: int | None = None, block: int = BLOCK) -> None:
        parts = getattr(site.objective, "parts", (site.objective,))
        d = max((int(getattr(part, "dim", 1)) for part in parts), default=1)
        self.site, self.store, self.block = site, store, min(block, max(NUMBERS // max(d, 1), 1))
        self.threads = threads or os.cpu_count() or 1
        self.gradients = 0
        self._plans: dict[tuple[bool, bool], Plan] = {}
        self._last: tuple[Ints, bool, Plan] | None = None

    def planned(self, rows: Ints | None, cut: bool, renumber: bool = False, whole: bool = False) -> Plan:
        """The plan of a request, as :meth:`plan` makes it; the one for everyone and the last other one are kept.

        Nobody may change ``rows``. ``renumber``: ``PerCluster`` values have rows for the clusters of this request only,
        not for all of the site. ``whole``: everyone must be one block.
        """
        clusters = self.site.clusters
        if rows is None:
            if (cut, whole) not in self._plans:
                self._plans[cut, whole] = self.plan(None, clusters, cut, len(clusters) if whole else self.block)
            return self._plans[cut, whole]
        if self._last is None or self._last[1] != cut or not np.array_equal(self._last[0], rows):
            numbers = clusters[rows]
            if renumber:  # by their places among those that occur
                occur = np.bincount(numbers) > 0
                numbers = (np.cumsum(occur) - 1)[numbers]
            self._last = rows, cut, self.plan(rows, numbers, cut)
        return self._last[2]

    def plan(self, rows: Ints | None, clusters: Ints, cut: bool = False, block: int | None = None) -> Plan:
        """Cut a request into blocks.

        ``rows`` (n,) are the clients of the requests, in any order with repeats, None for all; ``clusters`` (n,) the
        row of each in ``PerCluster`` values. ``cut``: also between clusters, so that every block has one.
        """
        n, order, unique = len(clusters), None, True
        if n == 0:
            return Plan(0, [], clusters, False)
        if rows is not None:
            if np.any(rows[1:] < rows[:-1]):
                order = np.argsort(rows, kind="stable")
                rows = rows[order]
            unique = not np.any(rows[1:] == rows[:-1])
        ordered = clusters if order is None else clusters[order]
        edges = np.arange(0, n, block or self.block)
        if cut:
            edges = np.union1d(edges, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1)
        blocks = []
        for lo, hi in zip(edges, [*edges[1:], n], strict=True):
            at = slice(int(lo), int(hi)) if order is None else order[lo:hi]
            here = slice(int(lo), int(hi)) if rows is None else compact(rows[lo:hi])
            blocks.append(self._block(at, here, ordered[lo:hi], unique))
        return Plan(n, blocks, clusters, unique and n == len(self.site))

    def _block(self, at: Rows, rows: Rows, clusters: Ints, unique: bool) -> Block:
        view = self.site.take(rows)
        fresh = np.concatenate([[True], clusters[1:] != clusters[:-1]])
        view.clusters = readonly(np.cumsum(fresh) - 1)
        view.ids, view.weights = readonly(view.ids), readonly(view.weights)
        view.state = State(self.store.arrays, rows, len(view), unique)
        view._tally = [0]
        return Block(view, at, rows, compact(clusters[fresh]))

    def rows(self, plan: Plan, work: Work, message: Mapping[str, Any], cut: bool) -> tuple[dict[str, Any], int]:
        """What work replies, a row for each request, and bytes of the rows; ``cut`` as in :meth:`plan`."""
        gather, size = Gather(plan.n, cut), 0
        for block, reply in zip(plan.blocks, self.run(plan, work, message, owned), strict=True):
            gather.add(block.at, reply)
            for value in reply.values():
                size += sum(map(nbytes, value)) if isinstance(value, list) else nbytes(value)
        return gather.result(), size

    def sums(
        self, plan: Plan, work: Work, message: Mapping[str, Any], by: Ints | str | None, groups: int | None, cut: bool
    ) -> tuple[dict[str, Any], int]:
        """Sums of what work replies, and bytes of the rows, which are added as they come and never exist all at once.

        ``by``: the label of each request below ``groups``, "cluster", or None for one sum, without an axis of groups.
        """
        by_cluster, size = isinstance(by, str), 0
        segments = plan.by_cluster() if isinstance(by, str) else plan.segmented(by)
        adder = Adder(groups, cut and by_cluster)
        for segment, (sums, sent) in zip(segments, self.run(plan, work, message, summed(segments)), strict=True):
            adder.add(segment.present, sums)
            size += sent
        return adder.result(), size

    def run(
        self, plan: Plan, work: Work, message: Mapping[str, Any], finish: Callable[[int, dict[str, Any]], T]
    ) -> Iterator[T]:
        """``finish(block number, reply)`` of every block, in block order; state is written as blocks end."""
        self.gradients = 0
        one = partial(self._one, plan, work, message, finish)
        try:
            n = len(plan.blocks)
            yield from map(one, range(n)) if n == 1 or self.threads == 1 else _threaded(one, n, self.threads)
            self.store.close()
        except BaseException:
            self.store.forget()
            raise

    def _one(
        self, plan: Plan, work: Work, message: Mapping[str, Any], finish: Callable[[int, dict[str, Any]], T], i: int
    ) -> T:
        block = plan.blocks[i]
        site, state = block.site, block.site.state
        state.new.clear()
        site._tally[0] = 0
        local = {k: localise(v, block) for k, v in message.items()} if message else message
        reply = work(site, **local)
        result = finish(i, checked_reply(reply, len(site), work_name(work)))
        for name, value in state.new.items():
            self.store.write(name, block.rows, value, plan.whole)
        state.new.clear()
        if site._tally[0]:
            with self.store._lock:
                self.gradients += site._tally[0]
        return result


def _threaded(one: Callable[[int], T], n: int, threads: int) -> Iterator[T]:
    """``one`` of every block in threads, in the order of the blocks."""
    pool, waiting = _pool(threads), deque[Future[T]]()
    try:
        for i in range(n):
            # A context for each block: numpy's error settings are the caller's in every thread.
            waiting.append(pool.submit(copy_context().run, one, i))
            if len(waiting) > 4 * threads:  # finished blocks must not pile up
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
        wait(waiting)


def checked_reply(reply: Any, size: int, name: str) -> dict[str, Any]:
    """The reply of ``work`` with one row for each of ``size`` clients; a CoterieError that names the culprit."""
    if not isinstance(reply, Mapping):
        what = {type(None): "nothing", np.ndarray: f"an array {np.shape(reply)}"}.get(type(reply), type(reply).__name__)
        raise CoterieError(f"{name} must return a dict, not {what}: arrays by name, a row for each of {size} clients.")
    values: dict[str, Any] = {}
    for key, value in reply.items():
        array = value if isinstance(value, (Ragged, list)) else np.asarray(value)
        if (isinstance(array, np.ndarray) and (array.ndim == 0 or array.dtype.hasobject)) or len(array) != size:
            shape = getattr(array, "shape", None)
            raise CoterieError(f"{name} must return {key!r} with one row for each of {size} clients, not {shape}.")
        values[key] = array
    return values


def owned(i: int, reply: dict[str, Any]) -> dict[str, Any]:
    """Rows that no later write can change: a reply may show state, which is about to be written."""
    return {name: _own(value) for name, value in reply.items()}


def _differ(value: Array, other: Array) -> bool:
    """Whether arrays have rows of other shapes or types."""
    return value.shape[1:] != other.shape[1:] or value.dtype != other.dtype


def _own(value: Any) -> Any:
    if isinstance(value, Ragged):
        return Ragged(_own(value.values), value.offsets)
    if isinstance(value, list):
        return [_own(v) for v in value]
    return value if value.flags.writeable else value.copy()


Added = tuple[dict[str, tuple[Array, "np.dtype[Any]"]], int]


def summed(segments: list[Segments]) -> Callable[[int, dict[str, Any]], Added]:
    """A ``finish`` that adds the rows of a block at once: (sums with the type of what was added, bytes of the rows)."""

    def finish(i: int, reply: dict[str, Any]) -> Added:
        sums, size = {}, 0
        for name, value in reply.items():
            if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufc":
                raise CoterieError(f"{name!r} cannot be added up: ask for it, or reply numbers.")
            sums[name] = segments[i].add(value), value.dtype
            size += value.nbytes
        return sums, size

    return finish


@lru_cache(maxsize=4)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="coterie")


if hasattr(os, "register_at_fork"):  # a child has the pool and none of its threads: work would wait for ever
    os.register_at_fork(after_in_child=_pool.cache_clear)


class Store:
    """Personal state of a site's m clients, one array for each name; large ones lie in temporary files.

    A ``tentative`` store keeps what is written aside until :meth:`commit`: rows of arrays that are there as a log of
    what to write, or, where all that is written must lie in whole arrays (``durable``), in copies of them. In another
    one blocks write in place. An array whose shape or type changes is swapped in by :meth:`commit`.
    """

    def __init__(self, m: int, tentative: bool = False, durable: bool = False) -> None:
        self.m, self.tentative = m, tentative
        self.arrays: dict[str, Array] = {}
        self.staged: dict[str, Array] = {}
        self._logs = tentative and not durable
        self._log: list[tuple[str, Rows, Array]] = []
        self.kept: set[str] = set()  # names whose arrays somebody may return to, so that they are copied first
        self._reshaped: dict[str, int] = {}  # clients that have yet to write a name in its new shape
        self._lock = threading.Lock()

    def write(self, name: str, rows: Rows, value: Array, whole: bool) -> None:
        """Write ``value`` for the clients ``rows``; ``whole``: this exchange covers all clients."""
        with self._lock:
            target, logged = self.staged.get(name), False
            if target is None:
                logged = self._logs and name in self.arrays and not (whole and _differ(value, self.arrays[name]))
                target = self.arrays[name] if logged else self._target(name, value, whole)
            written = None if logged else self._writable(WRITTEN + name, self.tentative)
            if name in self._reshaped:
                self._reshaped[name] -= len(value)
        if target.shape[1:] != value.shape[1:] or not np.can_cast(value.dtype, target.dtype, "same_kind"):
            raise CoterieError(
                f"State {name!r} is {target.dtype} {target.shape[1:]} for some clients "
                f"and {value.dtype} {value.shape[1:]} for others: use one type, and pad to one shape."
            )
        if logged:
            self._log.append((name, rows, _own(value)))
            return
        mapped_arrays.write(target, rows, value)
        if written is not None:
            written[rows] = True

    def _target(self, name: str, value: Array, whole: bool) -> Array:
        old = self.arrays.get(name)
        if old is None:
            self.staged[WRITTEN + name] = np.zeros(self.m, dtype=bool)
        elif not whole or not _differ(value, old):
            same: Array = self._writable(name, self.tentative)  # type: ignore[assignment]
            return same
        else:
            self._reshaped[name] = self.m
        new = self.staged[name] = mapped_arrays.zeros((self.m, *value.shape[1:]), value.dtype)
        return new

    def _writable(self, name: str, aside: bool) -> Array | None:
        """The array that writes go to: the state itself, or a copy of it that is kept ``aside``."""
        array = self.staged.get(name, self.arrays.get(name))
        if array is not None and name not in self.staged and (aside or name in self.kept):
            array = self.staged[name] = mapped_arrays.copy(array, self.arrays.get(WRITTEN + name))
        return array

    def close(self) -> None:
        """End an exchange: what was written becomes the state, or stays aside if this store is tentative."""
        if any(self._reshaped.values()):
            name = next(n for n, left in self._reshaped.items() if left)
            raise CoterieError(f"State {name!r} changed its shape or type for some clients only: write it for all.")
        self._reshaped.clear()
        for array in self.arrays.values():
            mapped_arrays.release(array)
        for name in [n for n in self.staged if n.startswith(WRITTEN) and n not in self.arrays]:
            if self.staged[name].all():
                del self.staged[name]
        if self.staged and not self.tentative:
            self.commit()

    def commit(self) -> None:
        """Make what was written the state."""
        for name, rows, value in self._log:
            target, written = self._writable(name, False), self._writable(WRITTEN + name, False)
            mapped_arrays.write(target, rows, value)  # type: ignore[arg-type]
            if written is not None:
                written[rows] = True
        self._log.clear()
        self.arrays.update(self.staged)
        self.kept.difference_update(self.staged)
        self.staged.clear()

    def forget(self) -> None:
        """Drop what was written aside."""
        self._log.clear()
        self.staged.clear()
        self._reshaped.clear()

    def keep(self) -> dict[str, Array]:
        """The present arrays, which will not be written in place from now on (nothing is copied here)."""
        self.kept.update(self.arrays)
        return dict(self.arrays)

    def replace(self, arrays: Mapping[str, Array]) -> None:
        """Return to arrays that :meth:`keep` gave, or that were read from disk."""
        self.forget()
        self.arrays.clear()
        self.arrays.update(arrays)
        self.kept = set(arrays)
