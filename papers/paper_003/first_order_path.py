"""The lambda path where there is no Hessian: Algorithm 6 from clients alone upwards, warm-started; clients merge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.federation import Federation, PerRow, Site, require_all_replies, work
from coterie.methods.networks.optimum import Optimum, Path, flow
from coterie.methods.similarity_network import SimilarityNetwork
from coterie.numerics.arrays import Floats
from coterie.numerics.network.edge_penalty_problem import DUAL
from coterie.objectives.gradient_steps import Draws
from coterie.objectives.mean_loss import gradient, sizes

EQUAL = 1e-3
"""Coordinates that differ by less, relative to the root mean square of Z, are equal: steps end before the optimum."""


@work
def slope(site: Site, theta: Floats) -> dict[str, Floats]:
    """A client's loss's gradient (m, d), over all of its rows, and their weight."""
    site.count(len(site))
    rows, weight = (
        Draws(np.zeros(len(site), dtype=np.uint64), np.zeros(len(site), dtype=np.int64)),
        sizes(site.objective),
    )
    return {"g": weight[:, None] * gradient(site.objective, np.ascontiguousarray(theta), rows), "weight": weight}


def approximate_lambda_max(fed: Federation, method: SimilarityNetwork, x: Floats, Z: Floats) -> float:
    """About from which lambda on the clients of every component are one.

    Parameters
    ----------
    fed : Federation
    method : SimilarityNetwork
        Whose network, layout, unit and p count.
    x, Z : (d1,), (n, d2)
        About the minimiser there; as at the minimiser itself, what is left of gradients over a component is ignored.
    """
    theta = method.unit * method.layout.theta(x, Z)
    found = require_all_replies(fed.ask(slope, theta=PerRow(theta)))
    G = method.layout.to_personal(found["g"] * method.unit) / found["weight"].sum()
    if not len(method.network.edges) or not G.size:
        return 0.0
    if method.p == 2 and G.shape[1] > len(G):  # lengths are the same in the space that the clients span
        left, values, _ = np.linalg.svd(G, full_matrices=False)
        G = left * values
    size = np.linalg.norm(flow(method.network, -G), DUAL[method.p], axis=1)
    return float((size / method.network.weight).max())


def first_order_path(
    fed: Federation,
    method: SimilarityNetwork,
    lam: npt.ArrayLike,
    x: Floats,
    Z: Floats,
    steps: int = 50,
    loss: Callable[[Floats], float] | None = None,
) -> Path:
    """Take some steps of Algorithm 6 at each lambda, rising, each time from where the last ones ended.

    Parameters
    ----------
    fed : Federation
    method : SimilarityNetwork
        All but its lam counts; with constant steps on all rows it goes towards the minimisers.
    lam : (K,)
        Finite, in any order.
    x, Z : (d1,), (n, d2)
        Clients alone.
    steps : int, default 50
        At each lambda.
    loss : callable, optional
        ``loss(theta (n, d)) -> float``, of rows that were held out.

    Returns
    -------
    Path
        Its points are where steps ended, near the minimisers but without a certificate (value and kkt are NaN).

    Raises
    ------
    CoterieError
        Where a run diverges.
    """
    found, losses, rising = [], [], np.sort(np.atleast_1d(np.asarray(lam, dtype=np.float64)))
    dual: Any = None
    for value in rising:
        here = replace(method, lam=float(value))
        begun = here.init(fed, x, Z) | ({} if dual is None else {"dual": dual})
        state = begun
        for state in here.run(fed, [steps], begun):
            x, Z, dual = state["x"], state["Z"], state["dual"]
        if state["status"] != "running":
            raise CoterieError(f"At lambda {value:.3g} the run {state['status']}: take smaller steps.")
        theta = method.layout.theta(x, Z)
        nearly = Optimum(x, Z, theta, dual, np.nan, np.nan, steps, method.network.merged(Z, EQUAL))
        found.append(nearly)
        losses.append(np.nan if loss is None else loss(method.unit * theta))
    return Path(rising[::-1], found[::-1], np.array(losses[::-1]))
