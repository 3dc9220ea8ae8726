"""What every comparison has, of fits of a table as of trained nets: the best method, and how sure differences are."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.lazy_modules import pd, special
from coterie.numerics.arrays import Bools, Floats

BASELINES = ("local", "pooled")
"""What is always compared: every client alone, and one model for all."""
UNITS = 3
"""Clusters of a level from which intervals are over them: of two no spread can be told, and they are as they are."""


class Comparison(ABC):
    """Methods on the same held-out rows of every client: which one is best, and a row of numbers for each."""

    @property
    @abstractmethod
    def methods(self) -> list[str]:
        """Names, in the order in which they were tried."""

    @property
    @abstractmethod
    def best(self) -> str:
        """The method that does best over rows; of equals the first."""

    @abstractmethod
    def row(self, name: str) -> dict[str, Any]:
        """What the table says of a method: its score, and paired differences with intervals."""

    @cached_property
    @np.errstate(over="ignore", invalid="ignore")  # a run that diverged has infinite losses, or their squares are
    def table(self) -> pd.DataFrame:
        """One row for each method."""
        return pd.DataFrame([{"method": name} | self.row(name) for name in self.methods]).set_index("method")


def interval_columns(name: str, found: Triple) -> dict[str, float]:
    """A value and the ends of its interval, as columns of a table."""
    return dict(zip((name, f"{name}_low", f"{name}_high"), found, strict=True))


ENOUGH = 3  # splits from which a client's gain gets an interval of its own
WRONGLY = 0.05  # share of the clients named as losing that may not lose
UNEQUAL = 2.0  # standard errors by which variances count as more unequal than they look
UNSURE = 12.0  # degrees of freedom of all clients' splits that halve the share: simulated, see `docs/evidence.md`
TAIL = 2.5  # times Student's quantile at most on the side of a long tail
Triple = tuple[float, float, float]  # a value and the ends of its 95% interval


def median_ratio(best: Floats, other: Floats) -> float:
    """The median client's loss as a share of its loss under another method; NaN where no client has both.

    Unlike a mean, it does not rest on the few clients whose own model is hardly identified. What is lost to rounding,
    as where a client's outcomes are all the same, is no loss.
    """
    both = np.maximum([best, other], 0.0)
    lost = 1e-20 * np.max(both, initial=0.0, where=np.isfinite(both))
    best, other = np.where(both <= lost, 0.0, both)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(best == other, 1.0, best / other)
    ratio = ratio[~np.isnan(ratio)]
    return float(np.median(ratio)) if len(ratio) else float("nan")


def less(best: float, other: float, loss: str) -> str:
    """``"3.2% less squared error"``; in absolute terms where a ratio says nothing."""
    if not (math.isfinite(best) and math.isfinite(other)):
        return f"{'more' if best > other else 'lower'} {loss}"
    if other > 0 and best >= 0:
        drop = 100.0 * (other - best) / other
        if abs(drop) < 0.05:
            return f"no more {loss}"
        size = f"{abs(drop):.1f}" if abs(drop) < 9.95 else f"{abs(drop):,.0f}"
        return f"{size}% {'less' if drop > 0 else 'more'} {loss}"
    return f"{abs(other - best):.3g} {'less' if best <= other else 'more'} {loss}"


def over_splits(gains: Floats, ratio: float) -> tuple[Floats, Floats]:
    """95% intervals (m,) of clients' gains (splits, m), which share rows: Nadeau and Bengio's (2003) variance.

    ``ratio`` is that of test rows to training rows. NaN for clients with a test row in fewer than ``ENOUGH`` splits.
    """
    seen = np.isfinite(gains)
    count = seen.sum(axis=0)
    mean = np.where(seen, gains, 0.0).sum(axis=0) / np.maximum(count, 1)
    squares = np.where(seen, gains - mean, 0.0) ** 2
    variance = squares.sum(axis=0) / np.maximum(count - 1, 1) * (1.0 / np.maximum(count, 1) + ratio)
    half = np.where(count >= ENOUGH, special.stdtrit(np.maximum(count - 1, 1), 0.975) * np.sqrt(variance), np.nan)
    return mean - half, mean + half


def losing(gains: Floats, weight: Floats, ratio: float) -> Bools:
    """Clients (m,) whose gain is below 0 beyond the noise of splits, of which ``WRONGLY`` is the share named wrongly.

    ``gains`` (splits, m) are sums over test rows of ``weight``. A client's variance over splits has so few degrees of
    freedom that the smallest of many say nothing: each is drawn towards that of all, as Smyth (2004) does by empirical
    Bayes, before rows that splits share are counted (:func:`over_splits`). Few splits hardly show how unequal variances
    are, so that they count as ``UNEQUAL`` standard errors more so. Of the one-sided tests the adjustment is
    that of Benjamini and Hochberg (1995), which names nobody in 19 of 20 tables where nobody loses.
    """
    count = (weight > 0.0).sum(axis=0)
    known = np.flatnonzero(count >= ENOUGH)
    out = np.zeros(gains.shape[1], dtype=bool)
    if not len(known):
        return out
    gains, weight, free = gains[:, known], weight[:, known], count[known] - 1.0
    mean = gains.sum(axis=0) / weight.sum(axis=0)
    apart = (gains - mean * weight) * (count[known] / weight.sum(axis=0))
    variance = np.square(apart).sum(axis=0) / free
    seen = np.isfinite(variance) & (variance > 0.0)
    if not seen.any():
        return out
    half = 0.5 * free[seen]
    log = np.log(variance[seen]) - special.digamma(half) + np.log(half)
    prior, common, wrongly = 0.0, 0.0, WRONGLY  # of one client there is nothing to draw to
    if len(log) > 1:
        wrongly /= 1.0 + UNSURE / free.sum()
        squares = np.square(log - log.mean()) * (len(log) / (len(log) - 1.0))
        spread = float(squares.mean() - special.polygamma(1, half).mean())
        spread += UNEQUAL * float(squares.std(ddof=1)) / len(log) ** 0.5
        prior = 2.0 * _trigamma_inverse(spread) if spread > 0.0 else 1e9
        common = float(np.exp(log.mean() + special.digamma(0.5 * prior) - np.log(0.5 * prior)))
    variance = (prior * common + free * variance) / (prior + free) * (1.0 / count[known] + ratio)
    sure = np.isfinite(variance) & (variance > 0.0)  # of a gain that no split changes nothing tells how far it may lie
    p = np.where(sure, special.stdtr(prior + free, mean / np.sqrt(np.where(sure, variance, 1.0))), 1.0)
    order = np.argsort(p, kind="stable")
    good = np.flatnonzero(p[order] <= wrongly * np.arange(1, len(p) + 1) / len(p))
    out[known[order[: good[-1] + 1 if len(good) else 0]]] = True
    return out


def _trigamma_inverse(value: float) -> float:
    """Where the trigamma function has a value above 0, by Newton's steps for its reciprocal."""
    if not value < 1e7:
        return float(value**-0.5)
    x = 0.5 + 1.0 / value
    for _ in range(30):
        now = float(special.polygamma(1, x))
        x += now * (1.0 - now / value) / float(special.polygamma(2, x))
    return x


