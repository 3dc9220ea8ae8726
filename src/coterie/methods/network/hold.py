"""What holds parameters that neither rows nor neighbours hold: the same weak priors as `local` and `pooled` have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.methods.tree.at_home import RIDGE, ridge
from coterie.numerics.kernels import Floats
from coterie.relations.network import Network


@dataclass(frozen=True)
class Hold:
    """Adds ``1/2 x |x|^2 + sum_n 1/2 z_n |z_n|^2`` to the summed losses.

    Attributes
    ----------
    z : (n,) float64
    x : float
    """

    z: Floats
    x: float

    @classmethod
    def of(cls, network: Network, family: str, alone: bool = False) -> Hold:
        """Outcomes that a client separates would take it to infinity, so each has a normal prior around 0.

        A client without neighbours is held by that of `local`, standard deviation 2.5; the clients of a larger
        component together by that of `pooled`, whose precision of 1e-9 matters where the whole component is separated
        only. A Gaussian outcome needs none.

        Parameters
        ----------
        alone : bool, default False
            Hold every client as if it had no neighbours: what `local` minimises at lambda = 0.
        """
        if family == "gaussian":
            return cls(np.zeros(network.n), 0.0)
        size = np.bincount(network.components)[network.components]
        weak = ridge(family)
        return cls(np.where((size == 1) | alone, weak, RIDGE / size), RIDGE)
