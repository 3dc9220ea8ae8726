"""Linear speedup in personalized collaborative learning (2022), Corollary 5.3: up to what delta correction still pays.

Bounds of bias correction and of working alone are compared at their best eta (and beta) for a horizon T: F_T where ``mu
> 0``, and the mean of ``E|grad f_0(x_t)|^2`` where ``mu = 0``. Everything is for one main client.

The corollary leaves out what c costs, at delta = 0 and for any N. Non-convex: ``beta S + E_0 / (beta T)`` is at least
``2 sqrt(S E_0 / T)``, for one sample (E_0 = S) of the order of working alone; a speed-up that grows with N needs a c_0
of so many samples. mu-PL: what c does not know adds about S / (mu T), and the speed-up stays below about L / mu. Means
say why: with f_k = (x - mean_k)^2 / 2 delta is 0, and collaborators whose means are off by what nobody knows can not
tell where the main client's is; nothing beats F_T = sigma_0^2 / (2 T).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.methods.collaboration.theory import bc_theory
from coterie.methods.collaboration.theory.bc_bound_theory import Correction
from coterie.methods.collaboration.theory.bc_sharp_theory import sharp_bound, sharp_nonconvex_bound
from coterie.numerics.kernels import Floats

GRID = 120
"""Step sizes, and as many betas, that are tried."""


@dataclass(frozen=True)
class Setting:
    """What is known before a run of T steps.

    Attributes
    ----------
    L, mu : float
        Of f_0; ``mu = 0`` is the non-convex case.
    noise0, average : float
        sigma_0^2 and sigma_a^2.
    F0 : float
        ``f_0(x_0) - f_0*``.
    E0 : float
        Squared error of c_0, of ``bc_theory.first_error``.
    """

    L: float
    mu: float
    noise0: float
    average: float
    F0: float
    E0: float


@dataclass(frozen=True)
class Tuned:
    """The smallest bound for a horizon, and the eta and beta that have it; without alpha beta is 1 and idle."""

    bound: float
    eta: float
    beta: float


def tuned(by: Setting, T: float, delta: float, alpha: float | None = None) -> Tuned:
    """The smallest ``sharp_bound`` over a grid of eta and beta.

    Parameters
    ----------
    by : Setting
    T : float
        Steps.
    delta : float
        Of A3.
    alpha : float, optional
        By default ``bc_theory.best_alpha``, which minimises ``sigma^2(alpha)``; 0 is working alone.
    """
    alpha = float(bc_theory.best_alpha(by.noise0, by.average)) if alpha is None else alpha
    low = min(1e-3, 0.1 / T)
    eta = np.geomspace(low, 1.0, GRID)[:, None] / by.L
    beta = np.geomspace(low, 1.0, GRID) if alpha > 0.0 else np.ones(1)
    at = Correction(by.L, by.mu, delta, alpha, eta, beta, by.noise0, by.average)
    found: Floats = (sharp_bound if by.mu > 0.0 else sharp_nonconvex_bound)(at, T, by.F0, by.E0)
    i, j = np.unravel_index(np.argmin(found), found.shape)
    return Tuned(float(found[i, j]), float(eta[i, 0]), float(beta[j]))


def speedup(by: Setting, T: float, delta: float) -> float:
    """The bound of working alone over that of bias correction; below 1 correction is promised less."""
    return tuned(by, T, 0.0, 0.0).bound / tuned(by, T, delta).bound


def largest_delta(by: Setting, T: float) -> float:
    """The delta up to which correction is promised at least what working alone is; 0 where it never is.

    It falls as ``delta^2 ~ T^(-1/2)`` in the non-convex case and ``delta^2 ~ 1 / T`` in the mu-PL case. Bounds grow
    with delta, so it is bisected, from 0 to 2 L (which A1 of all clients implies).
    """
    alone = tuned(by, T, 0.0, 0.0).bound
    if tuned(by, T, 0.0).bound > alone:
        return 0.0
    low, high = 1e-9 * by.L, 2.0 * by.L
    for _ in range(40):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if tuned(by, T, middle).bound <= alone else (low, middle)
    return low
