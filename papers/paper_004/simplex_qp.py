"""Convex quadratic programs over weights that are not negative and add up to 1, by an active set."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.numerics.arrays import Bools, Floats

NOTHING = 1e-13
"""Curvatures and slopes, relative to the largest, that rounding cannot tell from 0."""


def simplex_qp(Q: npt.ArrayLike, q: npt.ArrayLike | None = None) -> Floats:
    """Minimise ``tau' Q tau + q' tau`` over the simplex, exactly, by an active set.

    It starts at the best vertex, lets in the weight whose marginal cost is smallest, and goes to the minimum over the
    weights that are in, or to the first that becomes zero, which leaves. Where Q is flat it slides down to the edge.

    Parameters
    ----------
    Q : (N, N)
        Symmetric, positive semi-definite; it may be singular.
    q : (N,), optional
        By default 0.

    Returns
    -------
    (N,)
        tau; one of the minimisers, where there are several.

    Raises
    ------
    CoterieError
        For numbers that are not finite, shapes that do not fit, no weights, or a Q that is not symmetric or not convex.
    """
    Q = np.asarray(Q, dtype=np.float64)
    q = np.zeros(len(Q)) if q is None else np.asarray(q, dtype=np.float64)
    _check(Q, q)
    n = len(q)
    tau = np.zeros(n)
    tau[np.argmin(np.diag(Q) + q)] = 1.0
    free = tau > 0.0
    least = NOTHING * n * max(float(np.abs(Q).max()), float(np.ptp(q)))
    for _ in range(100 * n):
        tau, free = _descend(Q, q, tau, free)
        cost = 2.0 * Q @ tau + q
        cost -= cost @ tau
        enters = int(np.argmin(np.where(free, np.inf, cost)))
        if free[enters] or cost[enters] >= -least:
            return np.asarray(tau / tau.sum())
        free[enters] = True
    raise CoterieError("No weights were found: the numbers differ too much in size, so give them in other units.")


def _check(Q: Floats, q: Floats) -> None:
    if Q.ndim != 2 or Q.shape[0] != Q.shape[1] or q.shape != (len(Q),) or not len(q):
        raise CoterieError(f"Weights need a square matrix and as many numbers, one at least, not {Q.shape}, {q.shape}.")
    if not (np.isfinite(Q).all() and np.isfinite(q).all()):
        raise CoterieError("Weights need a matrix and numbers that are finite.")
    most = float(np.abs(Q).max())
    if np.abs(Q - Q.T).max() > 1e-10 * most:
        raise CoterieError("The matrix of the weights must be symmetric: give (Q + Q') / 2.")
    if np.linalg.eigvalsh(_centred(Q))[0] < -1e-10 * len(q) * most:
        raise CoterieError("The matrix of the weights must be positive semi-definite, so that there is one minimum.")


def _centred(Q: Floats) -> Floats:
    """What Q is among changes that add up to 0."""
    means = Q.mean(axis=0)
    return np.asarray(Q - means - means[:, None] + means.mean())


def _descend(Q: Floats, q: Floats, tau: Floats, free: Bools) -> tuple[Floats, Bools]:
    """The minimum over the free weights, fewer of them where some become zero on the way."""
    tau, free = tau.copy(), free.copy()
    while True:
        on = np.flatnonzero(free)
        p, bounded = _direction(Q[np.ix_(on, on)], 2.0 * Q[on] @ tau + q[on], float(np.abs(Q).max()))
        falls = p < 0.0
        room = np.where(falls, tau[on] / np.where(falls, -p, 1.0), np.inf)
        first = int(np.argmin(room))
        if bounded and room[first] >= 1.0:
            tau[on] += p
            return tau, free
        tau[on] = np.maximum(tau[on] + room[first] * p, 0.0)
        tau[on[first]], free[on[first]] = 0.0, False


def _direction(Q: Floats, slope: Floats, most: float) -> tuple[Floats, bool]:
    """The change, adding up to 0, that leads to the minimum; or one along which the cost falls for ever, and False."""
    slope, curved = slope - slope.mean(), 2.0 * _centred(Q)
    try:  # the constant direction made as curved as the others: most often that is all there is to do
        factor = np.linalg.cholesky(curved + 2.0 * most / len(Q))
        if np.diag(factor).min() ** 2 > 1e-6 * most:
            p = -np.linalg.solve(curved + 2.0 * most / len(Q), slope)
            return p - p.mean(), True
    except np.linalg.LinAlgError:
        pass
    values, vectors = np.linalg.eigh(curved)
    along = slope @ vectors
    seen = values > NOTHING * len(values) * most
    flat = vectors[:, ~seen] @ along[~seen]
    flat -= flat.mean()
    if len(values) > 1 and np.abs(flat).max() > 1e-10 * max(np.abs(slope).max(), most):
        return -flat, False
    return -(vectors[:, seen] @ (along[seen] / values[seen])), True
