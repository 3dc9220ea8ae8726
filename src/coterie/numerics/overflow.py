"""Losses at points that are only tried may overflow at honest clients; what travels is finite all the same.

So a site that sends infinite numbers is a broken one, wherever others do not.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.numerics.kernels import Bools, Floats

OVERFLOW, LIMIT = 1e200, 1e100
"""What stands for a loss that overflowed, and from where on losses count as such."""


def overflowed(*parts: Floats) -> Bools:
    """Rows (m,) with numbers, in any of the parts (m, ...), that are not finite or too large."""
    found: Bools = np.any([~(np.abs(part.reshape(len(part), -1)) < LIMIT).all(axis=1) for part in parts], axis=0)
    return found


def encode_loss(loss: npt.ArrayLike) -> Floats:
    """Losses as they travel: ``OVERFLOW`` where they are not finite or too large."""
    loss = np.asarray(loss, dtype=np.float64)
    return np.where(loss < LIMIT, loss, OVERFLOW)


def decode_loss(loss: npt.ArrayLike) -> Floats:
    """Losses, or means and sums of them, of :func:`encode_loss`: infinite where one overflowed."""
    loss = np.asarray(loss, dtype=np.float64)
    return np.where(loss < LIMIT, loss, np.inf)
