"""Linear speedup in personalized collaborative learning (2022), Theorems 5.1, 5.2, C.3, C.4: what correction needs.

Numbers are one for each main client, (M,) or scalars: ``noise0`` is sigma_0^2, ``average`` is ``sigma_a^2 = sum_k
tau_k^2 sigma_k^2``, delta that of A3 between f_0 and ``sum_k tau_k f_k``, or an upper bound of it: steps from a delta
that was estimated too low may diverge (``constants.bending.dissimilarity_at_most``). Bounds are in
``bc_bound_theory`` and ``bc_sharp_theory``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.methods.collaboration.theory.descent_theory import Descent, Value, over
from coterie.methods.collaboration.theory.wga_theory import variance
from coterie.numerics.kernels import Floats, Ints
from coterie.numerics.simplex_qp import diagonal_simplex_qp


def best_tau(noise: Value, starts: Ints) -> Floats:
    """C.4: tau (P,) minimises ``sum_k tau_k^2 sigma_k^2``: ``1 / sigma_k^2``, normalised; the noise-free share all."""
    return diagonal_simplex_qp(noise, 0.0, starts)


def best_alpha(noise0: Value, average: Value, oracle: Value = 0.0) -> Floats:
    """The alpha that minimises ``sigma^2(alpha)``: ``sigma_0^2 / (sigma_0^2 + sigma_a^2 + oracle)``, 0 if sigma_0 = 0.

    ``oracle`` is the variance of the bias oracle's noise, ``v^2 / N`` in Theorem 5.1. With ``sigma_a^2 = sigma_0^2 /
    N`` this is ``N / (N + 1 + v^2 / sigma_0^2)``, and ``N / (N + 1)`` for the moving average (Theorem 5.2).
    """
    noise0 = np.asarray(noise0, dtype=np.float64)
    return over(noise0, noise0 + np.asarray(average) + np.asarray(oracle))


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


def least_beta(eta: Value, delta: Value, alpha: Value) -> Floats:
    """The least that ``sharp_bound`` takes at ``eta <= 1 / (2 L)``: ``beta^2 = 4 (1 + beta) (alpha delta eta)^2``.

    Above 1 where eta is too large for any beta. A beta much smaller than ``alpha delta eta`` may let x run away before
    c has followed: with Hessians a and a - delta that is so for ``beta < eta (alpha delta - a)``.
    """
    y = (2.0 * np.asarray(alpha) * np.asarray(delta) * np.asarray(eta)) ** 2
    return np.asarray(0.5 * (y + np.sqrt(y * (y + 4.0))))


def largest_step(L: Value, alpha: Value, delta: Value) -> Floats:
    """``min(1 / (2 L), 1 / (sqrt(8) alpha delta))``: below it some beta up to 1 satisfies ``sharp_bound``.

    Theorem 5.2 prints ``min(1 / L, 1 / (6 alpha^2 delta^2))``, which depends on units and is not enough; C.4's proof
    needs ``alpha delta eta <= beta / sqrt(120)``, so eta and beta cannot be chosen apart.
    """
    slopes = np.sqrt(8.0) * np.asarray(alpha, dtype=np.float64) * np.asarray(delta)
    return np.asarray(np.minimum(over(0.5, L), over(1.0, slopes)))


def best_beta(
    eta: Value,
    delta: Value,
    alpha: Value,
    noise0: Value,
    average: Value,
    T: Value = 10_000.0,
    E0: Value | None = None,
    constant: float = 10.0,
) -> Floats:
    """The beta in (0, 1] that minimises the bound's part that depends on it.

    ``beta S + constant (delta eta)^2 sigma^2(alpha) / (2 beta^2) + E_0 / (beta T)``, ``S = sigma_0^2 + sigma_a^2``. For
    endless T that is C.4's ``min(1, (10 delta^2 sigma^2(alpha) / S)^(1/3) eta^(2/3))``, of the mu-PL and the
    non-convex case alike. Never below ``least_beta``.

    Parameters
    ----------
    T : float, default 10,000
        Steps. Where nothing curves otherwise (delta = 0) it alone keeps beta above 0: ``sqrt(E_0 / (S T))``.
    E0 : float, optional
        Of ``first_error``; by default S, that of one sample.
    constant : float, default 10
        C.4's; ``sharp_bound`` has 2.
    """
    S = np.asarray(noise0, dtype=np.float64) + np.asarray(average)
    curved = constant * (np.asarray(delta) * np.asarray(eta)) ** 2 * variance(alpha, noise0, average)
    curved, lag = over(curved, S), over(S if E0 is None else E0, S * np.asarray(T, dtype=np.float64))
    # beta^3 = lag beta + curved: the bracket's upper end is above its one positive root
    beta = np.maximum(np.sqrt(2.0 * lag), np.cbrt(2.0 * curved))
    for _ in range(60):  # Newton's steps on a convex function, from above
        slope = 3.0 * beta**2 - lag
        beta = beta - over(np.maximum(beta**3 - lag * beta - curved, 0.0), np.where(slope > 0.0, slope, 1.0))
    beta = np.where(S > 0.0, beta, 1.0)
    return np.asarray(np.clip(np.maximum(beta, least_beta(eta, delta, alpha)), np.finfo(np.float64).tiny, 1.0))


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
