"""The lambda path of objective (1)-(2): from clients of a component as one down to clients nearly alone, warm-started.

Along it clients part; read upwards they merge (a clusterpath [1]_), and held-out rows say where to stop.

References
----------
.. [1] Hocking, Joulin, Bach, Vert (2011), Clusterpath: an algorithm for clustering using convex fusion penalties, ICML.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.federation import Federation
from coterie.methods.networks.objective import NetworkObjective, Prior
from coterie.methods.networks.optimum import Optimum, lambda_max, optimum
from coterie.numerics.arrays import Floats, Ints
from coterie.relations.clustering import MergeTree, merge_tree
from coterie.relations.network import Network
from coterie.relations.parameter_layout import Layout

STEPS = 40
SPAN = 1e-4  # the smallest lambda of a path, relative to the largest


@dataclass(frozen=True)
class Path:
    """Minimisers along lambda, largest first."""

    lam: Floats  # (K,) falling; the first is infinity
    at: list[Optimum]
    loss: Floats  # (K,) held-out loss at each; NaN where none was asked for

    @property
    def labels(self) -> Ints:
        """Groups of equal clients (K, n) at each lambda."""
        return np.array([o.groups for o in self.at])

    @cached_property
    def tree(self) -> MergeTree:
        """In which order groups merge as lambda grows."""
        return merge_tree(self.lam, list(self.labels))


def path(
    fed: Federation,
    network: Network,
    p: float = 2,
    *,
    layout: Layout,
    unit: Floats | None = None,
    prior: Prior | None = None,
    centred: Floats | None = None,
    lam: npt.ArrayLike | None = None,
    steps: int = STEPS,
    span: float = SPAN,
    loss: Callable[[Floats], float] | None = None,
    kkt: float = 1e-6,
) -> Path:
    """Minimise F along lambda, each time from the last minimiser; infinity comes first.

    ``lam`` (K,) are finite and positive, in any order; by default ``steps`` of them, in equal ratios, from where the
    clients of every component are sure to be one (``optimum.lambda_max``) down to ``span`` times that. ``loss(theta (n,
    d))`` is that of rows that were held out, theta in the units given. A CoterieError for lambdas, steps or a span that
    cannot be.
    """
    how: dict[str, Any] = {"layout": layout, "unit": unit, "prior": prior, "centred": centred, "kkt": kkt}
    last = optimum(fed, network, np.inf, p, **how)
    unit = np.ones(layout.d) if unit is None else unit
    if lam is None:
        top = lambda_max(NetworkObjective(fed, network, 0.0, float(p), layout, unit, prior), last.x, last.Z)
        values = grid(top, steps, span)
    else:
        values = np.sort(np.atleast_1d(np.asarray(lam, dtype=np.float64)))[::-1]
    optima, losses = [last], [np.nan if loss is None else loss(last.theta)]
    for value in values:
        last = optimum(fed, network, float(value), p, start=last, **how)
        optima.append(last)
        losses.append(np.nan if loss is None else loss(last.theta))
    return Path(np.concatenate([[np.inf], values]), optima, np.array(losses))


def grid(top: float, steps: int = STEPS, span: float = SPAN) -> Floats:
    """Lambdas in equal ratios from ``top`` to ``span`` times that; none where top is 0."""
    return top * np.geomspace(1.0, span, steps) if top > 0.0 else np.empty(0)
