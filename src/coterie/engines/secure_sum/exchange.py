"""Secure sums over the engines: what a coordinator does around its exchange of a ``total``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from coterie.engines.retry import Retry
from coterie.engines.secure_sum.coordinator import KeyOffers, MaskedSum
from coterie.errors import CoterieError
from coterie.federation import Ints


class SecureExchange:
    """One secure sum around its exchange: :meth:`requests` begins it, :meth:`take` and :meth:`open` end it.

    ``groups`` are those that each site has clients in, by its name, [0] where there are none; ``beside`` is what every
    request says beside. After :meth:`open`, ``sums`` are the groups that have sums, and by name the sums with the type
    of what was summed.
    """

    def __init__(
        self,
        retry: Retry,
        keys: KeyOffers,
        groups: Mapping[str, Ints],
        unequal: bool,
        beside: Mapping[str, Any],
    ) -> None:
        self._retry, self._keys = retry, keys
        self._groups, self._unequal, self._beside = groups, unequal, beside
        self._sum: MaskedSum | None = None
        self._away: dict[str, str] = {}
        self.sums: tuple[Ints, dict[str, tuple[Any, np.dtype[Any]]]] = (np.empty(0, np.int64), {})

    def requests(self, requests: Mapping[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """The requests to the sites that can take part, with what makes their sums secure; who has no keys joins first.

        A CoterieError if a group has clients at fewer sites than ``min_sites``, BelowQuorum if those that can take part
        are too few.
        """
        names, keys, gone = self._retry.names, self._keys, set[str]()
        for anew in (True, False):  # first who is new says so, then all make keys for those who are there
            outside = set(keys.outside(list(self._groups))) - gone
            if outside and anew:
                outside |= set(names) - keys.asked  # who has no part in this sum may help to open it
            gone |= self._join([s for s, name in enumerate(names) if name in outside], anew)
        gone |= set(keys.outside(list(self._groups)))
        there = {name: g for name, g in self._groups.items() if name not in gone}
        if not there:
            return {}
        keys.check(self._groups)
        self._sum = keys.open(there, self._unequal)
        secure = {"secure": self._sum.request}
        return {s: request | secure for s, request in requests.items() if names[s] in there}

    def _join(self, sites: list[int], anew: bool) -> set[str]:
        """Let sites join; those that did not."""
        names, told = self._retry.names, dict(self._keys.lives)
        self._keys.asked |= {names[s] for s in sites}
        joining = self._retry.collect({s: {"kind": "join", "lives": told, **self._beside} for s in sites}, {})
        self._missed()
        self._keys.agree(joining.values())
        _each(self._retry, joining, lambda name, reply: self._keys.joined(name, reply, told, anew))
        self._missed()
        return {names[s] for s in sites if s not in joining}

    def _missed(self) -> None:
        """Remember what keeps sites of this sum away."""
        self._away |= {name: text for name, text in self._retry.troubles.items() if name in self._groups}

    def take(self, found: dict[int, Any]) -> None:
        """Keep the masked sums of the replies ``found``; replies that cannot be used are judged and taken out of it."""
        if self._sum is None:
            return
        masked, names = self._sum, self._retry.names
        _each(self._retry, found, lambda name, reply: masked.take(name, reply["values"]))
        self._retry.leave_out({names.index(name): text for name, text in masked.disagreeing().items()}, found)
        self._away |= self._retry.troubles
        for reply in found.values():
            reply["values"] = {}

    def open(self, found: Mapping[int, Any]) -> None:
        """Take the sums over the sites ``found`` from behind their masks, with the sites' help.

        BelowQuorum if a group or the helpers are too few.
        """
        if self._sum is None or not found:
            self._retry.troubles = self._away
            return
        masked, names = self._sum, self._retry.names
        for kind, about, use in (
            ("confirm", masked.candidates, masked.confirm),
            ("unmask", masked.questions, masked.reveal),
        ):
            questions = about()
            rest = [s for s, name in enumerate(names) if name in questions and s not in found]
            for helpers in (list(found), rest):
                if not masked.enough(kind):
                    asked = {s: {"kind": kind, **self._beside, **questions[names[s]]} for s in helpers}
                    _each(self._retry, self._retry.collect(asked, {}), use)
        self._retry.troubles = self._away
        self.sums = masked.result()


def _each(retry: Retry, found: dict[int, Any], use: Callable[[str, Mapping[str, Any]], None]) -> None:
    """Give every reply to ``use``; those it refuses are judged."""
    wrong = {}
    for site, reply in found.items():
        try:
            use(retry.names[site], reply)
        except CoterieError as problem:
            wrong[site] = str(problem)
    retry.leave_out(wrong, found)
