"""Multinomial logistic regression of many clients.

A client's parameters are a matrix Theta (p, K) with a column for each class, kept as a row of length d = p K: the
coefficient of column j for class c is number ``j K + c``. Rows are sorted by client, as in ``glm``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.numerics.arrays import Floats, Ints, reading
from coterie.objectives.constants import BLOCK, extreme_eigenvalues
from coterie.objectives.glm import GLM
from coterie.objectives.gradient_steps import WeightedRows
from coterie.objectives.row_kernels import (
    SOFTMAX,
    Data,
    owned_rows,
    predictors,
    probabilities,
    row_ranges,
    weighted_means,
    weighted_sums,
)


@reading
def _row_losses(data: Data, classes: int, theta: Floats) -> Floats:
    _, X, y, _, _, starts, stops = data
    out, z, at = np.empty((stops - starts).sum()), np.empty(classes), 0
    for i in range(starts.shape[0]):
        for r in range(starts[i], stops[i]):
            predictors(X, r, theta[i], z)
            out[at] = probabilities(z, int(y[r]))
            at += 1
    return out


@reading
def _outputs(data: Data, classes: int, theta: Floats) -> Floats:
    _, X, _, _, _, starts, stops = data
    out, at = np.empty(((stops - starts).sum(), classes)), 0
    for i in range(starts.shape[0]):
        for r in range(starts[i], stops[i]):
            predictors(X, r, theta[i], out[at])
            at += 1
    return out


@dataclass(frozen=True)
class Softmax(WeightedRows):
    """``f_i(theta) = sum_r w_r (-log p_r(y_r) + ridge |theta|^2 / 2)`` over client i's rows r.

    The probabilities ``p_r`` are the softmax of ``x_r' Theta``. The ridge belongs to every row, so that losses of
    clients add up to the one of all their rows; it makes the minimum unique, and the mean loss has it once.

    Rows are sorted by client; a constant column is the caller's. :meth:`of` checks rows; this class does not.
    """

    X: Floats  # (n, p)
    y: Floats  # (n,) classes 0, ..., classes - 1, as kernels take outcomes
    weights: Floats  # (n,)
    starts: Ints
    stops: Ints  # (m,) row range of every client
    classes: int
    ridge: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "y", np.asarray(self.y, dtype=np.float64))

    @classmethod
    def of(
        cls,
        X: npt.ArrayLike,
        y: npt.ArrayLike,
        starts: npt.ArrayLike,
        stops: npt.ArrayLike,
        classes: int | None = None,
        weights: npt.ArrayLike | None = None,
        ridge: float = 0.0,
    ) -> Softmax:
        """Check rows, by default of weight 1 and with as many classes as the largest label says."""
        X, labels = np.ascontiguousarray(X, dtype=np.float64), np.asarray(y)
        w = np.ones(len(X)) if weights is None else np.ascontiguousarray(weights, dtype=np.float64)
        if X.ndim != 2 or labels.shape != (len(X),) or w.shape != (len(X),):
            raise CoterieError("X must be (rows, columns), with one label and one weight for each row.")
        if not (np.isfinite(X).all() and np.isfinite(w).all() and (w >= 0.0).all() and 0.0 <= ridge < np.inf):
            raise CoterieError("X, weights and ridge must be finite, and the latter two not negative.")
        codes = np.full(len(X), -1)
        if labels.dtype.kind in "biuf":
            with np.errstate(invalid="ignore"):  # of infinities, which become negative
                codes = np.where(labels == np.floor(labels), labels, -1).astype(np.int64)
        K = int(codes.max(initial=0)) + 1 if classes is None else int(classes)
        if len(bad := np.flatnonzero((codes < 0) | (codes >= K))):
            raise CoterieError(
                f"Labels must be whole numbers from 0 to {K - 1}, unlike {labels[bad[0]]}: code classes as such first."
            )
        return cls(X, codes.astype(np.float64), w, *row_ranges(starts, stops, len(X)), K, float(ridge))

    @property
    def compiled(self) -> Data:
        """What kernels over rows take first."""
        return (SOFTMAX, 0.0, 0.0), self.X, self.y, self.weights[:0], self.weights, self.starts, self.stops

    @property
    def step_data(self) -> tuple[Data, int, float]:
        """What kernels of steps take first."""
        return self.compiled, self.classes, self.ridge

    def value(self, theta: npt.ArrayLike) -> Floats:
        """Losses (m,) at one theta (d,) or at one for each client (m, d)."""
        each = self._each(theta)
        square = 0.5 * self.ridge * np.sum(each**2, axis=1) if self.ridge else 0.0
        return weighted_sums(self, self.row_losses(theta)) + self.sizes() * square

    def row_losses(self, theta: npt.ArrayLike) -> Floats:
        """The loss of every row (sum of counts,), without weights or ridge, client after client."""
        return _row_losses(self.compiled, self.classes, self._each(theta))

    def predict(self, theta: npt.ArrayLike) -> Ints:
        """The likeliest class of every row at its client's theta, client after client (sum of counts,)."""
        return np.asarray(self.outputs(theta).argmax(axis=1), dtype=np.int64)

    def outputs(self, theta: npt.ArrayLike) -> Floats:
        """The scores of every row's classes, client after client (sum of counts, classes)."""
        return _outputs(self.compiled, self.classes, self._each(theta))

    def targets(self) -> Ints:
        """The class of every row, client after client (sum of counts,)."""
        return self.y[owned_rows(self.starts, self.stops)[1]].astype(np.int64)

    def accuracy(self, theta: npt.ArrayLike) -> Floats:
        """Share of every client's weight that is classified rightly (m,); NaN where no row weighs."""
        return weighted_means(self, self.predict(theta) == self.targets())

    def smoothness(self) -> Floats:
        """A bound (m,) of the mean losses' curvature: ``lambda_max(X'WX) / (2 sum w) + ridge`` (Boehning 1992)."""
        out, size = np.empty(len(self)), self.sizes()
        none, one = np.zeros(len(self.X)), np.ones(self.X.shape[1])
        for at in range(0, len(self), BLOCK):
            some = slice(at, at + BLOCK)
            rows = GLM(self.X, none, none, self.weights, self.starts[some], self.stops[some])
            out[some] = extreme_eigenvalues(rows.gram(one)[0])[1]
        return np.where(size > 0.0, 0.5 * out / np.where(size > 0.0, size, 1.0) + self.ridge, 0.0)
