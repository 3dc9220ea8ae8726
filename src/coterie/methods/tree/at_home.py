"""What clients do in every sweep of ``penalised_tree``: send their quadratic up, finish their own parameters.

A client's own deviation is minimised out at home; what leaves is a Schur contribution, which is added up by cluster.
"""

from __future__ import annotations

import numpy as np

from coterie.families import Family
from coterie.federation import Site, work
from coterie.methods.tree.setup import Reply
from coterie.numerics import free_nodes, tree_fold
from coterie.numerics.kernels import Floats, Ints
from coterie.numerics.overflow import OVERFLOW, overflowed


def ridge(family: Family, client: bool = True) -> float:
    """Precision that holds a client (or a cluster) that stands alone, in standard units."""
    return float(family.prior_sd**-2) if client else family.root_precision


def strays(site: Site, L: Floats, stray: Floats | None = None) -> tuple[Floats, Ints]:
    """Each client's L: one for all, its cluster's, or scaled by what the client may stray (clients alone: zero)."""
    m = len(site.clusters)
    if stray is not None:
        return L[0] * np.where(np.isfinite(stray), stray, 0.0)[:, None, None], np.arange(m, dtype=np.int64)
    return L, np.zeros(m, dtype=np.int64) if len(L) == 1 else site.clusters


@work
def up(site: Site, unit: Floats, z: Ints, L: Floats, w: Floats, stray: Floats | None = None) -> Reply:
    """Each client's quadratic in its cluster's parameters, its own deviation minimised (and integrated) out at w.

    ``stray`` (m,) multiplies L; a client where it is infinite stands alone. A client whose numbers overflow at w sends
    no quadratic, and ``OVERFLOW`` for its value.
    """
    L, which = strays(site, L, stray)
    alone = np.isinf(stray) if stray is not None else np.zeros(len(site), dtype=bool)
    family = site.objective.family
    if family.is_quadratic:
        value = site.state["c"]
    else:
        parent = site.clusters
        if alone.any():  # held around 0, wherever the cluster is
            L, w, parent = L.copy(), np.concatenate([w, w]), parent + len(w) * alone
            L[alone], w[len(w) // 2 :, z] = family.prior_sd * np.eye(len(z)), 0.0
        modes = site.objective.modes(unit, L, which, z, w, parent, site.state["u"])
        site.state["A"], site.state["b"], value, site.state["u"] = modes
    A1, b1, drop, logdet = tree_fold.fold(site.state["A"], site.state["b"], L, which, z)
    if alone.any():
        free = free_nodes.fold(site.state["A"][alone], site.state["b"][alone], z, ridge(family))
        A1[alone], b1[alone], drop[alone] = free
    value = value - drop if family.is_quadratic else value
    if (over := overflowed(A1, b1, value, logdet)).any():
        A1[over], b1[over], logdet[over], value = 0.0, 0.0, 0.0, np.where(over, OVERFLOW, value)
    return {"A": A1, "b": b1, "value": value, "logdet": logdet}


@work
def reveal(site: Site) -> Reply:
    """Each client's parameters, for an owner of all the data."""
    return {"theta": site.state["theta"]}


@work
def finish(
    site: Site,
    z: Ints,
    L: Floats,
    w: Floats,
    C: Floats,
    scale: Floats,
    show: bool,
    stray: Floats | None = None,
    unit: Floats | None = None,
    origin: Floats | None = None,
) -> Reply:
    """Every client solves for its own parameters, and keeps them.

    Parameters
    ----------
    scale : (P,)
        Takes packed covariances to the units of the table.
    show : bool
        For an owner of all the data: reply the parameters (m, p) and their posterior covariances (m, P) too.
        Otherwise they are kept, as "coefficients" and "cov", in the units of the table.
    unit, origin : (p,), optional
        Coefficients are ``origin + unit * theta``; needed where nothing is shown.
    """
    L, which = strays(site, L, stray)
    A, b, parent = site.state["A"], site.state["b"], site.clusters
    theta, _, S = tree_fold.unfold(A, b, L, which, z, w, C, parent)
    if stray is not None and np.isinf(stray).any():
        alone = np.isinf(stray)
        here = w[parent[alone]], C[parent[alone]]
        theta[alone], S[alone] = free_nodes.unfold(A[alone], b[alone], z, ridge(site.objective.family), *here)
    site.state["theta"] = theta
    S *= scale
    if show or unit is None or origin is None:
        return {"theta": theta, "cov": S} if show else {}
    site.state["coefficients"], site.state["cov"] = origin + unit * theta, S
    return {}
