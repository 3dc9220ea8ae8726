"""Rows to train on beside rows to test on; and the quadratics that a warm-started path of fits goes along by."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from coterie.numerics.kernels import Floats, Ints, kernel
from coterie.objectives.glm import GLM, Data, point


@dataclass(frozen=True)
class HeldOut(GLM):
    """A GLM of the rows to train on, beside held-out rows of the same clients.

    Attributes
    ----------
    test : GLM
        The rows to test on, of as many clients.
    """

    test: GLM | None = None

    @classmethod
    def of(cls, train: GLM, test: GLM) -> HeldOut:
        """Put the two together."""
        return cls(**{name: getattr(train, name) for name in GLM.__dataclass_fields__}, test=test)

    def take(self, rows: slice | Ints) -> HeldOut:
        """The same rows seen as other clients, on both sides."""
        test = None if self.test is None else self.test.take(rows)
        return replace(self, starts=self.starts[rows], stops=self.stops[rows], test=test)


@kernel
def _expand(
    data: Data,
    unit: Floats,
    theta: Floats,
) -> tuple[Floats, Floats]:
    family, X, y, offset, weights, starts, stops = data
    m, p = theta.shape
    A, b = np.zeros((m, p * (p + 1) // 2)), np.zeros((m, p))
    x = np.empty(p)
    for i in range(m):
        for r in range(starts[i], stops[i]):
            at, eta = 0.0, offset[r]
            for j in range(p):
                x[j] = X[r, j] * unit[j]
                at += x[j] * theta[i, j]
            _, score, curvature, _ = point(family, eta + at, y[r])
            score = weights[r] * (score + curvature * at)
            curvature *= weights[r]
            c = 0
            for j in range(p):
                b[i, j] += score * x[j]
                t = curvature * x[j]
                for k in range(j + 1):
                    A[i, c] += t * x[k]
                    c += 1
    return A, b


def expand(glm: GLM, unit: Floats, theta: Floats) -> tuple[Floats, Floats]:
    """The losses to second order around theta (m, p): ``theta' A theta / 2 - b' theta``.

    Columns and parameters are in units of ``unit`` (p,). Returns A (m, P), packed, and b (m, p): ``score + A theta``.
    """
    return _expand(glm.compiled, unit, theta)
