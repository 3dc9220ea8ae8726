"""Who comes into question: of thousands of clients those that are near, and not too noisy."""

from __future__ import annotations

import numpy as np

from coterie.numerics.kernels import Floats, Ints


def nearest_of(g: Floats, noise: Floats, around: Floats, main: Ints, places: Ints, count: int) -> tuple[Ints, Ints]:
    """The ``count`` clients with the least ``|g_k - around_i|^2 + noise_k``, for every main client, in its own place.

    That is a distance, once the noise is made a coordinate: a k-d tree finds them.

    Parameters
    ----------
    g, around : (n, d)
    noise : (n,)
    main : (M,)
    places : (n,) int64
        Clients of other places are not looked at.

    Returns
    -------
    of, who : (P,) int64
        Pairs, sorted by main client.
    """
    from scipy.spatial import cKDTree

    of, who = [], []
    points = np.column_stack([g, np.sqrt(noise)])
    for place in np.unique(places[main]):
        here, mains = np.flatnonzero(places == place), np.flatnonzero(places[main] == place)
        k = min(count + 1, len(here))
        asked = np.column_stack([around[main[mains]], np.zeros(len(mains))])
        found = here[np.asarray(cKDTree(points[here]).query(asked, k)[1]).reshape(len(mains), k)]
        other = found != main[mains][:, None]
        other &= np.cumsum(other, axis=1) <= count
        of.append(np.repeat(mains, other.sum(axis=1)))
        who.append(found[other])
    pairs, others = np.concatenate(of), np.concatenate(who)
    order = np.argsort(pairs, kind="stable")
    return pairs[order], others[order]


def nearest_pairs(g: Floats, noise: Floats, around: Floats, of: Ints, who: Ints, count: int) -> Ints:
    """Positions, sorted, of the ``count`` nearest of every main client among given pairs (P,), by the same measure."""
    apart = np.sum((g[who] - around[of]) ** 2, axis=1) + noise[who]
    order = np.lexsort((apart, of))
    first = np.searchsorted(of[order], of[order])
    return np.sort(order[np.arange(len(order)) - first < count])
