"""Theorems 5.1, 5.2, C.3 and C.4 of the 2022 paper: bounds of bias correction.

Numbers are one for each main client, (M,) or scalars: ``noise0`` is sigma_0^2, ``average`` is ``sigma_a^2 = sum_k
tau_k^2 sigma_k^2``, delta that of A3 between f_0 and ``sum_k tau_k f_k``, or an upper bound of it: steps from a delta
that was estimated too low may diverge. Bounds are infinite where their proof does not hold.

``theorem_bound`` is Theorem 5.2 with what its proof needs: ``c_0`` is independent of the first step's noise, and
``x_{-1} = x_0``, so that ``Delta_0 = 0`` and the printed zeta~ is not needed. ``sharp_bound`` is smaller, and holds for
more beta. Keep what C.4 drops in (8), ``-eta (1 - L eta) / 2 H_t`` with ``H_t = E|E_t g(x_t)|^2``, and take ``e_t =
E|c_t - B(x_t)|^2`` for ``B(x) = grad f_1(x) - grad f_0(x)``. With ``S = sigma_0^2 + sigma_a^2`` and ``D = (delta
eta)^2``,

    F_{t+1} <= F_t - eta/2 G_t + eta/2 alpha^2 e_t - eta/2 (1 - L eta) H_t + L eta^2 sigma^2(alpha) / 2
    e_{t+1} <= (1 + beta) ((1 - beta)^2 e_t + beta^2 S) + (1 + 1/beta) D (sigma^2(alpha) + H_t)

so that H_t pays for how x moves the bias. Unrolled from T backwards, F_T weighs e_t by A_t times F_t; as long as
``2 A_t (1 + 1/beta) D <= eta (1 - L eta)`` for all of them, H_t drops out, and two lines are repeated in closed form.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.methods.collaboration.theory import Value, variance
from coterie.numerics.arrays import Floats
from papers.paper_004.wga_theory import (
    Descent,
    geometric,
    repeated,
)


def oracle_descent(
    L: Value,
    mu: Value,
    alpha: Value,
    noise0: Value,
    average: Value,
    oracle: Value = 0.0,
    M: Value = 0.0,
) -> Descent:
    """Theorem 5.1's recursion (7), with its step sizes and bounds: (5) without bias, and the oracle's noise added."""
    return Descent(L, mu, variance(alpha, noise0, np.asarray(average) + oracle), 0.0, 1.0, M)


def first_error(first: Any, gap: Value, noise0: Value, average: Value) -> Floats:
    """``E_0 = E|c_0 - grad f_1(x_0) + grad f_0(x_0)|^2`` (C.4).

    Parameters
    ----------
    first : {"zero", "sample"} or int
        c_0: 0, or the mean of one or so many observed biases.
    gap : float
        ``|grad f_1(x_0) - grad f_0(x_0)|^2``, or what A4 bounds it by, ``m |grad f_0(x_0)|^2 + zeta^2``.
    noise0, average : float
    """
    if first == "zero":
        return np.asarray(gap, dtype=np.float64)
    samples = 1 if first == "sample" else first
    if isinstance(samples, bool) or not isinstance(samples, (int, np.integer)) or samples < 1:
        raise CoterieError(f"c_0 is zero, sample, or a number of samples, not {first!r}.")
    return np.asarray((np.asarray(noise0, dtype=np.float64) + np.asarray(average)) / samples)


SLACK = 1.0 + 1e-9
"""For conditions that hold with equality."""


@dataclass(frozen=True)
class Correction:
    """Theorem 5.2's numbers, which may be arrays that broadcast; with ``mu = 0`` the loss is not promised to fall.

    Attributes
    ----------
    L, mu, delta : float
        Of A1, A2, A3.
    alpha, eta, beta : float
        Of Algorithm 3.
    noise0, average : float
        sigma_0^2 and sigma_a^2.
    """

    L: Any
    mu: Any
    delta: Any
    alpha: Any
    eta: Any
    beta: Any
    noise0: Any
    average: Any

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, np.asarray(getattr(self, field.name), dtype=np.float64))

    @property
    def spread(self) -> Floats:
        """``sigma^2(alpha)``."""
        return variance(self.alpha, self.noise0, self.average)

    @property
    def observed(self) -> Floats:
        """``sigma_0^2 + sigma_a^2``, the variance of an observed bias."""
        return np.asarray(self.noise0 + self.average)

    @property
    def lag(self) -> Floats:
        """``(alpha delta eta)^2``: how far a step moves the bias that the next one is corrected by."""
        return np.asarray((self.alpha * self.delta * self.eta) ** 2)

    def printed(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Weight of E_0 in C.4's potential, what a step adds by (11), the rate of (12), and 0 or infinity.

        (12)'s rate ``mu eta / 2`` needs ``beta >= 4 mu eta / 3``, and is ``3 beta / 8`` below; all of it needs
        ``120 (alpha delta eta)^2 <= beta^2`` where ``eta <= 1 / (6 alpha^2 delta^2)`` is printed.
        """
        weight = 2.0 * self.alpha**2 * self.eta / self.beta
        noise = 0.5 * self.L * self.eta**2 * self.spread + 10.0 * self.lag * self.eta * self.spread / self.beta**2
        rate = np.where(
            self.alpha > 0.0, np.minimum(0.5 * self.mu * self.eta, 0.375 * self.beta), 0.5 * self.mu * self.eta
        )
        holds = (self.L * self.eta <= SLACK) & (120.0 * self.lag <= self.beta**2 * SLACK)
        return weight, noise + weight * self.beta**2 * self.observed, rate, np.where(holds, 0.0, np.inf)


