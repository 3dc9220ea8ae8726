"""Runs of gradient steps on quadratics in closed form: in a client's eigenbasis each step is a number.

With ``A = V diag(l) V'`` a step ``theta -= e (A theta - b)`` takes the coordinate ``v'theta`` to
``(1 - e l) v'theta + e v'b``, so that s steps cost as much as one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.numerics.kernels import Floats, Ints, full, kernel, summing
from coterie.objectives.glm import GLM
from coterie.objectives.quadratic import Quadratic

FLAT = 1e-12
"""Eigenvalues under this fraction of the largest are zero: a client with fewer rows than columns has such."""


def spectrum(objective: Any, rank: int) -> dict[str, Floats]:
    """Eigenvalues and eigenvectors of every client, and what its steps lead to.

    Parameters
    ----------
    objective : Quadratic or Gaussian GLM
    rank : int
        How many of the largest eigenvalues to keep: no client may have more that are not zero, unless b has parts in
        the other directions (a Quadratic's may).

    Returns
    -------
    dict
        ``values`` (m, r) and ``vectors`` (m, r, d); ``goal`` (m, r): where the coordinates end, or how fast they drift
        where the value is 0.
    """
    if isinstance(objective, Quadratic):
        A, b = objective.hessian(), -objective.gradient(np.zeros(objective.dim))
    else:
        packed, b, _ = objective.gram(np.ones(objective.dim))
        A = full(packed)
    values, vectors = np.linalg.eigh(A)
    values, vectors = values[:, ::-1][:, :rank], vectors[:, :, ::-1][:, :, :rank].transpose(0, 2, 1)
    flat = values <= FLAT * values[:, :1]
    goal = np.einsum("mrd,md->mr", vectors, b)
    if not isinstance(objective, Quadratic):
        goal = np.where(flat, 0.0, goal)
    values, goal = np.where(flat, 0.0, values), np.divide(goal, values, out=goal, where=~flat)
    return {"values": values, "vectors": np.ascontiguousarray(vectors), "goal": goal}


def ranks(objective: Any) -> Ints:
    """The rank of every client's quadratic at most, (m,); 0 where steps have no closed form."""
    if isinstance(objective, Quadratic):
        return np.full(len(objective), objective.dim)
    if isinstance(objective, GLM) and objective.family.is_quadratic:
        return np.minimum(objective.counts, objective.dim)
    return np.zeros(len(objective), dtype=np.int64)


@summing
def leap_one(
    theta: Floats, values: Floats, vectors: Floats, goal: Floats, step: float, steps: int, scratch: Floats
) -> None:
    """``steps`` gradient steps of one client, in place: values (r,), vectors (r, d), goal (r,), scratch (3 r,)."""
    r, d = vectors.shape
    for a in range(r):
        at = 0.0
        for j in range(d):
            at += vectors[a, j] * theta[j]
        scratch[a] = at
        scratch[r + a] = 1.0
        scratch[2 * r + a] = 1.0 - step * values[a]
    left = steps
    while left > 0:  # to the power of steps, by squaring
        if left & 1:
            for a in range(r):
                scratch[r + a] *= scratch[2 * r + a]
        for a in range(r):
            scratch[2 * r + a] *= scratch[2 * r + a]
        left >>= 1
    for a in range(r):
        move = (1.0 - scratch[r + a]) * (goal[a] - scratch[a])
        if values[a] == 0.0:
            move = steps * step * goal[a]
        for j in range(d):
            theta[j] += move * vectors[a, j]


@kernel
def leap(theta: Floats, values: Floats, vectors: Floats, goal: Floats, step: Floats, steps: Ints) -> Floats:
    """Where ``steps`` (m,) gradient steps of size ``step`` (m,) take every client's theta (m, d)."""
    out = theta.copy()
    scratch = np.empty(3 * values.shape[1])
    for i in range(theta.shape[0]):
        if steps[i] > 0:
            leap_one(out[i], values[i], vectors[i], goal[i], step[i], steps[i], scratch)
    return out
