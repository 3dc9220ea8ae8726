"""The families of outcomes: how an outcome scatters around its mean, and by which link the mean follows the columns.

Everything that depends on the family is a field of its row in ``FAMILIES``; no other file compares families by name.
To add one, write its row here and its branches in ``likelihoods.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from math import inf, nan
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie import likelihoods
from coterie.errors import CoterieError, listed, nearest
from coterie.lazy_modules import special
from coterie.likelihoods import Kind

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False, kw_only=True)
class Family:
    """What an outcome is, and all that follows from it."""

    name: str
    code: int  # what kernels know it by
    link: str  # from the mean to the linear predictor
    predictor: str  # what the linear predictor is the scale of, in a sentence
    outcome: str  # what an outcome is, in a word or two
    mean: Callable[[Floats], Floats]  # means at linear predictors, of any shape
    possible: Callable[[Floats], Mask]  # which values (n,) an outcome may have
    needs: str  # what an impossible outcome is told: what the family needs, and what to do
    remedy: str = ""
    largest: float  # above it, a likelihood's digits are lost to rounding
    lowest: float  # no mean is below it
    # values that a mean comes near but never has: where a client's outcomes are all the same one, its estimate is
    # infinite without a penalty; and such outcomes in words
    boundary: tuple[float, ...] = ()
    alike: str = ""
    counted: bool = False  # outcomes are whole numbers
    two_classes: bool = False  # an outcome is 0 or 1, or text with two values
    any_number: bool = False  # an outcome may be any number, a computed one too
    convex: bool = True  # no row's curvature is below zero: each model has one optimum
    is_quadratic: bool = False  # the loss is one of the linear predictor: clients' sums of squares say all, once
    has_dispersion: bool = False  # the residual variance is a parameter; restricted likelihood is for such families
    curvature_bound: float  # what no row's curvature exceeds; infinite where it is the mean, which has no bound
    prior_sd: float  # in standard units, of a prior that keeps a client or cluster finite that stands alone
    root_precision: float  # of a prior on the root and what hangs on nothing else, finite for separated outcomes
    loss: str  # name of the held-out loss
    loss_factor: float  # held-out loss over negative log-likelihood: squared errors and deviances are twice as large
    saturated: Callable[[Floats], Floats] | None = None  # loss of rows whose means are their outcomes (n,); None: zero
    deviance_power: float  # of the mean, to which the variance is proportional (Tweedie)
    # share of outcomes that are at most values, at linear predictors, of trials, with a dispersion; None where
    # intervals need none
    cdf: Callable[[Floats, Floats, Floats, Kind], Floats] | None = None
    # outcomes at linear predictors, with the root of a residual variance or a dispersion
    draw: Callable[[np.random.Generator, Floats, Floats | float], npt.NDArray[Any]]
    # what a likelihood has beside means, where it is in each row's loss and a search finds it; and what stands for it
    # where none was found: such that losses of means are those that comparisons name. Other families have none
    usual: float | None = None
    dispersion: float | None = None
    unsure: float = 0.0  # standard deviation of the logarithm of a dispersion that was found
    degrees: float = 0.0  # of freedom of Student's t: NaN where they are to be found, 0 of other families

    def __reduce__(self) -> tuple[Any, ...]:
        return _family_at, (self.name, self.dispersion)

    @property
    def kind(self) -> Kind:
        """What kernels know it by."""
        dispersion = self.usual if self.dispersion is None else self.dispersion
        return self.code, 1.0 if dispersion is None else dispersion, self.degrees

    @property
    def scatters(self) -> bool:
        """Whether a parameter says how far outcomes scatter: a residual variance, or a dispersion."""
        return self.has_dispersion or self.usual is not None

    def with_degrees(self, degrees: float) -> Family:
        """The same with degrees of freedom, rounded to what its name says."""
        return _with_degrees(f"{STUDENT_T.name}({degrees:.4g})")

    @property
    def unknown(self) -> bool:
        """Whether there is a dispersion that is to be found."""
        return self.usual is not None and self.dispersion is None

    @property
    def scale(self) -> float:
        """Of outcomes that may be any number, and have one beside means: what predictors are as large as."""
        return self.kind[1] ** 0.5 if self.any_number and self.dispersion is not None else 1.0

    def at_most(self, values: Floats, eta: Floats, trials: Floats) -> Floats:
        """The share of outcomes, or of successes of trials, that are at most values."""
        return self.cdf(values, eta, trials, self.kind)  # type: ignore[misc]

    def at(self, dispersion: float, unsure: float = 0.0) -> Family:
        """The same with its dispersion, and how unsure that is."""
        bound = self.curvature_bound if self.convex else (1.0 + 1.0 / self.degrees) / dispersion
        return replace(self, dispersion=dispersion, unsure=unsure, curvature_bound=bound)

    def __str__(self) -> str:
        return self.name

    @property
    def needs_prior(self) -> bool:
        """Whether a client that stands alone may have no finite estimate without a prior."""
        return self.prior_sd < inf

    @property
    def overdispersion_shows(self) -> bool:
        """Whether single rows of clients tell how clients differ: the noise of a row has no variance of its own.

        A residual variance takes up what clients differ by, and a 0 or 1 alone does not scatter.
        """
        return not self.any_number and not self.two_classes

    def check(self, y: Floats, name: str, where: Callable[[Mask], str]) -> None:
        """Raise a CoterieError for outcomes (n,) that the family does not have; ``where`` puts rows in words."""
        if (bad := ~self.possible(y)).any():
            raise CoterieError(
                f"Family {self.name} needs {self.needs}; '{name}' has "
                f"{listed([f'{v:g}' for v in np.unique(y[bad])], 3)} in {where(bad)}.{self.remedy}"
            )
        most = float(np.abs(y).max())
        if self.is_quadratic and 0.0 < most < 1.0 / self.largest:
            raise CoterieError(
                f"The outcome '{name}' has numbers up to {most:.3g}, too small for their squares to be compared: "
                "multiply by a round number."
            )
        if most > self.largest:
            how, other = f"for their {'squares' if self.is_quadratic else 'digits'} to be kept", ""
            if self.counted:
                how, other = "to be counted one by one", f", or use family {names_of(lambda f: f.any_number)}"
            raise CoterieError(
                f"The outcome '{name}' has {self.outcome} up to {most:.3g}, too large {how}: divide by a round number"
                f"{other}."
            )


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


GAUSSIAN = Family(
    name="gaussian",
    code=likelihoods.GAUSSIAN,
    link="identity",
    predictor="outcome",
    outcome="numbers",
    mean=lambda eta: eta,
    possible=lambda y: np.ones(len(y), dtype=np.bool_),
    needs="numbers",
    largest=1e45,  # squares are losses, which count as overflowed from 1e100 on
    lowest=-inf,
    any_number=True,
    is_quadratic=True,
    has_dispersion=True,
    curvature_bound=1.0,
    prior_sd=inf,
    root_precision=0.0,
    loss="squared error",
    loss_factor=2.0,
    deviance_power=0.0,
    draw=lambda rng, eta, sigma: rng.normal(eta, sigma),
)
BINOMIAL = Family(
    name="binomial",
    code=likelihoods.BINOMIAL,
    link="logit",
    predictor="log odds",
    outcome="yes or no",
    mean=expit,
    possible=lambda y: (y == 0.0) | (y == 1.0),
    needs="an outcome of 0 and 1, or text with two values",
    remedy=" Recode it, write successes of trials as cbind(successes, failures), or use another family.",
    largest=1.0,
    lowest=0.0,
    boundary=(0.0, 1.0),
    alike="outcomes of one class only",
    counted=True,
    cdf=cdf_successes,
    two_classes=True,
    curvature_bound=0.25,
    prior_sd=2.5,
    root_precision=1e-9,
    loss="log loss",
    loss_factor=1.0,
    deviance_power=nan,
    draw=lambda rng, eta, _: rng.binomial(1, expit(eta)),
)
POISSON = Family(
    name="poisson",
    code=likelihoods.POISSON,
    link="log",
    predictor="logarithm of the mean",
    outcome="counts",
    mean=exp,
    possible=lambda y: (y >= 0.0) & (y == np.floor(y)),
    needs="counts (0, 1, 2, ...)",
    counted=True,
    largest=1e10,
    lowest=0.0,
    boundary=(0.0,),
    alike="counts of 0 only",
    curvature_bound=inf,
    prior_sd=2.5,
    root_precision=1e-9,
    loss="Poisson deviance",
    loss_factor=2.0,
    saturated=saturated_poisson,
    deviance_power=1.0,
    draw=lambda rng, eta, _: rng.poisson(exp(eta).clip(max=_MOST)),
)
NEGATIVE_BINOMIAL = replace(
    POISSON,
    name="negative-binomial",
    code=likelihoods.NEGATIVE_BINOMIAL,
    cdf=cdf_counts,
    draw=draw_spread_counts,
    usual=0.0,
)
GAMMA = replace(
    POISSON,
    name="gamma",
    code=likelihoods.GAMMA,
    outcome="amounts",
    possible=lambda y: y > 0.0,
    needs="amounts above 0",
    remedy=" Leave such rows out, model whether there is an amount apart, or use another family.",
    largest=1e100,
    counted=False,
    boundary=(),
    alike="",
    loss="gamma deviance",
    saturated=lambda y: 1.0 + np.log(y),
    deviance_power=2.0,
    cdf=cdf_amounts,
    draw=draw_amounts,
    usual=1.0,
)
STUDENT_T = replace(
    GAUSSIAN,
    name="student-t",
    code=likelihoods.STUDENT_T,
    outcome="numbers with outliers",
    largest=1e100,
    convex=False,
    is_quadratic=False,
    has_dispersion=False,
    curvature_bound=inf,
    prior_sd=1e3,
    loss="absolute error",
    loss_factor=1.0,
    cdf=cdf_heavy,
    draw=partial(draw_heavy, degrees=4.0),
    usual=0.0,
    degrees=nan,
)
FAMILIES = {family.name: family for family in (GAUSSIAN, BINOMIAL, POISSON, NEGATIVE_BINOMIAL, GAMMA, STUDENT_T)}
DEFAULT = GAUSSIAN.name
DEGREES = 2.0, 100.0
"""Of freedom: with fewer an outcome has no variance, with more it cannot be told from a normal one."""
_CLASSES = (
    "a row has a linear predictor for each class but one, and clients' deviations a covariance over all of them, which "
    "few clients tell. Fit family binomial to each class against one of them, on the rows of these two"
)
_OUTLIERS = "family student-t, which outliers sway as little, has a likelihood beside a loss"
REFUSED = dict.fromkeys(("multinomial", "categorical"), _CLASSES) | {"huber": _OUTLIERS}
"""Families that are asked for and cannot be, and why."""


def family_named(name: str | Family) -> Family:
    """The row of a family; a CoterieError for a name that there is not."""
    if isinstance(name, Family):
        return name
    if isinstance(name, str) and name in REFUSED:
        raise CoterieError(f"There is no family '{name}': {REFUSED[name]}.")
    if isinstance(name, str) and name.startswith(f"{STUDENT_T.name}(") and name.endswith(")"):
        return _with_degrees(name)
    if not isinstance(name, str) or name not in FAMILIES:
        raise CoterieError(f"There is no family '{name}'; use {listed_names()}.{nearest(name, FAMILIES)}")
    return FAMILIES[name]


def name_of_numbers(name: str) -> str:
    """The name of a family without classes, checked."""
    if family_named(name).two_classes:
        raise CoterieError(f"The family must be {listed_names(classes=False)}, not {name}.")
    return name


def listed_names(classes: bool = True) -> str:
    """Names of families, as a choice in a sentence."""
    names = [name for name, family in FAMILIES.items() if classes or not family.two_classes]
    return f"{', '.join(names)} or {STUDENT_T.name}(4)"


def is_family(name: Any) -> bool:
    """Whether a family has that name."""
    try:
        return isinstance(name, str) and family_named(name) is not None
    except CoterieError:
        return False


@cache
def _with_degrees(name: str) -> Family:
    """Student's t with given degrees of freedom, which are in the name."""
    try:
        degrees = float(name.removeprefix(f"{STUDENT_T.name}(").removesuffix(")"))
    except ValueError:
        degrees = nan
    if not DEGREES[0] <= degrees <= DEGREES[1]:
        raise CoterieError(
            f"The degrees of freedom of {name} must be a number from {DEGREES[0]:g} to {DEGREES[1]:g}: write "
            f"{STUDENT_T.name}(4), or {STUDENT_T.name} to have them found."
        )
    return replace(STUDENT_T, name=name, degrees=degrees, draw=partial(draw_heavy, degrees=degrees))


def _family_at(name: str, dispersion: float | None) -> Family:
    return family_named(name) if dispersion is None else family_named(name).at(dispersion)


def names_of(has: Callable[[Family], bool]) -> str:
    """Names of the families that have a property, as a choice in a sentence."""
    return " or ".join(family.name for family in FAMILIES.values() if has(family))
