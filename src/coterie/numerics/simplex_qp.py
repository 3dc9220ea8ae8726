"""Convex quadratic programs over weights that are not negative and add up to 1, for many problems at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.numerics.arrays import Floats, Ints, kernel

NEGLIGIBLE = 1e-290  # curvatures, relative to a problem's largest, whose inverse could overflow: they count as 0


def diagonal_simplex_qp(d: npt.ArrayLike, q: npt.ArrayLike, starts: npt.ArrayLike) -> Floats:
    """Minimise ``sum_k d_k tau_k^2 + q_k tau_k`` over the simplex, for many problems at once, exactly.

    Water filling: where ``tau_k > 0`` all marginal costs ``2 d_k tau_k + q_k`` are equal, elsewhere they are not
    smaller. Costs O(N log N) for a problem with N weights. Problem i has the entries from ``starts[i]`` to
    ``starts[i + 1]`` of d, q and tau (P,), and may have none. Weights with ``d_k = 0`` take all that is left at the
    smallest of their q_k; equal ones share it. A CoterieError for numbers that are not finite, or a negative d.
    """
    d, q = np.broadcast_arrays(np.asarray(d, dtype=np.float64), np.asarray(q, dtype=np.float64))
    starts = np.asarray(starts, dtype=np.int64)
    if not (np.isfinite(d).all() and np.isfinite(q).all() and np.all(d >= 0.0)):
        raise CoterieError("Weights need finite variances that are not negative, and finite biases.")
    if d.ndim != 1 or not len(starts) or starts[0] != 0 or starts[-1] != len(d) or np.any(np.diff(starts) < 0):
        raise CoterieError("starts must rise from 0 to the number of weights.")
    return _fill(np.ascontiguousarray(d), np.ascontiguousarray(q), starts)


@kernel
def _fill(d: Floats, q: Floats, starts: Ints) -> Floats:
    tau = np.zeros(d.shape[0])
    for i in range(starts.shape[0] - 1):
        lo, hi = starts[i], starts[i + 1]
        if hi > lo:
            _fill_one(d[lo:hi], q[lo:hi], tau[lo:hi])
    return tau


@kernel
def _fill_one(d: Floats, q: Floats, tau: Floats) -> None:
    """With q measured from its smallest, the water stands at ``(1 + sum q / 2d) / sum 1 / 2d`` over those it covers."""
    n = d.shape[0]
    order = np.argsort(q)
    low, zero = q[order[0]], NEGLIGIBLE * d.max()
    level, flat, wide, sums = np.inf, np.inf, 0.0, 1.0
    for k in order:
        depth = q[k] - low
        if depth >= level:
            break
        if d[k] <= zero:
            flat = level = depth
            break
        wide += 0.5 / d[k]
        sums += depth * (0.5 / d[k])
        level = sums / wide
    held, ties = 0.0, 0
    for k in range(n):
        depth = q[k] - low
        if d[k] <= zero:
            ties += 1 if depth == flat else 0
        elif depth < level:
            tau[k] = (level - depth) * (0.5 / d[k])
            held += tau[k]
    for k in range(n):
        if ties > 0 and d[k] <= zero:
            tau[k] = max(1.0 - held, 0.0) / ties if q[k] - low == flat else 0.0
        elif ties == 0:
            tau[k] /= held


STEPS = 10_000
ENOUGH = 1e-10  # gap of a program's optimality conditions, relative to its gradients, at which it is solved


@kernel
def _mixture_weights(
    own: Floats, own_noise: Floats, others: Floats, noise: Floats, starts: Ints, own_weight: Floats, weight: Floats
) -> None:
    for i in range(own.shape[0]):
        lo, n, d = starts[i], starts[i + 1] - starts[i], own.shape[1]
        A, v = np.empty((n + 1, d)), np.empty(n + 1)
        A[0], v[0] = own[i], own_noise[i]
        for k in range(n):
            A[k + 1], v[k + 1] = others[lo + k], noise[lo + k]
        x, r, slope = np.zeros(n + 1), np.empty(d), np.empty(n + 1)
        best = 0
        for k in range(n + 1):
            if np.sum(A[k] ** 2) + v[k] < np.sum(A[best] ** 2) + v[best]:
                best = k
        x[best] = 1.0
        r[:] = A[best]
        for _ in range(STEPS):
            up, down = -1, -1
            for k in range(n + 1):
                slope[k] = 2.0 * (np.dot(A[k], r) + v[k] * x[k])
                if up < 0 or slope[k] < slope[up]:
                    up = k
                if x[k] > 0.0 and (down < 0 or slope[k] > slope[down]):
                    down = k
            gap = slope[down] - slope[up]
            if not gap > ENOUGH * (abs(slope[down]) + abs(slope[up])):
                break
            bend = 2.0 * (np.sum((A[up] - A[down]) ** 2) + v[up] + v[down])
            t = x[down] if gap >= bend * x[down] else gap / bend
            x[up] += t
            x[down] -= t
            r += t * (A[up] - A[down])
        own_weight[i] = x[0]
        for k in range(n):
            weight[lo + k] = x[k + 1]


def mixture_weights(
    own: Floats, own_noise: Floats, others: Floats, noise: Floats, of: Ints, tau: Floats | None = None
) -> tuple[Floats, Floats]:
    """Minimise ``|sum omega_k a_k|^2 + sum omega_k^2 v_k`` over the simplex, for every main client.

    By steps between the two weights that violate the optimality conditions most, compiled: the programs are small, and
    there may be many. ``own`` (M, d) and ``own_noise`` (M,) are a and v of main clients, ``others`` (P, d) and
    ``noise`` (P,) those of their candidates, ``of`` (P,) says whose, rising, and ``tau`` (P,) are the candidates'
    weights among themselves where these are given. Returns the own weights (M,), 1 where there are no candidates, and
    the candidates' among themselves (P,), which add up to 1 or are all zero.
    """
    M = len(own)
    if tau is not None:
        helped = np.flatnonzero(np.bincount(of, minlength=M) > 0)
        others = np.stack([np.bincount(of, tau * a, minlength=M)[helped] for a in others.T], axis=1)
        noise = np.asarray(np.bincount(of, tau**2 * noise, minlength=M)[helped], dtype=np.float64)
        return mixture_weights(own, own_noise, others, noise, helped)[0], tau
    starts = np.searchsorted(of, np.arange(M + 1)).astype(np.int64)
    own_weight, weight = np.zeros(M), np.zeros(len(of))
    own, others = np.ascontiguousarray(own), np.ascontiguousarray(others)
    _mixture_weights(own, own_noise, others, noise, starts, own_weight, weight)
    sums = np.bincount(of, weight, minlength=M)[of]
    return own_weight, np.divide(weight, sums, out=np.zeros(len(of)), where=sums > 0.0)
