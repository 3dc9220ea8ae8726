"""The distribution of outcomes in each family, over arrays: means, shares at most a value, draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.lazy_modules import special
from coterie.likelihoods import Kind

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_MOST = 1e18
"""The largest mean that counts are drawn around, as integers of 64 bits hold them."""


def expit(eta: Floats) -> Floats:
    """Means of classes at log odds."""
    return np.asarray(special.expit(eta), dtype=np.float64)


def exp(eta: Floats) -> Floats:
    """Means at their logarithms."""
    with np.errstate(over="ignore"):
        return np.exp(eta)


def saturated_poisson(y: Floats) -> Floats:
    """The loss of counts whose means they are."""
    return np.asarray(y - special.xlogy(y, y))


def cdf_successes(values: Floats, eta: Floats, trials: Floats, kind: Kind) -> Floats:
    """Of successes of trials."""
    k = np.clip(np.floor(values), 0.0, trials - 1.0)  # of all trials, all outcomes are at most
    share = np.where(values >= trials, 1.0, special.betaincc(k + 1.0, trials - k, expit(eta)))
    return np.where(values < 0.0, 0.0, share)


def cdf_counts(values: Floats, eta: Floats, trials: Floats, kind: Kind) -> Floats:
    """Of counts of a negative binomial distribution."""
    p = expit(-eta - np.log(kind[1]))
    return np.where(values < 0.0, 0.0, special.betainc(1.0 / kind[1], np.floor(np.maximum(values, 0.0)) + 1.0, p))


def cdf_amounts(values: Floats, eta: Floats, trials: Floats, kind: Kind) -> Floats:
    """Of amounts of a gamma distribution."""
    return np.asarray(special.gammainc(1.0 / kind[1], np.maximum(values, 0.0) * np.exp(-eta) / kind[1]))


def cdf_heavy(values: Floats, eta: Floats, trials: Floats, kind: Kind) -> Floats:
    """Of numbers with outliers."""
    return np.asarray(special.stdtr(kind[2], (values - eta) / np.sqrt(kind[1])))


def draw_heavy(rng: np.random.Generator, eta: Floats, sigma: Floats | float, degrees: float) -> npt.NDArray[Any]:
    """Numbers with outliers around their centres."""
    return eta + sigma * rng.standard_t(degrees, size=len(eta))


def draw_counts(rng: np.random.Generator, eta: Floats, sigma: Floats | float) -> npt.NDArray[Any]:
    """Counts of Poisson distributions."""
    return rng.poisson(exp(eta).clip(max=_MOST))


def draw_spread_counts(rng: np.random.Generator, eta: Floats, sigma: Floats | float) -> npt.NDArray[Any]:
    """Counts that scatter more."""
    return rng.poisson(draw_amounts(rng, eta, sigma).clip(max=_MOST))


def draw_amounts(rng: np.random.Generator, eta: Floats, sigma: Floats | float) -> npt.NDArray[Any]:
    """Amounts above zero."""
    amounts = exp(eta) * sigma**2 * rng.standard_gamma(sigma**-2.0, size=len(eta))
    return amounts.clip(min=2.0**-1022)


def draw_shares(rng: np.random.Generator, eta: Floats, trials: Floats) -> Floats:
    """Shares of successes of trials at log odds."""
    return rng.binomial(trials.astype("int64"), expit(eta)) / trials
