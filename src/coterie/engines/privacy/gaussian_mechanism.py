"""Private sums: what a site clips and adds before one leaves it, and what it costs (epsilon, delta).

Contributions are cut down to a grid whose step is a power of two, about a millionth of the noise, and the noise is
rounded to the same grid. Their sums are exact whatever the order, and nothing is left of the low bits by which noise in
floating point can be told from what it hides (Mironov 2012).

A sum of contributions of L2 norm at most C with noise of standard deviation z C is a Gaussian mechanism of noise
multiplier z. Those composed without sampling are again one, ``1 / z^2 = sum_t 1 / z_t^2``, whose epsilon is exact
(Balle and Wang 2018, Theorem 8); with sampling, privacy loss distributions give an upper bound that is nearly so.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.federation import Array, Ints, Ragged, Site, find_work, work
from coterie.lazy_modules import special
from coterie.numerics import keyed_random
from coterie.numerics.arrays import Bools, Floats

Reply = dict[str, Any]

BROKEN = "private: contributed nothing"
"""State (m,) int64: in how many exchanges a client's contribution was not finite, so that it added zero."""

PUBLIC = frozenset(
    f"coterie.methods.{name}"
    for name in (
        *("local_training.first_models:begin", "fedopt:statistics"),
        *("groups.group_models:fingerprints", "groups.group_models:begin"),
    )
)
"""Works whose replies say how a model is built and where it starts, and nothing of what rows hold."""

ABOUT_ROWS = frozenset(("coterie.methods.dp_sgd:row_counts",))
"""How many rows clients have: no secret where what is hidden is what a row holds."""

BY_ROW = frozenset(("coterie.methods.dp_sgd:gradients",))
"""Works that bound what every row adds, ``work(site, clip, chosen, ...)``: see :func:`_rows`."""

_KNOWN = {"x", "w", "diverged", "broken"}  # what training clients send: local_training.client_work.make_reply
_SLACK, _BITS, _FAR = 1.0 - 1e-9, 20, 2**32


@work
def clipped(
    site: Site, inner: str, message: Mapping[str, Any], form: str, bound: Any, noise: Any, sampling: float, seed: Any
) -> Reply:
    """Clients' contributions to a private sum, clipped, with their share of its noise.

    The work called ``inner`` makes them from ``message``. The ``form`` says what is bounded: the change of a model
    since it came ("update:all", "update:row", "update:cluster": one model for all, for each client, for each cluster),
    every name of the reply ("names"), or what each row adds ("rows"). ``bound`` is the L2 norm of a contribution, a
    dict for the form "names"; ``noise``, a number or (m,), the standard deviation of a client's noise in units of the
    bound; ``sampling`` the probability of a client, or of a row, to be in the sum. Without a ``seed``, noise comes from
    the operating system and nobody can repeat it; a seed and the number of an exchange, [int, int], can.
    """
    noise = np.broadcast_to(np.asarray(noise, dtype=np.float64), (len(site),))
    if form == "rows":
        rows = _rows(site, inner, message, bound, sampling, seed)
        good, bounds = _finite(rows), dict.fromkeys(rows, float(bound))
    else:
        reply = dict(find_work(inner)(site, **message))
        if form == "names":
            rows, bounds = _named(reply, bound, inner), {name: float(bound[name]) for name in reply}
            noise = noise * np.sqrt(len(bounds))
            good = _finite(rows)
        else:
            rows, good = _update(reply, message["w"], form, site, inner)
            bounds = {"x": float(bound)}
        chosen = good if sampling >= 1.0 else good & (_uniform(site, "coins", seed, len(site)) < sampling)
        rows = {name: shortened(np.where(_over(chosen, v), v, 0.0), bounds[name]) for name, v in rows.items()}
    before = np.asarray(site.state.get(BROKEN, np.zeros(len(site), dtype=np.int64)))
    site.state[BROKEN] = before + ~good
    finite = {name: np.where(_over(_finite({name: v}), v), v, 0.0) for name, v in rows.items()}
    return {name: noised(site, name, v, noise * bounds[name], seed) for name, v in finite.items()}


def shortened(rows: Array, bound: float) -> Floats:
    """Rows (m, ...) of an L2 norm of ``bound`` at most: longer ones are scaled down."""
    flat = np.asarray(rows, dtype=np.float64).reshape(len(rows), -1)
    top = np.abs(flat).max(axis=1, initial=0.0)
    unit = flat / np.where(top > 0.0, top, 1.0)[:, None]
    with np.errstate(over="ignore"):
        norm = top * np.sqrt(np.einsum("mi,mi->m", unit, unit))
    # a little short of the bound, so that rounding never takes a row past it
    with np.errstate(over="ignore", divide="ignore"):
        scale = np.where(norm > bound * _SLACK, bound * _SLACK / norm, 1.0)
    return np.asarray(flat * scale[:, None]).reshape(np.shape(rows))


def noised(site: Site, name: str, rows: Floats, deviation: Floats, seed: Any) -> Floats:
    """Rows (m, ...) cut to a grid, with Gaussian noise of a standard deviation (m,) on the same grid."""
    if not np.any(deviation > 0.0):
        return rows
    flat = rows.reshape(len(rows), -1)
    step = np.ldexp(1.0, np.frexp(np.where(deviation > 0.0, deviation, 1.0))[1] - 1 - _BITS)[:, None]
    noise = normal(site, name, seed, flat.shape[1]) * deviation[:, None]
    return np.asarray((np.trunc(flat / step) + np.rint(noise / step)) * step).reshape(rows.shape)