def statistic(numerator: npt.NDArray[Any], denominator: npt.NDArray[Any]) -> tuple[float, Floats]:
    """The mean over columns of ratios of sums, and each unit's influence (m,) on it; NaN where there is nothing.

    A unit's influence is how much the value moves without it, the jackknife's: of units that are drawn independently
    the sum of squares, times m / (m - 1), is the value's variance, and a little more where their sizes differ.
    """
    seen, m = denominator.sum(axis=0) > 0.0, len(denominator)
    if not seen.any():
        return float("nan"), np.full(m, np.nan)
    n, d = numerator[:, seen], denominator[:, seen]
    with np.errstate(invalid="ignore", divide="ignore"):  # infinite losses of models that diverged
        ratio = n.sum(axis=0) / d.sum(axis=0)
        without = (n - ratio * d) / np.where(d < d.sum(axis=0), d.sum(axis=0) - d, np.nan)
        return float(ratio.mean()), np.asarray(without.mean(axis=1) * ((m - 1) / m))


def interval(value: Floats, moved: Floats, alike: float = 1.0, ratio: float = 0.0, least: float = 0.0) -> Triple:
    """A mean over splits or seeds with its 95% interval, for other units and other rows; NaN for one of each.

    ``value`` (seeds,) is that of every split or seed, ``moved`` (seeds, m) every unit's influence on it
    (:func:`statistic`), 0 for one that is not there. Units are what was drawn: clusters, or clients without them.
    ``alike`` is 1 where a column is the same unit in every seed; else rows are dealt out anew, and it is the share of
    rows that two seeds hold out alike. ``ratio`` is that of test rows to training rows where splits share them.

    The variance has two parts. What units add is the sum of squares of their mean influences, since all that splits
    share inside of a unit moves its mean influence (two-way clustering: Cameron, Gelbach, Miller 2011); where rows are
    dealt out anew, that of one seed times ``alike + (1 - alike) / seeds``. What moves all units together, by the
    models that they share, shows between splits alone: it is what the value varies over splits beyond what the units'
    own changes explain, times ``1 / seeds + ratio``, since splits share rows (Nadeau, Bengio 2003). Each part has its
    own quantile of Student's t: with m - 1 degrees of freedom, and with seeds + 1, as many more as keep two seeds from
    saying nothing. Where influences are skewed, the side of the long tail is longer than Student's, by the cubic
    transformation of Hall (1992), up to ``TAIL`` times. ``least`` is what tables differ by that show no difference.

    Simulated coverage is in ``docs/evidence.md``. With seeds that vary three times as much as units make the mean vary,
    it is 85 to 87% for 2 of them, 91 to 92% for 3 and 94 to 96% for 5.
    """
    unit = _power_of_two(value, moved, np.array([least]))  # cubes of squares of outcomes soon overflow
    value, moved, least = value / unit, moved / unit, least / unit
    (seeds, m), mean = moved.shape, moved.mean(axis=0)
    centre, enlarged = float(value.mean()), m / max(m - 1, 1)
    low = high = clients = within = 0.0
    if m < 2:
        if seeds < 2:
            return centre * unit, float("nan"), float("nan")
    else:
        quantile = float(special.stdtrit(m - 1, 0.975))
        each = mean[None] if alike == 1.0 else moved
        clients = enlarged * float(np.square(each).sum(axis=1).mean())
        if alike == 1.0:
            within = float(np.square(moved - mean).sum()) / max(seeds - 1, 1)
        else:
            clients, within = clients * (alike + (1.0 - alike) / seeds), clients * (1.0 - alike)
        cubes, squares = float((each**3).mean()), float(np.square(each).mean())
        skewness = cubes / squares**1.5 * (m - 1) ** 0.5 / (m - 2) if squares > 0.0 and m > 2 else 0.0
        low, high = max(quantile, _hall(quantile, skewness)), max(quantile, -_hall(-quantile, skewness))
    excess = max(float(value.var(ddof=1)) - within, 0.0) * (1.0 / seeds + ratio) if seeds > 1 else 0.0
    rest = float(special.stdtrit(seeds + 1, 0.975)) ** 2 * excess + least**2
    below, above = (float(np.sqrt(side**2 * clients + rest)) for side in (low, high))
    return centre * unit, (centre - below) * unit, (centre + above) * unit


def _power_of_two(*values: Floats) -> float:
    """About as large as the largest of values, so that to divide by it is exact; 1 where that is 0 or not finite."""
    top = max(float(np.abs(one).max(initial=0.0)) for one in values)
    return math.ldexp(1.0, math.frexp(top)[1]) if 0.0 < top < math.inf else 1.0


def over_clients(values: Floats) -> Triple:
    """The mean over clients (m,) with its 95% interval, for other clients; see :func:`interval`."""
    value, moved = statistic(values[:, None], np.ones((len(values), 1)))
    return interval(np.array([value]), moved[None])


def _hall(quantile: float, skewness: float) -> float:
    """The quantile of a studentised mean whose skewness, over the root of the number, is given; see ``TAIL``."""
    if abs(skewness) < 1e-6:
        return quantile
    found = 3.0 / skewness * (np.cbrt(1.0 + skewness * (quantile - skewness / 6.0)) - 1.0)
    return float(np.clip(found, -TAIL * abs(quantile), TAIL * abs(quantile)))
