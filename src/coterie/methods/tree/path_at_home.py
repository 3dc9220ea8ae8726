"""What clients do at every point of ``strength_path``: they keep their losses to second order, and read rows seldom."""

from __future__ import annotations

import numpy as np

from coterie.federation import Site, work
from coterie.methods.tree.at_home import ridge, strays
from coterie.methods.tree.setup import Reply
from coterie.numerics import free_nodes, tree_fold
from coterie.numerics.kernels import Floats, Ints, full
from coterie.numerics.overflow import encode_loss
from coterie.objectives.constants import expand_glm


@work
def send(site: Site, z: Ints, L: Floats, stray: Floats) -> Reply:
    """Each client's quadratic in its cluster's parameters."""
    A, b = site.state["A"], site.state["b"]
    L, which = strays(site, L, stray)
    A1, b1, _, _ = tree_fold.fold(A, b, L, which, z)
    alone = np.isinf(stray)
    if alone.any():
        A1[alone], b1[alone], _ = free_nodes.fold(A[alone], b[alone], z, ridge(site.objective.family))
    return {"A": A1, "b": b1}


@work
def land(site: Site, z: Ints, L: Floats, w: Floats, stray: Floats) -> Reply:
    """Each client's parameters under its cluster's, and what they gain on those at which its quadratic was taken."""
    A, b, parent = site.state["A"], site.state["b"], site.clusters
    L, which = strays(site, L, stray)
    C = np.zeros((len(w), A.shape[1]))
    theta, _, _ = tree_fold.unfold(A, b, L, which, z, w, C, parent)
    alone = np.isinf(stray)
    if alone.any():
        prior = ridge(site.objective.family)
        theta[alone], _ = free_nodes.unfold(A[alone], b[alone], z, prior, w[parent[alone]], C[parent[alone]])
    d = theta - site.state.get("read at", theta)
    site.state["theta"] = theta
    return {"gain": np.einsum("mi,mij,mj->m", d, full(A), d)}


@work
def read(site: Site, unit: Floats) -> Reply:
    """Each client's rows, once: its loss to second order where it is now."""
    theta = site.state["theta"]
    site.state["A"], site.state["b"] = expand_glm(site.objective, unit, theta)
    site.state["read at"] = theta
    return {}


@work
def held_out(site: Site, unit: Floats, origin: Floats) -> Reply:
    """Loss of each client's held-out rows where it is now."""
    return {"loss": encode_loss(site.objective.held.losses(np.ones(len(unit)), origin + unit * site.state["theta"]))}
