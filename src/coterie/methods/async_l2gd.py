"""Lyu, Hanzely, Kolar (2022), Algorithm 1: Async-L2GD, for the objective (2.1) of known clusters.

At every step a coin decides between a communication between clusters (probability p_0), within a cluster (p_j, each
cluster for itself) and a local gradient step. With p_j = 0 and tau_j = 1 this is the one-coin variant of section 6.
Clusters of clusters have coins of their own (``clustered_l2gd.cluster_rounds``).

:func:`iterate` is the algorithm, where all clients are in one process. Where steps have to travel,
``clustered_l2gd.fused_messages`` takes the same steps by the same coins in as few messages as it can.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from coterie.federation import Federation, PerCluster, Site, require_all_replies, work
from coterie.methods.clustered_l2gd import client_work
from coterie.methods.clustered_l2gd.client_work import SNAPSHOT, Losses, Reply, State, compiled_steps
from coterie.methods.clustered_l2gd.cluster_rounds import ClusterRounds, central, communications, draw, previous
from coterie.methods.clustered_l2gd.fused_messages import ClusterHeads
from coterie.numerics.arrays import Bools, Floats, Ints, frozen, kernel

MOST_COMPILED = 4096  # so many clients at most run compiled; more are quicker over exchanges, in threads

Parameters = tuple[Floats, Floats, Ints, Floats, float, Floats]
Coins = tuple[Ints, Bools]


@kernel
def iterate(
    theta: Floats, gamma: Floats, bounds: Ints, eta: float, parameters: Parameters, coins: Coins, losses: Losses
) -> None:
    """Lines 2 to 19, in place; cluster j has the clients bounds[j], ..., bounds[j + 1] - 1.

    Its local steps are put off until its next communication: clients then stay in cache for the whole run, and any
    number of steps on a quadratic costs as much as one. ``parameters`` are those of ``cluster_rounds.Levels``: its
    probability of local steps, weights, nodes, shares that are passed on; then p0, and which columns are not shared.
    """
    local, weights, nodes, passed, p0, on = parameters
    above, xi = coins
    T, k = xi.shape
    n, d = len(nodes), theta.shape[1]
    mean, Gamma, since, level = np.zeros((k, d)), np.zeros(k), np.zeros(k, dtype=np.int64), np.zeros(k, dtype=np.int64)
    sums, total, towards = np.zeros((n, k, d)), np.zeros((n, k)), np.zeros(d)
    step, scratch = eta / local, np.empty(3 * losses[0][0].shape[1] + d + 1)
    for t in range(T):
        top = -1
        for j in range(k):
            level[j] = above[t, j] if above[t, j] > 0 else (0 if xi[t, j] else -1)
            if level[j] >= 0:
                compiled_steps(losses, theta, bounds[j], bounds[j + 1], step[j], since[j], t, on, scratch)  # line 15
                since[j], top = t + 1, max(top, level[j])
        if on.shape[0] > 0 and top == n - 1:
            client_work.compiled_shared_step(losses, theta, eta / p0, on, scratch)
        for j in range(k if top >= 0 else 0):
            if level[j] >= 0:
                Gamma[j] = average(theta, gamma, bounds[j], bounds[j + 1], mean[j])  # lines 5 and 12
        for a in range(1, top + 1):  # line 6
            sums[a], total[a] = 0.0, 0.0
            for j in range(k):
                if level[j] >= a:
                    total[a, nodes[a, j]] += passed[a, j] * Gamma[j]
                    sums[a, nodes[a, j]] += passed[a, j] * Gamma[j] * mean[j]
        for j in range(k if top >= 0 else 0):  # lines 7 and 13
            if level[j] >= 0:
                c = weights[level[j], 0, j]
                towards[:] = c * mean[j]
                for a in range(1, level[j] + 1):
                    if total[a, nodes[a, j]] > 0.0:
                        c += weights[level[j], a, j]
                        towards += weights[level[j], a, j] / total[a, nodes[a, j]] * sums[a, nodes[a, j]]
                pull(theta, gamma, bounds[j], bounds[j + 1], eta * c, eta * towards)
    for j in range(k):
        compiled_steps(losses, theta, bounds[j], bounds[j + 1], step[j], since[j], T, on, scratch)  # line 15


@kernel
def average(theta: Floats, gamma: Floats, lo: int, hi: int, mean: Floats) -> float:
    """mean (d,) = the average of clients lo, ..., hi - 1 (2.2), 0 without strength; the strength."""
    mean[:] = 0.0
    total = 0.0
    for i in range(lo, hi):
        total += gamma[i]
        for a in range(mean.shape[0]):
            mean[a] += gamma[i] * theta[i, a]
    if total > 0.0:
        for a in range(mean.shape[0]):
            mean[a] /= total
    return total


@kernel
def pull(theta: Floats, gamma: Floats, lo: int, hi: int, c: float, u: Floats) -> None:
    """``theta_i += gamma_i (u - c theta_i)`` for clients lo, ..., hi - 1."""
    for i in range(lo, hi):
        keep, take = 1.0 - gamma[i] * c, gamma[i]
        for a in range(u.shape[0]):
            theta[i, a] = keep * theta[i, a] + take * u[a]


@work
def iterate_all(site: Site, first: int, batch: int, eta: float, above: Ints, xi: Bools, **rounds: Any) -> Reply:
    """Steps ``first``, ... of all clients, by coins (k, n); this work must see all of them at once."""
    theta, coins = np.array(site.state["theta"]), (np.ascontiguousarray(above.T), np.ascontiguousarray(xi.T))
    parameters: Any = tuple(rounds[name] for name in ("local", "weights", "nodes", "passed", "p0", "on"))
    bounds = np.searchsorted(site.clusters, np.arange(len(rounds["local"]) + 1))
    losses = client_work.compiled_losses(site, first, batch)
    iterate(theta, *frozen(site.state["gamma"], bounds, eta, parameters, coins, losses))
    site.state["theta"] = theta
    site.count(int(np.sum(~(xi | (above > 0)), axis=1) @ np.diff(bounds)))
    return {}


@dataclass(frozen=True)
class AsyncL2GD(ClusterRounds):
    """Algorithm 1."""

    eta: float | Callable[[int], float]  # step size, or eta(t), which is held from one stop of the run to the next
    _: KW_ONLY
    batch: int = 0  # rows of a local step, drawn with replacement; 0 takes all
    closed: bool = True  # take runs of steps on quadratics in closed form
    compiled: bool = True  # run compiled where all clients are in this process

    def init(self, fed: Federation, w: Floats | None = None) -> State:
        """Line 1; the state before the first step, at w (d,) for all clients, by default zero."""
        about = require_all_replies(fed.ask(client_work.describe_clients))
        rank = int(about["rank"].max()) if self.closed and not self.batch and self.personal is None else 0
        mean, shared, tied = self.begin(fed, client_work.start, int(about["dim"].max()), w, rank=rank)
        compiled = bool(rank or about["rows"].all()) and len(fed.clients) <= MOST_COMPILED
        state = {"t": 0, "status": "running", "between": 0, "within": np.zeros(len(self.p), dtype=np.int64)}
        state |= {"known": True, "compiled": compiled, "mean": mean, "weight": self.ties.Gamma}
        return state | {"shared": shared, "tied": tied}

    @np.errstate(over="ignore", invalid="ignore")  # a divergence is found and named below
    def advance(self, fed: Federation, state: State, n: int) -> State:
        """n iterations; the state counts communications ``between`` clusters, and ``within`` each (k,)."""
        t, eta = state["t"], self.eta(state["t"]) if callable(self.eta) else self.eta
        levels, p = self.levels, self.levels.coins[0]
        heads = ClusterHeads(fed, self, state)
        fed.mark(SNAPSHOT)
        compiled = state["compiled"] and self.compiled and self.network is central
        compiled &= self.untied is None and self.free is None
        together = getattr(fed, "together", None) if compiled else None  # an engine with all clients in one process
        between, within, last = state["between"], state["within"], t + n
        before = previous(self.seed, t, self.coin, p)
        if together is None and not state["known"]:  # the steps before ran compiled, and no average was made
            heads.ask_again(state["tied"])
        for first, xi0, xi in draw(self.seed, t, n, self.coin, p):
            above = levels.drawn(self.seed, first, xi0)
            counts = communications(xi0, xi, heads.equal, before)
            if self.q:  # rounds of all levels below the network are within a cluster, and none is free
                counts = int(xi0.sum()), np.sum(((above > 0) | xi) & ~xi0[:, None], axis=0)
            if len(state["shared"]):  # which moves in every round of the network
                counts = int(xi0.sum()), counts[1]
            between, within, before = between + counts[0], within + counts[1], (bool(xi0[-1]), xi[-1])
            if together is not None:
                message: Any = {"above": PerCluster(above.T), "xi": PerCluster(xi.T), "local": PerCluster(levels.local)}
                message |= {"weights": levels.weights, "nodes": self.ties.nodes, "passed": self.ties.passed}
                message |= {"p0": self.p0, "on": state["tied"]}
                together(iterate_all, eta=eta, first=first, batch=self.batch, **message)
            else:
                last = heads.iterate(first, eta, above, xi)
        outcome = client_work.observe(fed, self.monitor, last, heads.mean, heads.shared)
        outcome |= {"mean": heads.mean, "weight": heads.weight, "shared": heads.shared, "known": together is None}
        return state | {"t": t + n, "between": between, "within": within, **outcome}
