"""Bounds of bias correction from (8), (9) and (10) repeated, and the first step where ``c_0 = b_0``."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.methods.collaboration.theory import Value
from coterie.numerics.arrays import Floats
from papers.paper_004.bc_bounds import SLACK, Correction


def recursion_bound(by: Correction, T: npt.ArrayLike, F0: float, E0: float) -> Floats:
    """F_T at most (s,) for T (s,), by (8), (9), (10) with ``2 mu F <= G <= 2 L F`` repeated; for one main client.

    It holds for every ``eta <= 1 / L``; where its matrix grows, which ``12 L (alpha delta eta)^2 > mu beta^2`` brings
    about, so does the bound.
    """
    L, mu, alpha, eta, beta = (float(v) for v in (by.L, by.mu, by.alpha, by.eta, by.beta))
    a2, d2 = alpha**2, float(by.delta) ** 2
    step = np.array(
        [
            [1.0 - eta * mu, a2 * d2 * eta, a2 * eta, 0.5 * L * eta**2 * float(by.spread)],
            [6.0 * L * eta**2, 3.0 * a2 * d2 * eta**2, 3.0 * a2 * eta**2, eta**2 * float(by.spread)],
            [0.0, 2.0 * d2 / beta, 1.0 - beta, beta**2 * float(by.observed)],
            [0.0, 0.0, 0.0, 1.0],
        ]
    )
    start, most = np.array([F0, 0.0, E0, 1.0]), np.inf if L * eta > SLACK else 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        found = [(np.linalg.matrix_power(step, int(t)) @ start)[0] for t in np.atleast_1d(T)]
    return np.asarray(np.nan_to_num(np.array(found), nan=np.inf, posinf=np.inf) + most)


def after_own_step(by: Correction, F0: Value, G0: Value | None = None) -> tuple[Floats, Floats]:
    """F_1 and e_1 at most where ``c_0 = b_0`` shares the first step's noise, which is then one of working alone.

    Bounds go on from there with T - 1. ``G0 = |grad f_0(x_0)|^2``, by default at most ``2 L F_0``. ``c_1 = b_0`` has
    variance S, and the bias moves by ``delta |x_1 - x_0|``.
    """
    G0 = 2.0 * by.L * F0 if G0 is None else np.asarray(G0)
    moved = by.delta * by.eta * np.sqrt(by.noise0 + G0)
    F1 = (1.0 - by.mu * by.eta) * F0 + 0.5 * by.L * by.eta**2 * by.noise0
    return np.asarray(F1), np.asarray((np.sqrt(by.observed) + moved) ** 2)


def first_move(G0: Value, zeta2: Value, m: Value = 0.0) -> Floats:
    """``zeta~^2 = 2 zeta^2 + 2 (1 + m) |grad f_0(x_0)|^2``, C.4's bracket, of which Theorem 5.2 prints another."""
    return np.asarray(2.0 * np.asarray(zeta2) + 2.0 * (1.0 + np.asarray(m)) * G0)
