"""Bias correction (2022, Algorithm 3): bounds that are smaller than Theorem 5.2's, and hold for more beta.

Keep what C.4 drops in (8), ``-eta (1 - L eta) / 2 H_t`` with ``H_t = E|E_t g(x_t)|^2``, and take ``e_t = E|c_t -
B(x_t)|^2`` for ``B(x) = grad f_1(x) - grad f_0(x)``. With ``S = sigma_0^2 + sigma_a^2`` and ``D = (delta eta)^2``,

    F_{t+1} <= F_t - eta/2 G_t + eta/2 alpha^2 e_t - eta/2 (1 - L eta) H_t + L eta^2 sigma^2(alpha) / 2
    e_{t+1} <= (1 + beta) ((1 - beta)^2 e_t + beta^2 S) + (1 + 1/beta) D (sigma^2(alpha) + H_t)

so that H_t pays for how x moves the bias. Unrolled from T backwards, F_T weighs e_t by A_t times F_t; as long as
``2 A_t (1 + 1/beta) D <= eta (1 - L eta)`` for all of them, H_t drops out, and two lines are repeated in closed form.
Bounds are infinite where that fails.
"""

from __future__ import annotations

import numpy as np

from coterie.methods.collaboration.theory.bc_bound_theory import Correction
from coterie.methods.collaboration.theory.descent_theory import Value, geometric, repeated
from coterie.numerics.kernels import Floats


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
