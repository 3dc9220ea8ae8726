"""The one form that every method's model takes: a value and a covariance at every node of the tree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.data.clients import Level
from coterie.families import Family, family_named
from coterie.numerics.arrays import Floats, Ints
from coterie.relations.covariance import Uncertainty


@dataclass(frozen=True, eq=False)
class Model:
    """Coefficients of every client, cluster and the root, in the units of the table.

    There are m clients, k_l clusters of each level and p terms; P = p (p + 1) / 2, of packed lower triangles.
    """

    method: str
    family: str  # a name of ``families.FAMILIES``
    terms: tuple[str, ...]  # (p,)
    client_name: str  # the client column
    labels: npt.NDArray[Any]  # (m,): of the clients
    levels: tuple[Level, ...]  # of clusters, fine to coarse
    clusters: Ints  # (m,): finest cluster of each client
    personal: Ints  # (q,): columns that differ between clients
    root: Floats  # (p,): global coefficients
    root_cov: Floats  # (p, p)
    nodes: tuple[Floats, ...]  # (k_l, p): the clusters' coefficients, fine to coarse
    node_cov: tuple[Floats, ...]  # (k_l, P): their covariances
    client: Floats  # (m, p): the clients' coefficients
    client_cov: Floats | None  # (m, P): their posterior covariances
    D_client: Floats
    """(1 or k, p, p): covariance of clients around their cluster, one for all, or one for each finest cluster. Zero
    columns are not personal. All zero for methods without one."""
    D_levels: tuple[Floats, ...]  # (p, p): covariance of each level's clusters around their parents
    sigma2: float = 1.0  # residual variance, or dispersion (1 for families without one)
    client_sigma2: Floats | None = None  # (m,): that of every client, where each has its own; sigma2 is then their mean
    info: dict[str, Any] = field(default_factory=dict)  # what was chosen and how the run went; plain JSON values
    # of learned variances: what it adds is in the covariances; None where they are taken as known
    uncertainty: Uncertainty | None = None

    @property
    def varies(self) -> bool:
        """Whether clients have coefficients of their own."""
        return bool(np.any(self.client != self.root))

    @property
    def scattering(self) -> Family:
        """The family, at the dispersion that was found."""
        family = family_named(self.family)
        return family.at(self.sigma2) if family.unknown else family

    @property
    def has_variances(self) -> bool:
        """Whether the method says how far clients and clusters stray from their parents."""
        return self.method in ("hierarchical", "single-cluster")