def normal(site: Site, name: str, seed: Any, n: int) -> Floats:
    """Standard normal numbers (m, n): keyed by a seed, or of the operating system's secret ones."""
    if seed is not None:
        return keyed_random.normal(keyed_random.starts(seed[0], f"private {name}", site.ids), seed[1], n)
    bits = np.frombuffer(os.urandom(8 * len(site) * n), dtype=np.uint64).reshape(len(site), n)
    whole = bits >> np.uint64(1)
    place = whole + 0.5
    far = whole < _FAR  # here one number of 63 bits would be many steps of the grid: it gets more bits
    place[far] = whole[far] + 0.5 * 2.0**-53 + _uniform(site, name, None, int(far.sum()))
    half = special.ndtri(place * 2.0**-64)  # below zero; the last bit is the sign
    return np.asarray(np.where(bits & np.uint64(1), half, -half))


def _uniform(site: Site, name: str, seed: Any, n: int) -> Floats:
    """Uniform numbers (n,) in [0, 1): one for each client, or for each of their rows."""
    if seed is None:
        return np.asarray((np.frombuffer(os.urandom(8 * n), dtype=np.uint64) >> np.uint64(11)) * 2.0**-53)
    counts = np.ones(len(site), dtype=np.int64) if n == len(site) else site.objective.counts
    return keyed_random.uniform_rows(seed[0], f"private {name}", site.ids, seed[1], counts)


def _rows(site: Site, inner: str, message: Any, bound: float, sampling: float, seed: Any) -> Reply:
    """What a work of :data:`BY_ROW` sums of its rows, or of those chosen, each at most ``bound`` over all names."""
    if inner not in BY_ROW:
        raise CoterieError(f"{inner} does not bound what a row adds: train with the method dp-sgd for unit='row'.")
    chosen = None
    if sampling < 1.0:
        chosen = _uniform(site, "row coins", seed, int(site.objective.counts.sum())) < sampling
    return {
        n: np.asarray(v, dtype=np.float64)
        for n, v in find_work(inner)(site, **message, clip=bound, chosen=chosen).items()
    }


def _update(reply: Reply, w: Any, form: str, site: Site, inner: str) -> tuple[Reply, Bools]:
    """The change (m, d1) of each client's model since it was sent, and where it is finite."""
    others = sorted(set(reply) - _KNOWN)
    if others or "x" not in reply:
        raise CoterieError(unbounded(inner, others or sorted(reply)))
    weight, base = np.asarray(reply["w"], dtype=np.float64), np.asarray(w, dtype=np.float64)
    base = base[site.clusters] if form == "update:cluster" else base
    with np.errstate(over="ignore", invalid="ignore"):
        change = np.asarray(reply["x"], dtype=np.float64) / np.where(weight > 0.0, weight, 1.0)[:, None] - base
    return {"x": change}, (weight > 0.0) & np.isfinite(change).all(axis=1)


def _named(reply: Reply, bound: Mapping[str, float], inner: str) -> Reply:
    loose = [name for name in reply if name not in bound]
    if loose:
        raise CoterieError(unbounded(inner, loose))
    for name, value in reply.items():
        if isinstance(value, Ragged) or np.asarray(value).dtype.kind not in "biuf":
            raise CoterieError(f"{name!r} of {inner} cannot be clipped: reply real numbers.")
    return {name: np.asarray(value, dtype=np.float64) for name, value in reply.items()}


def unbounded(inner: str, names: list[str]) -> str:
    """Why a work is refused."""
    what = ", ".join(map(repr, names))
    return (
        f"{what} in the replies of {inner} has no bound, so no noise would hide a client in its sum: give a bound by "
        f"name, clip={{{names[0]!r}: ...}}, or take a method that sends changes of one model (fedavg, fedprox, ditto)."
    )


def _finite(rows: Reply) -> Bools:
    return np.asarray(np.logical_and.reduce([np.isfinite(v.reshape(len(v), -1)).all(axis=1) for v in rows.values()]))


def _over(mask: Bools, values: Array) -> npt.NDArray[np.bool_]:
    return mask.reshape(-1, *(1,) * (values.ndim - 1))


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


def group_epsilon(events: Mapping[Event, int], delta: float, size: int) -> float:
    """The epsilon of ``size`` contributions together: their bound is so many times as long.

    In a sampled sum each is there by a coin of its own: a mixture of Gaussians (Ganesh 2024), whose privacy losses are
    composed. Without sampling it is exact.
    """
    events = {event: n for event, n in events.items() if n and event.sampling > 0.0}
    if size == 1 or all(event.sampling >= 1.0 for event in events):
        return epsilon({Event(event.noise / size, event.sampling): n for event, n in events.items()}, delta)
    if any(not event.noise > _NONE * size for event in events):
        return float("inf")
    pld = import_module("dp_accounting.pld.privacy_loss_distribution")
    from scipy.stats import binom

    losses = pld.identity(_COARSE)
    many = np.arange(size + 1)
    for event, n in events.items():
        chances = binom.pmf(many, size, event.sampling)
        one = pld.from_mixture_gaussian_mechanism(
            event.noise, many, chances / chances.sum(), value_discretization_interval=_COARSE
        )
        losses = losses.compose(one.self_compose(n))
    return float(losses.get_epsilon_for_delta(delta))


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
