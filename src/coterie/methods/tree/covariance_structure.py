"""How far members stray from their parent, D = LL' with L linear in its parameters.

Being linear in L (standard deviations, not variances) makes the deviance smooth and unbounded in its parameters, and
a variance of zero an ordinary point. A quasi-Newton method over the parameters starts from :func:`information`; its
whole state is in arrays, so that a run can be stopped and resumed to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.numerics.arrays import Floats

STRUCTURES = ("isotropic", "two", "diagonal", "full")
MOST_SETS = 6  # variances of a level that are explored one by one


@dataclass(frozen=True)
class Structure:
    """``L = sum_a phi_a B_a``."""

    name: str  # isotropic (one variance), two (intercept, slopes), diagonal, full
    basis: Floats  # (a, q, q) lower triangular before the frame
    frame: Floats | None = None  # (q, q) takes the coefficients' B_a to those here

    @classmethod
    def named(cls, name: str, q: int, intercept: int | None, mean: Floats | None = None) -> Structure:
        """The structure for q personal columns, of which number ``intercept`` (or None) is the intercept.

        With the columns' ``mean`` (q,) it is one of the coefficients of columns less their means, so that it does not
        depend on where a column has its zero: the intercept of these is the client's model at the means.
        """
        plain = cls._plain(name, q, intercept)
        if mean is None or intercept is None:
            return plain
        frame = np.eye(q)
        frame[intercept] -= np.where(np.arange(q) == intercept, 0.0, mean)
        return cls(name, frame @ plain.basis, frame)

    @classmethod
    def _plain(cls, name: str, q: int, intercept: int | None) -> Structure:
        if name not in STRUCTURES:
            raise CoterieError(f"No covariance is called {name!r}; choose from {', '.join(STRUCTURES)}.")
        eye = np.eye(q)
        if name == "isotropic" or q <= 1:
            return cls(name, eye[None][: min(q, 1)])
        if name == "two" and intercept is not None:
            here = np.zeros((q, q))
            here[intercept, intercept] = 1.0
            return cls(name, np.stack([here, eye - here]))
        if name == "two":
            return cls(name, eye[None])
        pairs = [(i, j) for i in range(q) for j in range(i + 1) if name == "full" or i == j]
        basis = np.zeros((len(pairs), q, q))
        for a, (i, j) in enumerate(pairs):
            basis[a, i, j] = 1.0
        return cls(name, basis)

    def __len__(self) -> int:
        return len(self.basis)

    def among(self, columns: npt.NDArray[np.int64]) -> Structure:
        """The structure of these of its q columns; the others do not stray."""
        if len(columns) == self.basis.shape[1]:
            return self
        inside = np.zeros(self.basis.shape[1], dtype=bool)
        inside[columns] = True
        plain = np.where(np.outer(inside, inside), self._unframed(self.basis), 0.0)
        kept = plain[np.any(plain != 0.0, axis=(1, 2))]
        return Structure(self.name, kept if self.frame is None else np.asarray(self.frame @ kept), self.frame)

    def seen(self, frame: Floats) -> Structure:
        """The same of coefficients that ``frame`` (q, q) takes those of this structure to."""
        return Structure(self.name, frame @ self.basis, frame if self.frame is None else frame @ self.frame)

    @property
    def rows(self) -> npt.NDArray[np.bool_]:
        """Which parameters (sets, a) make a variance zero where they are zero together, each set in turn."""
        if self.name != "full":
            return np.eye(len(self), dtype=bool)
        used = np.any(self._unframed(self.basis) != 0.0, axis=2).T
        return np.asarray(used[used.any(axis=1)])

    def start(self, sd: float) -> Floats:
        """Parameters (a,) of ``L = sd I``."""
        return np.where(self._diagonal, sd, 0.0)

    def nearest(self, L: Floats, least: float = 0.05) -> Floats:
        """Parameters (g, a) of the L (g, q, q) nearest to another structure's, none of its deviations quite zero."""
        basis, L = self._unframed(self.basis), self._unframed(L)
        phi = np.einsum("aij,gij->ga", basis, L) / np.einsum("aij,aij->a", basis, basis)
        return np.asarray(np.where(self._diagonal & (np.abs(phi) < least), least, phi))

    def sets(self, apart: bool = False) -> npt.NDArray[np.bool_]:
        """Which of :meth:`axes` (sets, q) have a variance together, each set in turn; many are the first and a rest.

        With ``apart``, each has its own.
        """
        support = np.einsum("aii->ai", self._unframed(self.basis)) > 0.0
        sets = support[support.any(axis=1)]
        if apart and len(sets):
            sets = np.eye(support.shape[1], dtype=bool)[support.any(axis=0)]
        return np.stack([sets[0], sets[1:].any(axis=0)]) if len(sets) > MOST_SETS else sets

    def axes(self, L: Floats) -> tuple[Floats, Floats]:
        """Directions (g, q, q), as columns, in which deviations are independent, and their variances (g, q)."""
        plain = self._unframed(L)
        D = plain @ np.swapaxes(plain, 1, 2)
        if self.name != "full":
            return np.broadcast_to(np.eye(D.shape[1]), D.shape), np.einsum("gii->gi", D)
        values, axes = np.linalg.eigh(D)
        return axes, np.maximum(values, 0.0)

    def framed(self, axes: Floats) -> Floats:
        """Directions, or factors, of the coefficients that the structure is of, as those of the coefficients here."""
        return axes if self.frame is None else np.asarray(self.frame @ axes)

    def quadratic(self, A: Floats) -> Floats:
        """Quadratics (g, q, q) in the coefficients here as those in the coefficients that the structure is of."""
        return A if self.frame is None else np.asarray(self.frame.T @ A @ self.frame)

    def stretched(self, L: Floats, rows: npt.NDArray[np.bool_], ratio: Floats, added: Floats) -> Floats:
        """L (g, q, q) with the variances along ``rows`` (q,) of its axes times a ratio (g,), and plus ``added`` (g,).

        Only variances of zero, or of rounding, are added to: their ratio is 0.
        """
        axes, variances = self.axes(L)
        along = np.swapaxes(axes, 1, 2) @ self._unframed(L)
        along[:, rows] *= np.sqrt(ratio)[:, None, None]
        if (more := added > 0.0).any():
            variances = np.where(rows, ratio[:, None] * variances + added[:, None], variances)
            along[more] = np.sqrt(variances[more])[:, None, :] * np.eye(len(rows))
        return self.framed(axes @ along)

    def turned(self, L: Floats, pair: tuple[int, int], correlation: float) -> Floats:
        """L (g, q, q) with a correlation between its deviations along two of its axes."""
        (i, j), (axes, variances) = pair, self.axes(L)
        along = np.swapaxes(axes, 1, 2) @ self._unframed(L)
        share = correlation * np.sqrt(variances[:, j] / variances[:, i])
        along[:, j] = share[:, None] * along[:, i] + (1.0 - correlation**2) ** 0.5 * along[:, j]
        return self.framed(axes @ along)

    @property
    def _diagonal(self) -> npt.NDArray[np.bool_]:
        return np.asarray(np.einsum("aii->a", self._unframed(self.basis)) > 0)

    def _unframed(self, B: Floats) -> Floats:
        return B if self.frame is None else np.asarray(np.linalg.solve(self.frame, B), dtype=np.float64)

    def factor(self, phi: Floats) -> Floats:
        """L (g, q, q) for parameters phi (g, a)."""
        return np.asarray(np.einsum("ga,aij->gij", phi, self.basis))

    def gradient(self, L: Floats, G: Floats) -> Floats:
        """Derivative by phi (g, a), where G (g, q, q) is the derivative by D."""
        return np.asarray(2.0 * _products(G @ L, self.basis))

    def hold(self, G: Floats) -> Floats:
        """Second derivatives by phi (g, a, a) that do not vanish with L: positive where a variance belongs at zero.

        ``2 tr(B_a' G B_b)``, of the positive part of G only.
        """
        values, vectors = np.linalg.eigh(G)
        G = (vectors * np.maximum(values, 0.0)[:, None, :]) @ np.swapaxes(vectors, -1, -2)
        return np.asarray(2.0 * _products(G[:, None] @ self.basis, self.basis))

    def directions(self, L: Floats) -> Floats:
        """Derivatives of D by phi, (g, a, q, q)."""
        half = self.basis @ np.swapaxes(L, -1, -2)[:, None]
        return np.asarray(half + np.swapaxes(half, -1, -2))


