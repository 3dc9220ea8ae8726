"""Kernels that read: one compiled form for arrays that may be written and that may not, which stay as they are."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from numba.core.errors import TypingError

from coterie.federation import readonly
from coterie.numerics import arrays
from coterie.numerics.arrays import frozen, reading
from coterie.numerics.keyed_random import fraction, fraction_at


def test_all_mixtures_share_one_compiled_form(monkeypatch):
    made = []
    monkeypatch.setattr(arrays, "kernel", lambda f: made.append(plain(f)) or made[-1])

    @reading
    def dot(data, b):
        total = 0.0
        for i in range(len(b)):
            total += data[1][i] * b[i]
        return total

    a, b = np.arange(3.0), np.ones(3)
    for x in (a, readonly(a)):
        for y in (b, readonly(b)):
            assert dot((7, x), y) == 3.0
    assert len(made[0].signatures) == 1
    a[0] = b[0] = 5.0  # they are still the caller's to write


def test_a_kernel_that_writes_is_an_error(monkeypatch):
    monkeypatch.setattr(arrays, "kernel", plain)

    @reading
    def spoil(a):
        a[0] = 1.0

    with pytest.raises(TypingError, match="readonly array"):
        spoil(np.zeros(2))


def test_a_kernel_is_compiled_when_it_is_called_and_travels():
    assert "compiled" not in vars(arrays.kernel(plain))
    again = pickle.loads(pickle.dumps(fraction))  # noqa: S301 - our own
    assert again(np.uint64(7), 3) == fraction(np.uint64(7), 3) == fraction_at(np.uint64(7), np.array(3))


def plain(function):
    """Compiled without the cache, which wants a file."""
    import numba

    return numba.njit(function)


def test_frozen_goes_into_tuples_and_leaves_other_things():
    a = np.ones(2)
    (x, (n, y)), text = frozen((a, (3, a)), "text")
    assert (n, text) == (3, "text")
    assert not x.flags.writeable and not y.flags.writeable and a.flags.writeable
    assert np.shares_memory(x, a)
