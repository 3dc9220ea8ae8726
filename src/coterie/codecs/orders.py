"""Orders in which coordinates travel: runs are long where neighbours are alike, and both ends must know the order."""

from __future__ import annotations

import numpy as np

from coterie.errors import CoterieError
from coterie.numerics.kernels import Floats, Ints

ORDERS = ("natural", "magnitude", "last-update")
KEPT = 0.5
"""What a running mean of a client's messages keeps of the older ones."""


def coordinate_order(kind: str, own: Floats | None = None, update: Floats | None = None) -> Ints | None:
    """The order for :meth:`Codec.encode`, from what both ends have.

    Parameters
    ----------
    kind : {"natural", "magnitude", "last-update"}
        As they come; by the values of each client's own last estimate; or by those of the last global update.
    own : (m, d), optional
        What the server last decoded for each client.
    update : (d,), optional
        What all clients know of the last step.

    Returns
    -------
    None, (d,) or (m, d) int
        None where there is nothing to go by yet. Ties stay in their natural order.

    Raises
    ------
    CoterieError
        For another kind.
    """
    if kind not in ORDERS:
        raise CoterieError(f"There is no order {kind!r} of coordinates: there are {', '.join(ORDERS)}.")
    known = {"natural": None, "magnitude": own, "last-update": update}[kind]
    return None if known is None else np.argsort(known, axis=-1, kind="stable")


def blend(own: Floats, said: Floats, feedback: str) -> Floats:
    """What "magnitude" goes by after a message ``said`` (m, d): under EF21 the estimate itself, else a running mean."""
    return said if feedback == "ef21" else KEPT * own + (1.0 - KEPT) * said
