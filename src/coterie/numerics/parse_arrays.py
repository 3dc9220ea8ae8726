"""Arrays of numbers from what a user gave."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.numerics.kernels import Floats

LARGEST = 1e140
"""Numbers from here on have squares whose sums may overflow."""


def float_array(what: str, values: npt.ArrayLike) -> Floats:
    """An array of float64; a CoterieError for text, and for rows of unequal lengths."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as e:
        raise CoterieError(f"{what} must be numbers, in rows of one length.") from e
