"""Sattler, Müller, Samek (2020), Clustered federated learning, Algorithm 1: the best split of clients in two."""

from __future__ import annotations

import numpy as np

from coterie.numerics.kernels import Floats, Ints


def bipartition(alpha: Floats) -> tuple[Ints, float]:
    """Algorithm 1: the split that makes the largest similarity across it smallest.

    Clients are joined in falling order of similarity until two groups are left, which is single linkage.

    Parameters
    ----------
    alpha : (n, n)
        Symmetric similarities of two clients or more.

    Returns
    -------
    side : (n,) int64
        0 or 1; the first client's side is 0.
    cross : float
        The largest similarity across.
    """
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    n = len(alpha)
    apart = 1.0 - (alpha + alpha.T) / 2.0
    np.fill_diagonal(apart, 0.0)
    label = fcluster(linkage(squareform(np.maximum(apart, 0.0), checks=False), "single"), 2, "maxclust")
    side = (label != label[0]).astype(np.int64)
    if not side.any():  # all equally far apart
        side[n - 1] = 1
    return side, float(alpha[np.ix_(side == 0, side == 1)].max())