def theorem_bound(by: Correction, T: Value, F0: Value, E0: Value) -> Floats:
    """F_T at most by (13): the floor is ``L sigma^2 eta / mu + 20 ... / mu + 4 ... / mu`` as printed.

    With C.4's beta below 1 its last two terms are ``6 10^(1/3) alpha^2 S^(2/3) sigma^2(alpha)^(1/3) (delta eta)^(2/3) /
    mu``; (14) has 24, and the exponent 1/3 of S.
    """
    weight, noise, rate, never = by.printed()
    return np.asarray(repeated(rate, noise, T, F0 + weight * E0) + never)


def theorem_nonconvex_bound(by: Correction, T: Value, F0: Value, E0: Value) -> Floats:
    """Mean of ``E|grad f_0(x_t)|^2`` over T steps at most, by (11) summed."""
    weight, noise, _, never = by.printed()
    return np.asarray(4.0 / by.eta * ((F0 + weight * E0) / np.asarray(T) + noise) + never)


def mixed(p: Value, q: Value, T: Value) -> Floats:
    """``(p^T - q^T) / (p - q)``, the sum of ``p^i q^j`` with ``i + j = T - 1``, for p, q from 0 to 1."""
    high, low = np.maximum(p, q), np.minimum(p, q)
    return np.asarray(geometric(1.0 - low / np.maximum(high, 1e-300), T) * high ** np.maximum(T - 1.0, 0.0))


def errors(by: Correction) -> tuple[Floats, Floats, Floats]:
    """The second line: its factor q, what it settles at, and ``(1 + 1/beta) D``."""
    moves = (1.0 + 1.0 / by.beta) * (by.delta * by.eta) ** 2
    q = (1.0 + by.beta) * (1.0 - by.beta) ** 2
    settles = ((1.0 + by.beta) * by.beta**2 * by.observed + moves * by.spread) / (
        by.beta * (1.0 + by.beta - by.beta**2)
    )
    return np.asarray(q), np.asarray(settles), np.asarray(moves)


def holds(by: Correction, p: Floats, T: Value) -> Floats:
    """Whether the largest ``A_t = eta alpha^2 / 2 (1/p + q/p^2 + ... + q^(T-1)/p^T)`` is small enough."""
    (q, _, moves), p = errors(by), np.maximum(p, 1e-300)
    with np.errstate(over="ignore", invalid="ignore"):
        paid = by.eta * by.alpha**2 * moves / p * geometric(1.0 - q / p, T)
    free = by.alpha * moves == 0.0
    return np.asarray(free | (paid <= by.eta * (1.0 - by.L * by.eta + 1e-12)))


def factor(by: Correction, T: Value) -> Floats:
    """The smallest p from ``1 - mu eta`` to 1 that ``holds``: a mu-PL loss is mu'-PL for every smaller mu'."""
    high, shape = by.mu * by.eta, np.broadcast(by.mu * by.eta, by.beta, by.delta, by.alpha, T).shape
    low = np.where(holds(by, 1.0 - np.minimum(high, 0.5 * by.beta), T), np.minimum(high, 0.5 * by.beta), 0.0)
    high, low = np.broadcast_to(high, shape), np.broadcast_to(low, shape)
    if np.all(fast := holds(by, 1.0 - high, T)):
        return np.asarray(1.0 - high)
    low = np.where(fast, high, low)
    for _ in range(14):
        at = 0.5 * (low + high)
        right = holds(by, 1.0 - at, T)
        low, high = np.where(right, at, low), np.where(right, high, at)
    return np.asarray(1.0 - low)


def sharp_bound(by: Correction, T: Value, F0: Value, E0: Value) -> Floats:
    """F_T at most; F shrinks by ``factor`` in a step.

    Its floor is about ``L sigma^2 eta / (2 mu) + alpha^2 (beta S + (delta eta)^2 sigma^2 / beta^2) / (2 mu)``, where
    (13) has ``L sigma^2 eta / mu + alpha^2 (4 beta S + 20 (delta eta)^2 sigma^2 / beta^2) / mu``.
    """
    T = np.asarray(T, dtype=np.float64)
    (q, settles, _), p = errors(by), factor(by, T)
    half = 0.5 * by.eta * by.alpha**2
    added = 0.5 * by.L * by.eta**2 * by.spread + half * settles
    found = repeated(1.0 - p, added, T, F0) + half * (E0 - settles) * mixed(p, q, T)
    return np.asarray(np.where(holds(by, p, T), found, np.inf))


def sharp_nonconvex_bound(by: Correction, T: Value, F0: Value, E0: Value) -> Floats:
    """Mean of ``E|grad f_0(x_t)|^2`` over T steps at most: ``2 F_0 / (eta T) + L eta sigma^2 + alpha^2 mean e_t``."""
    T = np.asarray(T, dtype=np.float64)
    q, settles, _ = errors(by)
    mean = settles + (E0 - settles) * geometric(1.0 - q, T) / T
    found = 2.0 * F0 / (by.eta * T) + by.L * by.eta * by.spread + by.alpha**2 * mean
    return np.asarray(np.where(holds(by, np.ones(()), T), found, np.inf))
