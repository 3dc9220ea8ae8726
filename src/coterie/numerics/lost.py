"""Losses at points that are only tried may overflow at honest clients; what travels is finite all the same.

So a site that sends infinite numbers is a broken one, wherever others do not.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.numerics.kernels import Bools, Floats

LOST, FAR = 1e200, 1e100
"""What stands for a loss that is none, and from where on losses are taken for such."""


def lost(*parts: Floats) -> Bools:
    """Rows (m,) with numbers, in any of the parts (m, ...), that are none or too large."""
    found: Bools = np.any([~(np.abs(part.reshape(len(part), -1)) < FAR).all(axis=1) for part in parts], axis=0)
    return found


def told(loss: npt.ArrayLike) -> Floats:
    """Losses as they travel: ``LOST`` where they are none or too large."""
    loss = np.asarray(loss, dtype=np.float64)
    return np.where(loss < FAR, loss, LOST)


def heard(loss: npt.ArrayLike) -> Floats:
    """Losses, or means and sums of them, that were :func:`told`: infinite where one was lost."""
    loss = np.asarray(loss, dtype=np.float64)
    return np.where(loss < FAR, loss, np.inf)
