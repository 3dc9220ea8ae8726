"""The ends of the lambda path: clients alone, clients of a component as one, and from which lambda on they are that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from coterie.federation import Federation
from coterie.methods import local, pooled
from coterie.methods.estimates import Estimates, GroupedProblem
from coterie.methods.network.objective import Evaluation, NetworkObjective
from coterie.numerics.kernels import Floats
from coterie.numerics.network.edges import DUAL
from coterie.relations.layout import Layout
from coterie.relations.network import Network


def solved_end(
    fed: Federation, problem: GroupedProblem, network: Network, lam: float, layout: Layout
) -> Estimates | None:
    """What `local` fits for lambda = 0, and `pooled` for infinity, where that is the objective's minimum.

    Parameters
    ----------
    problem : GroupedProblem
    lam : float
    layout : Layout

    Returns
    -------
    Estimates or None
        None for any other lambda, for lambda = 0 where some column is shared, for infinity where the network has
        several components (``optimum`` makes one model for each), and for layouts that tie parameters or fix them.
    """
    both = np.stack([layout.shared >= 0, layout.personal >= 0])
    plain = bool(both.any(axis=0).all()) and layout.d1 + layout.d2 == both.sum()
    if lam == 0.0 and plain and not both[0].any():
        return local.fit(fed, problem)
    if np.isinf(lam) and plain and network.components.max() == 0:
        return pooled.fit(fed, problem)
    return None


def lambda_max(objective: NetworkObjective, x: Floats, Z: Floats) -> float:
    """A lambda from which on the clients of every component are one.

    Duals that carry the clients' gradients along the edges prove it; of all that do, those with the smallest sum of
    squares over weights are taken, so that the smallest such lambda is somewhat lower.

    Parameters
    ----------
    objective : NetworkObjective
        All but its lambda counts.
    x, Z : (d1,), (n, d2)
        The minimiser at lambda = infinity.

    Returns
    -------
    float
        0 where there are no edges, or where clients that are alone are the same.
    """
    return _proof(objective, objective.ask(x, Z))[0]


def still_one(objective: NetworkObjective, x: Floats, Z: Floats, kkt: float) -> tuple[Floats, float] | None:
    """Duals (M, d2) and residual that prove the minimiser at infinity to be that at the objective's lambda too.

    None where they do not, to a residual of ``kkt``. Far above the smallest such lambda nothing else finds it: rounding
    of equal parameters, times lambda, drowns all gradients.
    """
    here = objective.ask(x, Z)
    lam, U = _proof(objective, here)
    if not lam <= objective.lam:
        return None
    left = replace(objective, lam=lam).kkt(here, U)
    return (U / here.weight, left) if left <= kkt else None


def _proof(objective: NetworkObjective, here: Evaluation) -> tuple[float, Floats]:
    """The lambda of :func:`lambda_max` and the duals (M, d2), times the weight of all rows."""
    network = objective.network
    if not len(network.edges) or not here.gz.size:
        return 0.0, np.zeros((len(network.edges), here.gz.shape[1]))
    U = np.nan_to_num(flow(network, -here.gz))
    size = np.linalg.norm(U, DUAL[objective.p], axis=1) / network.weight
    return float(size.max()) / here.weight, U


def flow(network: Network, G: Floats) -> Floats:
    """Duals U (M, q) on the edges with sums G (n, q) at the clients and least ``sum_e |U_e|^2 / weight_e^2``.

    What is left of G's sums over components is ignored.
    """
    from scipy import sparse
    from scipy.sparse.linalg import cg

    i, j = network.edges.T
    square = (network.weight / network.weight.max()) ** 2
    A: Any = sparse.coo_array((square, (i, j)), shape=(network.n, network.n))
    A = (A + A.T).tocsr()
    degree = np.asarray(A.sum(axis=1)).ravel()
    laplacian = sparse.diags_array(degree) - A
    inverse = sparse.diags_array(1.0 / np.where(degree > 0.0, degree, 1.0))
    labels = network.components
    count = np.bincount(labels)
    out = np.empty((len(square), G.shape[1]))
    for k, g in enumerate(G.T):
        g = g - (np.bincount(labels, g) / count)[labels]
        # Some weights may vanish beside others.
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            v, _ = cg(laplacian, g, rtol=1e-8, maxiter=10_000, M=inverse)
        out[:, k] = square * (v[i] - v[j])
    return out
