"""Smooth losses that are not convex and whose L is known: linear regression under a robust loss, for groups of clients.

A row's loss is ``phi(x'theta - y)`` with ``phi(u) = u^2 / (1 + u^2)`` (Geman and McClure 1987); ``-1/2 <= phi'' <= 2``
and ``|phi'| <= 3 sqrt(3) / 8``, so L is at most twice the largest eigenvalue of a client's X'X / rows, and no row's
gradient is longer than ``3 sqrt(3) / 8 |x|``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from coterie.numerics.arrays import Floats, Ints, kernel
from coterie.numerics.keyed_random import key, whole
from coterie.objectives.gradient_steps import Draws, Walk

STEEPEST = 3.0 * np.sqrt(3.0) / 8.0
BODY, HEAD = "body", "head"


@kernel
def _gradients(
    X: Floats, y: Floats, clients: Ints, theta: Floats, keys: npt.NDArray[np.uint64], first: Ints, size: int
) -> Floats:
    """Mean gradients (m, d) over the rows drawn; size 0 takes all."""
    m, d = theta.shape
    out, n = np.zeros((m, d)), X.shape[1]
    for i in range(m):
        c, rows = clients[i], size if size else n
        at = key(keys[i], first[i])
        for b in range(rows):
            r = whole(at, b, n) if size else b
            u = -y[c, r]
            for j in range(d):
                u += X[c, r, j] * theta[i, j]
            slope = 2.0 * u / (1.0 + u * u) ** 2 / rows
            for j in range(d):
                out[i, j] += slope * X[c, r, j]
    return out


@dataclass(frozen=True)
class Robust:
    """Clients with as many rows each; the first columns are the body, the others the head.

    Attributes
    ----------
    X : (clients, rows, d)
    y : (clients, rows)
    clients : (m,) int64
        Which of them are seen.
    body : int
        Columns of the body.
    """

    X: Floats
    y: Floats
    clients: Ints
    body: int

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def dim(self) -> int:
        """Number of parameters."""
        return int(self.X.shape[2])

    @property
    def names(self) -> dict[str, int]:
        """The two layers."""
        return {BODY: self.body, HEAD: self.dim - self.body}

    @property
    def counts(self) -> Ints:
        """Rows of every client."""
        return np.full(len(self), self.X.shape[1], dtype=np.int64)

    def take(self, rows: slice | Ints) -> Robust:
        """Some clients; no row is copied."""
        return replace(self, clients=self.clients[rows])

    def sizes(self) -> Floats:
        """The weight of every client's rows (m,)."""
        return self.counts.astype(np.float64)

    def _residuals(self, theta: Floats) -> Floats:
        theta = np.broadcast_to(theta, (len(self), self.dim))
        return np.asarray(np.einsum("mnd,md->mn", self.X[self.clients], theta) - self.y[self.clients])

    def value(self, theta: Floats) -> Floats:
        """Losses (m,)."""
        square = self._residuals(theta) ** 2
        return np.asarray(np.sum(square / (1.0 + square), axis=1))

    def row_gradients(self, theta: Floats) -> Floats:
        """Gradients (m, rows, d) of every row's loss."""
        u = self._residuals(theta)
        return np.asarray((2.0 * u / (1.0 + u**2) ** 2)[..., None] * self.X[self.clients])

    def gradient(self, theta: Floats) -> Floats:
        """Gradients (m, d) of the losses."""
        return np.asarray(self.row_gradients(theta).sum(axis=1))

    def mean_gradient(self, theta: Floats, draws: Draws) -> Floats:
        """Gradients (m, d) of the mean losses over the rows drawn."""
        at = np.ascontiguousarray(theta, dtype=np.float64)
        return _gradients(self.X, self.y, self.clients, at, draws.keys, draws.first, draws.size)

    def walk(self, theta: Floats, by: Walk) -> Floats:
        """Local steps on the mean losses."""
        at, now = np.array(theta, dtype=np.float64), by.draws
        for s in range(int(by.steps.max(initial=0))):
            g = self.mean_gradient(at, Draws(now.keys, now.first + (s if by.fresh else 0), now.size))
            pull = 0.0 if by.anchor is None else by.pull * (at - by.anchor)
            move = g + pull + (0.0 if by.shift is None else by.shift)
            at -= np.where(by.steps > s, by.eta, 0.0)[:, None] * move * (1.0 if by.on is None else by.on)
        return at

    def smoothness(self) -> Floats:
        """A bound (m,) of the mean losses' curvature."""
        X = self.X[self.clients]
        return np.asarray(2.0 * np.linalg.norm(X, ord=2, axis=(1, 2)) ** 2 / X.shape[1])

    def noise(self, batch: int) -> Floats:
        """A bound (m,) of the variance of a gradient over ``batch`` rows, wherever it is taken."""
        return np.asarray(STEEPEST**2 * np.sum(self.X[self.clients] ** 2, axis=2).mean(axis=1) / batch)


def made(group: Ints, body: int, head: int, rows: int, apart: float, seed: int = 0, noise: float = 0.3) -> Robust:
    """Clients of groups (m,), each with its own head; their bodies are ``apart`` times as far from each other as heads.

    Outcomes have noise of that standard deviation, and where there is some, a tenth of them is off by 5.
    """
    rng = np.random.default_rng(seed)
    m, d, k = len(group), body + head, int(group.max()) + 1
    bodies = rng.normal(size=body) + apart * rng.normal(size=(k, body))
    truth = np.concatenate([bodies, rng.normal(size=(k, head))], axis=1)[group]
    X = rng.normal(size=(m, rows, d))
    y = np.einsum("mnd,md->mn", X, truth) + noise * rng.normal(size=(m, rows))
    y += 5.0 * (rng.uniform(size=y.shape) < 0.1) * (noise > 0.0)
    return Robust(X, y, np.arange(m), body)
