"""Updates in fewer numbers, for clustering: a random projection that both ends can make from a seed."""

from __future__ import annotations

import numpy as np

from coterie.numerics import keyed
from coterie.numerics.kernels import Floats


def sketch(update: Floats, q: int, seed: int = 0) -> Floats:
    """Random projection (m, q) of updates (m, d) that keeps inner products in the mean: a count sketch.

    Every coordinate is added, with a random sign, to one of q sums, which needs O(d) and no matrix; the error of a
    cosine is about ``1 / sqrt(q)``. With q = 0 or q >= d the updates themselves are returned.

    Charikar, Chen, Farach-Colton (2002), Finding frequent items in data streams; Weinberger et al. (2009).
    """
    d = update.shape[1]
    if not 0 < q < d:
        return update
    from scipy.sparse import csr_array

    u = keyed.uniform(seed, "sketch", np.zeros(1, dtype=np.uint64), 0, 2 * d)[0]
    place, sign = (u[:d] * q).astype(np.int64), np.where(u[d:] < 0.5, -1.0, 1.0)
    return np.asarray(update @ csr_array((sign, place, np.arange(d + 1)), shape=(d, q)))
