"""Small quadratic programs over a simplex, one for every main client: its weight and those of its candidates."""

from __future__ import annotations

import numpy as np

from coterie.numerics.kernels import Floats, Ints, kernel

STEPS = 10_000
ENOUGH = 1e-10
"""Gap of a program's optimality conditions, relative to its gradients, at which it is solved."""


@kernel
def _mix(
    own: Floats,
    own_noise: Floats,
    others: Floats,
    noise: Floats,
    starts: Ints,
    own_weight: Floats,
    weight: Floats,
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


def mix(
    own: Floats, own_noise: Floats, others: Floats, noise: Floats, of: Ints, tau: Floats | None = None
) -> tuple[Floats, Floats]:
    """Minimise ``|sum omega_k a_k|^2 + sum omega_k^2 v_k`` over the simplex, for every main client.

    By steps between the two weights that violate the optimality conditions most, compiled: the programs are small, and
    there may be many.

    Parameters
    ----------
    own (M, d), own_noise (M,)
        a and v of main clients.
    others (P, d), noise (P,)
        Of their candidates.
    of : (P,) int64
        Whose, rising.
    tau : (P,), optional
        Weights of the candidates among themselves, where these are given.

    Returns
    -------
    own_weight : (M,)
        1 where there are no candidates.
    tau : (P,)
        Weights of the candidates among themselves: they add up to 1, or are all zero.
    """
    M = len(own)
    if tau is not None:
        helped = np.flatnonzero(np.bincount(of, minlength=M) > 0)
        others = np.stack([np.bincount(of, tau * a, minlength=M)[helped] for a in others.T], axis=1)
        noise = np.asarray(np.bincount(of, tau**2 * noise, minlength=M)[helped], dtype=np.float64)
        return mix(own, own_noise, others, noise, helped)[0], tau
    starts = np.searchsorted(of, np.arange(M + 1)).astype(np.int64)
    own_weight, weight = np.zeros(M), np.zeros(len(of))
    own, others = np.ascontiguousarray(own), np.ascontiguousarray(others)
    _mix(own, own_noise, others, noise, starts, own_weight, weight)
    sums = np.bincount(of, weight, minlength=M)[of]
    return own_weight, np.divide(weight, sums, out=np.zeros(len(of)), where=sums > 0.0)
