"""Paper 003, objective (1)-(2), minimised exactly for GLMs: proximal Newton over exchanges, with a KKT certificate.

``F(x, Z) = 1/R sum_n f_n(M x + N z_n) + lambda sum_e weight_e ||z_i - z_j||_p``, f_n a client's loss summed over its
rows and R the weight of all rows.

Proximal Newton: clients send gradient and Hessian; the coordinator minimises the quadratic model with the penalty over
edges, goes there or part of the way, and asks again: few exchanges.

ADMM, without Hessians: ``theta_n = argmin f_n(theta) + rho/2 |theta - (M x + N z_n - y_n)|^2`` at the clients; the
coordinator averages ``theta_n + y_n`` for x and takes its network prox for Z; ``y_n`` adds up what is left (Boyd et al.
2011, section 7). rho follows the residuals. Its residual comes down to about 1e-7.

Along a path of lambda, warm-started from clients of a component as one down to clients nearly alone, clients part; read
upwards they merge (a clusterpath: Hocking, Joulin, Bach, Vert 2011, ICML), and held-out rows say where to stop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError
from coterie.federation import Federation, PerRow, Site, require_all_replies, work
from coterie.lazy_modules import sparse
from coterie.methods.networks.objective import Evaluation, NetworkObjective
from coterie.numerics.arrays import Floats, Ints
from coterie.numerics.network.edge_penalty_problem import DUAL
from coterie.numerics.network.newton import minimise
from coterie.numerics.network.prox import Proximal, network_prox
from coterie.relations.clusters import MergeTree, merge_tree
from coterie.relations.network import Network


@dataclass(frozen=True)
class Optimum:
    """The minimiser and its certificate."""

    x: Floats  # (d1,) shared parameters; all are in the units given
    Z: Floats  # (n, d2) personal ones
    theta: Floats  # (n, d) every client's
    dual: Floats  # (M, d2) U on the edges, ``||U_e|| <= lambda weight_e`` in the dual norm
    value: float  # F there, with what holds parameters that nothing else does (``objective.Prior``)
    # The larger of two residuals, free of units. Stationarity: the length of ``1/R grad_z f_n + sum_e +-U_e`` over all
    # clients, with that by x shared by them, over what the rows' gradients would be if they did not cancel, or at least
    # over the rounding of those of rows that are fitted exactly.
    # Complementarity: ``lambda sum_e weight_e ||z_i - z_j||_p - <U_e, z_i - z_j>`` over that times the length of theta.
    # The duals are feasible as they are.
    kkt: float
    exchanges: int
    groups: Ints  # (n,) clients with equal z have equal numbers


def optimum(
    fed: Federation,
    network: Network,
    lam: float,
    p: float = 2,
    *,
    start: Optimum | None = None,
    kkt: float = 1e-6,
    solver: str = "newton",
    **how: Any,
) -> Optimum:
    """Minimise F over the clients of a federation, who must all answer and have rows and a family.

    At ``lam`` = infinity the clients of every component are one; what `local` and `pooled` find for 0 and infinity is
    in ``fit.solved_end``. ``how`` are the other fields of ``NetworkObjective``: the layout, and by default no unit,
    prior or centred columns. ``start`` is a former optimum of the same clients, layout and network, for any lambda and
    p. It ends at the residual ``kkt``. ADMM needs hundreds of exchanges, but no client's Hessian; at infinity Newton
    sees sums only and is taken. A CoterieError for numbers of clients that differ, clients that are missing, and means
    that overflow.
    """
    if network.n != len(fed.clients):
        raise CoterieError(f"The network has {network.n:,} clients and the federation {len(fed.clients):,}.")
    at, asked = NetworkObjective(fed, network, lam, float(p), **how), 0
    layout = at.layout
    x, Z = np.zeros(layout.d1), np.zeros((network.n, layout.d2))
    U = np.zeros((len(network.edges), layout.d2))
    if start is not None:
        x, Z, U = start.x, start.Z, start.dual
    if np.isinf(lam):
        return _as_one(at, x, Z, kkt)
    if solver == "newton" and lam > 0.0 and (start is None or np.array_equal(start.groups, network.components)):
        as_one = _as_one(at, x, Z, kkt) if start is None else replace(start, exchanges=0)
        asked = as_one.exchanges + 1
        if (proof := still_one(at, as_one.x, as_one.Z, kkt)) is not None:
            return replace(as_one, dual=proof[0], kkt=proof[1], exchanges=asked)
    end = admm(at, x, Z, kkt) if solver == "admm" else descend(at, x, Z, U, kkt)
    here, R = end.here, end.here.weight
    theta = layout.theta(here.x, here.Z)
    groups = network.merged(here.Z)
    return Optimum(here.x, here.Z, theta, end.U / R, here.value / R, end.kkt, end.exchanges + asked, groups)


def _as_one(at: NetworkObjective, x: Floats, Z: Floats, kkt: float) -> Optimum:
    """One model for every component, from sums over its clients."""
    network, layout, labels = at.network, at.layout, at.network.components
    k, size = int(labels.max()) + 1, np.bincount(labels)
    prior = None if at.prior is None else at.prior.joined(labels)
    mean = np.stack([np.bincount(labels, z) / size for z in Z.T], axis=1) if layout.d2 else Z[:k]
    nobody = Network(k, np.empty((0, 2), dtype=np.int64), np.empty(0))
    one = replace(at, network=nobody, lam=0.0, p=2.0, prior=prior, labels=labels)
    end = descend(one, x, mean, np.empty((0, layout.d2)), kkt)
    here, Z = end.here, end.here.Z[labels]
    dual = np.zeros((len(network.edges), layout.d2))
    value = here.value / here.weight
    return Optimum(here.x, Z, layout.theta(here.x, Z), dual, value, end.kkt, end.exchanges, labels)


def lambda_max(objective: NetworkObjective, x: Floats, Z: Floats) -> float:
    """A lambda from which on the clients of every component are one; the minimiser at infinity is at (x, Z).

    Duals that carry the clients' gradients along the edges prove it; of all that do, those with the smallest sum of
    squares over weights are taken, so that the smallest such lambda is somewhat lower. 0 without edges, or where
    clients that are alone are the same; the objective's own lambda does not count.
    """
    return _proof(objective, objective.ask(x, Z))[0]


def still_one(objective: NetworkObjective, x: Floats, Z: Floats, kkt: float) -> tuple[Floats, float] | None:
    """Duals (M, d2) and residual that prove the minimiser at infinity to be that at the objective's lambda, or None.

    Far above the smallest such lambda nothing else finds it: rounding of equal parameters, times lambda, drowns all
    gradients.
    """
    here = objective.ask(x, Z)
    lam, U = _proof(objective, here)
    if not lam <= objective.lam:
        return None
    left = replace(objective, lam=lam).kkt(here, U)
    return (U / here.weight, left) if left <= kkt else None


def _proof(objective: NetworkObjective, here: Evaluation) -> tuple[float, Floats]:
    """The lambda of :func:`lambda_max` and the duals (M, d2), times the weight of all rows."""
    network = objective.network
    if not len(network.edges) or not here.gz.size:
        return 0.0, np.zeros((len(network.edges), here.gz.shape[1]))
    U = np.nan_to_num(flow(network, -here.gz))
    size = np.linalg.norm(U, DUAL[objective.p], axis=1) / network.weight
    return float(size.max()) / here.weight, U


def flow(network: Network, G: Floats) -> Floats:
    """Duals U (M, q) on the edges with centred sums G (n, q) at clients and least ``sum_e |U_e|^2 / weight_e^2``."""
    from scipy.sparse.linalg import cg

    i, j = network.edges.T
    square = (network.weight / network.weight.max()) ** 2
    A: Any = sparse.coo_array((square, (i, j)), shape=(network.n, network.n))
    A = (A + A.T).tocsr()
    degree = np.asarray(A.sum(axis=1)).ravel()
    laplacian = sparse.diags_array(degree) - A
    inverse = sparse.diags_array(1.0 / np.where(degree > 0.0, degree, 1.0))
    labels = network.components
    count = np.bincount(labels)
    out = np.empty((len(square), G.shape[1]))
    for k, g in enumerate(G.T):
        g = g - (np.bincount(labels, g) / count)[labels]
        # Some weights may vanish beside others.
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            v, _ = cg(laplacian, g, rtol=1e-8, maxiter=10_000, M=inverse)
        out[:, k] = square * (v[i] - v[j])
    return out


EXCHANGES = 200  # exchanges at most: a count far too high takes dozens
ROUNDING = 1e-13
STIFF = 1e4  # how much stiffer than the clients the augmented term may be at the start of a model
SHORTEST = 1e-10  # share of a step that is tried last


@dataclass(frozen=True)
class Descent:
    """Where it ended, the duals and the residual there, and how many exchanges it took."""

    here: Evaluation
    U: Floats
    kkt: float
    exchanges: int


@np.errstate(over="ignore", invalid="ignore")  # a step that overflows is halved
def descend(at: NetworkObjective, x: Floats, Z: Floats, dual: Floats, kkt: float) -> Descent:
    """Go from (x, Z), with duals of F as they are in ``Optimum``, to where the residual is at most ``kkt``.

    A step counts where F falls by a part of what the model promised, or where the residual halves: near the optimum F
    is known to rounding only, and models are solved only as well as they are worth.
    """
    here, exchanges = at.ask(x, Z), 1
    if not np.isfinite(here.value):
        raise CoterieError("The means overflow at the offsets given: an offset is the logarithm of a size.")
    U, sigma = at.feasible(dual * here.weight, here), 0.0
    best = residual = at.kkt(here, U)
    while residual > kkt:
        model = at.model(here)
        stiffness = min(max(sigma, model.sigma), STIFF * model.sigma)
        goal = minimise(model, U, stiffness, max(min(0.1 * residual, residual**1.5), 0.2 * kkt), here.scale)
        sigma, U = goal.sigma, goal.U
        dx, dz = goal.x - here.x, goal.Z - here.Z
        promised = float(model.gx @ dx + np.sum(model.gz * dz))
        promised += at.penalty(goal.Z, here.weight) - at.penalty(here.Z, here.weight)
        t = 1.0
        while True:
            if exchanges >= EXCHANGES or t < SHORTEST:
                return Descent(here, U, at.kkt(here, U), exchanges)
            there, exchanges = at.ask(here.x + t * dx, here.Z + t * dz), exchanges + 1
            new = at.kkt(there, U)
            falls = there.value <= here.value + 1e-4 * t * promised + ROUNDING * (1.0 + abs(here.value))
            if falls or new <= 0.5 * best:
                break
            t *= 0.5 if np.isfinite(there.value) else 0.1
        if at.centred is not None and exchanges < EXCHANGES:
            dx, dz = at.together(there)
            polished, exchanges = at.ask(there.x + dx, there.Z + dz), exchanges + 1
            if polished.value <= there.value + ROUNDING * (1.0 + abs(there.value)):
                there, new = polished, at.kkt(polished, U)
        here, residual, best = there, new, min(best, new)
    return Descent(here, U, residual, exchanges)


ROUNDS = 3000
CHECK_EVERY = 10  # rounds between two checks of the certificate
GAP = 1e-13  # relative duality gap of the network prox
UNEVEN = 10.0  # ratio of primal and dual residuals at which rho is changed by 2
ADAPT = 400  # after so many exchanges rho stays as it is: where rounding ends progress, residuals would drive it away
AT = "network theta"


@work
def client_minimiser(
    site: Site, unit: Floats, target: Floats, rho: float, alone: Floats | None = None, own: Floats | None = None
) -> dict[str, Floats]:
    """Each client's minimiser of its loss and ``rho/2 |theta - target|^2``, from its last one.

    A client that is ``alone`` (m,) is held by ``|own @ theta|^2 / 2`` besides.
    """
    (m, d), root = target.shape, rho**0.5 * np.eye(len(unit))[None]  # of the curvature that is added to the losses
    which = np.zeros(m, dtype=np.int64)
    if alone is not None and own is not None and alone.any():
        H, which = rho * np.eye(d) + alone[:, None, None] * (own.T @ own), np.arange(m, dtype=np.int64)
        target, root = np.asarray(np.linalg.solve(H, rho * target[:, :, None])[:, :, 0]), np.linalg.cholesky(H)
    target, L = np.ascontiguousarray(target), np.ascontiguousarray(np.linalg.inv(root).transpose(0, 2, 1))
    start = np.einsum("mji,mj->mi", root[which], site.state.get(AT, target) - target)
    u = site.objective.modes(unit, L, which, np.arange(d), target, np.arange(m), start)[3]
    site.count(m)
    site.state[AT] = target + np.einsum("mij,mj->mi", L[which], u)
    return {"theta": site.state[AT]}


def columns(at: NetworkObjective) -> tuple[Ints, Ints]:
    """Which columns are shared and which personal, in the order of x and of z; a CoterieError for other layouts."""
    shared, personal = np.argsort(at.layout.shared), np.argsort(at.layout.personal)
    shared, personal = shared[-at.layout.d1 :][: at.layout.d1], personal[-at.layout.d2 :][: at.layout.d2]
    if sorted([*shared, *personal]) != list(range(at.layout.d)):
        raise CoterieError("ADMM takes columns that are shared or personal, not sums, ties or zeros: use Newton.")
    return shared, personal


def admm(at: NetworkObjective, x: Floats, Z: Floats, kkt: float) -> Descent:
    """Go from (x, Z) to where the residual is at most ``kkt``; exchanges of d numbers for each client."""
    shared, personal = columns(at)
    here, exchanges = at.ask(x, Z, curved=False), 1
    rho = 0.25 * here.weight / at.network.n
    y, prox, U = np.zeros((at.network.n, at.layout.d)), None, np.zeros((len(at.network.edges), at.layout.d2))
    residual = at.kkt(here, U)
    prior_curvature = np.zeros(at.network.n) if at.prior is None else at.prior.z
    held: dict[str, Any] = {}
    if at.prior is not None and at.prior.alone is not None and at.prior.alone.any():
        held = {"alone": PerRow(at.prior.alone), "own": at.prior.own}
    while residual > kkt and exchanges < ROUNDS:
        for _ in range(CHECK_EVERY):
            before = at.layout.theta(x, Z)
            asked = at.fed.ask(client_minimiser, unit=at.unit, target=PerRow(before - y), rho=rho, **held)
            theta = require_all_replies(asked)["theta"]
            exchanges += 1
            V = theta + y
            x = V[:, shared].sum(axis=0) / (at.network.n + (0.0 if at.prior is None else at.prior.x / rho))
            edges, radius, p = at.graph(here.weight)
            mass = 1.0 + prior_curvature / rho
            middle = V[:, personal] / mass[:, None]
            prox = network_prox(middle, edges, radius / rho, p, gap=GAP, metric=mass, start=prox)
            Z, U = prox.Z, rho * prox.dual
            now = at.layout.theta(x, Z)
            y = V - now
            primal, dual = float(np.linalg.norm(theta - now)), float(np.linalg.norm(now - before))
            change = 2.0 if primal > UNEVEN * dual else 0.5 if dual > UNEVEN * primal else 1.0
            change = change if exchanges < ADAPT else 1.0
            rho, y = rho * change, y / change
            prox = Proximal(prox.Z, prox.dual / change, prox.gap, prox.iterations)
        here, exchanges = at.ask(x, Z, curved=False), exchanges + 1
        residual = at.kkt(here, at.feasible(U, here))
    return Descent(here, at.feasible(U, here), residual, exchanges)


STEPS = 40
SPAN = 1e-4  # the smallest lambda of a path, relative to the largest


@dataclass(frozen=True)
class Path:
    """Minimisers along lambda, largest first."""

    lam: Floats  # (K,) falling; the first is infinity
    at: list[Optimum]
    loss: Floats  # (K,) held-out loss at each; NaN where none was asked for

    @property
    def labels(self) -> Ints:
        """Groups of equal clients (K, n) at each lambda."""
        return np.array([o.groups for o in self.at])

    @cached_property
    def tree(self) -> MergeTree:
        """In which order groups merge as lambda grows."""
        return merge_tree(self.lam, list(self.labels))


def path(
    fed: Federation,
    network: Network,
    p: float = 2,
    *,
    lam: npt.ArrayLike | None = None,
    steps: int = STEPS,
    span: float = SPAN,
    loss: Callable[[Floats], float] | None = None,
    kkt: float = 1e-6,
    **how: Any,
) -> Path:
    """Minimise F along lambda, each time from the last minimiser; infinity comes first.

    ``lam`` (K,) are finite and positive, in any order; by default ``steps`` of them, in equal ratios, from where the
    clients of every component are sure to be one (``optimum.lambda_max``) down to ``span`` times that. ``loss(theta (n,
    d))`` is that of rows that were held out, theta in the units given. ``how`` is as in :func:`optimum`. A CoterieError
    for lambdas, steps or a span that cannot be.
    """
    last = optimum(fed, network, np.inf, p, kkt=kkt, **how)
    if lam is None:
        top = lambda_max(NetworkObjective(fed, network, 0.0, float(p), **how), last.x, last.Z)
        values = grid(top, steps, span)
    else:
        values = np.sort(np.atleast_1d(np.asarray(lam, dtype=np.float64)))[::-1]
    optima, losses = [last], [np.nan if loss is None else loss(last.theta)]
    for value in values:
        last = optimum(fed, network, float(value), p, start=last, kkt=kkt, **how)
        optima.append(last)
        losses.append(np.nan if loss is None else loss(last.theta))
    return Path(np.concatenate([[np.inf], values]), optima, np.array(losses))


def grid(top: float, steps: int = STEPS, span: float = SPAN) -> Floats:
    """Lambdas in equal ratios from ``top`` to ``span`` times that; none where top is 0."""
    return top * np.geomspace(1.0, span, steps) if top > 0.0 else np.empty(0)
