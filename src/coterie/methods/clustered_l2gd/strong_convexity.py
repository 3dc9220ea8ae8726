"""Smoothness of clients' losses, and strong convexity of the objective (2.1), for Theorems 3.5 and 4.3.

mu_F is the smallest eigenvalue of F's Hessian. With fewer rows than columns every f_i has mu = 0, and mu_F is what the
theorems then hold with. The Hessian is never formed: Lanczos's method runs on its inverse, and ``H u = v`` is one sweep
of the tree, because (2.1) is (2.3) minimised over w_j and w (Proposition 2.2). Vectors stay with their clients.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.federation import Federation, PerCluster, PerRow, Site, require_all_replies, work
from coterie.numerics.arrays import Floats, Ints, full, pack
from coterie.objectives.constants import Constants, constants, hessians, packed_product, rounding
from coterie.relations.clusters import Ties

Reply = dict[str, Any]

MOST = 300  # iterations of Lanczos's method at most; tens are enough
SEPARATED = 1e-7
"""Share of the largest possible curvature under which outcomes are separated: one success in a million has 4e-6."""


@work
def send_constants(site: Site, at: str) -> Reply:
    """Each client's smoothness and strong convexity."""
    c = constants(site.objective, site.state[at] if at else None)
    return {"L": c.L, "L_row": c.L_row, "mu": c.mu, "rows": c.rows, "local": np.full(len(site), c.local)}


def client_constants(fed: Federation, at: str = "") -> Constants:
    """Constants of every client's loss; ``at`` names the state (m, d) where a Poisson outcome's run ends."""
    c = require_all_replies(fed.ask(send_constants, at=at))
    return Constants(c["L"], c["L_row"], c["mu"], c["rows"], bool(c["local"].any()))


def mu_F(fed: Federation, ties: Ties, at: str = "", tolerance: float = 1e-3) -> float:  # noqa: N802
    """The smallest eigenvalue of the Hessian of F (2.1), to a relative ``tolerance`` from below.

    Two exchanges for each of a few tens of iterations, linear in clients. It is exact for squares and holds everywhere;
    for other losses it is that at the clients' state ``at`` (m, d), the optimum's. It is 0 where F is flat in some
    direction: a client with gamma_i = 0 and fewer rows than columns, a cluster or a network whose clients all leave
    some direction open, outcomes that are separated.
    """
    s = require_all_replies(fed.total(factor_hessians, by="cluster", gamma=PerRow(ties.gamma), at=at))
    tree = factor_cluster_hessians(ties, s["A"])
    if tree is None or s["free"].any() or separated(ties, s["H"], s["most"]):
        return 0.0
    levels, C = tree
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    norm, a = 0.0, 0.0
    while True:
        s = require_all_replies(fed.total(lanczos_up, by="cluster", a=a, b=norm))
        norm = float(np.sqrt(s["square"].sum()))
        if diagonal:
            top, rest = _top(diagonal, off_diagonal, norm)
            if rest <= tolerance * top or len(diagonal) == MOST:
                fed.total(forget)
                return 1.0 / (top + rest)
            off_diagonal.append(norm)
        b = [s["b"]]
        for parent, _, S in levels:
            b.append(summed(np.einsum("kij,kj->ki", S, b[-1]), parent))
        w = b.pop() @ C
        for (parent, K, S), below in zip(reversed(levels), reversed(b), strict=True):
            w = np.einsum("kij,kj->ki", K, below) + np.einsum("kij,kj->ki", S, w[parent])
        a = float(require_all_replies(fed.total(lanczos_down, w=PerCluster(w / norm), norm=norm))["a"])
        diagonal.append(a)


def _top(diagonal: list[float], off_diagonal: list[float], norm: float) -> tuple[float, float]:
    """The largest eigenvalue of Lanczos's matrix, and how far from it an eigenvalue of the operator may be."""
    from scipy.linalg import eigh_tridiagonal

    last = len(diagonal) - 1
    values, vectors = eigh_tridiagonal(diagonal, off_diagonal, select="i", select_range=(last, last))
    return float(values[0]), float(norm * abs(vectors[-1, 0]))


@work
def factor_hessians(site: Site, gamma: Floats, at: str) -> Reply:
    """``(H_i + gamma_i I)^-1`` for the sweeps, a random start; how H_i looks to the cluster; whether v is not bound."""
    theta = site.state[at] if at else np.zeros((len(site), site.objective.dim))
    H = hessians(site.objective, theta)
    values, vectors = np.linalg.eigh(full(H))
    values = np.where(values > rounding(values), values, 0.0)
    stiff = values + gamma[:, None]
    inverse = np.divide(1.0, stiff, out=np.zeros_like(stiff), where=stiff > 0.0)
    site.state["mu M"] = pack(np.einsum("mia,ma,mja->mij", vectors, inverse, vectors))
    site.state["mu gamma"], site.state["mu u"] = gamma, site.uniform(theta.shape[1], 0, "curvature") - 0.5
    site.state["mu v"] = site.state["mu before"] = np.zeros_like(theta)
    seen = pack(np.einsum("mia,ma,mja->mij", vectors, gamma[:, None] * values * inverse, vectors))
    tied = gamma[:, None] > 0.0
    H, most = H * tied, hessians(site.objective, theta, most=True) * tied
    return {"A": seen, "H": H, "most": most, "free": (stiff[:, 0] <= 0.0).astype(np.float64)}


