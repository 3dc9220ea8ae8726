"""A federation whose sites are Ray actors over shards of the clients; the driver never sees a row."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.engines.base import roster, shares
from coterie.engines.blocks import BLOCK
from coterie.engines.coordinator import Coordinator
from coterie.engines.loopback import parts
from coterie.engines.policy import Exchanged, Policy
from coterie.engines.ray import cluster
from coterie.engines.ray.cluster import Parts, Seats
from coterie.errors import CoterieError
from coterie.federation import Ints, Roster


class Ray(Coordinator):
    """A federation whose sites are Ray actors, on this machine or on the machines of a Ray cluster.

    Parameters
    ----------
    objective : Objective, or sequence of callables
        The data of m clients, in cluster order, as for :class:`~coterie.engines.inprocess.InProcess`; it travels once
        to every actor. Or a function for each site, called without arguments in the site's actor, which returns its
        ``(objective, clusters, weights, ids)``; clusters are numbered over all sites, ids differ between them.
    clusters, weights, ids
        As for :class:`~coterie.engines.inprocess.InProcess`; None where functions make the sites.
    sites : int or sequence of int arrays, default 2
        A number of neighbouring parts of about equal size, or the clients of each site.
    seed : int, default 0
        Seed of all keyed random numbers.
    folder : path, optional
        Where sites keep their state, each in a folder of its own, which machines of a cluster must share. Without it an
        actor that dies takes the state of its clients along, and the run ends with an error.
    address : str, optional
        A Ray cluster; by default the one this process has joined already, or a new one on this machine.
    policy, journal, watch
        As for :class:`~coterie.engines.coordinator.Coordinator`.
    block : int, default 4096
        Clients handed to work at a time, at each site.
    threads : int, default 1
        Blocks that run at a time, at each site.
    actor : mapping, optional
        Ray's options for an actor, such as ``{"num_cpus": 4}`` or ``{"memory": 8e9}``.

    Notes
    -----
    A message is one value of bytes; the ledger counts its length. An actor that dies is started again by Ray, reads its
    data and its state again, and answers the repeated message as if nothing had happened. Ray trusts its cluster: use
    another engine between owners of data. Work of your own is found by importing its module at the actors; what a
    script or notebook defines itself is sent along if it was marked before the federation was made.
    """

    def __init__(
        self,
        objective: Any,
        clusters: npt.ArrayLike | None = None,
        weights: npt.ArrayLike | None = None,
        ids: npt.ArrayLike | None = None,
        *,
        sites: int | Sequence[npt.ArrayLike] = 2,
        seed: int = 0,
        folder: str | Path | None = None,
        address: str | None = None,
        policy: Policy | None = None,
        journal: str | Path | None = None,
        watch: Callable[[Exchanged], None] | None = None,
        block: int = BLOCK,
        threads: int = 1,
        actor: Mapping[str, Any] | None = None,
    ) -> None:
        options = {"seed": seed, "block": block, "threads": threads}
        data: tuple[Any, ...] = ()
        known = None
        if isinstance(objective, Sequence):
            makes = list(objective)
        else:
            m = len(objective)
            known = roster(m, clusters, ids), parts(m, sites)
            makes = [partial(_part, rows) for rows in known[1]]
            arrays = known[0].clusters, shares(m, weights), known[0].ids
        self._begun = cluster.join(address)
        try:
            self._seats = Seats(len(makes), actor or {})
            if known is not None:
                data = (cluster.library().put(pickle.dumps((objective, *arrays))),)
            found = self._seats.open(_openings(makes, folder, options, data))
            clients, where = known or gathered(found)
            super().__init__(clients, where, policy=policy, journal=journal, watch=watch)
        except BaseException:
            self.close()
            raise

    def exchange(self, messages: Mapping[int, bytes], attempt: int, timeout: float) -> Mapping[int, bytes | None]:
        """All sites at once; see :meth:`coterie.engines.coordinator.Coordinator.exchange`."""
        self.ledger.bytes_down += sum(map(len, messages.values()))
        answers = self._seats.send(messages, timeout)
        self.ledger.bytes_up += sum(map(len, answers.values()))
        return answers

    def close(self) -> None:
        """End the actors, and Ray too where it was begun here."""
        seats: Seats | None = self.__dict__.pop("_seats", None)
        if seats is not None:
            seats.close()
        if self.__dict__.pop("_begun", False):
            cluster.leave()

    def __enter__(self) -> Ray:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _part(rows: Ints, data: bytes) -> Parts:
    """One site's share of data in memory."""
    objective, clusters, weights, ids = pickle.loads(data)  # noqa: S301 - put there by the driver itself
    return objective.take(rows), clusters[rows], weights[rows], ids[rows]


def _openings(
    makes: Sequence[Callable[..., Parts]], folder: str | Path | None, options: Mapping[str, Any], data: Sequence[Any]
) -> list[tuple[Any, ...]]:
    """The arguments of :meth:`coterie.engines.ray.cluster.Seat.open` for every site."""
    works = cluster.own_works()
    folders = [None if folder is None else Path(folder).absolute() / f"site-{s}" for s in range(len(makes))]
    return [(m, f"site {s}", folders[s], works, dict(options), *data) for s, m in enumerate(makes)]


def gathered(found: Sequence[tuple[Any, Ints]]) -> tuple[Roster, list[Ints]]:
    """The clients of all sites in the order of their clusters, and where each site's are."""
    clusters = np.concatenate([np.empty(0, np.int64), *(c for _, c in found)])
    ids = np.concatenate([np.empty(0, np.uint64), *(i for i, _ in found)])
    order = np.argsort(clusters, kind="stable")
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    edges = np.cumsum([0, *(len(c) for _, c in found)])
    try:
        clients = roster(len(ids), clusters[order], ids[order])
    except CoterieError as problem:
        raise CoterieError(f"The sites do not fit together: {problem}") from problem
    return clients, [places[lo:hi] for lo, hi in itertools.pairwise(edges)]
