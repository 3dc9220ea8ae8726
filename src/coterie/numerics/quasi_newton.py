"""BFGS with its whole state in arrays, so that a run can be stopped and resumed to the bit.

References
----------
Nocedal, Wright (2006), Numerical Optimization, section 6.1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def inverse(H: Floats) -> Floats:
    """Positive definite inverse of an approximate Hessian, flat directions held at a thousandth of the steepest."""
    if not len(H):
        return H
    scale = np.sqrt(np.maximum(np.diag(H), 1e-3 * max(float(np.diag(H).max()), 1e-300)))
    values, vectors = np.linalg.eigh(H / np.outer(scale, scale))
    values = np.maximum(values, 1e-3)
    return np.asarray((vectors / values) @ vectors.T / np.outer(scale, scale))


def update(H: Floats, s: Floats, y: Floats) -> Floats:
    """The inverse Hessian after a step s changed the gradient by y; unchanged where curvature is not positive."""
    curvature = float(s @ y)
    if not curvature > 1e-10 * float(np.linalg.norm(s) * np.linalg.norm(y)):
        return H
    V = np.eye(len(s)) - np.outer(s, y) / curvature
    return V @ H @ V.T + np.outer(s, s) / curvature
