"""Bytes to the sites of an NVFlare job and back: one thread a site, one call of its published method a message."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from coterie.errors import CoterieError

_LONGEST = 86_400.0  # seconds: NVFlare waits for no call without end
_LOOK = 10.0  # seconds a call is waited for before its site is asked whether it lives, and for the answer
_TICK = 1.0  # seconds between questions whether the job has been ended
_SLACK = 1.0  # seconds that a call may outlast its own timeout


class JobEndedError(CoterieError):
    """NVFlare ended the job, as it does when a process of it has died."""


class CollabTransport:
    """The sites of a running NVFlare job, by their certified names.

    NVFlare lets a call to a dead site run to its timeout, each time anew. Here a site that is late is asked whether it
    lives, beside the call; one that does not say so twice answers nothing from then on, at once, until it says so.

    ``clients`` are the job's (``collab.clients``): ``proxy(timeout=s).receive(data)`` carries bytes there and back, and
    ``proxy(timeout=s).alive()`` is answered beside it. ``sites`` are the names of all sites of the federation (by
    default the job's); those that are not in the job answer nothing. ``ended`` says whether NVFlare has ended the job.
    Between such questions, and for an answer, are ``look`` seconds.
    """

    def __init__(
        self,
        clients: Iterable[Any],
        sites: Iterable[str] | None = None,
        ended: Callable[[], bool] = lambda: False,
        look: float = _LOOK,
    ) -> None:
        self._clients = {client.name: client for client in clients}
        self.sites = sorted(self._clients if sites is None else sites)
        self.absent = frozenset(self.sites) - self._clients.keys()
        self._ended, self._look = ended, look
        self._gone: set[str] = set()
        self._silent: set[str] = set()
        self._calls: dict[str, Future[bytes | None]] = {}
        self._probes: dict[str, Future[bool]] = {}
        self._pool = ThreadPoolExecutor(2 * max(len(self.sites), 1), "coterie-site")

    def send(self, messages: Mapping[str, bytes], timeout: float) -> dict[str, bytes | None]:
        """Send all at once; the replies within ``timeout`` seconds. JobEndedError where NVFlare ended the job."""
        end = time.monotonic() + min(timeout, _LONGEST)
        calls = {}
        for site in filter(self._can_be_asked, messages):
            calls[site] = self._calls[site] = self._pool.submit(self._call, site, messages[site], end)
        waited = dict(calls)
        misses = dict.fromkeys(calls, 0)
        look = time.monotonic() + self._look
        while True:
            if self._ended():
                raise JobEndedError("NVFlare ended the job, as it does when one of its processes has died.")
            now = time.monotonic()
            if not waited or now >= end:
                break
            wait(waited.values(), min(max(look - now, 0.0), end - now, _TICK))
            waited = {site: call for site, call in waited.items() if not call.done()}
            if time.monotonic() < look:
                continue
            look = time.monotonic() + self._look
            for site, lives in self._ask(waited, end).items():
                misses[site] = 0 if lives else misses[site] + 1
                if misses[site] > 1:
                    self._silent.add(site)
                    del waited[site]
        self._silent.update(waited)
        # A call that ends later than this belongs to no exchange any more: its future is never read again.
        return {site: calls[site].result() if site in calls and calls[site].done() else None for site in messages}

    def lost(self, site: str) -> None:
        """NVFlare says that a site's process has ended."""
        self._gone.add(site)

    def found(self, site: str) -> None:
        """NVFlare says that a site is connected again."""
        self._gone.discard(site)

    def close(self) -> None:
        """Wait for no call any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _can_be_asked(self, site: str) -> bool:
        if site not in self._clients or site in self._gone:
            return False
        if site in self._silent:
            probe = self._probes.get(site)
            if probe is not None and probe.done() and probe.result():
                self._silent.discard(site)
                del self._probes[site]
            elif probe is None or probe.done():
                self._probes[site] = self._pool.submit(self._lives, site, self._look)
        last = self._calls.get(site)
        return site not in self._silent and (last is None or last.done())

    def _ask(self, sites: Iterable[str], end: float) -> dict[str, bool]:
        """Whether sites that are late live; none is asked when the time is over anyway."""
        allowed = min(self._look, end - time.monotonic())
        if allowed <= 0.0:
            return {}
        probes = {site: self._pool.submit(self._lives, site, allowed) for site in sites}
        wait([*probes.values()], allowed + _SLACK)
        return {site: probe.done() and probe.result() for site, probe in probes.items()}

    def _lives(self, site: str, timeout: float) -> bool:
        try:
            return bool(self._clients[site](timeout=timeout).alive())
        except Exception:
            return False

    def _call(self, site: str, data: bytes, end: float) -> bytes | None:
        try:
            reply = self._clients[site](timeout=max(end - time.monotonic(), 0.001)).receive(data)
        except Exception:
            return None  # the engine has logged why; what it means is decided by policy
        return reply if isinstance(reply, bytes) and time.monotonic() < end + _SLACK else None
