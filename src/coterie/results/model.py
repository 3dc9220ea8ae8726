"""The one form that every method's model takes: a value and a covariance at every node of the tree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.data.clients import Level
from coterie.numerics.arrays import Floats, Ints


@dataclass(frozen=True, eq=False)
class Model:
    """Coefficients of every client, cluster and the root, in the units of the table.

    Attributes
    ----------
    method : str
        "local", "pooled", "own-intercept", "clusterwise", "single-cluster" or "hierarchical".
    family : str
        A name of ``families.FAMILIES``.
    terms : tuple of str, (p,)
    client_name : str
        The client column.
    labels : (m,) array
        Client labels.
    levels : tuple of Level
        Cluster levels, fine to coarse.
    clusters : (m,) int64
        Finest cluster of each client.
    personal : (q,) int64
        Columns that differ between clients.
    root : (p,); root_cov : (p, p)
        Global coefficients and their covariance.
    nodes : tuple of (k_l, p); node_cov : tuple of (k_l, P)
        The clusters' coefficients and covariances (packed lower triangles, P = p (p + 1) / 2), fine to coarse.
    client : (m, p); client_cov : (m, P) or None
        The clients' coefficients and posterior covariances.
    D_client : (1 or k, p, p)
        Covariance of clients around their cluster: one for all, or one for each finest cluster. Zero columns are not
        personal. All zero for methods without one.
    D_levels : tuple of (p, p)
        Covariance of each level's clusters around their parents.
    client_sigma2 : (m,) or None
        Residual variance of every client, where each has its own; ``sigma2`` is then their mean.
    sigma2 : float
        Residual variance (1 for families without one).
    info : dict
        What was chosen and how the run went; plain JSON values.
    """

    method: str
    family: str
    terms: tuple[str, ...]
    client_name: str
    labels: npt.NDArray[Any]
    levels: tuple[Level, ...]
    clusters: Ints
    personal: Ints
    root: Floats
    root_cov: Floats
    nodes: tuple[Floats, ...]
    node_cov: tuple[Floats, ...]
    client: Floats
    client_cov: Floats | None
    D_client: Floats
    D_levels: tuple[Floats, ...]
    sigma2: float = 1.0
    client_sigma2: Floats | None = None
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def varies(self) -> bool:
        """Whether clients have coefficients of their own."""
        return bool(np.any(self.client != self.root))

    @property
    def has_variances(self) -> bool:
        """Whether the method says how far clients and clusters stray from their parents."""
        return self.method in ("hierarchical", "single-cluster")
