"""A federation whose sites are Ray actors over shards of the clients; the driver never sees a row."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coterie import federation, files
from coterie.data.clients import Clients, Level
from coterie.data.design import Design
from coterie.data.table import as_name, as_names
from coterie.engines.client_work_and_state import BLOCK
from coterie.engines.coordinator import Coordinator, Exchanged
from coterie.engines.local_engines import parts
from coterie.engines.ray import actors
from coterie.engines.ray.actors import ActorSlots
from coterie.engines.ray.parquet_shards import Asked, load
from coterie.engines.retry_and_quorum import Policy
from coterie.engines.routing import roster, shares
from coterie.errors import CoterieError
from coterie.federation import Array, Ints, Roster
from coterie.methods.problem_and_estimates import Estimates, GroupedProblem


class Ray(Coordinator):
    """A federation whose sites are Ray actors, on this machine or on the machines of a Ray cluster.

    Parameters
    ----------
    objective : Objective, or sequence of callables
        The data of m clients, in cluster order, as for :class:`~coterie.engines.local_engines.InProcess`; every
        actor is sent the rows of its own clients. Or a function for each site, called without arguments in its actor,
        which returns its ``(objective, clusters, weights, ids)``; clusters are numbered over all sites, ids differ
        between them.
    clusters, weights, ids
        As for :class:`~coterie.engines.local_engines.InProcess`; None where functions make the sites.
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
        Ray's options for an actor, such as ``{"num_cpus": 4}`` or ``{"memory": 8e9}``; by default it reserves one CPU.

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
        folder, journal = (None if path is None else files.place(path) for path in (folder, journal))
        options = {"seed": seed, "block": block, "threads": threads}
        self.problem: GroupedProblem | None = None
        self.terms: tuple[str, ...] = ()
        self.levels: tuple[tuple[str, Array], ...] = ()
        self.notes: tuple[str, ...] = ()
        self.reveals = True
        data: Iterable[tuple[Any, ...]] = itertools.repeat(())
        known = None
        if isinstance(objective, Asked):
            if not (isinstance(sites, int) and sites > 0):
                raise CoterieError(f"sites must be a number of actors, at least 1, not {sites!r}.")
            n = sites
        elif isinstance(objective, Sequence):
            makes, n = list(objective), len(objective)
        else:
            m = len(objective)
            known = roster(m, clusters, ids), parts(m, sites)
            makes, n = [pickle.loads] * len(known[1]), len(known[1])
            each = known[0].clusters, shares(m, weights), known[0].ids
        self._begun = actors.join(address, n * (actors.ASKED | dict(actor or {}))["num_cpus"])
        try:
            self._slots = ActorSlots(n, actor or {})
            if isinstance(objective, Asked):
                makes, common, agreed = load(self._slots, objective)
                data = itertools.repeat(common)
                self._read = objective.client, common[1], agreed.common[2]
                self.problem, self.terms = agreed.problem, agreed.terms
                self.levels, self.notes = agreed.levels, agreed.notes
            elif known is not None:
                data = [(_put(objective.take(rows), *(a[rows] for a in each)),) for rows in known[1]]
            found = self._slots.open(_openings(makes, folder, options, data), isinstance(objective, Asked))
            clients, where = known or gathered(found)
            super().__init__(clients, where, policy=policy, journal=journal, watch=watch)
        except BaseException:
            self.close()
            raise

    @classmethod
    def parquet(
        cls,
        path: str | Path,
        formula: str,
        client: str,
        cluster: str | Sequence[str] | None = (),
        *,
        family: str = "gaussian",
        shared: str | Sequence[str] | None = (),
        offset: str | None = None,
        weights: str | None = None,
        missing: Literal["error", "drop"] = "error",
        reveal: bool = False,
        sites: int = 2,
        **engine: Any,
    ) -> Ray:
        """A federation over a folder of Parquet files, read by its actors.

        Files and row groups are shared out as they lie. A client whose rows lie in two shards is moved to one of them,
        from actor to actor; a folder sorted by client has next to none. Columns, clusters and clients are those that
        :func:`coterie.fit` would make of the whole table, and the numbers agree to rounding.

        Parameters
        ----------
        path : path
            A folder of Parquet files (subfolders such as ``year=2026`` are a column), or one file.
        formula, client, cluster, family, shared, offset, weights, missing
            As for :func:`coterie.fit`.
        reveal : bool, default False
            Whether methods bring every client's coefficients and their covariances to this process. Otherwise the exact
            methods leave them at the actors, which :meth:`write` them.
        sites : int, default 2
            Number of actors.
        **engine
            ``seed``, ``folder``, ``address``, ``policy``, ``journal``, ``watch``, ``block``, ``threads``, ``actor``: as
            for :class:`Ray`.

        Returns
        -------
        Ray
            With ``problem``, what methods fit; ``terms``, the names of coefficients; ``levels``, cluster columns with
            their sorted labels; ``notes`` on how the table was read.

        Raises
        ------
        CoterieError
            For whatever is wrong with the table; rows are counted from the first of the shard that is named.

        Examples
        --------
        >>> with Ray.parquet("rows/", "y ~ x1 + x2", client="id", sites=2) as fed:  # doctest: +SKIP
        ...     fitted = hierarchical.fit(fed, fed.problem)
        ...     fed.write("coefficients/", fitted)
        """
        client, levels = as_name("client", client), as_names("cluster", cluster)
        place, alike = files.place(path).absolute(), as_names("shared", shared)
        asked = Asked(place, formula, client, levels, family, offset, weights, missing, alike)
        fed = cls(asked, sites=sites, **engine)
        fed.reveals = bool(reveal)
        return fed

    def described(self) -> tuple[Clients, GroupedProblem, Design, float]:
        """Of :meth:`parquet`: clients without their rows, the problem, what makes the columns, and the mean weight."""
        if self.problem is None:
            raise CoterieError("Only a federation made by Ray.parquet knows what its clients are called.")
        (name, design, weight), none = self._read, np.empty(0)
        told = [one for one in actors.get(self._slots.do("described", [()] * len(self._slots))) if len(one[1])]
        labels, counts = (np.concatenate(part) for part in zip(*told, strict=True))
        order = np.argsort(np.concatenate(self.sites))
        stops = np.cumsum(counts[order])
        levels = [Level(*level, parent) for level, parent in zip(self.levels, self.problem.tree.parents, strict=True)]
        clients = Clients(
            np.empty((0, len(self.terms))), none, none, none, stops - counts[order], stops, self.terms, labels[order],
            name, self.clients.ids, tuple(levels), self.clients.clusters, np.empty(0, np.int64), notes=self.notes,
        )  # fmt: skip
        return clients, self.problem, actors.get(design), weight

    def anew(self, of: Callable[[Any], actors.Parts] | None = None) -> Ray:
        """A federation of the same clients and actors, in place of this one: its sites begin with what ``of`` makes.

        ``of`` is given a shard, at its actor; None stands for what the shard was at first.
        """
        self._slots.reopen(of)
        other = copy(self)
        Coordinator.__init__(other, self.clients, self.sites, policy=self._retry.policy)
        return other

    def write(self, folder: str | Path, fitted: Estimates) -> None:
        """Let every actor write its clients' coefficients to a Parquet file, for a federation made by :meth:`parquet`.

        Parameters
        ----------
        folder : path
            Gets a file ``site-0.parquet``, ``site-1.parquet``, ... from each actor: the client's label, its clusters,
            its number of rows, a column for each term, and the standard errors where the method has them.
        fitted : Estimates
            What a method returned last.

        Raises
        ------
        CoterieError
            For a federation made otherwise, and actors that do not answer.
        """
        place = files.place(folder).absolute()
        if self.problem is None:
            raise CoterieError("Only a federation made by Ray.parquet knows what its clients are called.")
        self.mark("written")  # which commits what the last exchange wrote
        if len(self.make_marks()):
            raise CoterieError("Some actors do not answer, and nothing was written: try again.")
        told = [tuple(a[rows] if len(a) else None for a in (fitted.client, fitted.client_cov)) for rows in self.sites]
        slots = zip(self._slots.actors, told, strict=True)
        actors.get([actor.write.remote(place, *own) for actor, own in slots])

    def exchange(self, messages: Mapping[int, bytes], attempt: int, timeout: float) -> Mapping[int, bytes | None]:
        """All sites at once; see :meth:`coterie.engines.coordinator.Coordinator.exchange`."""
        self.ledger.bytes_down += sum(map(len, messages.values()))
        answers = self._slots.send(messages, timeout)
        self.ledger.bytes_up += sum(map(len, answers.values()))
        return answers

    def close(self) -> None:
        """End the actors, and Ray too where it was begun here."""
        slots: ActorSlots | None = self.__dict__.pop("_slots", None)
        if slots is not None:
            slots.close()
        if self.__dict__.pop("_begun", False):
            actors.leave()


def _put(*parts: Any) -> Any:
    """A reference to what a site is made of, as bytes; objectives that are views travel with their own rows alone."""
    library = actors.library()
    return library.put(library.cloudpickle.dumps(parts))


def _openings(
    makes: Sequence[Callable[..., Any]],
    folder: Path | None,
    options: Mapping[str, Any],
    data: Iterable[tuple[Any, ...]],
) -> list[tuple[Any, ...]]:
    """The arguments of :meth:`coterie.engines.ray.actors.ActorSlot.open` for every site."""
    # Client work that was defined in the script or notebook itself, where actors cannot import it from.
    works = {name: f for name, f in federation._WORK.items() if name.startswith("__main__:")}
    folders = [None if folder is None else folder.absolute() / f"site-{s}" for s in range(len(makes))]
    told = zip(makes, folders, data, strict=False)
    return [(m, f"site {s}", place, works, dict(options), *own) for s, (m, place, own) in enumerate(told)]


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
