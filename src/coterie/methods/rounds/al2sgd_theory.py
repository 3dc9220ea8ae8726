"""Lyu, Hanzely, Kolar (2022), section 4: what Async-AL2SGD+ is run with, and how often it refreshes its anchor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie.methods.rounds.l2gd_theory import fractions, given, smoothness, step_size
from coterie.methods.rounds.l_katyusha import Katyusha, sharp, theorem
from coterie.numerics.kernels import Floats
from coterie.relations.ties import Ties

FLAT = 1e-6
"""Where F is flat in some direction no theorem applies: mu is then taken as this fraction of calligraphic L."""


def communications(k: Katyusha, p0: float, p: Floats, accuracy: float) -> dict[str, float]:
    """Communications that ``accuracy`` is predicted to need: between clusters, in the busiest one, and refreshes.

    Momentum moves the averages in every round, so that none is free.
    """
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
        sent = communications(parameters(ell, L_F, mu, float(np.exp(x))), p0, p, accuracy)
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
) -> Choice:
    """Choose what is not given: own p_j or (``common``) Corollary 4.4's, rho, and steps, sharp or the ``paper``'s.

    Parameters
    ----------
    L : float or (k,)
        Expected smoothness of the clusters' row estimates: L~, or ``batch_smoothness``.
    L_F : float
        Smoothness of F: ``max_i (L_i + gamma_i)``.
    """
    p0, p, why = given(ties, L, p0, p, common)
    ell = smoothness(p0, p, ties.C1, ties.C2, L)
    step_size(ell)
    if mu <= 0.0:
        mu = FLAT * max(ell, L_F)
        why += f"; F is flat in some direction, so mu = {mu:.3g} is assumed and nothing is promised"
    if rho is None:
        rho = refresh(ell, L_F, mu, p0, p, paper=paper)
        why += "; rho for fewest communications"
    steps = (theorem if paper else sharp)(ell, L_F, mu, rho)
    why += f"; calligraphic L = {ell:.4g} (Lemma 4.2), L_F = {L_F:.4g}, mu = {mu:.3g}; "
    why += "steps of Theorem 4.3" if paper else "steps as large as Theorem 4.3's proof admits"
    return Choice(p0, p, fractions(p0, p), steps, ell, mu, why)
