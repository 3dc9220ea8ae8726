"""The federation contract: what client work sees, what a coordinator sees, and what travels between them.

Client work is a *named* function over the leading client axis, ``work(site, **message) -> dict``, marked with
:func:`work`. It must be *separable*: row r of a reply and of new state depends only on row r of the site and on the
message, so an engine may call it on any block of clients. Anything across clients is done by ``total``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError, entry
from coterie.imports import marks_work
from coterie.numerics import keyed_random

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Rows = slice | npt.NDArray[np.int64]
Work = Callable[..., Mapping[str, Any]]
W = TypeVar("W", bound=Callable[..., Any])
WRITTEN = "\0written "  # state under this prefix and a name: which clients wrote the name, where not all did
_WORK: dict[str, Work] = {}


def work(function: W) -> W:
    """Mark a module-level function, which is returned as it is, as client work that other sites may run by name.

    ``function(site, **message)`` returns by name an array, or a :class:`Ragged`, with one row for each client of the
    site. A CoterieError refuses a function defined inside another one: the other side could not find it by its name.
    """
    if "<" in function.__qualname__:
        raise CoterieError(f"Work {function.__qualname__!r} must be defined at the top level of a module.")
    name = function.work_name = f"{function.__module__}:{function.__qualname__}"  # type: ignore[attr-defined]
    _WORK[name] = function
    return function


def work_name(function: Work) -> str:
    """The name under which ``function`` travels; a CoterieError if it is not marked with :func:`work`."""
    name: str | None = getattr(function, "work_name", None)
    if name is None:
        raise CoterieError(f"{getattr(function, '__name__', function)!r} is not client work: mark it with @work.")
    return name


def find_work(name: str) -> Work:
    """The marked function called ``name`` ("module:qualname"); a CoterieError if it is not known.

    Modules of this package are imported when needed; others are the site's owner's to allow.
    """
    if name not in _WORK and marks_work(module := name.partition(":")[0]):
        import_module(module)
    if name not in _WORK:
        raise CoterieError(f"Work {name!r} is not known here: import its module at this site first.")
    return _WORK[name]


def readonly(array: Array) -> Array:
    """A view of ``array`` that cannot be written."""
    view = array.view()
    view.flags.writeable = False
    return view


class Ragged:
    """Rows of different lengths, one after another: row r is ``values[offsets[r]:offsets[r + 1]]``.

    ``values`` is an (n, ...) array (bytes are uint8); ``offsets``, (rows + 1,) int64, rises from 0 to n.
    """

    __slots__ = ("offsets", "values")

    def __init__(self, values: npt.ArrayLike, offsets: npt.ArrayLike) -> None:
        self.values: Array = np.asarray(values)
        self.offsets: Ints = np.asarray(offsets, dtype=np.int64)
        o = self.offsets
        if o.ndim != 1 or not len(o) or o[0] != 0 or o[-1] != len(self.values) or np.any(o[1:] < o[:-1]):
            raise CoterieError(f"Ragged offsets must rise from 0 to the number of values ({len(self.values)}).")

    @classmethod
    def of(cls, rows: Sequence[npt.ArrayLike | bytes]) -> Ragged:
        """Concatenate ``rows`` (arrays with equal trailing shapes, or bytes)."""
        parts = [np.frombuffer(r, np.uint8) if isinstance(r, bytes) else np.asarray(r) for r in rows]
        offsets = np.concatenate([[0], np.cumsum([len(p) for p in parts], dtype=np.int64)])
        return cls(np.concatenate(parts) if parts else np.empty(0, np.uint8), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Array:
        row = range(len(self))[row]
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def take(self, rows: Rows) -> Ragged:
        """Some rows, in any order, repeats allowed; a slice copies no values, and they are read-only."""
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self))
            offsets = self.offsets[start : max(start, stop) + 1]
            return Ragged(readonly(self.values[offsets[0] : offsets[-1]]), offsets - offsets[0])
        first = self.offsets[rows]
        lengths = self.offsets[rows + 1] - first
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        where = np.repeat(first - offsets[:-1], lengths) + np.arange(offsets[-1])
        return Ragged(self.values[where], offsets)


class PerRow:
    """A message value (array, Ragged, or dict of them) aligned with ``to``: work receives its own clients' rows."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value if isinstance(value, Ragged | dict) else np.asarray(value)