@work
def lanczos_up(site: Site, a: float, b: float) -> Reply:
    """Lanczos: ``r = u - a v - b v_before``, its square, and what the tree above is solved with."""
    r = site.state["mu u"] - a * site.state["mu v"] - b * site.state["mu before"]
    site.state["mu r"], gamma = r, site.state["mu gamma"][:, None]
    return {"square": np.sum(r * r, axis=1), "b": gamma * packed_product(site.state["mu M"], r)}


@work
def lanczos_down(site: Site, w: Floats, norm: float) -> Reply:
    """Lanczos: ``v = r / |r|`` and ``u = H^-1 v``; their product."""
    v, gamma = site.state["mu r"] / norm, site.state["mu gamma"][:, None]
    u = packed_product(site.state["mu M"], v + gamma * w[site.clusters])
    site.state["mu before"], site.state["mu v"], site.state["mu u"] = site.state["mu v"], v, u
    return {"a": np.sum(u * v, axis=1)}


@work
def forget(site: Site) -> Reply:
    """Make room: what the sweeps needed is as large as all Hessians."""
    for name in ("M", "v", "before", "r", "u"):
        site.state[f"mu {name}"] = np.zeros((len(site), 0))
    return {}


def summed(values: Any, parent: Ints) -> Floats:
    """Sums (k, ...) of a level's values (k_l, ...) over the parents of its nodes."""
    if not parent.any():
        return np.asarray(values.sum(axis=0))[None]
    out = np.zeros((int(parent.max()) + 1, *values.shape[1:]))
    np.add.at(out, parent, values)
    return out


def factor_cluster_hessians(ties: Ties, A: Floats) -> tuple[list[tuple[Ints, Floats, Floats]], Floats] | None:
    """The tree above the clients, factored; None where it is flat.

    At every level ``w_j = K_j b_j + S_j w`` under the parent's w, which is told ``sum_j S_j b_j``; ``w = C b`` at last.
    """
    tied, levels = ties.Gamma > 0.0, []
    H = full(A)
    for parent, lam in ties.tree:
        values, vectors = np.linalg.eigh(H)
        values, strong = np.where(values > rounding(values), values, 0.0), lam[:, None]
        if np.any(tied & (lam == 0.0) & (values[:, 0] <= 0.0)):
            return None
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.where(np.isinf(strong), 1.0, np.where(strong > 0.0, strong / (values + strong), 0.0))
            inverse = np.where(values + strong > 0.0, 1.0 / (values + strong), 0.0)
        K, S, onward = (np.einsum("kia,ka,kja->kij", vectors, x, vectors) for x in (inverse, share, values * share))
        levels.append((parent, K, S))
        H, tied = summed(onward, parent), summed(1.0 * (tied & (lam > 0.0)), parent) > 0.0
    stiff, basis = np.linalg.eigh(H[0])
    if tied.any() and stiff[0] <= rounding(stiff)[0]:
        return None
    return levels, (basis * np.divide(1.0, stiff, out=np.zeros_like(stiff), where=stiff > 0.0)) @ basis.T


def separated(ties: Ties, H: Floats, most: Floats) -> bool:
    """Whether the clients of some cluster, or of the network, have next to no curvature left in some direction.

    That is where outcomes are separated: the minimum lies at infinity, and the exact solver's ridge holds the model
    back. A direction in which all clients move as one is seen by no tie, so sums of Hessians tell, against what these
    are at most (both (k, P)): their ratio does not depend on columns' units.
    """
    tied, joined = ties.Gamma > 0.0, ties.passed[-1] > 0.0
    alone, together = tied & ~joined, tied & joined
    parts = [np.concatenate([x[alone], x[together].sum(axis=0)[None]]) for x in (H, most)]
    values, vectors = np.linalg.eigh(full(parts[1]))
    root = np.divide(1.0, np.sqrt(np.abs(values)), out=np.zeros_like(values), where=values > rounding(values))
    white = vectors * root[:, None]
    share = np.linalg.eigvalsh(white.transpose(0, 2, 1) @ full(parts[0]) @ white)[:, 0]
    return bool(np.any(share[: len(share) - (not together.any())] < SEPARATED))
