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
    """Positive definite inverses of approximate Hessians (..., a, a), flat directions held at .001 of the steepest."""
    if not H.shape[-1]:
        return H
    diagonal = np.diagonal(H, axis1=-2, axis2=-1)
    steepest = diagonal.max(axis=-1, keepdims=True)
    steepest = np.where(steepest > 0.0, steepest, 1.0)  # no curvature is known: steps as long as the gradient
    scale = np.sqrt(np.maximum(diagonal, 1e-3 * steepest))
    scale = scale[..., :, None] * scale[..., None, :]
    values, vectors = np.linalg.eigh(H / scale)
    return np.asarray((vectors / np.maximum(values, 1e-3)[..., None, :]) @ np.swapaxes(vectors, -1, -2) / scale)


def update(H: Floats, s: Floats, y: Floats) -> Floats:
    """The inverse Hessian after a step s changed the gradient by y; unchanged where curvature is not positive."""
    curvature = float(s @ y)
    if not curvature > 1e-10 * float(np.linalg.norm(s) * np.linalg.norm(y)):
        return H
    V = np.eye(len(s)) - np.outer(s, y) / curvature
    return V @ H @ V.T + np.outer(s, s) / curvature
