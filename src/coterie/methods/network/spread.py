"""Covariances given the groups that merged: those of a fit with one z for each group, and x for all."""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.federation import Federation, PerRow
from coterie.methods.network.curve import curve
from coterie.methods.replies import require_all_replies
from coterie.numerics.kernels import Floats, Ints, full, pack
from coterie.relations.layout import Layout

CUT = 1e-10
"""Curvature, relative to the largest, below which a direction is not seen and has no variance."""


def spread(
    fed: Federation, layout: Layout, unit: Floats, theta: Floats, groups: Ints, rows: float | None
) -> tuple[Floats, float]:
    """Packed covariances (n, P) of clients' coefficients, and the residual variance of a Gaussian outcome.

    The penalty is not in them, nor the doubt about the groups: they are those of the groups' own maximum likelihood.

    Parameters
    ----------
    unit : (d,)
        Of the parameters theta (n, d); covariances are in the table's units.
    groups : (n,) int64
    rows : float or None
        Number of all rows, where there is a residual variance to be found; else it is 1.
    """
    k = int(groups.max()) + 1
    sums: Any = require_all_replies(fed.total(curve, by=groups, groups=k, unit=unit, theta=PerRow(theta)))
    H, N, M = full(sums["A"]), layout.N.toarray(), layout.M.toarray()
    zz, zx = _inverse(N.T @ H @ N), N.T @ H @ M
    left = zz @ zx  # (k, d2, d1)
    xx = _inverse((M.T @ H @ M - np.swapaxes(zx, 1, 2) @ left).sum(axis=0)[None])[0]
    joint = M @ xx @ M.T + N @ (zz + left @ xx @ np.swapaxes(left, 1, 2)) @ N.T
    cross = N @ (left @ xx) @ M.T
    cov = (joint - cross - np.swapaxes(cross, 1, 2)) * unit * unit[:, None]
    seen = float(np.sum(np.linalg.matrix_rank(N.T @ H @ N, hermitian=True))) + layout.d1 if layout.d2 else layout.d1
    sigma2 = 1.0 if rows is None else 2.0 * float(sums["value"].sum()) / max(rows - seen, 1.0)
    return pack(cov * sigma2)[groups], sigma2


def _inverse(A: Floats) -> Floats:
    """Inverses of positive semi-definite matrices (k, q, q) on the directions they see."""
    if not A.shape[-1]:
        return A
    values, vectors = np.linalg.eigh(A)
    kept = values > CUT * np.maximum(values[:, -1:], 1e-300)
    out: Floats = np.einsum("mik,mk,mjk->mij", vectors, np.where(kept, 1.0 / np.where(kept, values, 1.0), 0.0), vectors)
    return out
