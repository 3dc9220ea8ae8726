"""Lyu, Hanzely, Kolar (2022), Algorithm 1: Async-L2GD, for the objective (2.1) of known clusters.

At every step a coin decides between a communication between clusters (probability p_0), within a cluster (p_j, each
cluster for itself) and a local gradient step. With p_j = 0 and tau_j = 1 this is the one-coin variant of section 6.

:func:`iterate` is the algorithm, where all clients are in one process. Where steps have to travel,
``clustered_l2gd.fused_messages`` takes the same steps by the same coins in as few messages as it can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.federation import Federation, PerCluster, PerRow, Site, require_all_replies, work
from coterie.methods.clustered_l2gd import client_work, coins_and_averages
from coterie.methods.clustered_l2gd.client_work import SNAPSHOT, Losses, Monitor, Reply, State, compiled_steps
from coterie.methods.clustered_l2gd.coins_and_averages import NetworkAverage, Vote, central
from coterie.methods.clustered_l2gd.fused_messages import ClusterHeads
from coterie.methods.stepwise import Stepwise
from coterie.numerics.arrays import Bools, Floats, Ints, frozen, kernel
from coterie.relations.clusters import Ties

MOST_COMPILED = 4096  # so many clients at most run compiled; more are quicker over exchanges, in threads

Parameters = tuple[float, float, Floats, Floats, Floats]
Coins = tuple[Bools, Bools]


@kernel
def iterate(theta: Floats, gamma: Floats, bounds: Ints, parameters: Parameters, coins: Coins, losses: Losses) -> None:
    """Lines 2 to 19, in place; cluster j has the clients bounds[j], ..., bounds[j + 1] - 1.

    Its local steps are put off until its next communication: clients then stay in cache for the whole run, and any
    number of steps on a quadratic costs as much as one.
    """
    eta, p0, p, alpha, tau = parameters
    xi0, xi = coins
    T, k = xi.shape
    d = theta.shape[1]
    mean, Gamma, since = np.zeros((k, d)), np.zeros(k), np.zeros(k, dtype=np.int64)
    step, scratch = eta / ((1.0 - p0) * (1.0 - p)), np.empty(3 * losses[0][0].shape[1] + d + 1)
    for t in range(T):
        if xi0[t]:
            network, total = np.zeros(d), 0.0
            for j in range(k):
                compiled_steps(losses, theta, bounds[j], bounds[j + 1], step[j], since[j], t, scratch)  # line 15
                Gamma[j] = average(theta, gamma, bounds[j], bounds[j + 1], mean[j])  # line 5
                total += alpha[j] * Gamma[j]
                network += alpha[j] * Gamma[j] * mean[j]  # line 6
            for j in range(k):  # line 7
                tied, own = alpha[j] if total > 0.0 else 0.0, tau[j] * (1.0 - alpha[j])
                towards = own * mean[j] + tied * network / (total if total > 0.0 else 1.0)
                pull(theta, gamma, bounds[j], bounds[j + 1], eta / p0 * (tied + own), eta / p0 * towards)
            since[:] = t + 1
        else:
            for j in range(k):
                if xi[t, j]:
                    compiled_steps(losses, theta, bounds[j], bounds[j + 1], step[j], since[j], t, scratch)  # line 15
                    average(theta, gamma, bounds[j], bounds[j + 1], mean[j])  # line 12
                    c = eta * (1.0 - tau[j]) * (1.0 - alpha[j]) / ((1.0 - p0) * p[j])
                    pull(theta, gamma, bounds[j], bounds[j + 1], c, c * mean[j])  # line 13
                    since[j] = t + 1
    for j in range(k):
        compiled_steps(losses, theta, bounds[j], bounds[j + 1], step[j], since[j], T, scratch)  # line 15


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
def iterate_all(
    site: Site,
    first: int,
    batch: int,
    eta: float,
    p0: float,
    p: Floats,
    alpha: Floats,
    tau: Floats,
    xi0: Bools,
    xi: Bools,
) -> Reply:
    """Steps ``first``, ... of all clients, by coins (n,) and (k, n); this work must see all of them at once."""
    theta, coins = np.array(site.state["theta"]), (xi0, np.ascontiguousarray(xi.T))
    bounds = np.searchsorted(site.clusters, np.arange(len(p) + 1))
    parameters, losses = (eta, p0, p, np.ascontiguousarray(alpha), tau), client_work.compiled_losses(site, first, batch)
    iterate(theta, *frozen(site.state["gamma"], bounds, parameters, coins, losses))
    site.state["theta"] = theta
    site.count(int(np.sum(~(xi | xi0), axis=1) @ np.diff(bounds)))
    return {}


@dataclass(frozen=True)
class AsyncL2GD(Stepwise):
    """Algorithm 1 with the paper's symbols; ``clustered_l2gd.async_l2gd_theory`` chooses them."""

    ties: Ties  # gamma_i and alpha_j
    eta: float | Callable[[int], float]  # step size, or eta(t), which is held from one stop of the run to the next
    p0: float
    p: Floats
    tau: Floats
    seed: int = 0  # of the coins; rows are drawn by the engine's
    batch: int = 0  # rows of a local step, drawn with replacement; 0 takes all
    closed: bool = True  # take runs of steps on quadratics in closed form
    compiled: bool = True  # run compiled where all clients are in this process
    vote: Vote | None = None  # who draws the global coin
    network: NetworkAverage = field(default=central)  # who computes the network's average
    monitor: Monitor = field(default_factory=Monitor)  # what is "observed" after a step
    personal: Sequence[str] | None = None  # layers that nothing ties, nor what the objective keeps; None ties all

    def init(self, fed: Federation, w: Floats | None = None) -> State:
        """Line 1; the state before the first step, at w (d,) for all clients, by default zero."""
        described = require_all_replies(fed.ask(client_work.describe_clients))
        rank = int(described["rank"].max()) if self.closed and not self.batch else 0
        start_at: dict[str, Any] = {} if w is None else {"w": np.asarray(w, dtype=np.float64)}
        require_all_replies(fed.ask(client_work.start, gamma=PerRow(self.ties.gamma), rank=rank, **start_at))
        k, compiled = len(self.p), bool(rank or described["rows"].all()) and len(fed.clients) <= MOST_COMPILED
        state = {"t": 0, "status": "running", "between": 0, "within": np.zeros(k, dtype=np.int64)}
        mean = client_work.first_means(fed, k, int(described["dim"].max()), start_at.get("w", 0.0), self.personal)
        return state | {"compiled": compiled, "mean": mean, "weight": self.ties.Gamma}

    def step(self, fed: Federation, state: State) -> State:
        """One iteration."""
        return self.advance(fed, state, 1)

    @np.errstate(over="ignore", invalid="ignore")  # a divergence is found and named below
    def advance(self, fed: Federation, state: State, n: int) -> State:
        """n iterations; the state counts communications ``between`` clusters, and ``within`` each (k,)."""
        t, eta = state["t"], self.eta(state["t"]) if callable(self.eta) else self.eta
        heads = ClusterHeads(self.ties, state["mean"], state["weight"], self.personal)
        fed.mark(SNAPSHOT)
        p, vote = np.where(heads.tied, self.p, 0.0), self.vote or coins_and_averages.Coordinated(self.p0)
        compiled = state["compiled"] and self.compiled and self.network is central
        together = getattr(fed, "together", None) if compiled else None  # an engine with all clients in one process
        between, within, last = state["between"], state["within"], t + n
        before = coins_and_averages.previous(self.seed, t, vote, p)
        for first, xi0, xi in coins_and_averages.draw(self.seed, t, n, vote, p):
            counts = coins_and_averages.communications(xi0, xi, heads.equal, before)
            between, within, before = between + counts[0], within + counts[1], (bool(xi0[-1]), xi[-1])
            if together is not None:
                each = {"p": p, "alpha": self.ties.alpha, "tau": self.tau, "xi": xi.T}
                message: Any = {name: PerCluster(value) for name, value in each.items()}
                together(iterate_all, eta=eta, p0=self.p0, xi0=xi0, first=first, batch=self.batch, **message)
            else:
                parameters = eta, self.p0, p, self.ties.alpha, self.tau
                last = heads.iterate(fed, first, parameters, (xi0, xi), self.network, self.batch)
        outcome = {"mean": heads.mean, "weight": heads.weight} | client_work.observe(
            fed, self.monitor, last, heads.mean
        )
        return state | {"t": t + n, "between": between, "within": within, **outcome}
