"""What Lyu, Hanzely, Kolar (2022), Theorem 3.5, promises for Async-L2GD: noise, bounds, schedules, communications.

Theorem 3.5 is Theorem 3.1 of Gower et al. (2019), "SGD: general analysis and improved rates", whose Theorem 3.2 gives
the decreasing step. ``mu`` may be mu_F: strong convexity is used of F only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.methods.rounds.l2gd_theory import fractions, over
from coterie.numerics.kernels import Floats


def noise(p0: float, p: Floats, phi: Floats, psi: Floats, loss: Floats, exact: bool = False) -> float:
    """(3.4): the noise sigma^2 of the estimator (3.2) at the optimum.

    Parameters
    ----------
    phi, psi, loss : (k,)
        The clusters' shares of ``|grad phi|^2``, then ``(1 - alpha_j)^2 |grad psi_j|^2`` and ``|grad F_j|^2``; for
        batches of rows the last is ``batch_noise``.
    exact : bool
        ``E |G|^2`` itself: at the optimum the three gradients add up to zero, so their products are known too, and
        the factor 2 of (3.4) is not needed. Not for batches.
    """
    local = over(loss, (1.0 - p0) * (1.0 - p))
    if not exact:
        return float(np.sum(_where_drawn(2.0 * phi, p0) + _where_drawn(2.0 * psi, p0 + 2.0 * (1.0 - p0) * p) + local))
    tau = fractions(p0, p)
    globally = _where_drawn(np.maximum(phi + tau**2 * psi + tau * (loss - phi - psi), 0.0), p0)
    return float(np.sum(globally + over((1.0 - tau) ** 2 * psi, (1.0 - p0) * p) + local))


def _where_drawn(square: Floats, probability: npt.ArrayLike) -> Floats:
    """``square / probability``; 0 where nothing is drawn: nothing is tied there, and what is left is rounding."""
    return np.asarray(np.where(np.asarray(probability) > 0.0, over(square, probability), 0.0))


def batch_smoothness(L: Floats, L_row: Floats, batch: int) -> Floats:
    """Expected smoothness of ``batch`` rows drawn with replacement: ``L~ / B + (1 - 1 / B) L``; L for 0, all rows.

    ``E |(n / B) sum_b d_b|^2 = n sum_l |d_l|^2 / B + (1 - 1 / B) |sum_l d_l|^2``, d_l differences of rows' gradients.
    """
    return L_row / batch + (1.0 - 1.0 / batch) * L if batch else L


def batch_noise(loss: Floats, rows: Floats, batch: int) -> Floats:
    """``E |g|^2`` at the optimum likewise, from ``|grad f|^2`` and ``n sum_l |grad f_l|^2``."""
    return rows / batch + (1.0 - 1.0 / batch) * loss if batch else loss


def bound(
    t: npt.ArrayLike, eta: float, mu: float, sigma2: float, start: float, smoothness: float | None = None
) -> Floats:
    """Theorem 3.5: what ``E |theta^t - optimum|^2`` does not exceed, for every t.

    Parameters
    ----------
    start : float
        ``|theta^0 - optimum|^2``.
    smoothness : float, optional
        (3.3), for a sharper bound that holds up to ``eta = 1 / L``: with Young's inequality at its best weight in
        place of Corollary A.2's, the ball is ``eta sigma^2 / (mu (1 - eta L))``.
    """
    shrink = np.log1p(-min(eta * mu, 1.0 - 1e-16))
    return np.asarray(np.exp(np.asarray(t) * shrink) * start + ball(eta, mu, sigma2, smoothness), dtype=np.float64)


def ball(eta: float, mu: float, sigma2: float, smoothness: float | None = None) -> float:
    """The noise ball of ``bound``: ``2 eta sigma^2 / mu``; infinite where mu is 0 and there is noise."""
    room = 0.5 if smoothness is None else max(1.0 - eta * smoothness, 0.0)
    return float(over(eta * sigma2, mu * room))


def schedule(t: npt.ArrayLike, smoothness: float, mu: float) -> Floats:
    """Gower et al., Theorem 3.2: ``1 / (2 L)`` for ``4 ceil(L / mu)`` steps, then ``(2 t + 1) / ((t + 1)^2 mu)``.

    A CoterieError where mu is 0: no decreasing step is known to be good then.
    """
    t = np.asarray(t, dtype=np.float64)
    return np.where(t <= 4.0 * _conditioning(smoothness, mu), 0.5 / smoothness, (2.0 * t + 1.0) / ((t + 1.0) ** 2 * mu))


def scheduled_bound(t: npt.ArrayLike, smoothness: float, mu: float, sigma2: float, start: float) -> Floats:
    """What ``schedule`` guarantees: Theorem 3.5's bound, then ``8 sigma^2 / (mu^2 t) + 16 K^2 start / (e t)^2``."""
    t, K = np.asarray(t, dtype=np.float64), _conditioning(smoothness, mu)
    late = np.maximum(t, 1.0)
    after = 8.0 * sigma2 / (mu**2 * late) + 16.0 * (K / (np.e * late)) ** 2 * start
    return np.where(t < 4.0 * K, bound(t, 0.5 / smoothness, mu, sigma2, start), after)


def _conditioning(smoothness: float, mu: float) -> float:
    if not mu > 0.0:
        raise CoterieError("A decreasing step needs strong convexity, and here mu_F = 0: use a constant step eta.")
    return float(np.ceil(smoothness / mu))
