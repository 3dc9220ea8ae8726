"""How kernels over arrays are compiled."""

from __future__ import annotations

from numba import njit

from coterie.numerics.arrays import Kernel, compile_seconds


def test_the_time_of_compilation_is_counted_once() -> None:
    _ = Kernel(lambda: 0).compiled  # the first kernel of a process begins to count
    before, doubled = compile_seconds(), njit(lambda x: 2 * x)  # nothing on disk
    assert doubled(2) == 4
    once = compile_seconds()
    assert once > before
    assert doubled(3) == 6 and compile_seconds() == once