class PerCluster:
    """A message value with one row for each cluster: work receives the rows of its clusters, unexpanded.

    Index what arrives with ``site.clusters``. A list of arrays with unequal shapes makes the engine call the work once
    for each cluster (what arrives then has one row), and the sums of ``total(..., by="cluster")`` come back as lists.
    The leading axis of ``value`` (array, Ragged, dict of them, or list of arrays) counts all clusters.
    """

    __slots__ = ("unequal", "value")

    def __init__(self, value: Any) -> None:
        self.unequal = False
        if isinstance(value, list | tuple):
            value = [np.asarray(v) for v in value]
            self.unequal = len({(v.shape, v.dtype) for v in value}) > 1
        self.value = value if self.unequal or isinstance(value, Ragged | dict) else np.asarray(value)


@dataclass(frozen=True)
class Clusters:
    """An address: all clients of the clusters where ``mask``, (clusters,) bool, is true."""

    mask: npt.NDArray[np.bool_]


class Objective(Protocol):
    """What a site holds: any object over a leading client axis."""

    def __len__(self) -> int:
        """Number of clients."""

    def take(self, rows: Rows) -> Objective:
        """The clients ``rows`` (a slice, or indices in any order with repeats), copying no data row."""


class State(Mapping[str, Array]):
    """Personal state of a site's clients: read-only arrays, leading axis = clients; changed by assigning a new one.

    Read with :meth:`get`: clients that never wrote a name get the default, whoever else did. What was assigned is read
    back at once; it becomes the site's state when the exchange counts. Do not change an array after assigning it.
    """

    __slots__ = ("_rows", "_size", "_source", "_unique", "new")

    def __init__(self, source: Mapping[str, Array], rows: Rows, size: int, unique: bool = True) -> None:
        self._source, self._rows, self._size, self._unique = source, rows, size, unique
        self.new: dict[str, Array] = {}

    def written(self, name: str) -> npt.NDArray[np.bool_]:
        """Which clients have ever written ``name``, (m,) bool."""
        if name in self.new or not self._known(name):
            return np.full(self._size, name in self.new)
        mask = self._source.written(name) if isinstance(self._source, State) else self._source.get(WRITTEN + name)
        return np.ones(self._size, dtype=bool) if mask is None else mask[self._rows]

    def __contains__(self, name: object) -> bool:
        """Whether every client has written ``name``."""
        if name in self.new or isinstance(self._source, State):
            return name in self.new or (self._known(name) and bool(self.written(str(name)).all()))
        mask = self._source.get(f"{WRITTEN}{name}")
        return name in self._source and (mask is None or bool(mask[self._rows].all()))

    def _known(self, name: object) -> bool:
        return name in self.new or (s._known(name) if isinstance(s := self._source, State) else name in s)

    def _raw(self, name: str) -> Array:
        if name in self.new:
            return self.new[name]
        return (self._source._raw(name) if isinstance(self._source, State) else self._source[name])[self._rows]

    def get(self, name: str, default: Any = None) -> Any:
        """The state ``name``, with the rows of ``default`` (m, ...) for clients that never wrote it."""
        if name in self:
            return readonly(self._raw(name))
        if default is None or not (written := self.written(name)).any():
            return default
        values: Array = np.array(self._raw(name))
        values[~written] = np.broadcast_to(default, values.shape)[~written]
        return readonly(values)

    def __getitem__(self, name: str) -> Array:
        if name not in self:
            raise KeyError(f"{name}: some clients never wrote it, use state.get(name, default)")
        return readonly(self._raw(name))

    def __setitem__(self, name: str, value: npt.ArrayLike) -> None:
        if isinstance(self._source, State):
            raise CoterieError(f"State {name!r} must be written for the whole site, not for a view made by take().")
        if not self._unique:
            raise CoterieError(f"State {name!r} cannot be written where a client is asked more than once.")
        array = np.asarray(value)
        if array.ndim == 0 or len(array) != self._size or array.dtype.hasobject:
            raise CoterieError(f"State {name!r} needs one row for each of {self._size} clients, not {array.shape}.")
        self.new[name] = array

    def __iter__(self) -> Iterator[str]:
        source, names = self._source, list(self.new)
        while isinstance(source, State):
            names, source = [*source.new, *names], source._source
        return (n for n in dict.fromkeys([*source, *names]) if not n.startswith(WRITTEN) and n in self)

    def __len__(self) -> int:
        return len(list(iter(self)))


