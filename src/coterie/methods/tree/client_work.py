"""What clients do in every sweep of the tree: send their quadratic up, solve for their own parameters.

A client's own deviation is minimised out where its rows are; what leaves is a Schur contribution, which is added up by
cluster. Along a path of strengths (:mod:`~coterie.methods.tree.strengths`) clients keep their losses to second order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.federation import Site, work
from coterie.methods.tree.sweep_up_and_down import fold_free, unfold_free
from coterie.methods.tree.variance_posterior import with_added
from coterie.numerics import tree_fold
from coterie.numerics.arrays import Bools, Floats, Ints, full
from coterie.objectives.constants import expand_glm
from coterie.objectives.mean_loss import OVERFLOW, encode_loss, overflowed
from coterie.objectives.quadrature import integrals

Reply = dict[str, Any]


def client_factors(site: Site, L: Floats, client_scale: Floats | None = None) -> tuple[Floats, Ints]:
    """Each client's L: one for all, its cluster's, or one for all times ``client_scale`` (clients alone: zero)."""
    m = len(site.clusters)
    if client_scale is None:
        return L, np.zeros(m, dtype=np.int64) if len(L) == 1 else site.clusters
    return L[0] * np.where(np.isfinite(client_scale), client_scale, 0.0)[:, None, None], np.arange(m, dtype=np.int64)


def free_scale(site: Site, z: Ints, free: bool, client_scale: Floats | None) -> Floats | None:
    """What multiplies L of a Gaussian intercept that is to be ``free``, whose prior is as weak for light clients."""
    if not free:
        return client_scale
    weight = site.state["A"][:, z[0] * (z[0] + 3) // 2]
    weight = np.where(weight > 0.0, weight, 1.0)  # a client without rows has nothing to be free of
    return np.minimum(weight, 1.0) ** -0.5 if (weight < 1.0).any() else client_scale


def clients_alone(site: Site, client_scale: Floats | None) -> Bools:
    """Clients (m,) whose scale is infinite: they stand alone."""
    return np.zeros(len(site), dtype=bool) if client_scale is None else np.isinf(client_scale)


def fold(
    site: Site, L: Floats, which: Ints, z: Ints, alone: Bools, prior: Floats | None
) -> tuple[Floats, Floats, Floats, Floats]:
    """What is left of clients' quadratics once their own deviations are minimised out: A, b, a constant, log|H|."""
    A, b = site.state["A"], site.state["b"]
    A1, b1, drop, logdet = tree_fold.fold(A, b, L, which, z)
    if alone.any():
        A1[alone], b1[alone], drop[alone] = fold_free(A[alone], b[alone], z, prior)
    return A1, b1, drop, logdet


def unfold(
    site: Site,
    L: Floats,
    z: Ints,
    w: Floats,
    C: Floats,
    client_scale: Floats | None = None,
    prior: Floats | None = None,
) -> tuple[Floats, Floats]:
    """Clients' parameters (m, p) under their clusters', and packed covariances (m, P)."""
    A, b, parent, alone = site.state["A"], site.state["b"], site.clusters, clients_alone(site, client_scale)
    L, which = client_factors(site, L, client_scale)
    theta, _, S = tree_fold.unfold(A, b, L, which, z, w, C, parent)
    if alone.any():
        above = w[parent[alone]], C[parent[alone]]
        theta[alone], S[alone] = unfold_free(A[alone], b[alone], z, prior, *above)
    return theta, S


