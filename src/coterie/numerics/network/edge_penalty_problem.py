"""The penalty over the edges of a network: kernels over edges and clients, the problem of its prox, the duality gap.

``primal(Z) - dual(U) = 1/2 ||Z - Z(U)||_H^2 + sum_e (weight_e ||d_e|| - <U_e, d_e>)`` with ``d_e = z_i - z_j`` and
``Z(U) = V - H^-1 B'U``: a sum of terms that are not negative, so nothing cancels. Where U_e lies inside its ball the
optimum has ``d_e = 0``; with those ends set equal, the gap is of second order in the error of U instead of first.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.numerics.arrays import Floats, Ints, float_array, kernel, summing

DUAL = {1: np.inf, 2: 2, np.inf: 1}  # the dual norm of each p


@summing
def norm(x: Floats, p: float) -> float:
    """``||x||_p`` for p = 1, 2 or inf."""
    s = 0.0
    if p == 1.0:
        for a in range(x.shape[0]):
            s += abs(x[a])
    elif p == 2.0:
        for a in range(x.shape[0]):
            s += x[a] * x[a]
        s = np.sqrt(s)
    else:
        for a in range(x.shape[0]):
            s = max(s, abs(x[a]))
    return s


@summing
def l1_level(x: Floats, radius: float, level: float) -> float:
    """The threshold that takes ``||x||_1 > radius > 0`` down to it, by Newton's method from any level.

    ``sum_a max(|x_a| - t, 0) - radius`` is convex and piecewise linear in t, so the root is met as soon as a step keeps
    the entries above t; from the level of a similar x that takes one or two. Where rounding keeps ties in doubt, the
    loop ends all the same.
    """
    before = -1.0
    for _ in range(2 * x.shape[0] + 20):
        s, count = 0.0, 0.0
        for a in range(x.shape[0]):
            above = abs(x[a]) - level
            s += max(above, 0.0)
            count += 1.0 if above > 0.0 else 0.0
        if count == before:
            return level
        if count == 0.0:
            level, before = 0.0, -1.0
        else:
            level += (s - radius) / count
            before = count
    return level


@summing
def project(x: Floats, p: float, radius: float, level: float) -> float:
    """The nearest point of the dual norm's ball, in place: linf for p = 1, l2 for 2, l1 for inf.

    ``level`` is where to begin for p = inf; returns where it ended.
    """
    q = x.shape[0]
    if radius == 0.0:
        x[:] = 0.0
    elif p == 1.0:
        for a in range(q):
            x[a] = min(max(x[a], -radius), radius)
    elif p == 2.0:
        size = norm(x, 2.0)
        if size > radius:
            shrink = radius / size
            for a in range(q):
                x[a] *= shrink
    elif norm(x, 1.0) > radius:
        level = l1_level(x, radius, level)
        for a in range(q):
            x[a] = np.copysign(max(abs(x[a]) - level, 0.0), x[a])
    return level


@kernel
def project_all(U: Floats, p: float, weight: Floats) -> None:
    """Every U_e into its ball, in place."""
    for e in range(U.shape[0]):
        project(U[e], p, weight[e], 0.0)


@summing
def adjoint(U: Floats, edges: Ints, out: Floats) -> None:
    """``out = B'U``: over the edges of a client, the sum of U_e with the sign of its end."""
    out[:] = 0.0
    for e in range(edges.shape[0]):
        i, j = edges[e, 0], edges[e, 1]
        for a in range(U.shape[1]):
            out[i, a] += U[e, a]
            out[j, a] -= U[e, a]


@summing
def metric_times(H: Floats, X: Floats, out: Floats) -> None:
    """``out_i = H_i x_i`` for H (n, 1, 1) or (n, q, q)."""
    for i in range(X.shape[0]):
        if H.shape[1] == 1:
            for a in range(X.shape[1]):
                out[i, a] = H[i, 0, 0] * X[i, a]
        else:
            for a in range(X.shape[1]):
                s = 0.0
                for b in range(X.shape[1]):
                    s += H[i, a, b] * X[i, b]
                out[i, a] = s


@summing
def penalty_and_slack(Z: Floats, U: Floats, edges: Ints, weight: Floats, p: float) -> tuple[float, float]:
    """``sum_e weight_e ||d_e||_p``, ``d_e = z_i - z_j``, and its excess over ``sum_e <U_e, d_e>``, never negative."""
    total, excess = 0.0, 0.0
    d = np.empty(Z.shape[1])
    for e in range(edges.shape[0]):
        i, j = edges[e, 0], edges[e, 1]
        inner = 0.0
        for a in range(Z.shape[1]):
            d[a] = Z[i, a] - Z[j, a]
            inner += U[e, a] * d[a]
        size = weight[e] * norm(d, p)
        total += size
        excess += max(size - inner, 0.0)
    return total, excess


INF = float("inf")
LARGEST = 1e140  # numbers from here on have squares whose sums may overflow
INSIDE = 1.0 - 1e-9  # of a ball's radius: dual vectors shorter than this are inside
LEAST = 1e-20
"""Of ``1/2 ||V||_H^2``: a primal value below this is that of clients that differ by rounding, and is not divided by."""


