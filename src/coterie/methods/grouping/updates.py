"""Groups by updates: clients whose local steps from one model go the same way.

Every client takes some steps on its own rows from the same model, and sends the direction in which it went: q numbers.
One step is not enough, as first gradients mostly say what all clients have in common.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation, Site, work
from coterie.methods.grouping.found import Groups, numbered
from coterie.methods.grouping.sketch import sketch
from coterie.methods.local_training.at_home import finite, train
from coterie.methods.local_training.options import need
from coterie.numerics import keyed
from coterie.numerics.kernels import Floats, Ints

SKETCH = 4096
"""Numbers a client sends of its update."""
FEW = 2000
"""Clients among whom all pairs are looked at for the silhouette."""


@work
def direction(site: Site, w: Floats, eta: float, steps: int, B: int, q: int, seed: int) -> dict[str, Any]:
    """Where local steps from w lead, as a vector of length 1 (m, q) and its length; zero where they diverge."""
    if np.shape(w) != (site.objective.dim,):
        raise CoterieError(f"The common model must be {site.objective.dim} numbers, not of shape {np.shape(w)}.")
    start, many = np.tile(w, (len(site), 1)), np.full(len(site), steps, dtype=np.int64)
    theta = train(site, start, eta, many, np.zeros_like(many), B, "direction rows")
    change = np.where(finite(theta)[:, None], theta - start, 0.0).astype(np.float64)
    size = np.linalg.norm(change, axis=1)
    return {"u": sketch(change / np.where(size > 0.0, size, 1.0)[:, None], q, seed), "size": size}


def by_updates(
    fed: Federation,
    w: Floats,
    *,
    eta: float,
    steps: int = 50,
    k: int | Iterable[int] = range(2, 9),
    B: int = 0,
    q: int = SKETCH,
    how: str = "k-means",
    seed: int = 0,
) -> Groups:
    """Cluster normalised updates after several local steps from a common model.

    Parameters
    ----------
    fed : Federation
    w : (d,)
        The common model: a first model, or one that some rounds have made.
    eta : float
        Step size at home.
    steps : int, default 50
        Local steps.
    k : int or iterable of int, default 2 to 8
        Number of groups; of several, the one with the largest mean silhouette (by cosines). One group has no
        silhouette: to compare with it, use ``by_held_out``.
    B : int, default 0
        Rows of a step; 0 takes all.
    q : int, default 4096
        Numbers a client sends, of a keyed random projection; 0 sends all d.
    how : {"k-means", "agglomerative"}
        The latter (average linkage of cosines) needs all pairs of clients.
    seed : int, default 0
        Of the projection, and of k-means' 20 starts.

    Returns
    -------
    Groups
        Clients that have not moved, or did not answer, are in group -1. ``about`` has the directions.

    Raises
    ------
    CoterieError
        For a number of groups below 2 or not below the number of clients, and an unknown way of clustering.
    """
    need("steps", steps, 1, whole=True)
    need("eta", eta, 0.0, above=True)
    if how not in ("k-means", "agglomerative"):
        raise CoterieError(f"Updates are clustered by 'k-means' or 'agglomerative', not {how!r}.")
    ks = list(k) if isinstance(k, Iterable) and not isinstance(k, str) else [k]
    for number in ks:
        need("k", number, 1, whole=True)
    found = fed.ask(direction, w=np.asarray(w), eta=float(eta), steps=steps, B=B, q=q, seed=seed)
    u = np.zeros((len(fed.clients), found["u"].shape[1] if found else 1))
    if found:
        u[found.to[found.rows]] = found["u"]
    here = np.flatnonzero((u != 0.0).any(axis=1))
    ks = [n for n in ks if 1 < n < len(here)]
    if not ks:
        raise CoterieError(f"{len(here)} clients sent updates: give a number of groups from 2 to one less than that.")
    labels, score = {}, {}
    points = u[here] / np.linalg.norm(u[here], axis=1, keepdims=True)
    for n in ks:
        labels[n] = cluster(points, n, how, seed)
        score[n] = silhouette(points, labels[n], seed)
    best = max(ks, key=lambda n: score[n])
    out = np.full(len(u), -1, dtype=np.int64)
    out[here] = labels[best]
    every = {n: _spread(labels[n], here, len(u)) for n in ks}
    return Groups(numbered(out), score, {"directions": u, "partitions": every})


def _spread(labels: Ints, here: Ints, m: int) -> Ints:
    out = np.full(m, -1, dtype=np.int64)
    out[here] = labels
    return numbered(out)


def cluster(points: Floats, k: int, how: str = "k-means", seed: int = 0) -> Ints:
    """Labels (m,) of unit vectors (m, q) in k clusters."""
    from sklearn.cluster import AgglomerativeClustering, KMeans

    if how == "agglomerative":
        found = AgglomerativeClustering(k, metric="cosine", linkage="average").fit_predict(points)
    else:
        found = KMeans(k, n_init=20, random_state=seed).fit_predict(points)
    return np.asarray(found, dtype=np.int64)


def silhouette(points: Floats, labels: Ints, seed: int = 0) -> float:
    """Mean silhouette by cosines; of ``FEW`` clients drawn at random where there are more, and -1 if all are alike."""
    from sklearn.metrics import silhouette_score

    some = np.argsort(keyed.uniform(seed, "silhouette", [0], 0, len(points))[0])[:FEW]
    points, labels = points[some], labels[some]
    if len(np.unique(labels)) < 2:
        return -1.0
    return float(silhouette_score(points, labels, metric="cosine"))
