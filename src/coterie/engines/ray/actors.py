"""Ray itself: begin or join it without noise, and sites as actors that come back after a crash."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from coterie import federation, files
from coterie.engines.header_compression import CoordinatorLink
from coterie.engines.site import Node
from coterie.errors import CoterieError
from coterie.federation import Array, Ints

Parts = tuple[Any, Ints, Array, Any]  # what a site is made of: objective, cluster of each client (sorted), weights, ids

_AGAIN = 60.0  # seconds in which an actor that died must be back, or its site counts as missing

_WAIT = 60.0
"""Seconds in which an earlier process of a site must be gone, such as the one that died where an actor comes back."""

_TOLD, _NODES = 20.0, 900.0
"""Seconds after which it is said that actors wait for CPUs of the cluster, and after which they do so no longer."""

log = logging.getLogger(__name__)
_begun: list[int] = [0]
_FREE: ContextVar[list[Any] | None] = ContextVar("free", default=None)
"""Actors that federations have left, inside :func:`kept`."""


def library() -> Any:
    """The package ray; a CoterieError says how to install it."""
    try:
        return import_module("ray")
    except ImportError:
        raise CoterieError("Sites in Ray actors need Ray: pip install 'coterie[ray]'.") from None


def join(address: str | None, cpus: float = 0.0) -> bool:
    """Join the Ray cluster at ``address``, or begin one here; whether :func:`leave` has to end it.

    Where Ray is initialised already, that one is used. One that begins here has no fewer than ``cpus``, whatever the
    machine has. Nothing is printed, and no usage is reported.
    """
    ray = library()
    if ray.is_initialized():
        _begun[0] += _begun[0] > 0
        return _begun[0] > 0
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    logging.getLogger("ray").setLevel(logging.ERROR)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None and "RAY_ADDRESS" not in os.environ:
        quiet |= {"include_dashboard": False, "num_cpus": max(math.ceil(cpus), os.cpu_count() or 1)}
    try:
        ray.init(address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as problem:
        where = "here" if address is None else f"at {address}"
        why = str(problem).split("\n")[0][:200].rstrip(".")
        raise CoterieError(f"Ray cannot be reached {where}: {why}.") from problem
    _begun[0] = 1
    return True


def leave() -> None:
    """End Ray when the last of those who joined through :func:`join` leaves."""
    _begun[0] -= 1
    if _begun[0] == 0:
        library().shutdown()


@contextmanager
def kept(address: str | None, sites: int) -> Iterator[None]:
    """Ray, joined once: a federation that begins inside takes the actors that others have left, which end with this."""
    if _FREE.get() is not None:
        yield
        return
    begun, free = join(address, sites), list[Any]()
    token = _FREE.set(free)
    try:
        yield
    finally:
        _FREE.reset(token)
        for actor in free:
            library().kill(actor)
        if begun:
            leave()


class ActorSlot:
    """What an actor is: the process where one site lives. A new one is empty until it is opened."""

    def __init__(self) -> None:
        self._node: Node | None = None
        self._link = CoordinatorLink()
        self._held = ExitStack()
        self.shard: Any = None

    def open(
        self,
        make: Callable[..., Any] | None,
        name: str,
        folder: Path | None,
        works: Mapping[str, Any],
        options: Any,
        *data: Any,
    ) -> tuple[Any, Ints]:
        """Make the site (None: of the shard here), with its folder's state; ids and clusters of its clients.

        Of ``options``, ``of`` makes of a shard what the site is made of; by default it is what the shard says.
        """
        federation._WORK.update(works)
        of = (options := dict(options)).pop("of", None) or attrgetter("parts")
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._held.close()
            busy = f"Another federation uses {folder}: end it, or give this one a folder of its own."
            self._held.enter_context(files.locked(folder / "lock", _WAIT, busy))
        made = self.shard if make is None else make(*data)
        self.shard = made if hasattr(made, "parts") else None
        objective, clusters, weights, ids = made if self.shard is None else of(self.shard)
        local = np.unique(clusters, return_inverse=True)[1]
        self._node = Node(name, objective, local, weights, ids, folder=folder, **options)
        return ids, clusters

    def receive(self, data: bytes) -> bytes | None:
        """Answer one message; None where the site has yet to be opened."""
        if self._node is None:
            return None
        return self._link.answered(data, partial(self._answer, self._node))

    def _answer(self, node: Node, request: dict[str, Any], key: bytes) -> bytes:
        module = str(request.get("work", "coterie")).partition(":")[0]
        if module.split(".")[0] not in ("coterie", "__main__"):
            with suppress(ImportError):  # the caller could run anything here: Ray's clusters trust those who use them
                import_module(module)
        return node.answer(request, key)

    def read(self, make: Callable[..., Any], *arguments: Any) -> None:
        """Begin a shard, whose methods :meth:`do` calls."""
        self.shard = make(*arguments)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function here."""
        return function(*arguments)

    def do(self, name: str, *arguments: Any) -> Any:
        """Call a method of the shard."""
        return getattr(self.shard, name)(*arguments)

    def write(self, path: Path, theta: Array | None, cov: Array | None) -> None:
        """Write the coefficients of the site's clients: those given, or those that the site keeps."""
        if self._node is None:
            raise CoterieError("The site has yet to be opened.")
        state = self._node._store.arrays
        theta = state.get("coefficients") if theta is None else theta
        self.shard.write(path, theta, state.get("cov") if cov is None else cov)


