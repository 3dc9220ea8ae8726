"""Linear speedup in personalized collaborative learning (2022), appendix B: noise that grows with the gradient.

A5 becomes ``E|n_k|^2 <= M_k |grad f_k|^2 + sigma_k^2``. With A4 and ``|grad f_k|^2 <= 2 (1 + m) |grad f_0|^2 +
2 zeta_k^2`` all noise is bounded by the main client's gradient, and ``Descent`` has the steps that follow.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.methods.collaboration.theory.descent_theory import Value
from coterie.numerics.kernels import Floats


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
