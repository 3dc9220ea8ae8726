"""When an exchange is over: how long to wait, how often to ask again, how many must answer, whom to leave out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Ints

STRIKES = 3
"""Replies in one exchange that cannot be read before their site is left out of the run."""


class BelowQuorum(CoterieError):
    """Too few clients answered: nothing was counted, and the run can go on later from where it stands."""


class Refused(BelowQuorum):
    """All sites answered, and some cannot take part: they will say so again until their owners change something."""


@dataclass(frozen=True)
class Policy:
    """What a coordinator does about sites that are slow, away or broken.

    Attributes
    ----------
    deadline : float, default infinite
        Seconds for one exchange, repeats included; who has not answered by then is missing.
    retries : int, default 10
        How often a message without a reply is sent again within the deadline.
    pause : float, default 0
        Seconds between repeats.
    min_clients : int or "all", default 0
        How many of the clients that are asked must answer; fewer end the run with :class:`BelowQuorum`.
    min_per_cluster : int, default 0
        The same for the clients of every cluster that is asked.
    strict : bool, default True
        A site that refuses, whose work fails, or whose reply is broken ends the run with an error. Otherwise it is
        missing from this exchange (refused, failed) or left out of the run (broken), and named.
    rejoin : float, default 0
        Seconds before a site that did not answer in time is asked again, twice as many each time that it does not (16
        times at most). Where the others are a quorum it is asked after them, and waited for as long.
    """

    deadline: float = inf
    retries: int = 10
    pause: float = 0.0
    min_clients: int | Literal["all"] = 0
    min_per_cluster: int = 0
    strict: bool = True
    rejoin: float = 0.0

    def __post_init__(self) -> None:
        if not (_is(self.deadline, float) and self.deadline > 0.0):
            raise CoterieError(f"deadline must be a number of seconds above 0, not {self.deadline!r}.")
        for name, kind in (("retries", int), ("pause", float), ("min_per_cluster", int), ("rejoin", float)):
            value = getattr(self, name)
            if not (_is(value, kind) and value >= 0):
                what = "whole number" if kind is int else "number of seconds"
                raise CoterieError(f"{name} must be a {what} from 0, not {value!r}.")
        if not isinstance(self.strict, bool):
            raise CoterieError(f"strict must be true or false, not {self.strict!r}.")
        if self.min_clients != "all" and not (_is(self.min_clients, int) and self.min_clients >= 0):
            raise CoterieError(f"min_clients must be a whole number or 'all', not {self.min_clients!r}.")

    @property
    def quorum(self) -> bool:
        """Whether anybody must answer."""
        return bool(self.min_clients or self.min_per_cluster)

    def shortage(self, asked: Ints, answered: Ints) -> str | None:
        """What is missing for a quorum, as the end of a sentence; None if nothing is.

        Of each cluster (k,), so many clients were ``asked``, and so many ``answered``.
        """
        every, came = int(asked.sum()), int(answered.sum())
        least = every if self.min_clients == "all" else min(self.min_clients, every)
        if came < least:
            return f"{came:,} of {every:,} clients answered, and min_clients asks for {least:,}"
        short = np.flatnonzero(answered < np.minimum(asked, self.min_per_cluster))
        if len(short):
            c = int(short[0])
            return f"{answered[c]:,} of {asked[c]:,} clients of cluster {c} answered, and min_per_cluster asks for more"
        return None


def _is(value: Any, kind: type) -> bool:
    """Whether a value is a number of a kind; truth values are none."""
    return isinstance(value, (int, kind)) and not isinstance(value, bool)


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
