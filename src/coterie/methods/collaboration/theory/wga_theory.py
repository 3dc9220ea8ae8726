"""Linear speedup in personalized collaborative learning (2022), Theorem 4.1, C.2, B: what averaging needs chosen.

Numbers are one for each main client, (M,) or scalars; ``noise`` and ``bias`` of collaborators are (P,), main client
i's from ``starts[i]`` to ``starts[i + 1]``. Variances are those of the gradients that a step uses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.methods.collaboration.theory.descent_theory import Descent, Value, over
from coterie.methods.collaboration.theory.noise_theory import sums
from coterie.numerics.kernels import Floats
from coterie.numerics.simplex_qp import diagonal_simplex_qp


def variance(alpha: Value, noise0: Value, average: Value) -> Floats:
    """``sigma~^2(alpha) = (1 - alpha)^2 sigma_0^2 + alpha^2 sum tau_k^2 sigma_k^2``; ``average`` is that sum."""
    alpha = np.asarray(alpha, dtype=np.float64)
    return np.asarray((1.0 - alpha) ** 2 * noise0 + alpha**2 * average)


def descent(
    L: Value,
    mu: Value,
    alpha: Value,
    noise0: Value,
    average: Value,
    bias: Value,
    m: Value = 0.0,
    M: Value = 0.0,
) -> Descent:
    """Theorem 4.1's recursion (5), with its step sizes and bounds.

    Parameters
    ----------
    L, mu, alpha, noise0 : float
        Of the main client; ``noise0`` is sigma_0^2.
    average, bias : float
        ``sum_k tau_k^2 sigma_k^2`` and ``sum_k tau_k zeta_k^2``.
    m : float, default 0
        Of A4.
    M : float, default 0
        ``M(alpha)``, of ``noise_theory.growth``.

    Returns
    -------
    Descent
        With ``room`` of 0 or less, so that bounds are infinite, where alpha is not below ``1 / sqrt(m)``.

    Raises
    ------
    CoterieError
        If alpha is not between 0 and 1.
    """
    alpha = np.asarray(alpha, dtype=np.float64)
    if not np.all((alpha >= 0.0) & (alpha <= 1.0)):
        raise CoterieError("alpha must be between 0 and 1: it is the weight of the collaborators.")
    room = 1.0 - alpha**2 * np.asarray(m, dtype=np.float64)
    return Descent(L, mu, variance(alpha, noise0, average), alpha**2 * np.asarray(bias), room, M)


@dataclass(frozen=True)
class Chosen:
    """Weights: alpha (M,), tau (P,), and the bound relative to working alone, inverted: ``speedup`` (M,)."""

    alpha: Floats
    tau: Floats
    speedup: Floats


def bound(alpha: Value, s0: Value, a: Value, z: Value, m: Value) -> Floats:
    """What C.2 minimises, times mu: ``((1 - alpha)^2 s0 + alpha^2 a) / room^2 + alpha^2 z / room``.

    ``room = 1 - alpha^2 m``, ``s0 = L sigma_0^2 / (mu T)``, ``a = L sum tau_k^2 sigma_k^2 / (mu T)``, ``z = sum tau_k
    zeta_k^2``.
    """
    alpha = np.asarray(alpha, dtype=np.float64)
    room = 1.0 - alpha**2 * np.asarray(m)
    return np.asarray(variance(alpha, s0, a) / room**2 + alpha**2 * z / room)


def best_alpha(s0: Value, a: Value, z: Value, m: Value = 0.0) -> Floats:
    """The alpha in [0, 1], below ``1 / sqrt(m)``, that minimises ``bound``.

    For m = 0 it is ``s0 / (s0 + a + z)``, which is ``1 / (1 + 1/N + mu zeta^2 T / (L sigma_0^2))`` for equal
    collaborators. Otherwise the derivative times ``(1 - alpha^2 m)^3 / 2`` is a cubic that changes its sign once, from
    -s0 at 0 (it rises wherever it is not surely positive), and is bisected. 0 where ``s0 = 0``.
    """
    s0, a, z, m = np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in (s0, a, z, m)))
    low, high = np.zeros(m.shape), np.minimum(1.0, over(1.0, np.sqrt(np.maximum(m, np.finfo(np.float64).tiny))))
    for _ in range(160 if np.any(m > 0.0) else 0):
        at = 0.5 * (low + high)
        w = m * at**2
        rises = a * at * (1.0 + w) + z * at * (1.0 - w) > s0 * (1.0 - at) * (1.0 - 2.0 * m * at + w)
        low, high = np.where(rises, low, at), np.where(rises, at, high)
    return np.asarray(np.where(s0 > 0.0, np.where(m > 0.0, low, over(s0, s0 + a + z)), 0.0))


def best_tau(noise: Floats, bias: Floats, starts: npt.ArrayLike, scale: Value, room: Value = 1.0) -> Floats:
    """C.2's program: tau (P,) minimises ``sum_k L / (mu T (1 - alpha^2 m)) tau_k^2 sigma_k^2 + tau_k zeta_k^2``.

    ``scale = L / (mu T)`` and ``room = 1 - alpha^2 m``, (M,) or scalars. With scale 0 only the least biased are heard.
    """
    counts = np.diff(np.asarray(starts, dtype=np.int64)).astype(np.int64)
    each = np.broadcast_to(np.asarray(scale / room), counts.shape)
    return diagonal_simplex_qp(np.repeat(each, counts) * np.asarray(noise), bias, starts)


def best_weights(
    noise0: Value,
    noise: Floats,
    bias: Floats,
    starts: npt.ArrayLike,
    scale: Value,
    m: Value = 0.0,
    rounds: int = 200,
) -> Chosen:
    """alpha and tau together: each in turn, until alpha stands still; for m = 0 tau does not depend on alpha.

    Parameters
    ----------
    noise0, noise, bias : (M,), (P,), (P,)
        sigma_0^2, sigma_k^2 and zeta_k^2.
    starts : (M + 1,) int
    scale, m : (M,) or float
        ``L / (mu T)``, and m of A4.
    rounds : int, default 200
        At most.
    """
    noise, bias, helped = np.asarray(noise), np.asarray(bias), np.diff(np.asarray(starts)) > 0
    s0, m = (np.broadcast_to(np.asarray(v, dtype=np.float64), helped.shape) for v in (scale * np.asarray(noise0), m))
    alpha = np.zeros(len(helped))
    for _ in range(rounds if np.any(m > 0.0) else 1):
        last, tau = alpha, best_tau(noise, bias, starts, scale, 1.0 - alpha**2 * m)
        a, z = scale * sums(tau**2 * noise, starts), sums(tau * bias, starts)
        alpha = np.where(helped, best_alpha(s0, a, z, m), 0.0)
        if np.all(np.abs(alpha - last) <= 1e-13 * alpha):
            break
    return Chosen(alpha, tau, np.where(s0 > 0.0, over(s0, bound(alpha, s0, a, z, m)), 1.0))
