"""When an exchange is over: how long to wait, how often to ask again, how many must answer, whom to leave out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Literal

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Ints
from coterie.options import Checked, Option

STRIKES = 3  # replies in one exchange that cannot be read before their site is left out of the run


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
            return f"{came:,} of {every:,} clients answered, and min_clients asks for {least:,}"
        short = np.flatnonzero(answered < np.minimum(asked, self.min_per_cluster))
        if len(short):
            c = int(short[0])
            return f"{answered[c]:,} of {asked[c]:,} clients of cluster {c} answered, and min_per_cluster asks for more"
        return None


@dataclass(frozen=True)
class Exchanged:
    """One exchange, for logs.

    ``kind`` is "ask" or "total"; ``work`` its name; ``asked`` and ``answered`` are names of sites, ``missing`` those
    without a counted reply, and why; ``clients`` are the requests that were answered, and all; ``down`` and ``up`` are
    bytes.
    """

    number: int
    kind: str
    work: str
    asked: tuple[str, ...]
    answered: tuple[str, ...]
    missing: Mapping[str, str] = field(default_factory=dict)
    clients: tuple[int, int] = (0, 0)
    down: int = 0
    up: int = 0
    seconds: float = 0.0
