"""Getting answers of sites: who is asked again and how long, how many must answer, and who is left out."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Annotated, Any, Literal

import numpy as np

from coterie.engines import wire
from coterie.engines.header_compression import SiteLink
from coterie.engines.message_checks import ReplyFault, read_reply
from coterie.engines.routing import Part, tally
from coterie.errors import CoterieError
from coterie.federation import Ints
from coterie.options import Checked, Option

STRIKES = 10  # replies in a row that cannot be read, before their site is left out of the run


def _seconds(text: str, low: float | None = None, above: float | None = None) -> Option:
    what = f"a number of seconds {'from' if above is None else 'above'} 0"
    return Option(text, low=low, above=above, infinite=True, what=what)


class BelowQuorum(CoterieError):
    """Too few clients answered: nothing was counted, and the run can go on later from where it stands."""


class Refused(BelowQuorum):
    """All sites answered, and some cannot take part: they will say so again until their owners change something."""


@dataclass(frozen=True)
class Policy(Checked):
    """What a coordinator does about sites that are slow, away or broken.

    Where it is not ``strict``, a site that refuses, whose work fails, or whose reply is broken is missing from this
    exchange (refused, failed) or left out of the run (broken), and named. A site that did not answer in time is asked
    again after ``rejoin`` seconds, twice as many each time that it does not (16 times at most); where the others are a
    quorum it is asked after them, and waited for as long.
    """

    deadline: Annotated[float, _seconds("For one exchange, with repeats; who is later is missing.", above=0.0)] = inf
    retries: Annotated[int, Option("How often a message without a reply is sent again in that time.", low=0)] = 10
    pause: Annotated[float, _seconds("Between repeats.", low=0.0)] = 0.0
    min_clients: Annotated[
        int | Literal["all"],
        Option(
            "How many of the clients that are asked must answer; fewer end the run.",
            low=0,
            what="a whole number or 'all'",
        ),
    ] = 0
    min_per_cluster: Annotated[int, Option("The same for the clients of every cluster that is asked.", low=0)] = 0
    strict: Annotated[bool, Option("Whether a site that refuses, fails or is broken ends the run.")] = True
    rejoin: Annotated[float, _seconds("Before a site that did not answer in time is asked again.", low=0.0)] = 0.0

    @property
    def quorum(self) -> bool:
        """Whether anybody must answer."""
        return bool(self.min_clients or self.min_per_cluster)

    def shortage(self, asked: Ints, answered: Ints) -> str | None:
        """What is missing for a quorum, where of each cluster (k,) so many were asked and answered; None if nothing."""
        every, came = int(asked.sum()), int(answered.sum())
        least = every if self.min_clients == "all" else min(self.min_clients, every)
        if came < least:
            need = "all are needed" if self.min_clients == "all" else f"min_clients asks for {least:,}"
            return f"{came:,} of {every:,} clients answered, and {need}"
        short = np.flatnonzero(answered < np.minimum(asked, self.min_per_cluster))
        if len(short):
            c = int(short[0])
            return f"{answered[c]:,} of {asked[c]:,} clients of cluster {c} answered, and min_per_cluster asks for more"
        return None


Send = Callable[[Mapping[int, bytes], int, float], Mapping[int, bytes | None]]
MOST_PATIENCE = 4  # how often the time until a site is asked again doubles while it does not answer
_AWAY = "did not answer in time before, and is asked again later"


class Retry:
    """Carries the requests of an exchange to sites, by a policy, and numbers them.

    Numbers rise from request to request, so that a site tells a late one, or a copy of one, from what it was asked
    since. A site that has had a later number than it is sent, from a process of the coordinator that was killed, says
    which, and is sent the request again with one above. A reply says whose it is, and to what: one that was changed on
    the way, or answers something else (it came late, or twice), is asked for again. ``number`` is that of the last
    requests; ``quarantined`` are the sites that are not asked any more, and ``troubles`` those whose reply to the last
    requests cannot be used, with the reasons.
    """

    def __init__(self, names: Sequence[str], policy: Policy, send: Send) -> None:
        self.names, self.policy = list(names), policy
        self.number = 0
        self.quarantined: dict[str, str] = {}
        self.troubles: dict[str, str] = {}
        self._send, self._links = send, [SiteLink() for _ in names]
        self._away: dict[int, float] = {}  # when a site that did not answer is asked again
        self._misses: dict[int, int] = {}  # how often it did not since it last did
        self._strikes = Counter[int]()  # replies that could not be read since the last that could

    def collect(self, requests: Mapping[int, Mapping[str, Any]], parts: Mapping[int, Part]) -> dict[int, Any]:
        """The replies to ``requests`` that can be read, by site; ``parts`` are the sites' shares (none: no quorum)."""
        self.number += 1
        left = {s: self._numbered(request) for s, request in requests.items() if self._asks(s, parts)}
        self.troubles = {self.names[s]: self.quarantined.get(self.names[s], _AWAY) for s in requests if s not in left}
        found: dict[int, Any] = {}
        end = time.monotonic() + self.policy.deadline
        # A site that may be dead does not hold up those that are enough without it.
        doubtful = {s: left.pop(s) for s in list(left) if s in self._misses and self._can_wait(parts)}
        self._gather(requests, left, end, found)
        if doubtful:
            self.troubles |= {self.names[s]: _AWAY for s in doubtful}
            last = time.monotonic() + self.policy.rejoin
            self._gather(requests, doubtful, min(end, last) if self._shortage(parts, found) is None else last, found)
        return dict(sorted(found.items()))

    def _gather(
        self, requests: Mapping[int, Mapping[str, Any]], left: dict[int, bytes], end: float, found: dict[int, Any]
    ) -> None:
        """Send the messages ``left`` until they are answered or ``end`` has come; replies go to ``found``."""
        if end <= time.monotonic():
            return
        for attempt in range(self.policy.retries + 1):
            if attempt and left and self.policy.pause:
                time.sleep(min(self.policy.pause, max(end - time.monotonic(), 0.0)))
            remaining = end - time.monotonic()
            if not left or remaining <= 0.0:
                break
            answers = self._carry(left, attempt, end)
            behind = self._take(requests, left, {site: answers.get(site) for site in left}, found)
            if behind:
                self.number += 1
                again = {site: self._numbered(requests[site]) for site in behind}
                answers = self._carry(again, attempt, end)
                left |= again
                self._take(requests, left, {site: answers.get(site) for site in again}, found)
        for site in left:
            misses = self._misses[site] = self._misses.get(site, 0) + 1
            self._away[site] = time.monotonic() + self.policy.rejoin * 2 ** min(misses - 1, MOST_PATIENCE)

    def _carry(self, messages: Mapping[int, bytes], attempt: int, end: float) -> dict[int, bytes | None]:
        """Send messages and bring back answers, at first without the forms that sites know."""
        brief = {s: self._links[s].shortened(data) for s, data in messages.items() if not attempt}
        short = {s: data for s, data in brief.items() if data is not None}
        answers = dict(self._send({**messages, **short}, attempt, max(end - time.monotonic(), 0.0)))
        again: dict[int, bytes] = {}
        for s in short:
            if (data := answers.get(s)) is not None:
                answers[s] = self._links[s].lengthened(messages[s], data)
                if answers[s] is None:
                    again[s] = messages[s]
        if again:
            answers |= self._send(again, attempt, max(end - time.monotonic(), 0.0))
        return answers

    def _numbered(self, request: Mapping[str, Any]) -> bytes:
        return wire.encode({**request, "number": self.number})

    def _take(
        self,
        requests: Mapping[int, Mapping[str, Any]],
        left: dict[int, bytes],
        answers: Mapping[int, bytes | None],
        found: dict[int, Any],
    ) -> list[int]:
        """Move what can be read of the answers from ``left`` to ``found``; the sites that have had a later number."""
        behind = []
        for site, data in answers.items():
            answer = read_reply(data, requests[site], self.names[site], wire.digest(left[site]))
            if not isinstance(answer, ReplyFault):
                found[site] = answer
                del self._strikes[site]
                self._links[site].learn(left[site], data or b"")
                self.troubles.pop(self.names[site], None)
            else:
                self._strikes[site] += answer.kind == "unreadable"
                if not self._give_up(site, answer):
                    if answer.kind == "late":
                        self.number = max(self.number, answer.number)
                        behind.append(site)
                    continue
            del left[site]
            self._misses.pop(site, None)
            self._away.pop(site, None)
        return behind

    @property
    def late(self) -> list[str]:
        """Names of the sites that did not answer in time."""
        return [self.names[s] for s in self._away if self.names[s] in self.troubles]

    def leave_out(self, wrong: Mapping[int, str], found: dict[int, Any]) -> None:
        """Leave out the sites whose replies are ``wrong``, by site and reason, and take them from ``found``."""
        for site, text in wrong.items():
            self._give_up(site, ReplyFault("broken", text))
            del found[site]

    def judge(self, found: dict[int, Any], use: Callable[[int, Any], object], text: str = "{}") -> None:
        """Leave out the sites whose replies ``use(site, reply)`` refuses, by a CoterieError; the ``text`` says it."""
        wrong = {}
        for site, reply in found.items():
            try:
                use(site, reply)
            except CoterieError as problem:
                wrong[site] = text.format(problem)
        self.leave_out(wrong, found)

    def require_quorum(self, asked: Mapping[int, Part], found: Mapping[int, Any]) -> None:
        """Raise BelowQuorum unless enough of the clients that were ``asked`` answered."""
        short = self._shortage(asked, found)
        if short is not None:
            why = f" ({reasons(self.troubles)})" if self.troubles else ""  # secure sums lose sites between requests
            if self.late or not why:
                raise BelowQuorum(f"{short}{why}. Nothing is lost: run again when they are back, and it goes on.")
            raise Refused(
                f"{short}{why}. They will answer the same again: ask for something else, or let their owners change "
                "what is in the way (site.toml)."
            )

    def _asks(self, site: int, parts: Mapping[int, Part]) -> bool:
        """Whether to ask a site: not if it is left out, nor yet if it was away lately and a quorum does without."""
        if self.names[site] in self.quarantined:
            return False
        now = time.monotonic()
        if self._away.get(site, now) <= now or not parts:
            return True
        here = [s for s in self._not_quarantined(parts) if self._away.get(s, now) <= now]
        return self._shortage(parts, here) is not None

    def _can_wait(self, parts: Mapping[int, Part]) -> bool:
        """Whether those that answered last time are enough, and others may come back later."""
        sure = [s for s in self._not_quarantined(parts) if s not in self._misses]
        return bool(sure) and self.policy.rejoin > 0.0 and self._shortage(parts, sure) is None

    def _not_quarantined(self, parts: Iterable[int]) -> list[int]:
        return [s for s in parts if self.names[s] not in self.quarantined]

    def _shortage(self, asked: Mapping[int, Part], sites: Iterable[int]) -> str | None:
        """What is missing for a quorum where of all who were asked some ``sites`` answered; None if nothing is."""
        if not self.policy.quorum:
            return None
        k = 1 + max((int(part.present[-1]) for part in asked.values()), default=-1)
        return self.policy.shortage(tally(asked.values(), k), tally((asked[s] for s in sites if s in asked), k))

    def _give_up(self, site: int, trouble: ReplyFault) -> bool:
        """Note what is wrong with a site's answer; whether asking again is of no use."""
        name, strict = self.names[site], self.policy.strict
        self.troubles[name] = trouble.text
        if trouble.kind in ("lost", "late") or (
            trouble.kind == "unreadable" and (strict or self._strikes[site] < STRIKES)
        ):
            return False
        if strict:
            raise CoterieError(trouble.text if trouble.kind == "refused" else f"At {name}, {trouble.text}")
        if trouble.kind in ("unreadable", "broken"):
            self.quarantined[name] = trouble.text
        return True


def reasons(troubles: Mapping[str, str]) -> str:
    """What is wrong with sites, in words: each reason once, with those that it is true of."""
    named: dict[str, list[str]] = {}
    for name, text in troubles.items():
        named.setdefault(text.removeprefix(f"Site '{name}': "), []).append(name)
    if len(named) == 1 < len(troubles):
        return next(iter(named)).rstrip(".")
    return "; ".join(f"{', '.join(names)}: {text.rstrip('.')}" for text, names in named.items())
