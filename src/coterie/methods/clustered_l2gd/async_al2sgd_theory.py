"""Lyu, Hanzely, Kolar (2022), section 4: what Async-AL2SGD+, which is L-Katyusha, is run with, and its rate.

Theorem 4.3 is Theorem 4.1 of Hanzely, Kovalev, Richtarik (2020b). With D the Bregman divergence of F, its proof needs
``E |g - grad F(theta)|^2 <= 2 L D(x, theta)`` (Lemma 4.2), F smooth with L_F and strongly convex with mu,
``a_1 + a_2 <= 1``, ``b_1 = 1 - b_2 mu`` and, for ``S = a_1 b_2 + b_1 L_F eta^2``, both ``S <= 2 b_1 eta`` and
``L S <= b_1 a_2``. Then ``|z - optimum|^2 + c (1 - s) (F(y) - F*) + c s / rho (F(x) - F*)``, ``c = 2 b_1 b_2 / a_1``,
shrinks in mean by ``1 - min(b_2 mu, (a_1 + a_2 - s) / (1 - s), rho (1 - a_2 / s))`` at every step, for any s: expand
``|z+ - optimum|^2``, add c times the descent ``F(y+) <= F(theta) - eta <grad F, g> + L_F eta^2 |g|^2 / 2``, and what is
left of ``|grad F|^2`` and of the variance is not positive by the two conditions. The theorem's values leave room in
them; ``sharp`` uses it, with a rate some five times as high.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.methods.clustered_l2gd.async_l2gd_theory import fractions, rounds_of, step_size
from coterie.methods.clustered_l2gd.nested_levels import Levels
from coterie.numerics.arrays import Floats
from coterie.relations.clusters import Ties

FLAT = 1e-6  # where F is flat in some direction no theorem applies: mu is then taken as this fraction of calligraphic L


@dataclass(frozen=True)
class Katyusha:
    """Parameters of Algorithm 2: from 0, ``E |y^t - optimum|^2 <= factor (1 - rate)^t |optimum|^2``."""

    eta: float
    a1: float
    a2: float
    b1: float
    b2: float
    rho: float
    rate: float
    factor: float

    def iterations(self, accuracy: float) -> float:
        """Steps after which the mean squared distance is promised to be ``accuracy`` times that of the start."""
        return float(np.ceil(np.log(self.factor / accuracy) / -np.log1p(-self.rate)))


def theorem(ell: float, L_F: float, mu: float, rho: float) -> Katyusha:
    """Theorem 4.3, for calligraphic L = ``ell``; a CoterieError where mu = 0."""
    _need_curvature(mu)
    most = max(L_F, ell)
    eta, a2 = 0.25 / most, 0.5 * ell / most
    a1 = min(0.5, float(np.sqrt(eta * mu * max(0.5, a2 / rho))))
    return _rated(eta, a1, a2, 1.0 / max(2.0 * mu, 4.0 * a1 / eta), rho, mu, L_F)


def sharp(ell: float, L_F: float, mu: float, rho: float) -> Katyusha:
    """The largest steps that the theorem's proof admits (see above), in place of those it prints.

    The conditions give ``a_1 b_2 <= b_1 M`` with ``M = a_2 / ell (1 - L_F a_2 / (4 ell))`` at ``eta = a_2 / (2 ell)``.
    Equal contraction q of all three terms is a cubic in q, and a_2 maximises it where q is small against rho.
    """
    from scipy.optimize import brentq

    _need_curvature(mu)
    e, r = 0.25 * L_F / ell, 1.0 / rho - 1.0
    a2 = min(0.5, ell / L_F, 1.0 / (e + float(np.sqrt(e * e + e * r))))
    eta, M = 0.5 * a2 / ell, mu * a2 / ell * (1.0 - e * a2)
    R = rho + a2 * (1.0 - rho)

    def excess(q: float) -> float:
        return ((q + M - R) * q - M * (1.0 + rho)) * q + M * rho

    q = brentq(excess, 0.0, rho * (1.0 - 1e-9), xtol=1e-300, rtol=1e-12)
    a1 = min(q + (a2 * q * (1.0 - rho) / (rho - q) if rho < 1.0 else 0.0), 1.0 - a2)
    return _rated(eta, a1, a2, M / mu / (a1 + M), rho, mu, L_F)


def _need_curvature(mu: float) -> None:
    if not mu > 0.0:
        raise CoterieError(
            "The objective is flat in some direction (mu_F = 0), so Theorem 4.3 gives no parameters: tie every client "
            "(gamma > 0), or give a mu."
        )


def _rated(eta: float, a1: float, a2: float, b2: float, rho: float, mu: float, L_F: float) -> Katyusha:
    """Add b_1, and the best s, rate and factor of the proof."""
    b1 = 1.0 - b2 * mu
    B, C = a1 + a2 - rho * (1.0 + a2), 4.0 * (1.0 - rho) * rho * a2
    root = float(np.sqrt(B * B + C))
    s = (B + root) / (2.0 * (1.0 - rho)) if B > 0.0 and rho < 1.0 else 2.0 * rho * a2 / (root - B)
    s = min(s, 0.99)  # any s will do, and F(y) should have a share in what shrinks
    rate = min(b2 * mu, (a1 + a2 - s) / (1.0 - s), rho * (1.0 - a2 / s))
    c = 2.0 * b1 * b2 / a1
    start = 1.0 + 0.5 * L_F * c * (1.0 - s + s / rho)
    return Katyusha(eta, a1, a2, b1, b2, rho, rate, start / (0.5 * mu * c * (1.0 - s)))


def expected_communications(k: Katyusha, p0: float, p: Floats, accuracy: float) -> dict[str, float]:
    """Communications that ``accuracy`` is predicted to need, the busiest cluster's; momentum lets none be free."""
    T = k.iterations(accuracy)
    busiest = (1.0 - p0) * float(np.max(p, initial=0.0))
    return {"iterations": T, "global": p0 * T, "cluster": busiest * T, "refresh": k.rho * T}


