"""What the compiled kernels share: the compiler's settings, packed triangles, small Cholesky factors, rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import njit

from coterie.errors import CoterieError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
F = TypeVar("F", bound=Callable[..., object])


def kernel(function: F) -> F:
    """Compile on first use, keep on disk, run without the interpreter's lock (engines run blocks in threads)."""
    return cast(F, njit(cache=True, nogil=True, error_model="numpy")(function))


def summing(function: F) -> F:
    """The same for a kernel whose inner loops are sums: the compiler may put terms in another order, to vectorise."""
    fast = {"reassoc", "contract"}
    return cast(F, njit(cache=True, nogil=True, error_model="numpy", fastmath=fast)(function))


def reading(function: F) -> F:
    """A kernel for Python to call that writes to no argument, compiled once for arrays that may be written or not.

    Numba compiles once more for every mixture of the two. Kernels that other kernels call are made by :func:`kernel`.
    """
    compiled = kernel(function)

    @wraps(function)
    def call(*arguments: Any) -> Any:
        return compiled(*frozen(*arguments))

    return cast(F, call)


def frozen(*arguments: Any) -> tuple[Any, ...]:
    """The arguments, with arrays (in tuples, too) as views that cannot be written."""
    return tuple(map(_frozen, arguments))


def _frozen(x: Any) -> Any:
    if isinstance(x, tuple):
        return tuple(map(_frozen, x))
    if isinstance(x, np.ndarray) and x.flags.writeable:
        x = x.view()
        x.flags.writeable = False
    return x


def float_array(what: str, values: npt.ArrayLike) -> Floats:
    """An array of float64 from what a user gave; a CoterieError for text, and for rows of unequal lengths."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as e:
        raise CoterieError(f"{what} must be numbers, in rows of one length.") from e


@cache
def _triangle(p: int) -> tuple[Ints, Ints]:
    rows, columns = np.tril_indices(p)
    return rows, columns


def full(packed: Floats) -> Floats:
    """Packed lower triangles (..., P), row by row, as symmetric matrices (..., p, p)."""
    p = int((np.sqrt(8 * packed.shape[-1] + 1) - 1) / 2)
    out = np.empty((*packed.shape[:-1], p, p))
    rows, columns = _triangle(p)
    out[..., rows, columns] = packed
    out[..., columns, rows] = packed
    return out


def pack(A: Floats) -> Floats:
    """The lower triangles of symmetric matrices (..., p, p), packed (..., P)."""
    rows, columns = _triangle(A.shape[-1])
    return np.ascontiguousarray(A[..., rows, columns])


@kernel
def unpack(packed: Floats, A: Floats) -> None:
    """Write one packed lower triangle into the full symmetric matrix A."""
    c = 0
    for i in range(A.shape[0]):
        for j in range(i + 1):
            A[i, j] = packed[c]
            A[j, i] = packed[c]
            c += 1


@kernel
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
def pull(theta: Floats, gamma: Floats, c: Floats, u: Floats, clusters: Ints) -> Floats:
    """``theta_i + gamma_i (u_j - c_j theta_i)`` for theta (m, d), c (k,), u (k, d) and client i of cluster j."""
    out = np.empty(theta.shape)
    for i in range(theta.shape[0]):
        j = clusters[i]
        keep, take = 1.0 - gamma[i] * c[j], gamma[i]
        for a in range(theta.shape[1]):
            out[i, a] = keep * theta[i, a] + take * u[j, a]
    return out


@kernel
def weighted_rows(theta: Floats, gamma: Floats) -> Floats:
    """``gamma_i theta_i`` (m, d)."""
    out = np.empty(theta.shape)
    for i in range(theta.shape[0]):
        for a in range(theta.shape[1]):
            out[i, a] = gamma[i] * theta[i, a]
    return out
