"""Queries, of which an ask and a total are two kinds: engines answer both, federations around others pass them on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from coterie.federation import (
    By,
    Check,
    Clusters,
    Federation,
    Ints,
    PerCluster,
    Ragged,
    Replies,
    Roster,
    Sums,
    To,
    Work,
)  # fmt: skip


class Query(NamedTuple):
    """The arguments of a :meth:`Federation.ask` or a :meth:`Federation.total`."""

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
        return fed.total(self.work, to=self.to, by=self.by, groups=self.groups, check=self.check, **self.message)


class Answering(ABC):
    """A federation that answers both kinds of queries in one place."""

    def ask(self, work: Work, /, to: To = None, *, check: Check | None = None, **message: Any) -> Replies:
        """See :meth:`coterie.federation.Federation.ask`."""
        return self._answer(Query("ask", work, message, to, check))  # type: ignore[no-any-return]

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
        """See :meth:`coterie.federation.Federation.total`."""
        return self._answer(Query("total", work, message, to, check, by, groups))  # type: ignore[no-any-return]

    @abstractmethod
    def _answer(self, query: Query) -> Any:
        """Replies or Sums, by the kind of the query."""

    def close(self) -> None:  # noqa: B027 - many have none
        """Let go of the sites."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class WrappedFederation(Answering):
    """A federation around another one, for methods to use in its place: what no subclass changes is passed on."""

    def __init__(self, fed: Federation) -> None:
        self.fed, self.clients, self.ledger = fed, fed.clients, fed.ledger

    def _answer(self, query: Query) -> Any:
        return query.of(self.fed)

    def mark(self, tag: str) -> Ints:
        """See :meth:`coterie.federation.Federation.mark`."""
        return self.fed.mark(tag)

    def restore(self, tag: str) -> Ints:
        """See :meth:`coterie.federation.Federation.restore`."""
        return self.fed.restore(tag)

    def close(self) -> None:
        """Let go of the sites of the other one, where it has any."""
        if isinstance(self.fed, Answering):
            self.fed.close()


class Unclustered(WrappedFederation):
    """The same clients without their clusters, for a method that ignores them."""

    def __init__(self, fed: Federation) -> None:
        super().__init__(fed)
        self.clients = Roster(fed.clients.ids, np.zeros_like(fed.clients.clusters))
        self.reveals = getattr(fed, "reveals", True)

    def _answer(self, query: Query) -> Any:
        to = query.to
        if isinstance(to, Clusters):
            to = np.full(len(self.clients), bool(to.mask[0]))
        asked = np.asarray(to if to is not None else self.clients.ids)
        n = int(asked.sum()) if asked.dtype == bool else asked.size
        k = self.fed.clients.k
        message = {name: _in_each(one, k) for name, one in query.message.items()}
        by, groups = (np.zeros(n, np.int64), 1) if isinstance(query.by, str) else (query.by, query.groups)
        return query._replace(to=to, message=message, by=by, groups=groups).of(self.fed)


class Among(Unclustered):
    """Some of the clients (m,) bool and no others, without their clusters."""

    def __init__(self, fed: Federation, some: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
        super().__init__(fed)
        self.some = np.flatnonzero(some)
        self.clients = Roster(fed.clients.ids[self.some], np.zeros_like(self.some))

    def _answer(self, query: Query) -> Any:
        return super()._answer(query._replace(to=self.some))


def _in_each(value: Any, k: int) -> Any:
    """What one cluster of all clients is told, for each of k."""
    if isinstance(value, dict):
        return {name: _in_each(one, k) for name, one in value.items()}
    return PerCluster(_repeated(value.value, k)) if isinstance(value, PerCluster) else value


def _repeated(value: Any, k: int) -> Any:
    if isinstance(value, dict):
        return {name: _repeated(one, k) for name, one in value.items()}
    first = np.zeros(k, np.int64)
    return value.take(first) if isinstance(value, Ragged) else np.asarray(value)[first]