class Site:
    """One owner of data with one or many clients: what client work sees, and all it sees.

    Attributes
    ----------
    objective
        The clients' data and loss; leading axis = clients.
    clusters : (m,) int64
        Cluster of each client, 0 to the number of clusters here less 1, sorted where an engine calls work.
    weights : (m,) float64
    ids : (m,) uint64
        64-bit hash of each client's label.
    state : State
        Personal state, which stays here.
    """

    __slots__ = ("_tally", "clusters", "ids", "objective", "seed", "state", "weights")

    def __init__(
        self, objective: Any, clusters: Ints, weights: Array, ids: npt.NDArray[np.uint64], state: State, seed: int = 0
    ) -> None:
        self.objective, self.clusters, self.weights, self.ids = objective, clusters, weights, ids
        self.state, self.seed, self._tally = state, seed, [0]

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: npt.ArrayLike | slice) -> Site:
        """A view of some clients: indices in any order, with repeats, a mask or a slice; no data row is copied.

        State can be read, not written. ``clusters`` keep their numbers: messages are indexed as before.
        """
        index = rows if isinstance(rows, slice) else np.asarray(rows)
        if isinstance(index, np.ndarray):
            index = np.flatnonzero(index) if index.dtype == bool else index.astype(np.int64)
        ids = self.ids[index]
        state = State(self.state, index, len(ids))
        view = Site(self.objective.take(index), self.clusters[index], self.weights[index], ids, state, self.seed)
        view._tally = self._tally
        return view

    def uniform(self, n: int, step: npt.ArrayLike, stream: str) -> npt.NDArray[np.float64]:
        """Keyed uniform numbers in [0, 1), shape (m, n): a function of (seed, stream, client id, step) only."""
        return keyed_random.uniform(self.seed, stream, self.ids, step, n)

    def generator(self, i: int, step: int, stream: str) -> np.random.Generator:
        """A NumPy generator for client ``i`` of this site; about 30 microseconds, so prefer :meth:`uniform`."""
        return keyed_random.generator(self.seed, stream, int(self.ids[i]), step)

    def count(self, gradients: int) -> None:
        """Tell the ledger that this work evaluated ``gradients`` client gradients, over all clients of the site."""
        self._tally[0] += int(gradients)


@dataclass(frozen=True)
class Roster:
    """What a coordinator knows of the clients: ids (m,) and clusters (m,) in a fixed order, sorted by cluster."""

    ids: npt.NDArray[np.uint64]
    clusters: Ints

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def k(self) -> int:
        """Number of clusters: the largest cluster number plus one."""
        return int(self.clusters[-1]) + 1 if len(self.clusters) else 0


class Replies(Mapping[str, Any]):
    """One row for each request that was answered: ``replies[name]`` is an array or a :class:`Ragged`, read-only.

    ``to`` (requests,) holds the client of each request; ``rows`` and ``missing`` are the positions in it that were
    answered, as the arrays are, and not. Where nobody answers there are no names.
    """

    __slots__ = ("_values", "missing", "rows", "to")

    def __init__(self, values: Mapping[str, Any], to: Ints, rows: Ints, missing: Ints) -> None:
        self._values, self.to, self.rows, self.missing = values, to, rows, missing

    def __getitem__(self, name: str) -> Any:
        return entry(self._values, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)}, {len(self.rows)} answered, {len(self.missing)} missing)"


