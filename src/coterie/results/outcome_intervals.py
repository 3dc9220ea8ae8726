"""Intervals of outcomes that are not normal: they hold enough of the mass, over what is not known of the mean.

Of counts and classes the shortest, of other outcomes those that leave as much on either side at most.
"""

from __future__ import annotations

from math import ceil, exp, floor, lgamma, log, sqrt
from statistics import NormalDist

import numpy as np

from coterie.families import Family
from coterie.numerics.arrays import Floats, kernel

NODES, LIGHT = 32, 1e-6  # at which a linear predictor is integrated, but for those of so little mass
DOUBLINGS, HALVINGS = 40, 60  # of what bounds a quantile
HUGE = 1e300  # mean that is as good as infinite
SOME, MANY = 20.0, 1e5  # means above which counts are as good as continuous: where nodes lie far apart, and always


def outcome_interval(
    family: Family, eta: Floats, variance: Floats, probability: float, trials: Floats | float = 1.0
) -> tuple[Floats, Floats]:
    """Lower and upper ends (n,) for linear predictors (n,) with these variances; NaN where one is not finite.

    Outcomes 0 and 1 have one value for an interval where it alone is likely enough, else both; of several ``trials``
    (n,) the ends are shares.
    """
    t, mass = np.polynomial.hermite_e.hermegauss(NODES)
    t, mass = t[mass > LIGHT], mass[mass > LIGHT]
    mass /= mass.sum()
    if family.cdf is not None and (not family.two_classes or isinstance(trials, np.ndarray)):
        ends = _tails(family, eta, np.sqrt(variance), t, mass, probability, np.broadcast_to(trials, eta.shape))
    elif family.two_classes:
        one = np.full(len(eta), 0.0)
        for node, weight in zip(t, mass, strict=True):
            one += weight * family.mean(eta + node * np.sqrt(variance))
        ends = np.stack([one >= probability, 1.0 - one < probability]).astype(np.float64)
    else:
        ends = np.empty((2, len(eta)))
        many = (eta > log(MANY)) | ((eta > log(SOME)) & (eta + np.log(np.maximum(variance, 1e-300)) > log(16.0)))
        _shortest(np.where(many, np.nan, eta), np.sqrt(variance), t, mass, probability, ends)
        width = NormalDist().inv_cdf(0.5 + probability / 2.0) * np.sqrt(variance[many] + np.exp(-eta[many]))
        ends[:, many] = np.floor(family.mean(eta[many] - width)), np.ceil(family.mean(eta[many] + width))
    ends[:, ~np.isfinite(eta + variance)] = np.nan
    return ends[0], ends[1]


def _tails(
    family: Family, eta: Floats, sd: Floats, t: Floats, mass: Floats, probability: float, trials: Floats
) -> Floats:
    """Quantiles (2, n) of outcomes, of shares where there are trials, by bisection."""

    def at_most(values: Floats) -> Floats:
        each = [family.at_most(values, eta + node * sd, trials) for node in t]
        return np.asarray(np.tensordot(mass, each, axes=1))

    ends, sound = np.empty((2, len(eta))), np.isfinite(eta + sd + trials)
    size = family.mean(np.minimum(eta, log(HUGE)))
    if family.any_number or family.counted:
        size = np.full(len(eta), family.scale) if family.any_number else np.maximum(size, 1.0)
    for k, goal in enumerate((0.5 - probability / 2.0, 0.5 + probability / 2.0)):
        low, high = eta * family.any_number - size, eta * family.any_number + size
        for _ in range(DOUBLINGS):
            high = np.where(sound & (at_most(high) < goal), 2.0 * high - eta * family.any_number, high)
            if family.any_number:
                low = np.where(sound & (at_most(low) >= goal), 2.0 * low - eta, low)
        for _ in range(HALVINGS):
            middle = np.floor((low + high) / 2.0) if family.counted else (low + high) / 2.0
            enough = at_most(middle) >= goal
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        ends[k] = high
    return np.where(sound, ends / trials if family.two_classes else ends, np.nan)


@kernel
def _shortest(eta: Floats, sd: Floats, t: Floats, mass: Floats, probability: float, ends: Floats) -> None:
    """The shortest intervals of Poisson counts that hold the probability, over nodes of the linear predictor."""
    for r in range(len(eta)):
        if not (eta[r] + sd[r] < 30.0):
            continue
        low, high = exp(eta[r] + sd[r] * t[0]), exp(min(eta[r] + sd[r] * t[-1], 15.0))
        first = int(max(0.0, floor(low - 8.0 * sqrt(low) - 10.0)))
        density = np.zeros(ceil(high + 8.0 * sqrt(high) + 20.0) + 1 - first)
        for j in range(len(t)):
            mean = exp(min(eta[r] + sd[r] * t[j], 15.0))
            k = int(max(0.0, floor(mean - 8.0 * sqrt(mean) - 10.0)))
            term = exp(k * log(mean) - mean - lgamma(k + 1.0)) * mass[j]
            while k <= mean + 8.0 * sqrt(mean) + 20.0:
                density[k - first] += term
                k += 1
                term *= mean / k
        start, held, best, at = 0, 0.0, len(density) - 1, 0
        for k in range(len(density)):
            held += density[k]
            while held - density[start] >= probability:
                held -= density[start]
                start += 1
            if held >= probability and k - start < best:
                best, at = k - start, start
        ends[0, r], ends[1, r] = first + at, first + at + best
