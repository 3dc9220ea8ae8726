"""Smoothness of clients' losses, and strong convexity of the objective (2.1), for Theorems 3.5 and 4.3.

mu_F is the smallest eigenvalue of F's Hessian. With fewer rows than columns every f_i has mu = 0, and mu_F is what the
theorems then hold with. The Hessian is never formed: Lanczos's method runs on its inverse, and ``H u = v`` is one sweep
of the tree, because (2.1) is (2.3) minimised over w_j and w (Proposition 2.2). Vectors stay with their clients. Columns
that all clients share, those that are not ``own``, are tied without end at every level, so that their copies are equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.federation import Federation, PerCluster, PerRow, Site, require_all_replies, work
from coterie.numerics.arrays import Bools, Floats, Ints, full, pack
from coterie.objectives.constants import Constants, constants, hessians, packed_product, rounding
from coterie.relations.clusters import ClusterTies

Reply = dict[str, Any]

MOST = 300  # iterations of Lanczos's method at most; tens are enough
SEPARATED = 1e-7
"""Share of the largest possible curvature under which outcomes are separated: one success in a million has 4e-6."""


@work
def send_constants(site: Site, at: str, own: Any = None) -> Reply:
    """Each client's smoothness and strong convexity; with ``own`` (d,) of these columns, and that of the others."""
    theta = site.state[at] if at else None
    c = constants(site.objective, theta, own)
    about = {"L": c.L, "L_row": c.L_row, "mu": c.mu, "rows": c.rows, "local": np.full(len(site), c.local)}
    return about if own is None else about | {"shared": constants(site.objective, theta, ~own).L}


def client_constants(fed: Federation, at: str = "", own: Bools | None = None) -> Constants:
    """Constants of every client's loss; ``at`` names the state (m, d) where a Poisson outcome's run ends."""
    how: dict[str, Any] = {} if own is None else {"own": own}
    c = require_all_replies(fed.ask(send_constants, at=at, **how))
    shared = c["shared"] if how else 0.0
    return Constants(c["L"], c["L_row"], c["mu"], c["rows"], bool(c["local"].any()), shared)


def mu_F(  # noqa: N802
    fed: Federation, ties: ClusterTies, at: str = "", tolerance: float = 1e-3, own: Bools | None = None
) -> float:
    """The smallest eigenvalue of the Hessian of F (2.1), to a relative ``tolerance`` from below.

    Two exchanges for each of a few tens of iterations, linear in clients. It is exact for squares and holds everywhere;
    for other losses it is that at the clients' state ``at`` (m, d), the optimum's. It is 0 where F is flat in some
    direction: a client with gamma_i = 0 and fewer rows than columns, a cluster or a network whose clients all leave
    some direction open, outcomes that are separated.
    """
    how: dict[str, Any] = {} if own is None else {"own": own}
    s = require_all_replies(fed.total(factor_hessians, by="cluster", gamma=PerRow(ties.gamma), at=at, **how))
    tree = factor_cluster_hessians(ties, s["A"], own)
    if tree is None or s["free"].any() or separated(ties, s["H"], s["most"], own):
        return 0.0
    levels, C = tree
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    norm, a = 0.0, 0.0
    while True:
        s = require_all_replies(fed.total(lanczos_up, by="cluster", a=a, b=norm, **how))
        norm = float(np.sqrt(s["square"].sum()))
        if diagonal:
            top, rest = _top(diagonal, off_diagonal, norm)
            if rest <= tolerance * top or len(diagonal) == MOST:
                fed.total(forget)
                return 1.0 / (top + rest)
            off_diagonal.append(norm)
        b = [s["b"]]
        for parent, _, S in levels:
            b.append(summed(np.einsum("kji,kj->ki", S, b[-1]), parent))
        w = b.pop() @ C
        for (parent, K, S), below in zip(reversed(levels), reversed(b), strict=True):
            w = np.einsum("kij,kj->ki", K, below) + np.einsum("kij,kj->ki", S, w[parent])
        a = float(require_all_replies(fed.total(lanczos_down, w=PerCluster(w / norm), norm=norm, **how))["a"])
        diagonal.append(a)