class Sums(Replies):
    """Sums over requests: ``sums[name]`` has a leading axis of groups where ``by`` was given.

    ``count``, an int or (groups,) int64, is how many were added. Groups nobody answered are zero with count 0.
    """

    __slots__ = ("count",)

    def __init__(self, values: Mapping[str, Any], to: Ints, rows: Ints, missing: Ints, count: Any) -> None:
        super().__init__(values, to, rows, missing)
        self.count = count


To = npt.ArrayLike | Clusters | None
Check = Callable[[Ints, Mapping[str, Any]], object]
By = Literal["cluster"] | npt.ArrayLike | None


class Federation(Protocol):
    """What a coordinator sees. Engines implement it; methods use nothing else."""

    clients: Roster
    ledger: Any  # exchanges, bytes_down, bytes_up, gradient_calls, seconds

    def ask(self, work: Work, /, to: To = None, *, check: Check | None = None, **message: Any) -> Replies:
        """Run ``work`` and return a row for each request.

        Parameters
        ----------
        to : None, (n,) int with repeats, (m,) bool, or Clusters
            Which clients; None is all. Clients asked more than once may not write state.
        check : callable, optional
            ``check(rows, values)``: a CoterieError where a site's replies to the requests ``rows`` are of no use.
        **message
            Scalars, text, arrays, :class:`Ragged`, :class:`PerRow`, :class:`PerCluster`, dicts and lists of them.
        """

    def total(self, work: Work, /, to: To = None, by: By = None, groups: int | None = None, **message: Any) -> Sums:
        """Run ``work`` and return sums over requests, within groups; sums are formed at the sites first.

        Parameters
        ----------
        by : None, "cluster", or (n,) int
            Group of each request, aligned with ``to``. None adds up everything, without a group axis.
        groups : int, optional
            Number of groups; by default the number of clusters, or the largest label plus one.
        """

    def mark(self, tag: str) -> Ints:
        """Let every site keep its present state under ``tag``; the clients that were not reached."""

    def restore(self, tag: str) -> Ints:
        """Return every site to the state it had at ``mark(tag)``; the clients that were not reached."""


class Query(NamedTuple):
    """The arguments of an :meth:`Federation.ask` or a :meth:`Federation.total`."""

    kind: Literal["ask", "total"]
    work: Work
    message: Mapping[str, Any]
    to: To = None
    check: Check | None = None
    by: By = None
    groups: int | None = None

    def of(self, fed: Federation) -> Any:
        """What a federation replies."""
        if self.kind == "ask":
            return fed.ask(self.work, to=self.to, check=self.check, **self.message)
        return fed.total(self.work, to=self.to, by=self.by, groups=self.groups, **self.message)


class Answering(ABC):
    """A federation that answers both kinds of queries in one place."""

    def ask(self, work: Work, /, to: To = None, *, check: Check | None = None, **message: Any) -> Replies:
        """See :meth:`Federation.ask`."""
        replies: Replies = self._answer(Query("ask", work, message, to, check))
        return replies

    def total(self, work: Work, /, to: To = None, by: By = None, groups: int | None = None, **message: Any) -> Sums:
        """See :meth:`Federation.total`."""
        sums: Sums = self._answer(Query("total", work, message, to, None, by, groups))
        return sums

    @abstractmethod
    def _answer(self, query: Query) -> Any:
        """Replies or Sums, by the kind of the query."""


class WrappedFederation(Answering):
    """A federation around another one, for methods to use in its place: what no subclass changes is passed on."""

    def __init__(self, fed: Federation) -> None:
        self.fed, self.clients, self.ledger = fed, fed.clients, fed.ledger

    def _answer(self, query: Query) -> Any:
        return query.of(self.fed)

    def mark(self, tag: str) -> Ints:
        """See :meth:`Federation.mark`."""
        return self.fed.mark(tag)

    def restore(self, tag: str) -> Ints:
        """See :meth:`Federation.restore`."""
        return self.fed.restore(tag)
