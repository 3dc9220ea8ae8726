"""What is proved of the augmented objective: step size, rate, variance, and when a group's own gradient vanishes.

Notation of the notes: n clients, of which |G| are in a group; here ``share`` is |G| / n, or the groups' share of the
weights. Rates are those of Ghadimi and Lan (2013), Stochastic first- and zeroth-order methods for nonconvex stochastic
programming, for ``min f`` with f L-smooth and unbiased gradients of variance sigma^2.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.numerics.arrays import Floats, Ints


def smoothness(L: npt.ArrayLike, weight: npt.ArrayLike, group: Ints | None = None) -> float:
    """L of the augmented objective from those of clients.

    A client reads some coordinates of the augmented model, so its Hessian there has the norm that it has here, and the
    weighted mean of all bounds the whole.

    Parameters
    ----------
    L, weight : (m,)
        Of the clients' mean losses.
    group : (m,) int64, optional
        Where a group's own layers are averaged within the group, so that their step is n / |G| times as long: L then
        is that of ``f`` in the scaled coordinates ``x_g sqrt(|G| / n)``, at most the largest group's mean.
    """
    L, weight = np.asarray(L, dtype=np.float64), np.asarray(weight, dtype=np.float64)
    if group is None:
        return float(L @ weight / weight.sum())
    total = np.bincount(group, weight)
    here = total > 0.0
    return float((np.bincount(group, weight * L)[here] / total[here]).max())


def step_size(L: float, sigma2: float, gap: float, T: int) -> float:
    """The step for T steps: ``min(1 / L, sqrt(2 gap / (L sigma^2 T)))``, with gap = f(x_0) - inf f."""
    longest = 1.0 / L
    return longest if sigma2 <= 0.0 else min(longest, float(np.sqrt(2.0 * gap / (L * sigma2 * T))))


def rate(L: float, sigma2: float, gap: float, T: npt.ArrayLike, eta: float) -> Floats:
    """What is promised of the mean of E||grad f||^2 over T steps of size ``eta <= 1 / L``, hence of the least one.

    ``2 gap / (eta T) + L eta sigma^2``; at ``step_size`` at most ``2 L gap / T + 2 sqrt(2 L gap sigma^2 / T)``. As
    sigma^2 falls like 1 / n, n clients need 1 / n of the steps.
    """
    return 2.0 * gap / (eta * np.asarray(T, dtype=np.float64)) + L * eta * sigma2


def variance(shared: npt.ArrayLike, own: npt.ArrayLike, sizes: npt.ArrayLike) -> Floats:
    """The notes' sigma^2 by block, (1 + k,): of x_s first, then of each group's own layers; sigma^2 is their sum.

    Parameters
    ----------
    shared, own : (k,)
        sigma_s^2 and sigma_d^2: variances of one client's stochastic gradient in each group.
    sizes : (k,)
        |G|; clients count alike here (``observed`` has weights).
    """
    shared, own, sizes = (np.asarray(a, dtype=np.float64) for a in (shared, own, sizes))
    n = sizes.sum()
    return np.concatenate([[(sizes / n) @ shared / n], sizes / n**2 * own])