def _products(A: Floats, B: Floats) -> Floats:
    """Sums of products of the elements of matrices A (..., i, j) and of each of B (b, i, j): (..., b)."""
    size = B.shape[1] * B.shape[2]
    return np.asarray(A.reshape(*A.shape[:-2], size) @ B.reshape(len(B), size).T)


def means_frame(info: Mapping[str, Any], p: int) -> Floats:
    """Takes coefficients to those of columns less their means (p, p), where a fit's ``info`` says so."""
    frame = np.eye(p)
    if "centred" in info:
        frame[info["centred"]["intercept"]] = info["centred"]["means"]
    return frame


def at_means(D: Floats, info: Mapping[str, Any]) -> Floats:
    """Covariances (..., p, p) of coefficients as those of columns less their means, where a fit's ``info`` says so."""
    if "centred" not in info:
        return D
    frame = means_frame(info, D.shape[-1])
    out, size = frame @ D @ frame.T, np.abs(frame) @ np.abs(D) @ np.abs(frame).T
    # What is less than this is left of numbers that cancel: zero, but for rounding.
    some = np.diagonal(out, axis1=-2, axis2=-1) > 1e-14 * np.diagonal(size, axis1=-2, axis2=-1)
    return np.asarray(out * some[..., :, None] * some[..., None, :]) + 0.0  # no zero is negative