def refresh(
    ell: float, L_F: float, mu: float, p0: float, p: Floats, accuracy: float = 1e-4, paper: bool = False
) -> float:
    """The rho that minimises predicted communications, refreshes included; Corollary 4.4 leaves it open.

    Iterations fall like ``rho^-1/2`` and communications are ``iterations (rounds per step + rho)``, so the best rho is
    near the rounds per step: as many refreshes as rounds. 1 where nobody communicates, for fewest iterations.
    """
    from scipy.optimize import minimize_scalar

    parameters = theorem if paper else sharp
    if not p0 > 0.0 and not np.any(p > 0.0):
        return 1.0

    def cost(x: float) -> float:
        sent = expected_communications(parameters(ell, L_F, mu, float(np.exp(x))), p0, p, accuracy)
        return float(np.log(sent["global"] + sent["cluster"] + sent["refresh"]))

    return float(np.exp(minimize_scalar(cost, bounds=(np.log(1e-6), 0.0), method="bounded").x))


@dataclass(frozen=True)
class Choice:
    """Parameters of Algorithm 2, and ``why``; ``smoothness`` is Lemma 4.2's calligraphic L."""

    p0: float
    p: Floats
    tau: Floats
    steps: Katyusha
    smoothness: float
    mu: float
    why: str
    q: tuple[Floats, ...] = ()  # of levels between the clusters and the network


def choose(
    ties: Ties,
    L: npt.ArrayLike,
    L_F: float,
    mu: float,
    p0: float | None = None,
    p: npt.ArrayLike | None = None,
    rho: float | None = None,
    common: bool = False,
    paper: bool = False,
    nested: Levels | None = None,
    shared: float = 0.0,
) -> Choice:
    """Choose what is not given: own p_j or (``common``) Corollary 4.4's, rho, and steps, sharp or the ``paper``'s.

    ``nested`` has the probabilities of all levels, where there are several or something is ``shared``: its smoothness.

    L (k,) is the expected smoothness of the clusters' row estimates (L~, or ``batch_smoothness``), L_F that of F:
    ``max_i (L_i + gamma_i)``.
    """
    p0, p, q, why, ell = rounds_of(ties, L, p0, p, common, nested, shared)
    step_size(ell)
    if mu <= 0.0:
        mu = FLAT * max(ell, L_F)
        why += f"; F is flat in some direction, so mu = {mu:.3g} is assumed and nothing is promised"
    if rho is None:
        rho = refresh(ell, L_F, mu, p0, p + sum(q), paper=paper)
        why += "; rho for fewest communications"
    steps = (theorem if paper else sharp)(ell, L_F, mu, rho)
    why += f"; calligraphic L = {ell:.4g} (Lemma 4.2), L_F = {L_F:.4g}, mu = {mu:.3g}; "
    why += "steps of Theorem 4.3" if paper else "steps as large as Theorem 4.3's proof admits"
    return Choice(p0, p, fractions(p0, p), steps, ell, mu, why, q)