ASKED: dict[str, Any] = {"num_cpus": 1, "scheduling_strategy": "SPREAD"}
"""Ray's options for an actor, where others are not given."""


class ActorSlots:
    """The actors of all n sites, with Ray's options for one, such as ``{"num_cpus": 4, "memory": 8e9}``."""

    def __init__(self, n: int, actor: Mapping[str, Any]) -> None:
        self._actor = ASKED | dict(actor)
        self._free = None if actor else _FREE.get()
        self.actors = [self._start() for _ in range(n)]
        self._opening: list[tuple[Any, ...]] = [()] * n
        self._down: set[int] = set()
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self.actors)

    def _wait(self) -> None:
        """Wait until all actors are there: a cluster may have to grow first, of which who waits is told."""
        ray, each = library(), self._actor["num_cpus"]
        waiting = [actor.run.remote(os.getpid) for actor in self.actors]
        for seconds in (_TOLD, _NODES - _TOLD):
            waiting = ray.wait(waiting, num_returns=len(waiting), timeout=seconds)[1] if waiting else []
            free = ray.available_resources().get("CPU", 0.0) if waiting else 0.0
            if waiting and free < each:
                said = f"{len(waiting)} of {len(self)} actors wait for {each:g} CPU each, and Ray has {free:g} free"
                log.warning("%s: the run goes on when its cluster has grown.", said)
        if waiting:
            raise CoterieError(
                f"{len(waiting)} of {len(self)} actors did not begin in {_NODES:g} s: each asks for {each:g} CPU, and "
                f"Ray has {free:g} free. Take fewer sites, let others end, add nodes, or let actors ask for less "
                '(actor={"num_cpus": 0.5}).'
            )

    def _start(self) -> Any:
        if self._free:
            return self._free.pop()
        return library().remote(ActorSlot).options(max_restarts=-1, **self._actor).remote()

    def open(self, openings: Sequence[tuple[Any, ...]], here: bool = False) -> list[tuple[Any, Ints]]:
        """Open all sites, their shards made or ``here``; the arguments are kept for when an actor comes back."""
        self._opening = list(openings)
        calls = [(None, *rest) if here else (make, *rest) for make, *rest in openings]
        found: list[tuple[Any, Ints]] = get([a.open.remote(*c) for a, c in zip(self.actors, calls, strict=True)])
        return found

    def reopen(self, of: Callable[[Any], Parts] | None) -> None:
        """Begin all sites anew, with what ``of`` makes of the shards that are here (None: what they say)."""
        openings = [(*told[:4], {**told[4], "of": of}, *told[5:]) for told in self._opening]
        self.open(openings, here=True)

    def do(self, name: str, arguments: Sequence[Sequence[Any]], returns: int = 1) -> list[Any]:
        """Call a method of every shard, all at once; references to what it returns."""
        return [
            a.do.options(num_returns=returns).remote(name, *given)
            for a, given in zip(self.actors, arguments, strict=True)
        ]

    def send(self, messages: Mapping[int, bytes], timeout: float) -> dict[int, bytes]:
        """All messages at once; the replies that came in time. Actors that died are opened again first."""
        ray = library()
        end = time.monotonic() + timeout
        for site in sorted(self._down & set(messages)):
            if self._back(site, min(end, time.monotonic() + _AGAIN)):
                self._down.discard(site)
        refs = {self.actors[s].receive.remote(data): s for s, data in messages.items() if s not in self._down}
        ready = list(refs)
        if refs and timeout < float("inf"):
            ready, _ = ray.wait(ready, num_returns=len(refs), timeout=max(end - time.monotonic(), 0.0))
        answers: dict[int, bytes] = {}
        for ref in ready:
            try:
                answer = ray.get(ref)
            except ray.exceptions.RayActorError:
                answer = None
            if answer is None:
                self._down.add(refs[ref])
            else:
                answers[refs[ref]] = answer
        return answers

    def _back(self, site: int, end: float) -> bool:
        """Open a site again once Ray has started its actor again."""
        ray = library()
        while (left := end - time.monotonic()) > 0.0:
            try:
                ray.get(self.actors[site].open.remote(*self._opening[site]), timeout=left)
                return True
            except ray.exceptions.GetTimeoutError:
                return False
            except ray.exceptions.ActorDiedError:
                self.actors[site] = self._start()
            except ray.exceptions.RayActorError:
                time.sleep(0.05)
        return False

    def close(self) -> None:
        """End all actors, or leave them to others."""
        if self._free is not None:
            self._free += self.actors
        else:
            for actor in self.actors:
                library().kill(actor)
        self.actors = []


def get(refs: Any) -> Any:
    """What references stand for; an error there is raised here, as a CoterieError with its own sentence."""
    ray = library()
    try:
        return ray.get(refs)
    except ray.exceptions.RayTaskError as problem:
        cause = problem.cause
        if isinstance(cause, CoterieError):
            raise CoterieError(str(cause)) from None
        raise CoterieError(f"A site failed: {type(cause).__name__}: {cause}") from problem
    except ray.exceptions.RayActorError as problem:
        raise CoterieError("A site's process died while it was being made, perhaps for want of memory.") from problem
