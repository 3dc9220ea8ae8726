"""Linear speedup in personalized collaborative learning (2022), C.4: Theorem 5.2 with what its proof needs.

``c_0`` is independent of the first step's noise, and ``x_{-1} = x_0``, so that ``Delta_0 = 0`` and the printed zeta~ is
not needed. Bounds are infinite where their proof does not hold. ``bc_sharp_theory`` has smaller ones.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from coterie.methods.collaboration.theory.descent_theory import Value, repeated
from coterie.methods.collaboration.theory.wga_theory import variance
from coterie.numerics.kernels import Floats

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
