"""Arrays: their types, symmetric matrices as packed triangles, and how kernels over arrays are compiled."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property, update_wrapper, wraps
from math import isqrt
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
F = TypeVar("F", bound=Callable[..., object])


class Kernel:
    """A function that is compiled when it is first called, and stands for what is compiled where kernels call it.

    Compiled code is kept on disk and runs without the interpreter's lock (engines run blocks in threads). Numba, which
    takes a third of a second and 55 MB to import, is imported then.
    """

    def __init__(self, function: Callable[..., Any], **how: Any) -> None:
        self.function, self.how = function, how
        update_wrapper(self, function)

    @cached_property
    def compiled(self) -> Any:
        """What numba makes of the function."""
        return self.made(cache=True)

    def made(self, **how: Any) -> Any:
        """What numba makes of it in a way of compiling it."""
        import numba

        _compilations()
        njit: Any = numba.njit  # whose stubs know not all options
        return njit(nogil=True, error_model="numpy", no_cfunc_wrapper=True, **self.how, **how)(self.function)

    def __call__(self, *arguments: Any) -> Any:
        """What the function gives, compiled."""
        return self.compiled(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.compiled, name)  # such as the type that numba asks for, of what another kernel calls

    def __reduce__(self) -> Any:
        return self.compiled.__reduce__()


@cache
def _compilations() -> Any:
    """What numba tells of each compilation from now on."""
    from numba.core import event

    seen = event.TimingListener()  # type: ignore[no-untyped-call]
    event.register("numba:compile", seen)  # type: ignore[no-untyped-call]
    return seen


def compile_seconds() -> float:
    """How long numba compiled kernels since this process began, in all its threads; what lay on disk took none."""
    known = _compilations.cache_info().currsize and _compilations().done  # numba is not imported for this
    return float(_compilations().duration) if known else 0.0


class Part(Kernel):
    """A kernel that makes no array: for other kernels, it is compiled without what only Python needs to call it.

    Nor is it kept on disk by itself, or counted who refers to arrays. That saves a tenth of the time that the kernels
    of a tree take to compile, which are most of what a first fit compiles.
    """

    @cached_property
    def within(self) -> Any:
        """What kernels call."""
        return self.made(no_cpython_wrapper=True, _nrt=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.within, name)


def kept(of: Any) -> tuple[Path, bool]:
    """Where what is compiled of a kernel is kept, and whether it is there; numba's RuntimeError for no such place."""
    place = Path(of.compiled.stats.cache_path)
    return place, any(place.glob(f"*.{of.function.__qualname__}-*.nbi"))


def kernel(function: F) -> F:
    """A kernel."""
    return cast(F, Kernel(function))


def part(function: F) -> F:
    """The same for one that makes no array, and that other kernels call."""
    return cast(F, Part(function))


def inlined(function: F) -> F:
    """The same for a kernel that becomes part of those that call it: where a call costs as much as what it does."""
    return cast(F, Kernel(function, inline="always"))


def summing(function: F) -> F:
    """The same for a kernel whose inner loops are sums: the compiler may put terms in another order, to vectorise."""
    return cast(F, Kernel(function, fastmath={"reassoc", "contract"}))


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
    if isinstance(x, np.ndarray):
        x = x.view()
        x.setflags(write=False)
    return tuple(map(_frozen, x)) if isinstance(x, tuple) else x


def float_array(what: str, values: npt.ArrayLike) -> Floats:
    """An array of float64 from what a user gave; a CoterieError for text, and for rows of unequal lengths."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as e:
        raise CoterieError(f"{what} must be numbers, in rows of one length.") from e


def over(a: npt.ArrayLike, b: npt.ArrayLike) -> Floats:
    """``a / b`` of numbers that are not negative; 0 where a is 0, infinite where only b is."""
    a, b = np.broadcast_arrays(np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64))
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        return np.asarray(np.where(a > 0.0, a / b, 0.0))


@cache
def _triangle(p: int) -> tuple[Ints, Ints]:
    rows, columns = np.tril_indices(p)
    return rows, columns


@cache
def _square(size: int) -> Ints:
    """Where each entry of a symmetric matrix (p, p) stands in its packed triangle."""
    p = isqrt(2 * size)
    rows, columns = _triangle(p)
    where = np.empty((p, p), dtype=np.int64)
    where[rows, columns] = where[columns, rows] = np.arange(size)
    return where


def full(packed: Floats) -> Floats:
    """Packed lower triangles (..., P), row by row, as symmetric matrices (..., p, p)."""
    return packed.take(_square(packed.shape[-1]), axis=-1)


def pack(A: Floats) -> Floats:
    """The lower triangles of symmetric matrices (..., p, p), packed (..., P)."""
    rows, columns = _triangle(A.shape[-1])
    return np.ascontiguousarray(A[..., rows, columns])


def neighbours(part: Bools) -> list[slice]:
    """Runs of neighbours that are in a part (d,), which are copied at once: layers are few, numbers many."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], part, [False]]).astype(np.int8)))
    return [slice(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]
