"""Linear speedup in personalized collaborative learning (2022), C.2, C.3: recursions (5) and (7), steps, bounds.

Working alone, averaging (Theorem 4.1) and the oracle (Theorem 5.1) are one recursion; ``wga_theory`` and ``bc_theory``
make it. Numbers may be arrays, one for each main client, that broadcast with T.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.errors import CoterieError
from coterie.numerics.kernels import Floats, Ints

Value = float | Floats
"""A number, or one for each main client."""


def over(a: Value, b: Value) -> Floats:
    """``a / b`` of numbers that are not negative; 0 where a is 0, infinite where only b is."""
    a, b = np.broadcast_arrays(np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64))
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        return np.asarray(np.where(a > 0.0, a / b, 0.0))


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
