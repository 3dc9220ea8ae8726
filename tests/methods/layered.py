"""Least squares of clients on layers with names, in single precision: what a network is, without one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from coterie.numerics import keyed_random
from coterie.objectives.quadratic import Quadratic


@dataclass(frozen=True)
class Layered:
    """``f_i(theta) = theta'A_i theta / 2 - b_i'theta`` with a body, a scale and a head."""

    A: np.ndarray
    b: np.ndarray
    kept: tuple[str, ...] = ()
    names = {"body": 4, "scale": 1, "head": 2}  # noqa: RUF012 - never written
    dtype = np.dtype(np.float32)
    dim = 7

    def __len__(self):
        return len(self.b)

    def take(self, rows):
        return replace(self, A=self.A[rows], b=self.b[rows])

    def start(self, seed):
        return 0.1 * keyed_random.normal(keyed_random.starts(seed, "start", [0]), 0, 7)[0]

    def value(self, theta):
        return Quadratic(self.A, self.b).value(theta)

    def gradient(self, theta):
        return np.einsum("mij,mj->mi", self.A, theta) - self.b


def layered(m, seed=0):
    """Well-conditioned ones."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(m, 7, 7))
    A = (root @ root.transpose(0, 2, 1) / 7 + np.eye(7)).astype(np.float32)
    return Layered(A, rng.normal(size=(m, 7)).astype(np.float32))
