"""Multinomial logistic regression of many clients: losses, gradients and runs of local steps over their rows.

A client's parameters are a matrix Theta (p, K) with a column for each class, kept as a row of length d = p K: the
coefficient of column j for class c is number ``j K + c``. Rows are sorted by client, as in ``glm``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.numerics.arrays import Floats, Ints, kernel, reading
from coterie.numerics.keyed_random import key, whole
from coterie.objectives.constants import BLOCK, extreme_eigenvalues
from coterie.objectives.glm import GLM
from coterie.objectives.gradient_steps import Draws, advance, changes
from coterie.objectives.mean_loss import row_ranges, totals

Data = tuple[Floats, Ints, Floats, Ints, Ints, int, float]
"""X, y, weights, starts, stops, number of classes, ridge: what kernels take first."""


@kernel
def _predictors(X: Floats, r: int, theta: Floats, z: Floats) -> None:
    """z (K,) = the linear predictors of row r."""
    K = z.shape[0]
    z[:] = 0.0
    for j in range(X.shape[1]):
        x = X[r, j]
        if x != 0.0:  # pixels often are
            for c in range(K):
                z[c] += x * theta[j * K + c]


@kernel
def _probabilities(z: Floats, label: int) -> float:
    """Turn linear predictors into probabilities; minus the logarithm of the label's."""
    top, total, own = float(z.max()), 0.0, float(z[label])
    for c in range(z.shape[0]):
        z[c] = np.exp(z[c] - top)
        total += z[c]
    for c in range(z.shape[0]):
        z[c] /= total
    return top - own + float(np.log(total))


@kernel
def _add_row(X: Floats, y: Ints, r: int, theta: Floats, scale: float, z: Floats, g: Floats) -> None:
    """g += scale times the gradient of row r's loss; z is scratch."""
    K = z.shape[0]
    _predictors(X, r, theta, z)
    _probabilities(z, y[r])
    z[y[r]] -= 1.0
    for j in range(X.shape[1]):
        t = scale * X[r, j]
        if t != 0.0:
            for c in range(K):
                g[j * K + c] += t * z[c]


@kernel
def _mean_gradient(
    data: Data, i: int, weight: float, theta: Floats, start: np.uint64, step: int, size: int, z: Floats, g: Floats
) -> None:
    """g = the gradient of client i's mean loss at theta, over all rows or over those that the step draws."""
    X, y, weights, starts, stops, _, ridge = data
    lo, n, seen = starts[i], stops[i] - starts[i], 0.0
    g[:] = 0.0
    if not weight > 0.0:
        return
    if size == 0:
        for r in range(lo, lo + n):
            _add_row(X, y, r, theta, weights[r] / weight, z, g)
        seen = 1.0
    else:
        drawn = key(start, step)
        for b in range(size):
            r = lo + whole(drawn, b, n)
            scale = weights[r] * n / (size * weight)
            _add_row(X, y, r, theta, scale, z, g)
            seen += scale
    if ridge > 0.0:
        for j in range(g.shape[0]):
            g[j] += seen * ridge * theta[j]


@reading
def _gradients(
    data: Data, weight: Floats, theta: Floats, keys: npt.NDArray[np.uint64], first: Ints, size: int
) -> Floats:
    out, z = np.empty(theta.shape), np.empty(data[5])
    for i in range(theta.shape[0]):
        _mean_gradient(data, i, weight[i], theta[i], keys[i], first[i], size, z, out[i])
    return out


@reading
def _walk(
    data: Data,
    weight: Floats,
    theta: Floats,
    anchor: Floats,
    eta: Floats,
    pull: float,
    steps: Ints,
    keys: npt.NDArray[np.uint64],
    first: Ints,
    size: int,
    fresh: bool,
    shift: Floats,
    on: Floats,
) -> Floats:
    out, g, z = theta.copy(), np.empty(theta.shape[1]), np.empty(data[5])
    plain = shift.shape[0] == 0 and on.shape[0] == 0
    for i in range(theta.shape[0]):
        for s in range(steps[i]):
            _mean_gradient(data, i, weight[i], out[i], keys[i], first[i] + (s if fresh else 0), size, z, g)
            if plain:
                for j in range(g.shape[0]):
                    out[i, j] -= eta[i] * (g[j] + pull * (out[i, j] - anchor[i, j]))
            else:
                advance(out[i], g, i, anchor, eta, pull, shift, on)
    return out


@reading
def _values(data: Data, theta: Floats) -> Floats:
    X, y, weights, starts, stops, K, ridge = data
    out, z = np.zeros(starts.shape[0]), np.empty(K)
    for i in range(starts.shape[0]):
        square = 0.5 * ridge * np.dot(theta[i], theta[i])
        for r in range(starts[i], stops[i]):
            _predictors(X, r, theta[i], z)
            out[i] += weights[r] * (_probabilities(z, y[r]) + square)
    return out


@reading
def _row_losses(data: Data, theta: Floats) -> Floats:
    X, y, _, starts, stops, K, _ = data
    out, z, at = np.empty((stops - starts).sum()), np.empty(K), 0
    for i in range(starts.shape[0]):
        for r in range(starts[i], stops[i]):
            _predictors(X, r, theta[i], z)
            out[at] = _probabilities(z, y[r])
            at += 1
    return out