@dataclass(frozen=True)
class Problem:
    """``min_Z 1/2 sum_i (z_i - v_i)' H_i (z_i - v_i) + sum_e weight_e ||z_i - z_j||_p``."""

    V: Floats  # (n, q)
    edges: Ints  # (M, 2)
    weight: Floats  # (M,), not negative
    p: float  # 1, 2 or inf
    H: Floats  # the metric and its inverse, (n, q, q), or (n, 1, 1) where they are masses
    inverse: Floats = field(repr=False)

    @classmethod
    def of(
        cls, V: npt.ArrayLike, edges: npt.ArrayLike, weight: npt.ArrayLike, p: float, metric: npt.ArrayLike | None
    ) -> Problem:
        """Check what a user gave."""
        V = np.ascontiguousarray(float_array("V", V))
        if V.ndim != 2 or not V.shape[0]:
            raise CoterieError(f"V must have one row for each client and at least one row, not the shape {V.shape}.")
        far = ~(np.abs(V) < LARGEST).all(axis=1)
        if far.any():
            raise CoterieError(f"Row {int(np.argmax(far))} of V has numbers not finite, or above 1e140: leave it out.")
        if p not in (1, 2, INF):
            raise CoterieError(f"p must be 1, 2 or inf, not {p!r}.")
        pairs = checked_edges(edges, len(V))
        H, inverse = checked_metric(metric, *V.shape)
        return cls(V, pairs, checked_weight(weight, pairs), float(p), H, inverse)

    def of_edges(self, kept: Ints) -> Problem:
        """The problem without the other edges."""
        return replace(self, edges=self.edges[kept], weight=self.weight[kept])

    def of_clients(self, order: Ints) -> Problem:
        """The same clients, all of them, in another order."""
        V, H, inverse = (np.ascontiguousarray(a[order]) for a in (self.V, self.H, self.inverse))
        return replace(self, V=V, edges=np.argsort(order)[self.edges], H=H, inverse=inverse)

    @cached_property
    def neighbours(self) -> tuple[Ints, Ints]:
        """Neighbours by client: ``starts`` (n + 1,), then the clients at the other ends (2M,)."""
        ends = self.edges.T.ravel()
        others = self.edges[:, ::-1].T.ravel()
        starts = np.concatenate([[0], np.cumsum(np.bincount(ends, minlength=len(self.V)))])
        return starts.astype(np.int64), others[np.argsort(ends, kind="stable")]

    @cached_property
    def degree(self) -> Ints:
        """(n,)."""
        return np.diff(self.neighbours[0])

    @cached_property
    def mass(self) -> Floats:
        """The metric's diagonals (n, q)."""
        return np.ascontiguousarray(np.broadcast_to(np.diagonal(self.H, axis1=1, axis2=2), self.V.shape))

    @cached_property
    def penalty(self) -> float:
        """A penalty rho for which the metric (geometric mean of its eigenvalues) and ``rho B'B`` are of one size."""
        tied = self.degree > 0
        if not tied.any():
            return 1.0
        curvature = np.exp(np.linalg.slogdet(self.H[tied])[1].mean() / self.H.shape[1])
        return float(8.0 * curvature / self.degree[tied].mean())

    def blocks(self, rho: float) -> Floats:
        """The inverse (n, 1, 1) or (n, q, q) of the diagonal blocks of ``H + rho B'B``."""
        return np.ascontiguousarray(np.linalg.inv(self.H + rho * self.degree[:, None, None] * np.eye(self.H.shape[1])))


def checked_edges(edges: npt.ArrayLike, n: int) -> Ints:
    """Edges (M, 2) as int64."""
    given = np.asarray(edges)
    if given.size == 0:
        return np.zeros((0, 2), dtype=np.int64)
    if given.ndim != 2 or given.shape[1] != 2 or given.dtype.kind not in "iu":
        raise CoterieError(f"edges must be pairs of client numbers, whole numbers of shape (M, 2), not {given.shape}.")
    pairs = np.ascontiguousarray(given, dtype=np.int64)
    bad = np.flatnonzero(((pairs < 0) | (pairs >= n)).any(axis=1))
    if len(bad):
        strange = next(int(i) for i in pairs[bad[0]] if not 0 <= i < n)
        raise CoterieError(f"Edge {bad[0]} names client {strange}; clients go from 0 to {n - 1}.")
    bad = np.flatnonzero(pairs[:, 0] == pairs[:, 1])
    if len(bad):
        raise CoterieError(f"Edge {bad[0]} ties client {pairs[bad[0], 0]} to itself: leave it out.")
    key = np.sort(pairs.min(axis=1) * n + pairs.max(axis=1))
    twice = np.flatnonzero(key[1:] == key[:-1])
    if len(twice):
        i, j = divmod(int(key[twice[0]]), n)
        raise CoterieError(f"Clients {i} and {j} are tied by more than one edge: keep one, with the summed weight.")
    return pairs


