"""Theorem 4.1, C.2 and appendix B of the 2022 paper: recursion, steps, weights and bounds of weighted averaging.

Working alone, averaging (Theorem 4.1) and the oracle (Theorem 5.1, of ``bc_bounds``) are one recursion, ``Descent``.
Numbers are one for each main client, (M,) or scalars, and broadcast with T; ``noise`` and ``bias`` of collaborators are
(P,), main client i's from ``starts[i]`` to ``starts[i + 1]``. Variances are those of the gradients that a step uses.

In appendix B noise grows with the gradient: A5 becomes ``E|n_k|^2 <= M_k |grad f_k|^2 + sigma_k^2``. With A4 and
``|grad f_k|^2 <= 2 (1 + m) |grad f_0|^2 + 2 zeta_k^2`` all noise is bounded by the main client's gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.methods.collaboration.theory import Value, variance
from coterie.numerics.arrays import Floats, Ints, over
from coterie.numerics.simplex_qp import diagonal_simplex_qp


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
        ``M(alpha)``, of ``growth``.

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


def collaborator_noise(noise: Value, M: Value, bias: Value) -> Floats:
    """``sigma~_k^2 = sigma_k^2 + 2 M_k zeta_k^2``: a collaborator's variance where the main client has converged.

    Where noise does not change as ``f_k`` is tilted by a linear term, ``delta^2 D_k^2`` may stand for ``zeta_k^2``, D_k
    the distance that x goes from x_0*. The paper prints ``delta D_k^2``, which has other units.
    """
    return np.asarray(np.asarray(noise) + 2.0 * np.asarray(M) * np.asarray(bias))


def growth(alpha: Value, M0: Value, average: Value, m: Value = 0.0) -> Floats:
    """``M(alpha) = (1 - alpha)^2 M_0 + alpha^2 m' sum_k tau_k^2 M_k`` with ``m' = 2 (1 + m)``; at most M.

    ``average`` is that sum. The 2 in the printed ``M_avg = 2 N sum tau_k^2 M_k`` is that of m' once more, and C.2's
    ``M_1 m`` means m': at m = 0 a collaborator's noise grows all the same.
    """
    alpha = np.asarray(alpha, dtype=np.float64)
    return np.asarray((1.0 - alpha) ** 2 * M0 + alpha**2 * 2.0 * (1.0 + np.asarray(m)) * average)


def growth_at_most(M0: Value, average: Value, m: Value = 0.0) -> Floats:
    """``M = M_0 + m' sum_k tau_k^2 M_k``, which serves every alpha (C.2)."""
    return np.asarray(np.asarray(M0) + 2.0 * (1.0 + np.asarray(m)) * average)


def sums(values: npt.ArrayLike, starts: npt.ArrayLike) -> Floats:
    """Sums (M,) of ragged values (P,): main client i's are those from ``starts[i]`` to ``starts[i + 1]``."""
    counts = np.diff(np.asarray(starts, dtype=np.int64)).astype(np.int64)
    found = np.bincount(np.repeat(np.arange(len(counts)), counts), np.asarray(values), minlength=len(counts))
    return np.asarray(found, dtype=np.float64)


def geometric(rate: Value, T: Value) -> Floats:
    """``1 + (1 - rate) + ... + (1 - rate)^(T - 1)``, for rates up to 1."""
    rate, T = np.asarray(rate, dtype=np.float64), np.asarray(T, dtype=np.float64)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        return np.where(T > 0.0, np.where(rate != 0.0, -np.expm1(T * np.log1p(-rate)) / rate, T), 0.0)


def repeated(rate: Value, noise: Value, T: Value, F0: Value) -> Floats:
    """``F_{t+1} = (1 - rate) F_t + noise``, T times from F0, for rates from 0 to 1."""
    return np.asarray((1.0 - np.asarray(rate)) ** np.asarray(T) * F0 + geometric(rate, T) * noise)


