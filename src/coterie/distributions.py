"""The distribution of outcomes in each family, over arrays: means, possible values, shares at most a value, draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.likelihoods import Kind

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Mask = npt.NDArray[np.bool_]

_MOST = 1e18
"""The largest mean that counts are drawn around, as integers of 64 bits hold them."""


def identity(eta: Floats) -> Floats:
    """Means at linear predictors."""
    return eta


def expit(eta: Floats) -> Floats:
    """Means of classes at log odds."""
    import numpy as np
    from scipy.special import expit

    return np.asarray(expit(eta), dtype=np.float64)


def exp(eta: Floats) -> Floats:
    """Means at their logarithms."""
    import numpy as np

    with np.errstate(over="ignore"):
        return np.exp(eta)


def above_zero(y: Floats) -> Mask:
    """Whether values are possible amounts."""
    import numpy as np

    return np.asarray(y > 0.0)


def any_number(y: Floats) -> Mask:
    """Whether values are possible numbers."""
    import numpy as np

    return np.ones(len(y), dtype=np.bool_)


def zero_or_one(y: Floats) -> Mask:
    """Whether values are possible classes."""
    import numpy as np

    return np.asarray((y == 0) | (y == 1))


def counts(y: Floats) -> Mask:
    """Whether values are possible counts."""
    import numpy as np

    return np.asarray((y >= 0) & (y == np.floor(y)))


def saturated_poisson(y: Floats) -> Floats:
    """The loss of counts whose means they are."""
    import numpy as np
    from scipy.special import xlogy

    return np.asarray(y - xlogy(y, y))


def cdf_successes(values: Floats, eta: Floats, trials: Floats, kind: Kind) -> Floats:
    """Of successes of trials."""
    import numpy as np
    from scipy.special import betaincc

    k = np.clip(np.floor(values), 0.0, trials - 1.0)  # of all trials, all outcomes are at most
    return np.where(values < 0.0, 0.0, np.where(values >= trials, 1.0, betaincc(k + 1.0, trials - k, expit(eta))))


def saturated_gamma(y: Floats) -> Floats:
    """The loss of amounts whose means they are."""
    import numpy as np

    return np.asarray(1.0 + np.log(y), dtype=np.float64)


def cdf_counts(values: Floats, eta: Floats, trials: Floats, kind: Kind) -> Floats:
    """Of counts of a negative binomial distribution."""
    import numpy as np
    from scipy.special import betainc

    p = expit(-eta - np.log(kind[1]))
    return np.where(values < 0.0, 0.0, betainc(1.0 / kind[1], np.floor(np.maximum(values, 0.0)) + 1.0, p))


def cdf_amounts(values: Floats, eta: Floats, trials: Floats, kind: Kind) -> Floats:
    """Of amounts of a gamma distribution."""
    import numpy as np
    from scipy.special import gammainc

    return np.asarray(gammainc(1.0 / kind[1], np.maximum(values, 0.0) * np.exp(-eta) / kind[1]))


def cdf_heavy(values: Floats, eta: Floats, trials: Floats, kind: Kind) -> Floats:
    """Of numbers with outliers."""
    import numpy as np
    from scipy.special import stdtr

    return np.asarray(stdtr(kind[2], (values - eta) / np.sqrt(kind[1])))


def draw_normal(rng: np.random.Generator, eta: Floats, sigma: Floats | float) -> npt.NDArray[Any]:
    """Numbers around their means."""
    return rng.normal(eta, sigma)


def draw_heavy(rng: np.random.Generator, eta: Floats, sigma: Floats | float, degrees: float) -> npt.NDArray[Any]:
    """Numbers with outliers around their centres."""
    return eta + sigma * rng.standard_t(degrees, size=len(eta))


def draw_classes(rng: np.random.Generator, eta: Floats, sigma: Floats | float) -> npt.NDArray[Any]:
    """Zeros and ones."""
    return rng.binomial(1, expit(eta))


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