@work
def fold_messages(
    site: Site,
    unit: Floats,
    z: Ints,
    L: Floats,
    w: Floats,
    client_scale: Floats | None = None,
    free: bool = False,
    prior: Floats | None = None,
    points: int = 1,
    bounded: bool = False,
) -> Reply:
    """Each client's quadratic in its cluster's parameters, its own deviation minimised (and integrated) out at w.

    ``client_scale`` (m,) multiplies L; a client where it is infinite stands alone, held by ``|prior @ theta|^2``
    (``Setup.prior``). A client whose numbers overflow at w sends no quadratic, and ``OVERFLOW`` for its value. With
    ``points`` of quadrature, of the one L of all, its value and ``logdet`` are the integral's, which has slopes.
    ``bounded``: quadratics that are nowhere below the losses.
    """
    client_scale = free_scale(site, z, free, client_scale)
    L, which = client_factors(site, L, client_scale)
    alone, family = clients_alone(site, client_scale), site.objective.family
    if family.is_quadratic:
        value = site.state["c"]
    else:
        parent = site.clusters
        if prior is not None and alone.any():
            L, own = L.copy(), np.linalg.inv(prior[:, z])
            L[alone] = own
        if prior is not None and alone.any() and family.root_precision > 0.0:  # held around 0, wherever the cluster is
            w, parent = np.concatenate([w, w]), parent + len(w) * alone
            w[len(w) // 2 :, z] = 0.0
            w[len(w) // 2 :, z] = -(w[len(w) // 2 :] @ prior.T) @ own.T
        modes = site.objective.modes(unit, L, which, z, w, parent, site.state["u"], bounded)
        site.state["A"], site.state["b"], value, site.state["u"] = modes
        if points > 1:
            more, site.state["slopes"] = integrated(site, unit, z, L, w[parent], points)
            value = value + more
    A1, b1, drop, logdet = fold(site, L, which, z, alone, prior)
    value = value - drop if family.is_quadratic else value
    if (over := overflowed(A1, b1, value, logdet)).any():
        A1[over], b1[over], logdet[over], value = 0.0, 0.0, 0.0, np.where(over, OVERFLOW, value)
    return {"A": A1, "b": b1, "value": value, "logdet": logdet}


def integrated(site: Site, unit: Floats, z: Ints, L: Floats, above: Floats, points: int) -> tuple[Floats, Floats]:
    """``quadrature.integrals`` at the clients' modes u, along one direction of L."""
    ell, k = single_direction(L)
    u, size, theta = site.state["u"], np.zeros(len(unit)), above.copy()
    size[z] = ell
    theta[:, z] += u @ L[0].T
    return integrals(site.objective, unit, size, theta, np.ascontiguousarray(u[:, k]), points)


def single_direction(L: Floats) -> tuple[Floats, int]:
    """The direction (q,) in which all stray (most), at one standard deviation, and its place among those of L."""
    k = int(np.argmax(np.abs(L[0]).sum(axis=0)))
    return L[0][:, k], k


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
    client_scale: Floats | None = None,
    unit: Floats | None = None,
    origin: Floats | None = None,
    free: bool = False,
    prior: Floats | None = None,
    sigma2: float = 1.0,
    metric: Floats | None = None,
) -> Reply:
    """Every client solves for its own parameters, and keeps them.

    It replies them (m, p) and their posterior covariances (m, P), taken to the table's units by ``scale`` (P,), to an
    owner of all the data (``show``). Otherwise it keeps them in the units of the table, as "coefficients" (``origin +
    unit * theta``) and "cov". With a ``metric`` (P,) of sizes, covariances have what uncertain variances add, and
    their relative variances are the client's "doubt".
    """
    theta, S = unfold(site, L, z, w, C, free_scale(site, z, free, client_scale), prior)
    site.state["theta"] = theta
    doubt: Reply = {}
    if metric is not None:
        S = with_added(S * sigma2, site.state["added"])
        size = S @ metric
        doubt["doubt"] = site.state["doubt"] / np.where(size > 0.0, size, 1.0) ** 2
    S *= scale
    if show or unit is None or origin is None:
        return {"theta": theta, "cov": S, **doubt} if show else {}
    site.state["coefficients"], site.state["cov"] = origin + unit * theta, S
    return {}


@work
def fold_expansion(site: Site, z: Ints, L: Floats, client_scale: Floats, prior: Floats | None = None) -> Reply:
    """Each client's quadratic in its cluster's parameters."""
    L, which = client_factors(site, L, client_scale)
    A1, b1, _, _ = fold(site, L, which, z, clients_alone(site, client_scale), prior)
    return {"A": A1, "b": b1}


@work
def solve_expansion(
    site: Site, z: Ints, L: Floats, w: Floats, client_scale: Floats, prior: Floats | None = None
) -> Reply:
    """Each client's parameters under its cluster's, and what they gain on those at which its quadratic was taken."""
    A = site.state["A"]
    theta, _ = unfold(site, L, z, w, np.zeros((len(w), A.shape[1])), client_scale, prior)
    d = theta - site.state.get("expanded at", theta)
    site.state["theta"] = theta
    return {"gain": np.einsum("mi,mij,mj->m", d, full(A), d)}


@work
def expand_loss(site: Site, unit: Floats) -> Reply:
    """Each client's rows, once: its loss to second order where it is now."""
    theta = site.state["theta"]
    site.state["A"], site.state["b"] = expand_glm(site.objective, unit, theta)
    site.state["expanded at"] = theta
    return {}


@work
def held_out_loss(site: Site, unit: Floats, origin: Floats) -> Reply:
    """Loss of each client's held-out rows where it is now."""
    return {"loss": encode_loss(site.objective.held.value(origin + unit * site.state["theta"]))}
