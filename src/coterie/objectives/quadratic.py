"""Quadratic losses, and runs of gradient steps on them in closed form: in a client's eigenbasis each step is a number.

With ``A = V diag(l) V'`` a step ``theta -= e (A theta - b)`` takes the coordinate ``v'theta`` to
``(1 - e l) v'theta + e v'b``, so that s steps cost as much as one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.numerics import keyed_random
from coterie.numerics.arrays import Floats, Ints, full, kernel, summing
from coterie.objectives.glm import GLM

FLAT = 1e-12  # eigenvalues under this fraction of the largest are zero: a client with fewer rows than columns has such


class Quadratic:
    """``f_i(x) = x' A_i x / 2 - b_i' x`` for clients i, with positive semi-definite A (m, d, d) and b (m, d)."""

    def __init__(self, A: npt.ArrayLike, b: npt.ArrayLike) -> None:
        self.A: Floats = np.asarray(A, dtype=np.float64)
        self.b: Floats = np.asarray(b, dtype=np.float64)
        if self.b.ndim != 2 or self.A.shape != (*self.b.shape, self.b.shape[-1]):
            raise CoterieError(f"A {self.A.shape} must be (m, d, d) and b {self.b.shape} must be (m, d).")
        self._rows: Any = slice(None)
        self._size = len(self.b)

    def __len__(self) -> int:
        return self._size

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return int(self.b.shape[1])

    def take(self, rows: slice | npt.NDArray[np.int64]) -> Quadratic:
        """The clients ``rows`` (a slice, or indices in any order with repeats); matrices are not copied."""
        view = object.__new__(Quadratic)
        view.A, view.b = self.A, self.b
        everyone = isinstance(self._rows, slice) and self._rows == slice(None)
        view._rows = rows if everyone else np.arange(len(self.b))[self._rows][rows]
        view._size = len(np.arange(self._size)[rows])
        return view

    def value(self, x: npt.ArrayLike) -> Floats:
        """Losses (m,) at one ``x`` (d,) or at one for each client (m, d)."""
        x = np.asarray(x)
        b = self.b[self._rows]
        return np.asarray(np.sum((self.gradient(x) - b) * x, axis=1) / 2)

    def gradient(self, x: npt.ArrayLike) -> Floats:
        """Gradients (m, d) at one ``x`` (d,) or at one for each client (m, d)."""
        x = np.broadcast_to(np.asarray(x, dtype=np.float64), (len(self), self.dim))
        return np.asarray(np.einsum("mij,mj->mi", self.A[self._rows], x) - self.b[self._rows])

    def hessian(self) -> Floats:
        """Hessians (m, d, d)."""
        return np.asarray(self.A[self._rows])


class NoisyQuadratic(Quadratic):
    """Quadratics whose gradients are heard with noise, as in section 6 of "Linear speedup in personalized ..." (2022).

    ``sigma`` (m,) is the standard deviation of every coordinate of a client's sampled gradient; losses have no noise.
    """

    def __init__(self, A: npt.ArrayLike, b: npt.ArrayLike, sigma: npt.ArrayLike) -> None:
        super().__init__(A, b)
        self.sigma: Floats = np.broadcast_to(np.asarray(sigma, dtype=np.float64), (len(self.b),))

    def take(self, rows: slice | npt.NDArray[np.int64]) -> NoisyQuadratic:
        """The clients ``rows``, as in :meth:`Quadratic.take`."""
        plain = super().take(rows)
        view = object.__new__(NoisyQuadratic)
        view.__dict__.update(plain.__dict__)
        view.sigma = self.sigma
        return view

    def sample(self, x: Floats, keys: npt.NDArray[np.uint64], step: npt.NDArray[np.int64]) -> Floats:
        """Gradients (m, d) with Gaussian noise: a function of each client's key (m,) and step (m,)."""
        noise = keyed_random.normal(keys, step, self.dim)
        return np.asarray(self.gradient(x) + self.sigma[self._rows][:, None] * noise)


def eigenbasis(objective: Any, rank: int) -> dict[str, Floats]:
    """Eigenvalues (m, r) and eigenvectors (m, r, d) of every client of a Quadratic or Gaussian GLM, and their goal.

    ``goal`` (m, r) is where the coordinates end, or how fast they drift where the value is 0. ``rank`` is how many of
    the largest eigenvalues to keep: no client may have more that are not zero, unless b has parts in the other
    directions (a Quadratic's may).
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


def quadratic_ranks(objective: Any) -> Ints:
    """The rank of every client's quadratic at most, (m,); 0 where steps have no closed form."""
    if isinstance(objective, Quadratic):
        return np.full(len(objective), objective.dim)
    if isinstance(objective, GLM) and objective.family.is_quadratic:
        return np.minimum(objective.counts, objective.dim)
    return np.zeros(len(objective), dtype=np.int64)


@summing
def closed_form_steps_one(
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
def closed_form_steps(
    theta: Floats, values: Floats, vectors: Floats, goal: Floats, step: Floats, steps: Ints
) -> Floats:
    """Where ``steps`` (m,) gradient steps of size ``step`` (m,) take every client's theta (m, d)."""
    out = theta.copy()
    scratch = np.empty(3 * values.shape[1])
    for i in range(theta.shape[0]):
        if steps[i] > 0:
            closed_form_steps_one(out[i], values[i], vectors[i], goal[i], step[i], steps[i], scratch)
    return out
