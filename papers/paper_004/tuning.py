"""From estimated constants to weights, steps and beta for a horizon, and whom Corollary 5.3 keeps.

Bounds of bias correction and of working alone are compared at their best eta (and beta) for a horizon T: F_T where ``mu
> 0``, and the mean of ``E|grad f_0(x_t)|^2`` where ``mu = 0``.

The corollary leaves out what c costs, at delta = 0 and for any N. Non-convex: ``beta S + E_0 / (beta T)`` is at least
``2 sqrt(S E_0 / T)``, for one sample (E_0 = S) of the order of working alone; a speed-up that grows with N needs a c_0
of so many samples. mu-PL: what c does not know adds about S / (mu T), and the speed-up stays below about L / mu. Means
say why: with f_k = (x - mean_k)^2 / 2 delta is 0, and collaborators whose means are off by what nobody knows can not
tell where the main client's is; nothing beats F_T = sigma_0^2 / (2 T).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.errors import CoterieError
from coterie.methods.collaboration import theory
from coterie.methods.collaboration.collaborators import Collaborators
from coterie.numerics.arrays import Bools, Floats, Ints
from papers.paper_004 import bc_bounds, wga_theory
from papers.paper_004.bc_bounds import Correction, sharp_bound, sharp_nonconvex_bound
from papers.paper_004.constants import Constants
from papers.paper_004.wga_theory import sums

TURNS = 100
"""How often tau and alpha are chosen, given the other, at most."""


@dataclass(frozen=True)
class Settings:
    """What to run a method with.

    Attributes
    ----------
    pairs : Collaborators
        With tau.
    alpha, eta, beta : (M,)
        beta is 1 for averaging, which has none.
    """

    pairs: Collaborators
    alpha: Floats
    eta: Floats
    beta: Floats


def averaging(found: Constants, pairs: Collaborators, T: float) -> Settings:
    """Weighted averaging for T steps: alpha and tau of C.2, eta of Theorem 4.1, with noise that grows (appendix B).

    A4 of the average has ``m = sum_k tau_k m_k``, so a collaborator pays for its m as it does for its zeta.

    Raises
    ------
    CoterieError
        Where T is no number of steps, or some mu or L is 0: the theorem needs both.
    """
    L, mu = _bent(found, T)
    noise = wga_theory.collaborator_noise(found.others_sigma2.value, found.others_growth.value, found.zeta2.value)
    tau, alpha, m = _weights(found, noise, pairs.starts, L / (mu * T))
    grown = wga_theory.growth(alpha, found.growth.value, sums(tau**2 * found.others_growth.value, pairs.starts), m)
    noises, biases = sums(tau**2 * noise, pairs.starts), sums(tau * found.zeta2.value, pairs.starts)
    by = wga_theory.descent(L, mu, alpha, found.sigma2.value, noises, biases, m, grown)
    eta = by.step(T, found.loss())
    return Settings(Collaborators(pairs.main, pairs.pair_main, pairs.pair_client, tau), alpha, eta, np.ones(len(alpha)))


def correction(found: Constants, pairs: Collaborators, T: float) -> Settings:
    """Bias correction for T steps: alpha and tau by variances (C.4), eta and beta of Theorem 5.2.

    delta of the average is taken to be the mean of the collaborators' upper confidence bounds, and the step is the
    best one for a known bias (Theorem 5.1) where the correction admits it.
    """
    L, mu = _bent(found, T)
    noise0, noise = found.sigma2.value, found.others_sigma2.value
    tau = theory.best_tau(noise, pairs.starts)
    average, delta = sums(tau**2 * noise, pairs.starts), sums(tau * found.delta_at_most, pairs.starts)
    alpha = np.where(np.diff(pairs.starts) > 0, theory.best_alpha(noise0, average), 0.0)
    known = bc_bounds.oracle_descent(L, mu, alpha, noise0, average).step(T, found.loss())
    eta = np.minimum(known, theory.largest_step(L, alpha, delta))
    beta = theory.best_beta(eta, delta, alpha, noise0, average, T)
    return Settings(Collaborators(pairs.main, pairs.pair_main, pairs.pair_client, tau), alpha, eta, beta)


def select(found: Constants, pairs: Collaborators, T: float, sure: float = 1.0) -> Bools:
    """Whom to correct the bias of for T steps, (P,): Corollary 5.3 with estimated delta; ``pairs.kept`` takes it.

    Parameters
    ----------
    found : Constants
    pairs : Collaborators
        Candidates.
    T : float
        Steps; the largest delta that still pays falls as more are taken.
    sure : float, default 1
        Standard errors that are added to an estimated delta before it is compared, since noise may have hidden it.

    Notes
    -----
    A main client without noise keeps nobody. Two passes: those kept are compared once more, with the noise of their own
    average, which is what helps. It takes about half a second for each main client.
    """
    L, mu = _bent(found, T)
    delta, F0 = found.delta.value + sure * found.delta.se, found.loss()
    keep = np.zeros(len(pairs.pair_main), dtype=bool)
    for i, (start, stop) in enumerate(zip(pairs.starts[:-1], pairs.starts[1:], strict=True)):
        mine = np.arange(start, stop if found.sigma2.value[i] > 0.0 else start)
        for _ in range(2 if len(mine) else 0):
            noise = found.others_sigma2.value[mine]
            average = float(np.sum(theory.best_tau(noise, np.array([0.0, len(mine)])) ** 2 * noise))
            noise0 = float(found.sigma2.value[i])
            by = Setting(float(L[i]), float(mu[i]), noise0, average, float(F0[i]), noise0 + average)
            kept = mine[delta[mine] <= largest_delta(by, T)]
            changed, mine = 0 < len(kept) < len(mine), kept
            if not changed:
                break
        keep[mine] = True
    return keep


def _weights(found: Constants, noise: Floats, starts: Ints, scale: Floats) -> tuple[Floats, Floats, Floats]:
    """tau (P,), alpha and m (M,) that make C.2's bound small: each in turn, and the best that was seen.

    With V the variance and ``room = 1 - alpha^2 m``, the bound ``V / room^2 + alpha^2 z / room`` has tau as if
    ``zeta_k^2`` were larger by ``m_k (2 V / room^2 + alpha^2 z / room)``.
    """
    s0, zeta2, m_k = scale * found.sigma2.value, found.zeta2.value, found.m.value
    helped, counts = np.diff(starts) > 0, np.diff(starts)
    alpha, room, paid = np.zeros(len(s0)), np.ones(len(s0)), 2.0 * s0
    best, kept = np.full(len(s0), np.inf), (np.zeros(len(noise)), alpha, alpha)
    for _ in range(TURNS):
        tau = wga_theory.best_tau(noise, zeta2 + m_k * np.repeat(paid, counts), starts, scale, room)
        a, z, m = scale * sums(tau**2 * noise, starts), sums(tau * zeta2, starts), sums(tau * m_k, starts)
        alpha = np.where(helped, wga_theory.best_alpha(s0, a, z, m), 0.0)
        now, room = wga_theory.bound(alpha, s0, a, z, m), 1.0 - alpha**2 * m
        better = now < best
        kept = (
            np.where(np.repeat(better, counts), tau, kept[0]),
            np.where(better, alpha, kept[1]),
            np.where(better, m, kept[2]),
        )
        if not np.any(now < best * (1.0 - 1e-9)):
            break
        best = np.where(better, now, best)
        paid = 2.0 * theory.variance(alpha, s0, a) / room**2 + alpha**2 * z / room
    return kept


def _bent(found: Constants, T: float) -> tuple[Floats, Floats]:
    """L and mu (M,); a CoterieError where theory has nothing to say."""
    if not (np.isfinite(T) and T >= 1.0):
        raise CoterieError(f"T must be a number of steps, 1 at least, not {T}.")
    L, mu = found.L.value, found.convexity
    flat = np.flatnonzero(~((mu > 0.0) & (L > 0.0)))
    if len(flat):
        raise CoterieError(
            f"The loss of main client {flat[0]} is flat in some direction as far as its gradients say (mu = 0): ask "
            "for more samples or rows, or leave columns out."
        )
    return L, mu


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
        Squared error of c_0, of ``bc_bounds.first_error``.
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
        By default ``theory.best_alpha``, which minimises ``sigma^2(alpha)``; 0 is working alone.
    """
    alpha = float(theory.best_alpha(by.noise0, by.average)) if alpha is None else alpha
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
