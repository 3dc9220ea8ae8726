"""Sites in this process that speak through bytes: every message is serialised."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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

if TYPE_CHECKING:
    from coterie.engines.secure_sum import Secure, SecureSite


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
        self._folder = None if folder is None else files.local(folder)
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
