"""Generalised linear models of many clients: negative log-likelihoods, their derivatives, and modes under a prior.

Rows are sorted by client; client i owns rows ``starts[i]:stops[i]``. Every kernel runs through one
client at a time, so that its block stays in cache.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.families import GAUSSIAN, STUDENT_T, Family, family_named
from coterie.likelihoods import above, constant, dispersed
from coterie.numerics.arrays import Floats, Ints, kernel, part, reading
from coterie.objectives.gradient_steps import WeightedRows
from coterie.objectives.row_kernels import Data, row_derivatives

_above, _constant, _dispersed = part(above), part(constant), part(dispersed)
_GAUSSIAN, _STUDENT_T = GAUSSIAN.code, STUDENT_T.code


@kernel
def _moments(data: Data) -> tuple[Floats, Floats, Floats, Floats, Floats, Floats]:
    family, X, y, offset, weights, starts, stops = data
    m, p = starts.shape[0], X.shape[1]
    rows, w, v, constants = np.zeros(m), np.zeros(m), np.zeros(m), np.zeros(m)
    s, ss = np.zeros((m, p)), np.zeros((m, p))
    for i in range(m):
        for r in range(starts[i], stops[i]):
            rows[i] += weights[r] > 0.0
            w[i] += weights[r]
            v[i] += weights[r] * (y[r] - offset[r])
            constants[i] += _constant(family, y[r], weights[r])
            for j in range(p):
                t = weights[r] * X[r, j]
                s[i, j] += t
                ss[i, j] += t * X[r, j]
    return rows, w, v, constants, s, ss


@reading
def _gram(data: Data, unit: Floats, shift: float) -> tuple[Floats, Floats, Floats]:
    """Per client: packed X'WX, X'Wy and y'Wy of the columns in units ``unit``, y less its offset and shift."""
    _, X, y, offset, weights, starts, stops = data
    m, p = starts.shape[0], X.shape[1]
    A, b, c = np.zeros((m, p * (p + 1) // 2)), np.zeros((m, p)), np.zeros(m)
    x = np.empty(p)
    for i in range(m):
        for r in range(starts[i], stops[i]):
            v = y[r] - offset[r] - shift
            wt = weights[r]
            at = 0
            for j in range(p):
                x[j] = X[r, j] * unit[j]
                t = wt * x[j]
                for k in range(j + 1):
                    A[i, at] += t * x[k]
                    at += 1
                b[i, j] += t * v
            c[i] += wt * v * v
    return A, b, c


@part
def _client_derivatives(
    data: Data, i: int, unit: Floats, theta: Floats, g: Floats, A: Floats, x: Floats, bounded: bool
) -> tuple[float, float]:
    """Loss of client i at theta and n times its rows' squared gradients; g and A (packed) become score and curvature.

    ``bounded``: the curvature of what is nowhere below the loss. x (p,) is scratch.
    """
    family, X, y, offset, weights, starts, stops = data
    g[:] = 0.0
    A[:] = 0.0
    loss, square = 0.0, 0.0
    for r in range(starts[i], stops[i]):
        eta, length = offset[r], 0.0
        for j in range(x.shape[0]):
            x[j] = X[r, j] * unit[j]
            eta += x[j] * theta[j]
            length += x[j] * x[j]
        f, s, v, _ = row_derivatives(family, eta, y[r])
        if bounded:
            v = _above(family, eta, y[r], v)
        wt = weights[r]
        loss += wt * f
        s *= wt
        v *= wt
        square += s * s * length
        at = 0
        for j in range(x.shape[0]):
            g[j] += s * x[j]
            t = v * x[j]
            for k in range(j + 1):
                A[at] += t * x[k]
                at += 1
    return loss, square * (stops[i] - starts[i])


@reading
def _derivatives(data: Data, unit: Floats, theta: Floats, bounded: bool) -> tuple[Floats, Floats, Floats, Floats]:
    m, p = theta.shape
    value, square, g, A, x = np.empty(m), np.empty(m), np.empty((m, p)), np.empty((m, p * (p + 1) // 2)), np.empty(p)
    for i in range(m):
        value[i], square[i] = _client_derivatives(data, i, unit, theta[i], g[i], A[i], x, bounded)
    return value, g, A, square


@part
def cholesky(M: Floats) -> bool:
    """Replace the lower triangle of M by its Cholesky factor; False where M is not positive definite."""
    n = M.shape[0]
    for j in range(n):
        s = M[j, j]
        for k in range(j):
            s -= M[j, k] * M[j, k]
        if not s > 0.0:
            return False
        d = np.sqrt(s)
        M[j, j] = d
        for i in range(j + 1, n):
            s = M[i, j]
            for k in range(j):
                s -= M[i, k] * M[j, k]
            M[i, j] = s / d
    return True


@kernel
def _step(A: Floats, g: Floats, L: Floats, z: Ints, u: Floats, M: Floats, d: Floats, convex: bool) -> float:
    """d = the Newton step of u for loss(w + L u) + |u|^2 / 2; returns its decrement, negative where it may lead up."""
    q = z.shape[0]
    T = np.empty((q, q))
    for a in range(q):
        s = -u[a]
        for k in range(q):
            s += L[k, a] * g[z[k]]
            t = 0.0
            for e in range(q):
                hi, lo = max(z[k], z[e]), min(z[k], z[e])
                t += L[e, a] * A[hi * (hi + 1) // 2 + lo]
            T[a, k] = t
        d[a] = s
    decrement = 0.0
    for a in range(q):
        for c in range(a + 1):
            s = 1.0 if a == c else 0.0
            for k in range(q):
                s += T[a, k] * L[k, c]
            M[a, c] = s
    if not cholesky(M) and not convex:
        return -1.0
    for a in range(q):
        for k in range(a):
            d[a] -= M[a, k] * d[k]
        d[a] /= M[a, a]
        decrement += d[a] * d[a]
    for a in range(q - 1, -1, -1):
        for k in range(a + 1, q):
            d[a] -= M[k, a] * d[k]
        d[a] /= M[a, a]
    return decrement


@reading
def _modes(
    data: Data, unit: Floats, L: Floats, which: Ints, z: Ints, w: Floats, parent: Ints, u0: Floats, bounded: bool
) -> tuple[Floats, Floats, Floats, Floats]:
    """Per client: the u that minimises loss(w + L u) + |u|^2 / 2 (damped Newton), and the quadratic there.

    Where a loss is not convex, steps are those of the quadratic that is nowhere below it.
    """
    m, p, q = which.shape[0], w.shape[1], z.shape[0]
    least = 0.0 if data[0][0] == _GAUSSIAN else 1e-22  # whose decrement has the outcome's units
    A, b, value, U = np.empty((m, p * (p + 1) // 2)), np.empty((m, p)), np.empty(m), u0.copy()
    convex = data[0][0] != _STUDENT_T
    theta, x, M, d, trial = np.empty(p), np.empty(p), np.empty((q, q)), np.empty(q), np.empty(q)
    for i in range(m):
        Li, wi, u, g = L[which[i]], w[parent[i]], U[i], b[i]
        _shift(wi, Li, z, u, theta)
        f = _client_derivatives(data, i, unit, theta, g, A[i], x, False)[0] + 0.5 * np.dot(u, u)
        if not abs(f) < 1e100:  # absurdly far out, where squares overflow
            u[:] = 0.0
            _shift(wi, Li, z, u, theta)
            f = _client_derivatives(data, i, unit, theta, g, A[i], x, False)[0]
        for _ in range(1000):  # a count far too high comes down by one unit of eta a step
            decrement = _step(A[i], g, Li, z, u, M, d, convex)
            if decrement < 0.0:
                _shift(wi, Li, z, u, theta)
                _client_derivatives(data, i, unit, theta, g, A[i], x, True)
                decrement = _step(A[i], g, Li, z, u, M, d, True)
            if not least < decrement < np.inf:
                break
            t = 1.0
            while True:
                for k in range(q):
                    trial[k] = u[k] + t * d[k]
                _shift(wi, Li, z, trial, theta)
                new = _client_derivatives(data, i, unit, theta, g, A[i], x, False)[0]
                new += 0.5 * np.dot(trial, trial)
                if new <= f - 1e-4 * t * decrement or (t * decrement < 1e-11 * (1.0 + abs(f)) and new < np.inf):
                    break
                t *= 0.5
            for k in range(q):
                u[k] = trial[k]
            f = new
            if decrement < 1e-8:  # Newton squares it: what is left is rounding
                break
        value[i] = 2.0 * f
        if bounded:
            _client_derivatives(data, i, unit, theta, g, A[i], x, True)
        at = 0
        for j in range(p):
            for k in range(j + 1):
                b[i, j] += A[i, at] * theta[k]
                if k != j:
                    b[i, k] += A[i, at] * theta[j]
                at += 1
    return A, b, value, U


@part
def _shift(w: Floats, L: Floats, z: Ints, u: Floats, theta: Floats) -> None:
    """theta = w + L u on the personal columns."""
    for j in range(theta.shape[0]):
        theta[j] = w[j]
    for k in range(z.shape[0]):
        for a in range(z.shape[0]):
            theta[z[k]] += L[k, a] * u[a]


@reading
def _third(data: Data, unit: Floats, theta: Floats, S: Floats) -> Floats:
    """Per client: the sum over rows of (x'Sx) v'(eta) x, half the gradient of log|H| by theta, times 2."""
    family, X, y, offset, weights, starts, stops = data
    m, p = starts.shape[0], X.shape[1]
    a, x = np.zeros((m, p)), np.empty(p)
    for i in range(m):
        for r in range(starts[i], stops[i]):
            eta, h, at = offset[r], 0.0, 0
            for j in range(p):
                x[j] = X[r, j] * unit[j]
                eta += x[j] * theta[i, j]
                for k in range(j):
                    h += 2.0 * S[i, at] * x[j] * x[k]
                    at += 1
                h += S[i, at] * x[j] * x[j]
                at += 1
            t = weights[r] * row_derivatives(family, eta, y[r])[3] * h
            for j in range(p):
                a[i, j] += t * x[j]
    return a


@reading
def _by_dispersion(data: Data, unit: Floats, theta: Floats, S: Floats, delta: Floats, by: int) -> Floats:
    """Per client: derivatives by log dispersion (and degrees of freedom) of Laplace's deviance, see ``GLM``."""
    family, X, y, offset, weights, starts, stops = data
    m, p = starts.shape[0], X.shape[1]
    out, x = np.zeros((m, by)), np.empty(p)
    for i in range(m):
        for r in range(starts[i], stops[i]):
            if not weights[r] > 0.0:
                continue
            eta, h, moved, at = offset[r], 0.0, 0.0, 0
            for j in range(p):
                x[j] = X[r, j] * unit[j]
                eta += x[j] * theta[i, j]
                moved += x[j] * delta[i, j]
                for k in range(j + 1):
                    h += (2.0 if k < j else 1.0) * S[i, at] * x[j] * x[k]
                    at += 1
            for k in range(by):
                f, s, v = _dispersed(family, eta, y[r], row_derivatives(family, eta, y[r]), k > 0)
                out[i, k] += weights[r] * (2.0 * f + h * v + moved * s)
    return out


@reading
def _losses(data: Data, theta: Floats) -> tuple[Floats, Floats]:
    family, X, y, offset, weights, starts, stops = data
    n, at = 0, 0
    for i in range(starts.shape[0]):  # numba's own sum takes a fifth of a second to compile
        n += stops[i] - starts[i]
    out, rows = np.zeros(starts.shape[0]), np.empty(n)
    for i in range(out.shape[0]):
        for r in range(starts[i], stops[i]):
            eta = offset[r]
            for j in range(X.shape[1]):
                eta += X[r, j] * theta[i, j]
            rows[at] = row_derivatives(family, eta, y[r])[0]
            out[i] += weights[r] * rows[at]
            at += 1
    return out, rows


class Made(dict[str, Any]):
    """What was made of rows once, shared by all views of them; it does not travel with them."""

    def __reduce__(self) -> tuple[type[Made], tuple[()]]:
        return Made, ()


@dataclass(frozen=True)
class GLM(WeightedRows):
    """The clients' rows and a family: an objective over (clients, p) parameters.

    X is (n, p), y, offset and weights (n,), rows sorted by client; starts and stops (m,) are the row ranges of clients.
    Methods take ``unit`` (p,), by which columns are multiplied on the fly; parameters are in those units.
    """

    X: Floats
    y: Floats
    offset: Floats
    weights: Floats
    starts: Ints
    stops: Ints
    family: Family = GAUSSIAN
    made: Made = field(default_factory=Made, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "family", family_named(self.family))

    @property
    def p(self) -> int:
        """Number of columns."""
        return int(self.X.shape[1])

    @property
    def compiled(self) -> Data:
        """What kernels over rows take first."""
        return self.family.kind, self.X, self.y, self.offset, self.weights, self.starts, self.stops

    def moments(self) -> dict[str, Floats]:
        """Per client rows of weight w > 0 (m,), sums of w (m,), w (y - offset) (m,), w x and w x^2 (m, p).

        And the "constant" (m,) that ``value`` leaves out of the negative log-likelihood: terms in y alone.
        """
        return dict(zip(("rows", "w", "y", "constant", "x", "xx"), _moments(self.compiled), strict=True))

    def gram(self, unit: Floats, shift: float = 0.0) -> tuple[Floats, Floats, Floats]:
        """Per client packed X'WX (m, P), X'Wv (m, p) and v'Wv (m,) for ``v = y - offset - shift``."""
        return _gram(self.compiled, unit, shift)

    def derivatives(self, unit: Floats, theta: Floats, bounded: bool = False) -> tuple[Floats, Floats, Floats, Floats]:
        """Per client at its theta (m, p): loss (m,), score (m, p), curvature (m, P), ``n sum_r |score_r|^2`` (m,).

        ``bounded``: the curvature of what touches the loss there and is nowhere below it, which is never negative.
        """
        return _derivatives(self.compiled, unit, np.ascontiguousarray(theta), bounded)

    def modes(
        self,
        unit: Floats,
        L: Floats,
        which: Ints,
        z: Ints,
        w: Floats,
        parent: Ints,
        u0: Floats,
        bounded: bool = False,
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """Minimise ``loss(w[parent] + L u) + |u|^2 / 2`` for every client, started at u0 (m, q).

        Returns the curvature at the minimum A (m, P) and ``b = score + A theta`` (m, p), the quadratic that
        ``tree_fold`` takes; twice the minimum (m,); and u (m, q). ``bounded`` as in :meth:`derivatives`.
        """
        return _modes(self.compiled, unit, L, which, z, w, parent, u0, bounded)

    def third(self, unit: Floats, theta: Floats, S: Floats) -> Floats:
        """Gradient of log|H| by each client's theta, (m, p), where S (m, P) is theta's covariance under H."""
        return _third(self.compiled, unit, theta, S)

    def by_dispersion(self, unit: Floats, theta: Floats, S: Floats, delta: Floats) -> Floats:
        """Derivatives (m, 1) of the clients' parts of Laplace's deviance by the logarithm of the dispersion.

        Where there are degrees of freedom, those by their logarithm stand beside it, (m, 2). S (m, P) is theta's
        covariance under H; delta (m, p) is what ``third``, solved for as scores are, moves them by.
        """
        return _by_dispersion(self.compiled, unit, theta, S, delta, 1 + (self.family.degrees > 0.0))

    def value(self, theta: npt.ArrayLike) -> Floats:
        """Losses (m,) at one theta (d,) or at one for each client (m, d): less ``constants``, minus log-likelihoods."""
        return _losses(self.compiled, self._each(theta))[0]

    def row_losses(self, theta: npt.ArrayLike) -> Floats:
        """The loss of every row (sum of counts,), without weights, client after client."""
        return _losses(self.compiled, self._each(theta))[1]
