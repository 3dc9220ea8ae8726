"""The pinned total-variation prox of paper 003, eq. (7), exactly: a taut string whose far end is free."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.numerics.arrays import Floats, float_array, frozen, kernel

LARGEST = 1e280  # elements up to this size can be added up and multiplied by lengths without overflow


def pinned_tv(g: npt.ArrayLike, weight: npt.ArrayLike) -> Floats:
    """Minimise ``1/2 ||q - g||^2 + weight ||Lambda q||_1`` over q, exactly, in time linear in d.

    ``||Lambda q||_1 = |q_1 - q_2| + ... + |q_{d-1} - q_d| + |q_d|``: the last element is tied to 0. With a gradient g
    and ``weight`` = gamma this is the communication-efficient update of paper 003, eq. (7): its step size and its x
    cancel.

    The cumulative sums of q are the string of least length through the tube of half-width ``weight`` around those of g,
    from 0 at the left to wherever it likes at the right [1]_, [2]_. Within a run all elements of q are
    equal bit by bit.

    g is one vector (d,) or many (m, d), ``weight`` one for all rows or one for each, not negative, infinity allowed. A
    CoterieError for elements that are not finite or beyond 1e280, other shapes, or a weight that is negative or NaN.

    References
    ----------
    .. [1] Davies, Kovac (2001), Local extremes, runs, strings and multiresolution, Annals of Statistics.
    .. [2] Condat (2013), A direct algorithm for 1-D total variation denoising, IEEE Signal Processing Letters.
    """
    g = float_array("Rows of the total-variation prox", g)
    if g.ndim not in (1, 2):
        raise CoterieError(f"The total-variation prox takes vectors (d,) or rows (m, d), not {g.ndim} axes.")
    rows = np.ascontiguousarray(np.atleast_2d(g))
    q: Floats = pinned_tv_rows(rows, *frozen(_weights(rows, weight))).reshape(g.shape)
    return q


def _weights(rows: Floats, weight: npt.ArrayLike) -> Floats:
    """A weight for each row, and the rows, checked."""
    weight = float_array("Weights of the total-variation prox", weight)
    if weight.shape not in ((), (len(rows),)):
        raise CoterieError(f"The total-variation prox needs one weight or one for each of {len(rows)} rows.")
    if not np.all(weight >= 0.0):
        raise CoterieError("Weights of the total-variation prox must be numbers that are not negative.")
    sound = (rows.max(axis=1, initial=0.0) < LARGEST) & (rows.min(axis=1, initial=0.0) > -LARGEST)
    if not sound.all():
        raise CoterieError(f"Row {int(np.argmin(sound))} has elements not finite or beyond {LARGEST:g}: leave it out.")
    return np.ascontiguousarray(np.broadcast_to(weight, len(rows)))


@kernel
def pinned_tv_rows(rows: Floats, weight: Floats) -> Floats:
    """:func:`pinned_tv` of rows (m, d) with weights (m,), unchecked."""
    q, hulls = np.empty(rows.shape), np.empty((4, rows.shape[1]))
    for r in range(rows.shape[0]):
        taut_string(rows[r], weight[r], q[r], hulls)
    return q


@kernel
def taut_string(g: Floats, weight: float, q: Floats, hulls: Floats) -> None:
    """Write q of one vector (d,); ``hulls`` (4, d) is scratch memory.

    From its last certain knot the string is bounded by the convex hull from below of the tube's upper edge, and by that
    of its lower edge turned upside down. Hulls are blocks of a length and a height with rising slopes: sums within
    blocks keep the small differences that sums over a long vector lose. Once the first slopes cross, one hull is a
    single block, and the string goes along the first block of the other. (Where neither is, or both are, the tube is
    narrower than rounding.)
    """
    if weight == 0.0:
        q[:] = g
        return
    up, up_h, down, down_h = hulls[0], hulls[1], hulls[2], hulls[3]
    n, h, m, k = 0.0, weight, 0.0, weight  # the first block of the upper edge is n long and h high; of the lower, m, k
    a, b, c, e = 0, 0, 0, 0  # the others are a to b - 1, and c to e - 1
    start = 0
    for i in range(g.shape[0]):
        b, n, h = _push(up, up_h, a, b, n, h, g[i])
        e, m, k = _push(down, down_h, c, e, m, k, -g[i])
        while h * m + k * n < 0.0 and (a == b) != (c == e):
            if a == b:
                start = _follow(q, start, m, -k / m)
                a, b, n, h = 0, 0, n - m, h + k
                m, k, c = down[c], down_h[c], c + 1
            else:
                start = _follow(q, start, n, h / n)
                c, e, m, k = 0, 0, m - n, k + h
                n, h, a = up[a], up_h[a], a + 1
    # the end is free: the string is level as soon as it can be
    if h < 0.0:
        while h < 0.0:
            start = _follow(q, start, n, h / n)
            n, h, a = (up[a], up_h[a], a + 1) if a < b else (0.0, 0.0, a)
    else:
        while k < 0.0:
            start = _follow(q, start, m, -k / m)
            m, k, c = (down[c], down_h[c], c + 1) if c < e else (0.0, 0.0, c)
    q[start:] = 0.0


@kernel
def _push(
    lengths: Floats, heights: Floats, first: int, last: int, n: float, h: float, height: float
) -> tuple[int, float, float]:
    """Append an element to a hull, which takes in blocks before it that are at least as steep.

    Returns the end of the blocks behind the first, and the first one's length and height.
    """
    length = 1.0
    while last > first and heights[last - 1] * length >= height * lengths[last - 1]:
        last -= 1
        length += lengths[last]
        height += heights[last]
    if last == first and h * length >= height * n:
        return last, n + length, h + height
    lengths[last], heights[last] = length, height
    return last + 1, n, h


@kernel
def _follow(q: Floats, start: int, length: float, slope: float) -> int:
    """Let the string go along a block; where it ends."""
    stop = start + int(length)
    q[start:stop] = slope
    return stop