@kernel
def _predict(data: Data, theta: Floats, hits: Floats) -> Ints:
    """The likeliest class of every row, client after client; hits (m,) = weight of the rows whose label it is."""
    X, y, weights, starts, stops, K, _ = data
    out, z, at = np.empty((stops - starts).sum(), dtype=np.int64), np.empty(K), 0
    for i in range(starts.shape[0]):
        for r in range(starts[i], stops[i]):
            _predictors(X, r, theta[i], z)
            out[at] = z.argmax()
            if out[at] == y[r]:
                hits[i] += weights[r]
            at += 1
    return out


@dataclass(frozen=True)
class Softmax:
    """``f_i(theta) = sum_r w_r (-log p_r(y_r) + ridge |theta|^2 / 2)`` over client i's rows r.

    The probabilities ``p_r`` are the softmax of ``x_r' Theta``. The ridge belongs to every row, so that losses of
    clients add up to the one of all their rows; it makes the minimum unique, and the mean loss has it once.

    Parameters
    ----------
    X : (n, p) float64
        Rows sorted by client; a constant column is the caller's.
    y : (n,) int64
        Classes 0, ..., classes - 1.
    weights : (n,) float64
    starts, stops : (m,) int64
        Row range of every client.
    classes : int
    ridge : float, default 0

    Notes
    -----
    :meth:`of` checks a caller's rows; this class does not.
    """

    X: Floats
    y: Ints
    weights: Floats
    starts: Ints
    stops: Ints
    classes: int
    ridge: float = 0.0

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
        codes = labels.astype(np.int64) if labels.dtype.kind in "biu" else np.full(len(X), -1)
        K = int(codes.max(initial=0)) + 1 if classes is None else int(classes)
        if codes.min(initial=0) < 0 or codes.max(initial=0) >= K:
            raise CoterieError(f"Labels must be whole numbers from 0 to {K - 1}: code classes as such first.")
        return cls(X, codes, w, *row_ranges(starts, stops, len(X)), K, float(ridge))

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def dim(self) -> int:
        """Number of parameters p K."""
        return int(self.X.shape[1]) * self.classes

    @property
    def counts(self) -> Ints:
        """Rows of every client."""
        return self.stops - self.starts

    def take(self, rows: slice | Ints) -> Softmax:
        """The same rows seen as other clients: any order, repeats allowed, nothing copied but the row ranges."""
        return replace(self, starts=self.starts[rows], stops=self.stops[rows])

    @property
    def compiled(self) -> Data:
        """What kernels take first."""
        return self.X, self.y, self.weights, self.starts, self.stops, self.classes, self.ridge

    def sizes(self) -> Floats:
        """The weight of every client's rows (m,)."""
        return totals(self.weights, self.starts, self.stops)

    def _each(self, theta: npt.ArrayLike) -> Floats:
        return np.ascontiguousarray(np.broadcast_to(np.asarray(theta, dtype=np.float64), (len(self), self.dim)))

    def value(self, theta: npt.ArrayLike) -> Floats:
        """Losses (m,) at one theta (d,) or at one for each client (m, d)."""
        return _values(self.compiled, self._each(theta))

    def row_losses(self, theta: npt.ArrayLike) -> Floats:
        """The loss of every row (sum of counts,), without weights or ridge, client after client."""
        return _row_losses(self.compiled, self._each(theta))

    def gradient(self, theta: npt.ArrayLike) -> Floats:
        """Gradients (m, d) of the losses at one theta (d,) or at one for each client (m, d)."""
        return self.sizes()[:, None] * self.mean_gradient(self._each(theta), Draws.of_all(len(self)))

    def mean_gradient(self, theta: Floats, draws: Draws) -> Floats:
        """Gradients (m, d) of the mean losses over the rows drawn; zero where no row weighs."""
        return _gradients(self.compiled, self.sizes(), self._each(theta), draws.keys, draws.first, draws.size)

    def walk(
        self,
        theta: Floats,
        anchor: Floats,
        eta: Floats,
        pull: float,
        steps: Ints,
        draws: Draws,
        fresh: bool,
        shift: Floats | None = None,
        on: npt.NDArray[Any] | None = None,
    ) -> Floats:
        """Local steps on the mean losses: see ``mean_loss.walk``."""
        start, to, size = self._each(theta), self._each(anchor), self.sizes()
        rows = (draws.keys, draws.first, draws.size)
        return _walk(self.compiled, size, start, to, eta, float(pull), steps, *rows, fresh, *changes(shift, on))

    def predict(self, theta: npt.ArrayLike) -> Ints:
        """The likeliest class of every row at its client's theta, client after client (sum of counts,)."""
        return _predict(self.compiled, self._each(theta), np.zeros(len(self)))

    def accuracy(self, theta: npt.ArrayLike) -> Floats:
        """Share of every client's weight that is classified rightly (m,); NaN where no row weighs."""
        hits, size = np.zeros(len(self)), self.sizes()
        _predict(self.compiled, self._each(theta), hits)
        return np.where(size > 0.0, hits / np.where(size > 0.0, size, 1.0), np.nan)

    def smoothness(self) -> Floats:
        """A bound (m,) of the mean losses' curvature: ``lambda_max(X'WX) / (2 sum w) + ridge`` (Boehning 1992)."""
        out, size = np.empty(len(self)), self.sizes()
        none, one = np.zeros(len(self.X)), np.ones(self.X.shape[1])
        for at in range(0, len(self), BLOCK):
            some = slice(at, at + BLOCK)
            rows = GLM(self.X, none, none, self.weights, self.starts[some], self.stops[some])
            out[some] = extreme_eigenvalues(rows.gram(one)[0])[1]
        return np.where(size > 0.0, 0.5 * out / np.where(size > 0.0, size, 1.0) + self.ridge, 0.0)
