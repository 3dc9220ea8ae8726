"""What noisy sums cost: (epsilon, delta) of everything that a client has taken part in, by ``dp-accounting``.

A sum of contributions of L2 norm at most C with noise of standard deviation z C is a Gaussian mechanism of noise
multiplier z. Those composed without sampling are again one, ``1 / z^2 = sum_t 1 / z_t^2``, whose epsilon is exact
(Balle and Wang 2018, Theorem 8); with sampling, privacy loss distributions give an upper bound that is nearly so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.federation import Ints

_FINE, _COARSE = 1e-4, 1e-3  # steps of privacy losses: of what is reported, and while a noise is looked for
_NONE = 2.0**-6  # noise of a sampled sum that hides as good as nothing, which would take all of the memory to count
_LEAST = 2.0**-4  # noise that is looked for among the smallest
_EXACT = 100  # kinds of histories that are told apart; with more, every event counts as often as it did for anybody


@dataclass(frozen=True)
class Event:
    """One exchange, as it was for a client that took part.

    ``noise`` is the noise multiplier: the standard deviation of the noise in a sum, divided by the bound of a
    contribution. ``sampling`` is the probability with which a contribution is in the sum at all, by a coin that nobody
    else sees (Poisson sampling).
    """

    noise: float
    sampling: float = 1.0


def epsilon(events: Mapping[Event, int], delta: float, step: float = _FINE) -> float:
    """The epsilon of some events, each so many times, at a delta; infinite where one had no noise.

    Neighbours are data with and without one contribution.
    """
    dp = accounting()
    kept = {event: count for event, count in events.items() if count}
    if any(not event.noise > (_NONE if event.sampling < 1.0 else 0.0) for event in kept):
        return float("inf")
    whole = float(sum(count / event.noise**2 for event, count in kept.items() if event.sampling >= 1.0))
    sampled = {event: count for event, count in kept.items() if event.sampling < 1.0}
    if not sampled:
        return float(dp.get_epsilon_gaussian(1.0 / math.sqrt(whole), delta)) if whole else 0.0
    accountant = dp.pld.PLDAccountant(value_discretization_interval=step)
    if whole:
        accountant.compose(dp.GaussianDpEvent(1.0 / math.sqrt(whole)))
    for event, count in sampled.items():
        accountant.compose(dp.PoissonSampledDpEvent(event.sampling, dp.GaussianDpEvent(event.noise)), count)
    return float(accountant.get_epsilon(delta))


def noise_for(target: float, delta: float, rounds: int, sampling: float = 1.0) -> float:
    """The least noise multiplier with which ``rounds`` exchanges cost no more than an epsilon of ``target``."""
    high: float = float(accounting().get_sigma_gaussian(target, delta)) * math.sqrt(rounds)
    if sampling >= 1.0:
        return high
    low = 0.5 * high
    while low > _LEAST and epsilon({Event(low, sampling): rounds}, delta, _COARSE) <= target:
        low, high = 0.5 * low, low
    while high - low > 1e-3 * high:  # what is returned was itself found to cost no more
        middle = 0.5 * (low + high)
        cost = epsilon({Event(middle, sampling): rounds}, delta, _COARSE)
        low, high = (middle, high) if cost > target else (low, middle)
    return high


class Accountant:
    """What each of m clients has taken part in.

    Who took part when is no secret here (a coordinator knows whom it asked, and draws them by a seed), so a client is
    charged for the exchanges it was asked in, and for no others; the epsilon of all is that of the worst client.
    """

    def __init__(self, m: int, delta: float) -> None:
        self.m, self.delta = m, delta
        self.counts: dict[Event, Ints] = {}

    def add(self, event: Event, clients: npt.ArrayLike) -> None:
        """Charge an event to some clients."""
        self.counts.setdefault(event, np.zeros(self.m, dtype=np.int64))[np.asarray(clients)] += 1

    def most(self, event: Event) -> int:
        """How often the event was charged to anybody at most."""
        return int(self.counts[event].max(initial=0)) if event in self.counts else 0

    def epsilon(self, event: Event | None = None, clients: npt.ArrayLike = ()) -> float:
        """The worst client's epsilon so far; with an event, what it would be once that was charged to some clients."""
        counts = {kind: count.copy() for kind, count in self.counts.items()}
        if event is not None:
            counts.setdefault(event, np.zeros(self.m, dtype=np.int64))[np.asarray(clients)] += 1
        if not counts or not self.m:
            return 0.0
        histories = np.unique(np.stack(list(counts.values()), axis=1), axis=0)
        few = len(counts) > 1 and len(histories) <= _EXACT
        worst = list(histories) if few else [histories.max(axis=0)]
        return max(epsilon(dict(zip(counts, map(int, h), strict=True)), self.delta) for h in worst)

    def as_list(self) -> list[dict[str, Any]]:
        """For a checkpoint."""
        return [{"noise": e.noise, "sampling": e.sampling, "count": count.copy()} for e, count in self.counts.items()]

    def load(self, entries: list[dict[str, Any]]) -> None:
        """Take what :meth:`as_list` gave."""
        self.counts = {Event(e["noise"], e["sampling"]): np.array(e["count"], dtype=np.int64) for e in entries}


def accounting() -> Any:
    """The package ``dp_accounting``; a CoterieError says how to get it."""
    try:
        import_module("dp_accounting.pld")
        return import_module("dp_accounting")
    except ImportError:
        raise CoterieError("Privacy is counted by dp-accounting: pip install 'coterie[privacy]'.") from None
