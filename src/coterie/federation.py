"""The federation contract: what client work sees, what a coordinator sees, and what travels between them.

Client work is a *named* function over the leading client axis, ``work(site, **message) -> dict``, marked with
:func:`work`. It must be *separable*: row r of a reply and of new state depends only on row r of the site and on the
message, so an engine may call it on any block of clients. Anything across clients is done by ``total``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError, NoSuchName, NotAll, listed
from coterie.numerics import keyed_random
from coterie.user_code import marks_work

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Rows = slice | npt.NDArray[np.int64]
Work = Callable[..., Mapping[str, Any]]
W = TypeVar("W", bound=Callable[..., Any])
R = TypeVar("R", bound="Replies")
WRITTEN = "\0written "  # state under this prefix and a name: which clients wrote the name, where not all did
_WORK: dict[str, Work] = {}


def work(function: W) -> W:
    """Mark a module-level function, which is returned as it is, as client work that other sites may run by name.

    ``function(site, **message)`` returns by name an array, or a :class:`Ragged`, with one row for each client of the
    site. A function defined inside another one is refused: the other side could not find it by its name.
    """
    if "<" in function.__qualname__:
        raise CoterieError(f"Work {function.__qualname__!r} must be defined at the top level of a module.")
    name = function.work_name = f"{function.__module__}:{function.__qualname__}"  # type: ignore[attr-defined]
    _WORK[name] = function
    return function


def nonnegative(*names: str) -> Callable[[W], W]:
    """Mark what client work returns under ``names`` as sums of squares or counts: a site that sends less is broken."""

    def mark(function: W) -> W:
        function.nonnegative = names  # type: ignore[attr-defined]
        return function

    return mark


def work_name(function: Work) -> str:
    """The name under which ``function`` travels; a CoterieError if it is not marked with :func:`work`."""
    name: str | None = getattr(function, "work_name", None)
    if name is None:
        raise CoterieError(f"{getattr(function, '__name__', function)!r} is not client work: mark it with @work.")
    return name


def find_work(name: str) -> Work:
    """The marked function called "module:qualname", of a module that its site's owner imported, or of this package."""
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
    """A message value (array, Ragged, dict of them, list of arrays) with a row for each cluster, of all there are.

    Work receives the rows of its clusters, unexpanded: index them with ``site.clusters``. A list of arrays with unequal
    shapes makes the engine call the work once for each cluster (what arrives then has one row), and the sums of
    ``total(..., by="cluster")`` come back as lists.
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

    What was assigned is read back at once; it becomes the site's state when the exchange counts. Do not change an array
    after assigning it.
    """

    __slots__ = ("_rows", "_size", "_source", "_unique", "new")

    def __init__(self, source: Mapping[str, Array], rows: Rows, size: int, unique: bool = True) -> None:
        self._source, self._rows, self._size, self._unique = source, rows, size, unique
        self.new: dict[str, Array] = {}

    def _look(self, name: object) -> tuple[Array, Array | None] | None:
        """The state ``name`` and who has written it (None: all); None if nobody has."""
        if name in self.new:
            return self.new[str(name)], None
        if isinstance(self._source, State):
            found = self._source._look(name)
        else:
            found = (self._source[str(name)], self._source.get(f"{WRITTEN}{name}")) if name in self._source else None
        return found and (found[0][self._rows], None if found[1] is None else found[1][self._rows])

    def written(self, name: str) -> npt.NDArray[np.bool_]:
        """Which clients have ever written ``name``, (m,) bool."""
        found = self._look(name)
        return np.full(self._size, found is not None) if found is None or found[1] is None else found[1]

    def __contains__(self, name: object) -> bool:
        """Whether every client has written ``name``."""
        return bool(self.written(str(name)).all()) and self._look(name) is not None

    def get(self, name: str, default: Any = None) -> Any:
        """The state ``name``, with the rows of ``default`` (m, ...) for clients that never wrote it."""
        values, mask = self._look(name) or (None, None)
        if values is None or (mask is not None and not mask.all() and (default is None or not mask.any())):
            return default
        if mask is not None and not mask.all():
            values = np.array(values)
            values[~mask] = np.broadcast_to(default, values.shape)[~mask]
        return readonly(values)

    def __getitem__(self, name: str) -> Array:
        if (value := self.get(name)) is None:
            raise KeyError(f"{name}: some clients never wrote it, use state.get(name, default)")
        return value  # type: ignore[no-any-return]

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

    ``objective`` holds the clients' data and loss; ``clusters`` (m,) int64 are from 0 to the number of clusters here
    less 1, sorted where an engine calls work; ``weights`` are (m,) float64; ``ids`` (m,) uint64 are 64-bit hashes of
    the clients' labels; ``state`` is their personal :class:`State`, which stays here.
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
        try:
            return self._values[name]
        except KeyError:
            raise NoSuchName(f"Clients replied no {name!r}, only {listed(self) or 'nothing'}.") from None

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


def require_all_replies(replies: R) -> R:
    """The replies; a CoterieError if a client did not answer: exact sums leave nobody out without a word."""
    if missing := len(replies.missing):
        raise NotAll(
            f"{missing:,} of {missing + len(replies.rows):,} clients did not answer, and this needs them all: ask "
            "again, or leave them out of the federation."
        )
    return replies


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

    def total(
        self,
        work: Work,
        /,
        to: To = None,
        by: By = None,
        groups: int | None = None,
        *,
        check: Check | None = None,
        **message: Any,
    ) -> Sums:
        """Run ``work`` and return sums over requests, within groups; sums are formed at the sites first.

        Parameters
        ----------
        by : None, "cluster", or (n,) int
            Group of each request, aligned with ``to``. None adds up everything, without a group axis.
        groups : int, optional
            Number of groups; by default the number of clusters, or the largest label plus one.
        check : callable, optional
            As of :meth:`ask`, of a site's sums; what is masked is not seen, and not checked.
        """

    def mark(self, tag: str) -> Ints:
        """Let every site keep its present state under ``tag``; the clients whose sites have yet to be restored."""

    def restore(self, tag: str) -> Ints:
        """Return every site to the state it had at ``mark(tag)``; the clients that were not reached."""