def checked_weight(weight: npt.ArrayLike, edges: Ints) -> Floats:
    """Weights (M,), one number for all or one for each edge."""
    given = float_array("weight", weight)
    if given.shape not in ((), (len(edges),)):
        raise CoterieError(f"weight must be one number, or one for each of {len(edges)} edges, not {given.shape}.")
    out = np.array(np.broadcast_to(given, len(edges)))  # one that may be written, for which kernels are compiled
    bad = np.flatnonzero(~(np.isfinite(out) & (out >= 0.0)))
    if len(bad):
        i, j = edges[bad[0]]
        raise CoterieError(f"Edge {bad[0]}, clients {i} and {j}, has weight {out[bad[0]]}: it must be finite, from 0.")
    return out


def checked_metric(metric: npt.ArrayLike | None, n: int, q: int) -> tuple[Floats, Floats]:
    """The metric and its inverse, (n, 1, 1) or (n, q, q)."""
    if metric is None:
        return np.ones((n, 1, 1)), np.ones((n, 1, 1))
    given = float_array("metric", metric)
    if given.shape == (n,):
        given = given[:, None, None]
    elif given.shape != (n, q, q):
        raise CoterieError(f"metric must have the shape ({n},) or ({n}, {q}, {q}), not {given.shape}.")
    H = np.ascontiguousarray(given)
    uneven, size = (np.abs(part).max(axis=(1, 2), initial=0.0) for part in (H - H.transpose(0, 2, 1), H))
    bad = np.flatnonzero(~(uneven <= 1e-8 * size) | ~np.isfinite(H).all(axis=(1, 2)))
    if not len(bad) and q:
        bad = np.flatnonzero(np.linalg.eigvalsh(H)[:, 0] <= 0.0)
    if len(bad):
        raise CoterieError(f"The metric of client {bad[0]} must be finite, symmetric and positive definite.")
    return H, np.ascontiguousarray(np.linalg.inv(H))


@kernel
def _root(parent: Ints, i: int) -> int:
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i


@kernel
def _join(U: Floats, edges: Ints, weight: Floats, p: float, a: int, parent: Ints) -> None:
    """``parent`` becomes a forest of clients tied by edges with U_e inside its ball (for p = 1: coordinate a of it)."""
    for i in range(parent.shape[0]):
        parent[i] = i
    dual = 1.0 if p == np.inf else 2.0
    for e in range(edges.shape[0]):
        size = abs(U[e, a]) if p == 1.0 else norm(U[e], dual)
        if size < INSIDE * weight[e]:
            i, j = _root(parent, edges[e, 0]), _root(parent, edges[e, 1])
            if i != j:
                parent[max(i, j)] = min(i, j)
    for i in range(parent.shape[0]):
        parent[i] = _root(parent, i)


@kernel
def merged(Z: Floats, U: Floats, edges: Ints, weight: Floats, p: float, mass: Floats) -> Floats:
    """Z (n, q) with the rows of merged clients (for p = 1: coordinates) replaced by their means; mass is (n, q)."""
    n, q = Z.shape
    out, parent, total = np.zeros((n, q)), np.empty(n, dtype=np.int64), np.zeros((n, q))
    for a in range(q):
        if p == 1.0 or a == 0:
            _join(U, edges, weight, p, a, parent)
        for i in range(n):  # the root is the smallest of its group, so it is met first, and its mean runs along
            r = parent[i]
            total[r, a] += mass[i, a]
            out[r, a] += (Z[i, a] - out[r, a]) * (mass[i, a] / total[r, a])
        for i in range(n):
            out[i, a] = out[parent[i], a]
    return out


def relative_gap(problem: Problem, Z: Floats, U: Floats, free: Floats) -> float:
    """(primal - dual) / primal, with ``free = Z(U)``; over ``LEAST`` of V's square where primal is smaller."""
    penalty, excess = penalty_and_slack(Z, U, problem.edges, problem.weight, problem.p)
    primal = max(penalty + _half_square(problem, Z - problem.V), LEAST * _half_square(problem, problem.V))
    gap = excess + _half_square(problem, Z - free)
    return gap / primal if primal > 0.0 else 0.0


def _half_square(problem: Problem, D: Floats) -> float:
    out = np.empty_like(D)
    metric_times(problem.H, D, out)
    return 0.5 * float(np.vdot(D, out))


@dataclass(frozen=True)
class Certified:
    """A primal point, a feasible dual point, and their relative gap."""

    Z: Floats
    U: Floats
    gap: float


def certify(problem: Problem, U: Floats, *others: Floats, best: Certified | None = None) -> Certified:
    """The best pair of a feasible U with merged clients, or with one of the others (``Z(U)`` if none); or ``best``."""
    pull, moved = np.empty_like(problem.V), np.empty_like(problem.V)
    adjoint(U, problem.edges, pull)
    metric_times(problem.inverse, pull, moved)
    free = problem.V - moved
    together = merged(free, U, problem.edges, problem.weight, problem.p, problem.mass)
    points = (together, *(others or (free,)))
    gaps = [relative_gap(problem, Z, U, free) for Z in points]
    least = int(np.argmin(gaps))
    if best is not None and not gaps[least] < best.gap:
        return best
    return Certified(points[least].copy(), U.copy(), gaps[least])