def _top(diagonal: list[float], off_diagonal: list[float], norm: float) -> tuple[float, float]:
    """The largest eigenvalue of Lanczos's matrix, and how far from it an eigenvalue of the operator may be."""
    from scipy.linalg import eigh_tridiagonal

    last = len(diagonal) - 1
    values, vectors = eigh_tridiagonal(diagonal, off_diagonal, select="i", select_range=(last, last))
    return float(values[0]), float(norm * abs(vectors[-1, 0]))


@work
def factor_hessians(site: Site, gamma: Floats, at: str, own: Any = None) -> Reply:
    """``(H_i + gamma_i I)^-1`` for the sweeps, a random start; how H_i looks to the cluster; whether v is not bound."""
    theta = site.state[at] if at else np.zeros((len(site), site.objective.dim))
    H = hessians(site.objective, theta)
    values, vectors = eigen(full(H), own)
    values = np.where(values > rounding(values), values, 0.0)
    stiff = values + gamma[:, None]
    inverse = np.divide(1.0, stiff, out=np.zeros_like(stiff), where=stiff > 0.0)
    site.state["mu M"] = pack(np.einsum("mia,ma,mja->mij", vectors, inverse, vectors))
    site.state["mu gamma"], site.state["mu u"] = gamma, site.uniform(theta.shape[1], 0, "curvature") - 0.5
    site.state["mu v"] = site.state["mu before"] = np.zeros_like(theta)
    seen = np.einsum("mia,ma,mja->mij", vectors, gamma[:, None] * values * inverse, vectors)
    tied = gamma[:, None] > 0.0
    if own is not None:
        site.state["mu H"], tied = H, np.ones_like(tied)
        seen = seen_with_shared(full(H), seen, full(site.state["mu M"]), gamma[:, None, None], own)
    seen = pack(seen)
    H, most = H * tied, hessians(site.objective, theta, most=True) * tied
    return {"A": seen, "H": H, "most": most, "free": (stiff[:, 0] <= 0.0).astype(np.float64)}


@work
def lanczos_up(site: Site, a: float, b: float, own: Any = None) -> Reply:
    """Lanczos: ``r = u - a v - b v_before``, its square, and what the tree above is solved with."""
    r = site.state["mu u"] - a * site.state["mu v"] - b * site.state["mu before"]
    site.state["mu r"], gamma = r, site.state["mu gamma"][:, None]
    alone = packed_product(site.state["mu M"], r)
    shared = 0.0 if own is None else ~own * (r - packed_product(site.state["mu H"], alone))
    return {"square": np.sum(r * r, axis=1), "b": gamma * alone + shared}


@work
def lanczos_down(site: Site, w: Floats, norm: float, own: Any = None) -> Reply:
    """Lanczos: ``v = r / |r|`` and ``u = H^-1 v``; their product."""
    v, gamma, w = site.state["mu r"] / norm, site.state["mu gamma"][:, None], w[site.clusters]
    if own is None:
        u = packed_product(site.state["mu M"], v + gamma * w)
    else:
        bent = packed_product(site.state["mu H"], ~own * w)
        u = packed_product(site.state["mu M"], v + gamma * w - bent) + ~own * w
    site.state["mu before"], site.state["mu v"], site.state["mu u"] = site.state["mu v"], v, u
    return {"a": np.sum(u * v, axis=1)}


@work
def forget(site: Site) -> Reply:
    """Make room: what the sweeps needed is as large as all Hessians."""
    for name in ("M", "v", "before", "r", "u", "H"):
        site.state[f"mu {name}"] = np.zeros((len(site), 0))
    return {}


def summed(values: Any, parent: Ints) -> Floats:
    """Sums (k, ...) of a level's values (k_l, ...) over the parents of its nodes."""
    if not parent.any():
        return np.asarray(values.sum(axis=0))[None]
    out = np.zeros((int(parent.max()) + 1, *values.shape[1:]))
    np.add.at(out, parent, values)
    return out


def eigen(H: Floats, own: Bools | None) -> tuple[Floats, Floats]:
    """Eigenvalues (n, q) and vectors (n, d, q) of matrices (n, d, d), of the columns that are ``own`` (d,) alone."""
    if own is None:
        return np.linalg.eigh(H)
    values, part = np.linalg.eigh(H[:, own][:, :, own])
    vectors = np.zeros((*H.shape[:2], values.shape[1]))
    vectors[:, own] = part
    return values, vectors


