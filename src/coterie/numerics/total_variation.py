"""The pinned total-variation prox of seed 003, eq. (7), exactly: a taut string whose far end is free."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.numerics.kernels import Floats, Ints, kernel

LARGEST = 1e280
"""Elements up to this size can be added up and multiplied by lengths without overflow."""


def pinned_tv(g: npt.ArrayLike, weight: npt.ArrayLike) -> Floats:
    """Minimise ``1/2 ||q - g||^2 + weight ||Lambda q||_1`` over q, exactly, in time linear in d.

    ``||Lambda q||_1 = |q_1 - q_2| + ... + |q_{d-1} - q_d| + |q_d|``: the last element is tied to 0. With a gradient g
    and ``weight`` = gamma this is the communication-efficient update of seed 003, eq. (7): its step size and its x
    cancel.

    The cumulative sums of q are the string of least length through the tube of half-width ``weight`` around those of g,
    from 0 at the left to wherever it likes at the right [1]_, [2]_.

    Parameters
    ----------
    g : (d,) or (m, d)
        One vector or many.
    weight : float or (m,)
        Not negative; infinity is allowed. One for all rows, or one for each.

    Returns
    -------
    (d,) or (m, d)
        q. Within a run all elements are equal bit by bit.

    Raises
    ------
    CoterieError
        For elements that are not finite or beyond 1e280, other shapes, or a weight that is negative or NaN.

    References
    ----------
    .. [1] Davies, Kovac (2001), Local extremes, runs, strings and multiresolution, Annals of Statistics.
    .. [2] Condat (2013), A direct algorithm for 1-D total variation denoising, IEEE Signal Processing Letters.
    """
    g = np.asarray(g, dtype=np.float64)
    if g.ndim not in (1, 2):
        raise CoterieError(f"The total-variation prox takes vectors (d,) or rows (m, d), not {g.ndim} axes.")
    rows = np.ascontiguousarray(np.atleast_2d(g))
    q: Floats = pinned_tv_rows(rows, _weights(rows, weight)).reshape(g.shape)
    return q


def _weights(rows: Floats, weight: npt.ArrayLike) -> Floats:
    """A weight for each row, and the rows, checked."""
    weight = np.asarray(weight, dtype=np.float64)
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
    m, d = rows.shape
    q = np.empty((m, d))
    ends, levels, hulls = np.empty(d, np.int64), np.empty(d), np.empty((4, d))
    for r in range(m):
        start = 0
        for j in range(taut_string(rows[r], weight[r], ends, levels, hulls)):
            q[r, start : ends[j]] = levels[j]
            start = ends[j]
    return q


@kernel
def taut_string(g: Floats, weight: float, ends: Ints, levels: Floats, hulls: Floats) -> int:
    """The runs of one vector's q: run j ends before ``ends[j]`` and is ``levels[j]``. Returns how many there are.

    From its last certain knot the string is bounded by the convex hull from below of the tube's upper edge, and by that
    of its lower edge turned upside down. Hulls are blocks of a length and a height with rising slopes: sums within
    blocks keep the small differences that sums over a long vector lose. Once the first slopes cross, one hull is a
    single block, and the string goes along the first block of the other. (Where neither is, or both are, the tube is
    narrower than rounding.)

    ``ends`` and ``levels`` (d,) and ``hulls`` (4, d) are written over.
    """
    d: int = g.shape[0]
    up, up_h, down, down_h = hulls[0], hulls[1], hulls[2], hulls[3]
    a, b, c, e = 0, 0, 0, 0  # blocks a to b - 1 of the upper edge, c to e - 1 of the lower one
    runs, start, edge = 0, 0, weight
    if weight == 0.0:
        for i in range(d):
            ends[i], levels[i] = i + 1, g[i]
        return d
    for i in range(d):
        b = _push(up, up_h, a, b, g[i] + edge)
        e = _push(down, down_h, c, e, edge - g[i])
        edge = 0.0
        while up_h[a] * down[c] + down_h[c] * up[a] < 0.0 and min(b - a, e - c) == 1 < max(b - a, e - c):
            if e - c > 1:
                length, height = down[c], -down_h[c]
                up[0], up_h[0] = up[a] - length, up_h[a] - height
                a, b, c = 0, 1, c + 1
            else:
                length, height = up[a], up_h[a]
                down[0], down_h[0] = down[c] - length, down_h[c] + height
                a, c, e = a + 1, 0, 1
            start += int(length)
            ends[runs], levels[runs] = start, height / length
            runs += 1
    # the end is free: the string is level as soon as it can be
    while a < b and up_h[a] < 0.0:
        start += int(up[a])
        ends[runs], levels[runs] = start, up_h[a] / up[a]
        runs, a, c = runs + 1, a + 1, e
    while c < e and down_h[c] < 0.0:
        start += int(down[c])
        ends[runs], levels[runs] = start, -down_h[c] / down[c]
        runs, c = runs + 1, c + 1
    if start < d:
        ends[runs], levels[runs] = d, 0.0
        runs += 1
    return runs


@kernel
def _push(lengths: Floats, heights: Floats, first: int, last: int, height: float) -> int:
    """Append an element to a hull: it takes in blocks before it that are at least as steep. Returns the new end."""
    length = 1.0
    while last > first and heights[last - 1] * length >= height * lengths[last - 1]:
        last -= 1
        length += lengths[last]
        height += heights[last]
    lengths[last], heights[last] = length, height
    return last + 1
