"""Quadratic losses with a known optimum, for checking methods and engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.numerics import keyed

Floats = npt.NDArray[np.float64]


class Quadratic:
    """``f_i(x) = x' A_i x / 2 - b_i' x`` for each client i.

    Parameters
    ----------
    A : (m, d, d) float64
        Symmetric positive semi-definite matrices.
    b : (m, d) float64
        Linear terms.
    """

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

    Parameters
    ----------
    A, b
        As in :class:`Quadratic`.
    sigma : (m,) float64
        Standard deviation of every coordinate of a client's sampled gradient; the test loss is the one without noise.
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
        noise = keyed.normal(keys, step, self.dim)
        return np.asarray(self.gradient(x) + self.sigma[self._rows][:, None] * noise)
