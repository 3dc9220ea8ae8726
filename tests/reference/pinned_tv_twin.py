"""The pinned total-variation prox, slowly: paper 003's Algorithm 4 as it ought to read, and an exact dual descent."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.linalg import cho_solve_banded, cholesky_banded


def differences(q: np.ndarray) -> np.ndarray:
    """Lambda q: each element less the next, and the last itself."""
    return np.append(q[:-1] - q[1:], q[-1])


def transposed(u: np.ndarray) -> np.ndarray:
    """Lambda' u."""
    return u - np.append(0.0, u[:-1])


def objective(q: np.ndarray, g: np.ndarray, weight: float) -> float:
    """What the prox minimises."""
    return float(0.5 * np.sum((q - g) ** 2) + weight * np.sum(np.abs(differences(q))))


def violation(q: np.ndarray, g: np.ndarray, weight: float) -> float:
    """By how much elements of q would have to change to be the minimum.

    q = g - Lambda' u needs |u| <= weight, and u = weight times the sign of Lambda q wherever that is not 0. u, the
    cumulative sum of g - q, is added up run by run, in extended precision; what it lacks is spread over the run.
    """
    sign = np.sign(differences(q))
    stops = np.flatnonzero(np.append(sign[:-1] != 0.0, True)) + 1
    starts = np.append(0, stops[:-1])
    lengths = stops - starts
    u = np.cumsum(g.astype(np.longdouble) - q.astype(np.longdouble))
    before, knots = np.append(0.0, u)[starts], weight * sign[stops - 1]
    u += np.repeat(np.append(0.0, knots[:-1]) - before, lengths)
    outside = np.maximum.reduceat(np.abs(u), starts) - weight
    apart = np.where(knots != 0.0, np.abs(u[stops - 1] - knots), 0.0)
    return float((np.maximum(np.maximum(outside, apart), 0.0) / lengths).max())


def admm(g: np.ndarray, weight: float, rho: float) -> Iterator[np.ndarray]:
    """Algorithm 4 for ``q = (x - y) / eta``, which rids it of eta and x: the iterates y_1, y_2, ... for ever.

    It minimises ``||r||_1 + 1/(2 weight) ||y - g||^2`` subject to r = Lambda y, by the Lagrangian with ``<omega, r -
    Lambda y>``. Corrected in three places: the soft threshold is 1/rho, not rho; the y-step has the matrix ``I + rho
    weight Lambda' Lambda`` and the right side ``g + weight Lambda' (rho r + omega)``, with Lambda'; both follow the
    signs of that Lagrangian.
    """
    d = len(g)
    bands = np.empty((2, d))
    bands[0], bands[1] = -rho * weight, 1.0 + 2.0 * rho * weight
    bands[1, 0] = 1.0 + rho * weight
    factor = cholesky_banded(bands, check_finite=False)
    y, omega = g, np.zeros(d)
    while True:
        apart = differences(y) - omega / rho
        r = np.sign(apart) * np.maximum(np.abs(apart) - 1.0 / rho, 0.0)
        y = cho_solve_banded((factor, False), g + weight * transposed(rho * r + omega), check_finite=False)
        omega = omega + rho * (r - differences(y))
        yield y


def exact(g: np.ndarray, weight: float) -> np.ndarray:
    """By hand, run by run: the string's next knot is where it must first turn.

    From a knot all slopes that stay in the tube up to element i form an interval, which shrinks with i. When it is
    empty, the string goes to the last element at which its binding end was attained. If it never is, the string ends
    at the slope that is nearest to 0. Cubic in the worst case.
    """
    d, start, above, q = len(g), 0, 0.0, np.empty(len(g))
    while start < d:
        low, high, at_low, at_high, turned = -np.inf, np.inf, start, start, False
        for i in range(start + 1, d + 1):
            total = g[start:i].sum() - above
            floor, ceiling = (total - weight) / (i - start), (total + weight) / (i - start)
            if floor > high or ceiling < low:
                turned = True
                break
            if floor >= low:
                low, at_low = floor, i
            if ceiling <= high:
                high, at_high = ceiling, i
        if (turned and floor > high) or (not turned and high < 0.0):
            q[start:at_high], start, above = high, at_high, weight
        elif turned or low > 0.0:
            q[start:at_low], start, above = low, at_low, -weight
        else:
            q[start:], start = 0.0, d
    return q
