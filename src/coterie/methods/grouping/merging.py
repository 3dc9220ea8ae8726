"""Groups by merging: clients tied to their nearest, whose models become equal as the ties get stronger (seed 003)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from coterie.federation import Federation
from coterie.methods.grouping.evaluation import Groups
from coterie.methods.network.first_order_path import approximate_lambda_max, first_order_path
from coterie.methods.network.path import Path, grid
from coterie.methods.network.similarity import NEIGHBOURS
from coterie.methods.similarity_network import SimilarityNetwork
from coterie.numerics.kernels import Floats, Ints
from coterie.relations.layout import Layout
from coterie.relations.network import Network


def by_merging(
    fed: Federation,
    alone: Floats,
    shared: Floats,
    *,
    eta: float,
    network: Network | None = None,
    steps: int = 30,
    lam: npt.ArrayLike | None = None,
    points: int = 16,
) -> Groups:
    """Walk up the path of ties and read off who has merged, without Hessians: see ``first_order_path``.

    Tables of a GLM have an exact path: ``coterie.fit(..., network=...)`` and its ``result.merged``.

    Parameters
    ----------
    fed : Federation
    alone : (m, d)
        Every client's own model.
    shared : (d,)
        One model for all, near its optimum: says where the path begins.
    eta : float
        Step size.
    network : Network, optional
        By default each client is tied to the 5 whose own models are nearest, and the network is made connected.
    steps : int, default 30
        At each strength.
    lam : (K,), optional
        Strengths; by default ``points`` of them, down to 0.001 of the one that makes all clients one.
    points : int, default 16

    Returns
    -------
    Groups
        Of the partitions along the path into 2 to m - 1 groups, the one that the longest stretch of lambda has (in
        logarithms). ``score``: the length of each number of groups' stretch; ``about`` has the ``path`` and one
        partition for each number, ``partitions``, for ``by_held_out`` to choose among.
    """
    m, d = alone.shape
    near = Network.nearest(alone, min(NEIGHBOURS, m - 1), connected=True) if network is None else network
    layout = Layout.columns(d, np.arange(d))
    method = SimilarityNetwork(network=near, layout=layout, lam=0.0, eta=eta, own=eta * m, gap=1e-4)
    nothing = np.zeros(0)
    if lam is None:
        lam = grid(approximate_lambda_max(fed, method, nothing, np.tile(shared, (m, 1))), points, 1e-3)
    return stretches(
        first_order_path(fed, replace(method, lam=0.0), lam, nothing, np.array(alone, dtype=np.float64), steps)
    )


def stretches(path: Path) -> Groups:
    """The partition that lasts longest along a path."""
    m = len(path.at[0].groups)
    length: dict[int, float] = {}
    partitions: dict[int, Ints] = {}
    lam = np.asarray(path.lam)
    for at, here in enumerate(path.at):
        k = int(here.groups.max()) + 1
        partitions.setdefault(k, here.groups)
        if at + 1 < len(lam) and np.isfinite(lam[at]) and np.array_equal(here.groups, path.at[at + 1].groups):
            length[k] = length.get(k, 0.0) + float(np.log(lam[at] / lam[at + 1]))
    score = {k: length.get(k, 0.0) for k in partitions if 1 < k < m}
    best = max(score, key=lambda k: (score[k], -k)) if score else min(partitions)
    return Groups(partitions[best], score, {"path": path, "partitions": partitions})
