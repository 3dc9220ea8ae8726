"""The keyed numbers of :mod:`coterie.numerics.keyed` inside compiled code."""

from __future__ import annotations

import numpy as np

from coterie.numerics.kernels import kernel

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@kernel
def scramble(z: np.uint64) -> np.uint64:
    """SplitMix64's output function."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@kernel
def key(start: np.uint64, step: int) -> np.uint64:
    """``keyed.keys`` of one client, from its ``keyed.starts``."""
    return scramble(start + np.uint64(step) * GOLDEN)


@kernel
def whole(key: np.uint64, draw: int, n: int) -> int:
    """One of 0, ..., n - 1, from draw number ``draw`` of a key: ``floor(n * keyed.uniform(...)[draw])``."""
    bits = scramble(key + (np.uint64(draw) + np.uint64(1)) * GOLDEN) >> np.uint64(11)
    return min(int(float(bits) * 2.0**-53 * n), n - 1)