@dataclass(frozen=True)
class Descent:
    """What (4) and (6) need: ``F_{t+1} - F_t <= -eta room / c E|grad f_0|^2 + eta bias / 2 + L eta^2 noise / 2``.

    Attributes
    ----------
    L, mu : float
        f_0 is L-smooth (A1) and, where ``mu > 0``, mu-PL (A2).
    noise : float
        ``sigma~^2(alpha)``, the variance of the step's gradient.
    bias : float, default 0
        ``alpha^2 zeta^2``.
    room : float, default 1
        ``1 - alpha^2 m``.
    M : float, default 0
        ``M(alpha)``: how much noise grows with ``|grad f_0|^2`` (appendix B).
    """

    L: Value
    mu: Value
    noise: Value
    bias: Value = 0.0
    room: Value = 1.0
    M: Value = 0.0

    @property
    def c(self) -> Floats:
        """2 without growing noise, else 4 (C.2)."""
        return np.where(np.asarray(self.M) > 0.0, 4.0, 2.0)

    @property
    def most(self) -> Floats:
        """The largest step: ``min(1 / L, (1 - alpha^2 m) / (2 L M))``."""
        room = np.maximum(self.room, 0.0)
        return np.asarray(
            np.minimum(
                over(1.0, self.L),
                np.where(np.asarray(self.M) > 0.0, over(room, 2.0 * np.asarray(self.L) * self.M), np.inf),
            )
        )

    @property
    def pull(self) -> Floats:
        """``2 mu (1 - alpha^2 m) / c``: the loss shrinks by ``1 - eta pull`` in a step, (5)."""
        return np.asarray(2.0 * np.asarray(self.mu) * self.room / self.c)

    def added(self, eta: Value) -> Floats:
        """What bias and noise add in a step, (5): ``eta bias / 2 + L eta^2 noise / 2``."""
        eta = np.asarray(eta, dtype=np.float64)
        return np.asarray(0.5 * eta * self.bias + 0.5 * np.asarray(self.L) * eta**2 * self.noise)

    def checked(self, eta: Value) -> tuple[Floats, Floats]:
        """The step sizes, and what to add to bounds: infinity where one is above ``most`` or there is no ``room``.

        A CoterieError where a step size is not above 0.
        """
        eta = np.asarray(eta, dtype=np.float64)
        if not np.all(eta > 0.0):
            raise CoterieError("A step size eta must be a number above 0.")
        return eta, np.where((eta <= self.most * (1.0 + 1e-12)) & (np.asarray(self.room) > 0.0), 0.0, np.inf)

    def bound(self, T: Value, eta: Value, F0: Value) -> Floats:
        """F_T at most, with one step size: (5), (7), repeated; infinite where nothing is promised."""
        eta, never = self.checked(eta)
        return np.asarray(repeated(np.clip(eta * self.pull, 0.0, 1.0), self.added(eta), T, F0) + never)

    def level(self, eta: Value) -> Floats:
        """Where that bound settles: ``c (bias + L eta noise) / (4 mu room)``."""
        eta, never = self.checked(eta)
        return np.asarray(over(self.added(eta), np.maximum(eta * self.pull, 0.0)) + never)

    def scheduled_bound(self, etas: Value, F0: float) -> Floats:
        """F_0, ..., F_T at most (T + 1,) with the step sizes ``etas`` (T,), for one main client."""
        etas, never = self.checked(etas)
        out = [float(F0)]
        for kept, added in zip(1.0 - np.clip(etas * self.pull, 0.0, 1.0), self.added(etas) + never, strict=True):
            out.append(float(kept * out[-1] + added) if np.isfinite(out[-1] + added) else np.inf)
        return np.array(out)

    def step(self, T: Value, F0: Value) -> Floats:
        """The constant step for T rounds: ``min(most, log(max(2, 2 pull^2 F_0 T / (L noise))) / (pull T))``.

        It minimises ``exp(-pull eta T) F_0 + L eta noise / (2 pull)``. The printed logarithm, of 2 mu F_0 T / (3 L
        noise), has the units of 1 / mu; C.2 divides it by 2 mu T, which leaves an F_0 that falls as T^-1/2 only, and
        Theorem 4.1 by mu T, but takes max(1, .), which can make it 0.
        """
        gain = 2.0 * self.pull**2 * np.asarray(F0) * np.asarray(T, dtype=np.float64)
        shrink = np.log(np.maximum(2.0, over(gain, np.asarray(self.L) * self.noise)))
        return np.asarray(np.minimum(self.most, over(shrink, self.pull * np.asarray(T, dtype=np.float64))))

    @property
    def switch(self) -> Ints:
        """t_0: the first t whose decreasing step is at most ``most`` (C.2)."""
        k = np.maximum(over(1.0, self.pull * self.most), 1.0)
        return np.asarray(np.ceil(k + np.sqrt(k * (k - 1.0)) - 1.0 - 1e-9), dtype=np.int64)

    def decreasing_step(self, t: Value) -> Floats:
        """C.2: ``(2 t + 1) / (pull (t + 1)^2)`` from t_0 on, before that ``most``; a CoterieError without mu."""
        if not np.all(self.pull > 0.0):
            raise CoterieError("A step that decreases like this needs mu > 0: take a constant eta.")
        t = np.asarray(t, dtype=np.float64)
        return np.asarray(np.minimum(self.most, (2.0 * t + 1.0) / (self.pull * (t + 1.0) ** 2)))

    def decreasing_bound(self, T: Value, F0: Value) -> Floats:
        """F_T at most with that step: ``bias / (2 pull) + 2 L noise / (pull^2 T) + t_0^2 F_{t_0} / T^2`` (C.2)."""
        T, t0 = np.asarray(T, dtype=np.float64), self.switch
        early = self.bound(np.minimum(T, t0), self.most, F0)
        late = np.maximum(T, 1.0)
        settled = 0.5 * over(self.bias, self.pull) * (1.0 - (t0 / late) ** 2)
        settled += 2.0 * np.asarray(self.L) * self.noise * (late - t0) / (self.pull * late) ** 2
        return np.asarray(np.where(late > t0, settled + (t0 / late) ** 2 * early, early))

    def nonconvex_bound(self, T: Value, eta: Value, F0: Value) -> Floats:
        """Mean of ``E|grad f_0(x_t)|^2`` over T rounds at most: ``c / room`` times ``F_0 / (eta T) + added / eta``."""
        eta, never = self.checked(eta)
        return np.asarray(
            over(self.c, np.maximum(self.room, 0.0)) * (F0 / (eta * np.asarray(T)) + self.added(eta) / eta) + never
        )

    def nonconvex_step(self, T: Value, F0: Value) -> Floats:
        """``min(most, sqrt(2 F_0 / (L noise T)))``, which minimises it; the theorem 5.1 printed lacks T."""
        best = np.sqrt(over(2.0 * np.asarray(F0), np.asarray(self.L) * self.noise * np.asarray(T, dtype=np.float64)))
        return np.asarray(np.minimum(self.most, best))