def information(levels: list[tuple[Floats, Floats, Floats, Floats]], dof: float | None) -> Floats:
    """Expected second derivatives of the deviance by all variance parameters, finest level first.

    Exact for one level with a diagonal D; a coarser node's curvature is taken to be spread evenly over its members,
    which is enough to start a quasi-Newton method. Of each level: derivatives of D (g, a, q, q), sums of V^-1 as seen
    through the personal columns (g, q, q), sums of its squares, element by element (g, q, q), and numbers of members
    (g,). Over ``dof`` rows sigma^2 is profiled out.
    """
    at = np.concatenate([[0], np.cumsum([E.shape[0] * E.shape[1] for E, _, _, _ in levels])])
    H = np.zeros((at[-1], at[-1]))
    for j, (E, e, square, n) in enumerate(levels):
        V = np.sign(e) * np.sqrt(square / np.maximum(n, 1.0)[:, None, None])
        right = E @ V[:, None]
        for i, (F, _, _, m) in enumerate(levels[: j + 1]):
            left = F @ (V[:, None] if len(V) in (1, len(F)) else V)
            weight = n if i == j else (n.sum() / len(F)) ** 2 / np.maximum(m, 1.0)
            for g in range(len(F)):
                here = slice(at[i] + g * F.shape[1], at[i] + (g + 1) * F.shape[1])
                there = slice(at[j], at[j] + E.shape[1]) if len(E) == 1 else here
                block = weight[g] * _products(left[g], np.swapaxes(right[g if len(E) > 1 else 0], -1, -2))
                H[here, there], H[there, here] = block, block.T
    if dof is not None:
        c = np.concatenate([np.einsum("gaij,gji->ga", E, e).ravel() for E, e, _, _ in levels])
        H -= np.outer(c, c) / dof
    return H


def guarded_inverse(H: Floats) -> Floats:
    """Positive definite inverses of approximate Hessians (..., a, a), flat directions held at .001 of the steepest."""
    if not H.shape[-1]:
        return H
    diagonal = np.diagonal(H, axis1=-2, axis2=-1)
    steepest = diagonal.max(axis=-1, keepdims=True)
    steepest = np.where(steepest > 0.0, steepest, 1.0)  # no curvature is known: steps as long as the gradient
    scale = np.sqrt(np.maximum(diagonal, 1e-3 * steepest))
    scale = scale[..., :, None] * scale[..., None, :]
    values, vectors = np.linalg.eigh(H / scale)
    return np.asarray((vectors / np.maximum(values, 1e-3)[..., None, :]) @ np.swapaxes(vectors, -1, -2) / scale)


def bfgs_update(H: Floats, s: Floats, y: Floats) -> Floats:
    """The inverse Hessian after a step s changed the gradient by y (Nocedal and Wright 2006, section 6.1).

    It is unchanged where curvature is not positive.
    """
    curvature = float(s @ y)
    if not curvature > 1e-10 * float(np.linalg.norm(s) * np.linalg.norm(y)):
        return H
    V = np.eye(len(s)) - np.outer(s, y) / curvature
    return V @ H @ V.T + np.outer(s, s) / curvature