def seen_with_shared(H: Floats, seen: Floats, M: Floats, strength: Any, own: Bools) -> Floats:
    """How H (n, d, d) looks from above, own columns solved for: ``seen`` in these, and M is inverse to H + strength."""
    across = strength * np.einsum("nij,njk->nik", H, M)
    across[:, own] = 0.0
    rest = H - H @ M @ H
    rest[:, own], rest[:, :, own] = 0.0, 0.0
    return np.asarray(seen + across + np.swapaxes(across, 1, 2) + rest)


def factor_cluster_hessians(
    ties: ClusterTies, A: Floats, own: Bools | None = None
) -> tuple[list[tuple[Ints, Floats, Floats]], Floats] | None:
    """The tree above the clients, factored; None where it is flat.

    At every level ``w_j = K_j b_j + S_j w`` under the parent's w, which is told ``sum_j S_j' b_j``; ``w = C b`` at
    last.
    """
    tied, levels = ties.Gamma > 0.0, []
    H = full(A)
    for parent, lam in ties.tree:
        values, vectors = eigen(H, own)
        values, strong = np.where(values > rounding(values), values, 0.0), lam[:, None]
        if np.any(tied & (lam == 0.0) & (values[:, 0] <= 0.0)):
            return None
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.where(np.isinf(strong), 1.0, np.where(strong > 0.0, strong / (values + strong), 0.0))
            inverse = np.where(values + strong > 0.0, 1.0 / (values + strong), 0.0)
        K, S, onward = (np.einsum("kia,ka,kja->kij", vectors, x, vectors) for x in (inverse, share, values * share))
        if own is not None:
            apart = np.diag(1.0 * ~own)
            across = np.einsum("kij,kjl->kil", H, S) * ~own[:, None]  # S is strength times K here, whatever infinite
            rest = (H - H @ K @ H) * ~own * ~own[:, None]
            S = S + apart - np.einsum("kij,kjl->kil", K, H) * ~own
            onward = onward + across + np.swapaxes(across, 1, 2) + rest
        levels.append((parent, K, S))
        H, tied = summed(onward, parent), summed(1.0 * (tied & (lam > 0.0)), parent) > 0.0
    counted = np.ones(len(H[0]), dtype=bool) if tied.any() or own is None else ~own
    if (tied.any() or own is not None) and _flat(np.linalg.eigvalsh(H[0][np.ix_(counted, counted)])):
        return None
    stiff, basis = np.linalg.eigh(H[0] * counted * counted[:, None])
    return levels, (basis * np.divide(1.0, stiff, out=np.zeros_like(stiff), where=stiff > 0.0)) @ basis.T


def _flat(values: Floats) -> bool:
    return bool(values[0] <= rounding(values)[0])


def separated(ties: ClusterTies, H: Floats, most: Floats, own: Bools | None = None) -> bool:
    """Whether the clients of some cluster, or of the network, have next to no curvature left in some direction.

    That is where outcomes are separated: the minimum lies at infinity, and the exact solver's ridge holds the model
    back. A direction in which all clients move as one is seen by no tie, so sums of Hessians tell, against what these
    are at most (both (k, P)): their ratio does not depend on columns' units.
    """
    tied, joined = ties.Gamma > 0.0, ties.passed[-1] > 0.0
    alone, together = tied & ~joined, tied & joined
    now, largest = (np.concatenate([full(x[alone]), full(x[together].sum(axis=0)[None])]) for x in (H, most))
    if own is not None:  # the others are seen by all clients, as one
        if _least_share(full(H.sum(axis=0))[None], full(most.sum(axis=0))[None])[0] < SEPARATED:
            return True
        now, largest = (x[:, own][:, :, own] for x in (now, largest))
    share = _least_share(now, largest)
    return bool(np.any(share[: len(share) - (not together.any())] < SEPARATED))


def _least_share(now: Floats, largest: Floats) -> Floats:
    """The least share (n,), over directions, of what curvature (n, d, d) is at most."""
    values, vectors = np.linalg.eigh(largest)
    root = np.divide(1.0, np.sqrt(np.abs(values)), out=np.zeros_like(values), where=values > rounding(values))
    white = vectors * root[:, None]
    return np.asarray(np.linalg.eigvalsh(white.transpose(0, 2, 1) @ now @ white)[:, 0])
