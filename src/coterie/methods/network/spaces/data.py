"""Data space: clients as mean embeddings of their rows in the space of a kernel.

The squared distance of two embeddings is the maximum mean discrepancy (MMD^2) of the clients' rows [1]_ under a
Gaussian kernel, here with random Fourier features [2]_: every client sends a few hundred numbers, means over its rows.
It is the estimate with a bias: each client of n rows adds ``(1 - mean kernel of two of its rows) / n``, so that clients
of few rows are far from all others.

References
----------
.. [1] Gretton et al. (2012), A kernel two-sample test, JMLR.
.. [2] Rahimi, Recht (2007), Random features for large-scale kernel machines, NIPS.
"""

from __future__ import annotations

import numpy as np

from coterie.federation import Federation, Site, work
from coterie.methods.network.spaces.columns import Reply, agree, rows_of
from coterie.methods.replies import require_all_replies
from coterie.numerics.kernels import Floats, Ints
from coterie.objectives import embedding


@work
def radii(site: Site, columns: Ints, centre: Floats, unit: Floats) -> Reply:
    """Median squared distances to the centre, for a mean over rows."""
    o = rows_of(site)
    rows = embedding.moments(o, columns[:0], centre[:0], unit[:0])[0]
    return {"rows": rows, "square": rows * embedding.radii(o, columns, centre, unit)}


@work
def embed(site: Site, columns: Ints, centre: Floats, unit: Floats, seed: int, pairs: int, width: float) -> Reply:
    """Mean random features; every client draws the same frequencies."""
    omega = embedding.frequencies(seed, pairs, len(columns), width)
    weight = embedding.moments(rows_of(site), columns[:0], centre[:0], unit[:0])[1]
    return {"z": embedding.features(rows_of(site), columns, centre, unit, omega), "w": weight}


def points(
    fed: Federation, features: int = 256, response: bool = True, width: float | None = None, seed: int = 0
) -> Floats:
    """Mean embeddings (n, features), clients in the order of ``fed.clients``; those without rows get the mean of all.

    Parameters
    ----------
    features : int, default 256
        An even number: a cosine and a sine of each frequency. The error of an MMD^2 is about ``1 / sqrt(features)``.
    response : bool, default True
        Compare the joint distribution of columns and response; otherwise of the columns alone.
    width : number, optional
        The kernel is ``exp(-|x - x'|^2 / (2 width^2))`` in standard units. By default ``width^2`` is twice the mean of
        the clients' median squared distances to the mean of all rows: about the median squared distance of two rows,
        without a client seeing another's.

    Notes
    -----
    The embedding of a single row tells that row. A client with one row must trust who draws the network.
    """
    scale = agree(fed, response)
    if width is None:
        s = require_all_replies(fed.total(radii, **scale.message))
        width = float(np.sqrt(2.0 * s["square"] / s["rows"]))
        width = width if width > 0.0 else float(np.sqrt(2.0 * len(scale.columns)))
    replies = require_all_replies(fed.ask(embed, **scale.message, seed=seed, pairs=features // 2, width=width))
    z, w = np.array(replies["z"]), replies["w"]
    z[w == 0.0] = w @ z / w.sum()
    return z
