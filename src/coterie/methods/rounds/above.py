"""The tree above the clients of (2.3), factored once for many right sides; and where nothing bounds it."""

from __future__ import annotations

import numpy as np

from coterie.numerics.kernels import Floats, full
from coterie.objectives.constants import rounding
from coterie.relations.ties import Ties

SEPARATED = 1e-7
"""Share of the largest possible curvature under which outcomes are separated: one success in a million has 4e-6."""


def factor_above(ties: Ties, A: Floats) -> tuple[Floats, Floats, Floats] | None:
    """The tree above the clients, factored: ``w_j = K_j b_j + S_j w`` and ``w = C sum_j S_j b_j``; None where flat."""
    values, vectors = np.linalg.eigh(full(A))
    values = np.where(values > rounding(values), values, 0.0)
    lam, tied = ties.lam[:, None], ties.Gamma > 0.0
    if np.any(tied & (lam[:, 0] == 0.0) & (values[:, 0] <= 0.0)):
        return None
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(np.isinf(lam), 1.0, np.where(lam > 0.0, lam / (values + lam), 0.0))
        inverse = np.where(values + lam > 0.0, 1.0 / (values + lam), 0.0)
    K, S, onward = (np.einsum("kia,ka,kja->kij", vectors, x, vectors) for x in (inverse, share, values * share))
    stiff, basis = np.linalg.eigh(onward.sum(axis=0))
    if np.any(tied & (lam[:, 0] > 0.0)) and stiff[0] <= rounding(stiff)[0]:
        return None
    C = (basis * np.divide(1.0, stiff, out=np.zeros_like(stiff), where=stiff > 0.0)) @ basis.T
    return K, S, C


def separated(ties: Ties, H: Floats, most: Floats) -> bool:
    """Whether the clients of some cluster, or of the network, have next to no curvature left in some direction.

    That is where outcomes are separated: the minimum lies at infinity, and the exact solver's ridge holds the model
    back. A direction in which all clients move as one is seen by no tie, so sums of Hessians tell.

    Parameters
    ----------
    H, most : (k, P)
        The clusters' sums of Hessians, and of what these are at most: their ratio does not depend on columns' units.
    """
    tied, joined = ties.Gamma > 0.0, ties.lam > 0.0
    alone, together = tied & ~joined, tied & joined
    parts = [np.concatenate([x[alone], x[together].sum(axis=0)[None]]) for x in (H, most)]
    values, vectors = np.linalg.eigh(full(parts[1]))
    root = np.divide(1.0, np.sqrt(np.abs(values)), out=np.zeros_like(values), where=values > rounding(values))
    white = vectors * root[:, None]
    share = np.linalg.eigvalsh(white.transpose(0, 2, 1) @ full(parts[0]) @ white)[:, 0]
    return bool(np.any(share[: len(share) - (not together.any())] < SEPARATED))
