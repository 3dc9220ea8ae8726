"""Large arrays in files are arrays; what is written to them is counted only where it fits on the disk."""

from __future__ import annotations

import errno
import os
from typing import Any

import numpy as np
import pytest

from coterie.engines.client_work_and_state import Store
from coterie.errors import CoterieError
from coterie.numerics import mapped_arrays
from tests.messages import names


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_arrays, "LARGE", 64)


def test_what_is_written_is_read_and_copied() -> None:
    array, like = mapped_arrays.zeros((50, 3), np.float32), np.zeros((50, 3), np.float32)
    assert isinstance(array, mapped_arrays.Mapped)
    assert not isinstance(mapped_arrays.zeros((2, 2), np.float32), mapped_arrays.Mapped)
    written = np.zeros(50, dtype=bool)
    for rows in (slice(3, 7), np.array([40, 41, 9, 20, 21, 22]), np.arange(0)):
        values = np.random.default_rng(0).normal(size=(len(np.arange(50)[rows]), 3))
        mapped_arrays.write(array, rows, values)
        like[rows], written[rows] = values, True
    mapped_arrays.release(array[3:])
    np.testing.assert_array_equal(array, like)
    other = mapped_arrays.copy(array, written)
    mapped_arrays.write(array, slice(0, 50), like * 0.0)
    np.testing.assert_array_equal(other, like)


def test_state_in_files_is_that_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> list[Any]:
        store = Store(20)
        store.write("theta", np.array([2, 3, 9]), np.ones((3, 4)), whole=False)
        store.close()
        before = store.keep()
        store.write("theta", np.array([3, 4]), np.full((2, 4), 5.0), whole=False)
        store.close()
        after = {name: np.array(array) for name, array in store.arrays.items()}
        store.replace(before)
        return [{name: np.array(array) for name, array in store.arrays.items()}, after]

    mapped = run()
    monkeypatch.setattr(mapped_arrays, "LARGE", 1 << 28)
    for one, other in zip(mapped, run(), strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_a_full_disk_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    array = mapped_arrays.zeros((50, 3), np.float32)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setattr(os, "posix_fallocate", full)
    for run in (
        lambda: mapped_arrays.write(array, slice(0, 2), np.ones((2, 3))),
        lambda: mapped_arrays.zeros((50, 3), float, True),
    ):
        with pytest.raises(CoterieError, match=names("bytes clients' models written No space left TMPDIR")):
            run()
