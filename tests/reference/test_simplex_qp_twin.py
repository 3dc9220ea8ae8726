"""The compiled water filling against its twin."""

from __future__ import annotations

import itertools

import numpy as np

from coterie.numerics.simplex_qp import diagonal_simplex_qp
from tests.reference.simplex_qp_twin import fill


def test_many_problems_at_once_are_as_one_by_one() -> None:
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 9, 600)
    starts = np.concatenate([[0], np.cumsum(counts)])
    d = rng.exponential(size=starts[-1]) * 10.0 ** rng.uniform(-3, 3, starts[-1]) * (rng.random(starts[-1]) > 0.15)
    q = np.where(rng.random(starts[-1]) < 0.3, rng.integers(0, 2, starts[-1]), rng.normal(size=starts[-1]))
    found = diagonal_simplex_qp(d, q, starts)
    for lo, hi in itertools.pairwise(starts):
        if hi > lo:
            np.testing.assert_allclose(found[lo:hi], fill(d[lo:hi], q[lo:hi]), rtol=1e-9, atol=1e-11)
