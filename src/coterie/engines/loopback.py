"""Sites in this process that speak through bytes: every message is serialised, may be lost, and every site may die."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coterie import files
from coterie.engines.block_runner import BLOCK
from coterie.engines.coordinator import Coordinator
from coterie.engines.policy import Exchanged, Policy
from coterie.engines.routing import roster, shares
from coterie.engines.site import Node
from coterie.errors import CoterieError
from coterie.federation import Ints
from coterie.numerics import keyed_random

if TYPE_CHECKING:
    from coterie.engines.secure_sum import Secure, SecureSite

Rule = float | Callable[[int, int], bool]
_MOMENTS = ("received", "ran", "saved")


@dataclass(frozen=True)
class Faults:
    """What goes wrong. A number is a probability for each attempt, keyed by (seed, exchange, site, attempt).

    A function ``(exchange, site) -> bool`` is asked at every attempt, so one that depends on its arguments alone makes
    the site miss the exchange. A site that crashes dies during the call and comes back from its folder; when is drawn:
    before the work, after it, or after its result was saved.
    """

    request: Rule = 0.0  # a message to a site is lost
    reply: Rule = 0.0  # a message back is lost
    damage: Rule = 0.0  # a byte of a message is changed
    crash: Rule = 0.0
    seed: int = 0

    def draw(self, what: str, exchange: int, site: int, attempt: int) -> float:
        """A keyed uniform number."""
        return float(keyed_random.uniform(self.seed, f"fault/{what}", [site], exchange * 4096 + attempt, 1)[0, 0])

    def happens(self, what: str, exchange: int, site: int, attempt: int) -> bool:
        """Whether the fault ``what`` strikes this attempt."""
        rule: Rule = getattr(self, what)
        if callable(rule):
            return rule(exchange, site)
        return rule > 0 and self.draw(what, exchange, site, attempt) < rule


class Loopback(Coordinator):
    """A federation whose sites are in this process, behind a wire of bytes.

    Parameters
    ----------
    objective, clusters, weights, ids, seed
        As for :class:`~coterie.engines.inprocess.InProcess`.
    sites : int or sequence of int arrays, default 1
        A number of neighbouring parts of about equal size, or the clients of each site, in any order.
    folder : path, optional
        Where the sites keep what must survive a fault, each in its own folder.
    faults : Faults, optional
        What goes wrong; by default nothing.
    retries : int, default 10
        How often a message without a reply is sent again; ``policy`` says more.
    policy, journal, watch, secure
        As for :class:`~coterie.engines.coordinator.Coordinator`.
    block, threads : int
        As for the in-process engine, at each site; by default one thread.
    tap : callable, optional
        ``tap(direction, site, data)`` sees everything that is sent, "down" or "up", lost messages included.
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
        faults: Faults | None = None,
        retries: int = 10,
        policy: Policy | None = None,
        journal: str | Path | None = None,
        watch: Callable[[Exchanged], None] | None = None,
        secure: Secure | None = None,
        block: int = BLOCK,
        threads: int = 1,
        tap: Callable[[str, int, bytes], None] | None = None,
    ) -> None:
        m = len(objective)
        policy = policy or Policy(retries=retries)
        participants, places = roster(m, clusters, ids), parts(m, sites)
        super().__init__(participants, places, policy=policy, journal=journal, watch=watch, secure=secure)
        self._secure_site: Callable[[str], SecureSite] | None = None
        if secure is not None:
            from coterie.engines.secure_sum import secure_sites

            self._secure_site = secure_sites(self.names, secure)
        self._objective, self._weights = objective, shares(m, weights)
        self._options: dict[str, Any] = {"seed": seed, "block": block, "threads": threads}
        self._folder = None if folder is None else files.local(folder)
        self._faults, self._tap = faults or Faults(), tap or (lambda *_: None)
        if self._faults.crash != 0 and folder is None:
            raise CoterieError("Sites that crash need a folder to come back from.")
        self._dying = ""
        self._nodes: list[Node | None] = [self._node(s) for s in range(len(self.sites))]

    def kill(self, site: int) -> None:
        """End a site at once; it does not answer until :meth:`revive`."""
        self._nodes[site] = None

    def revive(self, site: int) -> None:
        """Start a site again from its folder (without one, it has forgotten everything)."""
        self._nodes[site] = self._node(site)

    def exchange(self, messages: Mapping[int, bytes], attempt: int, timeout: float) -> Mapping[int, bytes | None]:
        """One site after another."""
        return {site: self.deliver(site, data, attempt) for site, data in messages.items()}

    def deliver(self, site: int, data: bytes, attempt: int) -> bytes | None:
        """Carry bytes to a site and back through everything that may go wrong."""
        self.ledger.bytes_down += len(data)
        self._tap("down", site, data)
        node = self._nodes[site]
        if node is None or self._strikes("request", site, attempt):
            return None
        if self._strikes("damage", site, attempt):
            place = int(self._faults.draw("place", self.number, site, attempt) * len(data))
            data = data[:place] + bytes([data[place] ^ 85]) + data[place + 1 :]
        if self._strikes("crash", site, attempt):
            self._dying = _MOMENTS[int(3 * self._faults.draw("moment", self.number, site, attempt))]
        try:
            answer = node.receive(data)
        except _CrashError:
            self.revive(site)
            return None
        finally:
            self._dying = ""
        self.ledger.bytes_up += len(answer)
        self._tap("up", site, answer)
        return None if self._strikes("reply", site, attempt) else answer

    def _strikes(self, what: str, site: int, attempt: int) -> bool:
        return self._faults.happens(what, self.number, site, attempt)

    def _moment(self, moment: str) -> None:
        if moment == self._dying:
            raise _CrashError

    def _node(self, site: int) -> Node:
        rows = self.sites[site]
        return Node(
            f"site {site}",
            self._objective.take(rows),
            np.unique(self.clients.clusters[rows], return_inverse=True)[1],
            self._weights[rows],
            self.clients.ids[rows],
            folder=None if self._folder is None else self._folder / f"site-{site}",
            secure=None if self._secure_site is None else self._secure_site(self.names[site]),
            at=self._moment,
            **self._options,
        )


class _CrashError(BaseException):
    """A site died: not an Exception, so that the site cannot report it."""


def parts(m: int, sites: int | Sequence[npt.ArrayLike]) -> list[Ints]:
    """Clients of each site, rising; ``sites`` as for :class:`Loopback`."""
    if isinstance(sites, int):
        return list(np.array_split(np.arange(m), max(sites, 1)))
    parts = [np.sort(np.asarray(p, dtype=np.int64)) for p in sites]
    together = np.sort(np.concatenate(parts)) if parts else np.empty(0, np.int64)
    if not np.array_equal(together, np.arange(m)):
        raise CoterieError(f"`sites` must hold each of {m} clients exactly once.")
    return parts
