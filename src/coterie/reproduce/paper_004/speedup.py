"""The bound of Theorem 4.1 (mu-PL) as a function of alpha, and how much its best alpha gains over none.

For equal collaborators (sigma_k = sigma_0, zeta_k = zeta, tau_k = 1 / N), without the term that T forgets, in units of
``L sigma_0^2 / (mu^2 T)``, which is what is left at alpha = 0:

    ((1 - alpha)^2 + alpha^2 / N) / (1 - alpha^2 m)^2 + r alpha^2 / (1 - alpha^2 m),   r = mu zeta^2 T / (L sigma_0^2)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.numerics.kernels import Floats


def bound(alpha: npt.ArrayLike, N: npt.ArrayLike, m: float, r: npt.ArrayLike) -> Floats:
    """The bound relative to alpha = 0; arguments broadcast."""
    a = np.asarray(alpha, dtype=float)
    room = 1.0 - m * a**2
    return np.asarray(((1.0 - a) ** 2 + a**2 / np.asarray(N)) / room**2 + np.asarray(r) * a**2 / room)


def closed(N: npt.ArrayLike, r: npt.ArrayLike) -> Floats:
    """The best alpha for m = 0: ``1 / (1 + 1/N + r)``."""
    return np.asarray(1.0 / (1.0 + 1.0 / np.asarray(N, dtype=float) + np.asarray(r)))


def best(N: npt.ArrayLike, m: float = 0.0, r: npt.ArrayLike = 0.0) -> Floats:
    """The best alpha below ``min(1, 1 / sqrt(m))``, numerically: a grid, made finer around its best point.

    Parameters
    ----------
    N : (...) float
        Collaborators.
    m : float, default 0
        Of A4.
    r : (...) float, default 0
        ``mu zeta^2 T / (L sigma_0^2)``.

    Returns
    -------
    (...)
    """
    N, r = np.broadcast_arrays(np.asarray(N, dtype=float), np.asarray(r, dtype=float))
    low, high = np.zeros(N.shape), np.full(N.shape, min(1.0, (1.0 - 1e-12) / m**0.5) if m > 0.0 else 1.0)
    share = np.linspace(0.0, 1.0, 201).reshape(-1, *(1,) * N.ndim)
    for _ in range(6):
        grid = low + (high - low) * share
        at = np.argmin(bound(grid, N, m, r), axis=0)
        low, high = (np.take_along_axis(grid, np.clip(at + s, 0, 200)[None], axis=0)[0] for s in (-1, 1))
    return np.asarray(0.5 * (low + high))
