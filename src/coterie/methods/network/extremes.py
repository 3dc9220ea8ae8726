"""The ends of the lambda path: clients alone, clients of a component as one, and from which lambda on they are that."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.federation import Federation
from coterie.methods import local, pooled
from coterie.methods.estimates import Estimates, GroupedProblem
from coterie.methods.network.duals import DUAL
from coterie.methods.network.exact import Exact, Place
from coterie.numerics.kernels import Floats
from coterie.relations.layout import Layout
from coterie.relations.network import Network

if TYPE_CHECKING:
    from coterie.methods.network.optimum import Optimum


def extreme(fed: Federation, problem: GroupedProblem, network: Network, lam: float, layout: Layout) -> Estimates | None:
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


def most(exact: Exact, as_one: Optimum) -> float:
    """A lambda from which on the clients of every component are one.

    Duals that carry the clients' gradients along the edges prove it; of all that do, those with the smallest sum of
    squares over weights are taken, so that the smallest such lambda is somewhat lower. Parameters of ``exact``
    beside lambda count.

    Parameters
    ----------
    exact : Exact
    as_one : Optimum
        The minimiser at lambda = infinity.

    Returns
    -------
    float
        0 where there are no edges, or where clients that are alone are the same.
    """
    return _proof(exact, exact.ask(as_one.x, as_one.Z))[0]


def still_one(exact: Exact, as_one: Optimum, kkt: float) -> Optimum | None:
    """The minimiser at infinity with duals that prove it one at the lambda of ``exact`` too, to a residual of ``kkt``.

    None where they do not. Far above the smallest such lambda nothing else finds it: rounding of equal parameters,
    times lambda, drowns all gradients.
    """
    here = exact.ask(as_one.x, as_one.Z)
    lam, U = _proof(exact, here)
    if not lam <= exact.lam:
        return None
    left = replace(exact, lam=lam).kkt(here, U)
    if not left <= kkt:
        return None
    return replace(as_one, dual=U / here.weight, kkt=left, exchanges=as_one.exchanges + 1)


def _proof(exact: Exact, here: Place) -> tuple[float, Floats]:
    """The lambda of :func:`most` and the duals (M, d2), times the weight of all rows."""
    network = exact.network
    if not len(network.edges) or not here.gz.size:
        return 0.0, np.zeros((len(network.edges), here.gz.shape[1]))
    U = np.nan_to_num(flow(network, -here.gz))
    size = np.linalg.norm(U, DUAL[exact.p], axis=1) / network.weight
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
        with np.errstate(
            divide="ignore", invalid="ignore", over="ignore"
        ):  # weights of which some vanish beside others
            v, _ = cg(laplacian, g, rtol=1e-8, maxiter=10_000, M=inverse)
        out[:, k] = square * (v[i] - v[j])
    return out
