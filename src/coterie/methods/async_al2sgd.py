"""Lyu, Hanzely, Kolar (2022), Algorithm 2: Async-AL2SGD+, L-Katyusha on the objective (2.1) of known clusters.

The estimator (4.1) is biased as printed: a global round lacks ``gamma_i tau_j (1 - alpha_j) / p_0`` times the cluster
term, which is here. Every gradient is ``h_i``, the whole one at the anchor x, and a change between x and theta.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.federation import Federation, PerRow, Site, require_all_replies, work
from coterie.methods.clustered_l2gd.client_work import (
    SNAPSHOT,
    Monitor,
    Reply,
    State,
    describe_clients,
    first_means,
    observe,
    tied,
    widened,
)
from coterie.methods.clustered_l2gd.coins_and_averages import Coordinated, NetworkAverage, Vote, central, draw
from coterie.methods.clustered_l2gd.fused_messages import AnchorHeads, Segment, segment
from coterie.methods.clustered_l2gd.nested_levels import Levels
from coterie.methods.stepwise import Stepwise
from coterie.numerics import keyed_random
from coterie.numerics.arrays import Bools, Floats, Ints
from coterie.objectives.gradient_steps import Draws, Momentum, full_gradient, katyusha
from coterie.objectives.parameters import precision
from coterie.relations.clusters import Ties


@work
def start(site: Site, gamma: Floats, w: Any = 0.0) -> Reply:
    """``x_i = y_i = z_i = w`` (d,), zero by default."""
    for name, value in (("theta", w), ("x", w), ("z", w), ("h", 0.0)):
        site.state[name] = np.full((len(site), site.objective.dim), value)
    site.state["gamma"] = gamma
    return {}


@work
def client_update(
    site: Site,
    momentum: Floats,
    c: Floats,
    u: Floats,
    v: Floats,
    fresh: Bools,
    refresh: bool,
    personal: Sequence[str] | None = None,
    **steps: Any,
) -> Reply:
    """The anchor's gradient where it is new, the communication that was decided last, local steps, what is asked next.

    A communication steps with ``g = h + gamma (c (theta - x) - u)``, c (k,), u (k, d); c is negative where there was
    none. v (k, d) is ``alpha_j xbar + (1 - alpha_j) xbar_j``, and ``fresh`` (k,) says where it is new. With
    ``refresh``, x moves to y, and averages of x are asked for instead of theta's.
    """
    j, gamma, x, y, z, h = site.clusters, *(site.state[name] for name in ("gamma", "x", "theta", "z", "h"))
    m, on = Momentum(*momentum), tied(site, personal)
    u, v, pull = widened(u, on), widened(v, on), gamma[:, None] if on is None else gamma[:, None] * on
    if fresh.any():
        new = np.flatnonzero(fresh[j])
        h = np.array(h)
        h[new] = full_gradient(site.objective.take(new), x[new]) + pull[new] * (x[new] - v[j[new]])
        site.state["h"] = h
        site.count(len(new))
    communicated = np.flatnonzero(c[j] >= 0.0)
    if len(communicated):
        theta = mix(m, x[communicated], y[communicated], z[communicated])
        g = h[communicated] + pull[communicated] * (
            c[j[communicated], None] * (theta - x[communicated]) - u[j[communicated]]
        )
        y, z = np.array(y), np.array(z)
        y[communicated], z[communicated] = theta - m.eta * g, m.b1 * z[communicated] + (1.0 - m.b1) * theta - m.pace * g
    draws = Draws(keyed_random.starts(site.seed, "rows", site.ids), steps["first"][j], steps["batch"])
    y, z = katyusha(site.objective, x, y, z, h, m, steps["scale"][j], steps["count"][j], draws)
    site.count(2 * int(steps["count"][j].sum()))
    site.state["theta"], site.state["z"] = y, z
    if refresh:
        site.state["x"] = y
    s = y if refresh else mix(m, x, y, z)
    s = gamma[:, None] * (s if on is None else s[:, on])
    return {"s": s.astype(precision(site.objective), copy=False), "g": gamma}


def mix(m: Momentum, x: Floats, y: Floats, z: Floats) -> Floats:
    """``theta = a_1 z + a_2 x + (1 - a_1 - a_2) y``."""
    return m.a1 * z + m.a2 * x + (1.0 - m.a1 - m.a2) * y


@dataclass(frozen=True)
class AsyncAL2SGD(Stepwise):
    """Algorithm 2 with the paper's symbols; ``clustered_l2gd.async_al2sgd_theory`` chooses them."""

    ties: Ties
    momentum: Momentum  # eta, a_1, a_2, b_1, b_2 of Theorem 4.3
    p0: float
    p: Floats
    tau: Floats
    rho: float
    seed: int = 0  # of the coins; rows are drawn by the engine's
    batch: int = 1  # rows of a local step, drawn with replacement: the paper's is 1; 0 takes all
    vote: Vote | None = None  # who draws the global coin
    network: NetworkAverage = field(default=central)  # who computes the network's average
    monitor: Monitor = field(default_factory=Monitor)  # what is "observed" after a step
    personal: Sequence[str] | None = None  # layers that nothing ties, nor what the objective keeps; None ties all
    q: tuple[Floats, ...] = ()  # probabilities (k,) of a communication within clusters of clusters, fine to coarse

    def init(self, fed: Federation, w: Floats | None = None) -> State:
        """The state before the first step, at w (d,) for all clients, by default zero."""
        described = require_all_replies(fed.ask(describe_clients))
        start_at: dict[str, Any] = {} if w is None else {"w": np.asarray(w, dtype=np.float64)}
        require_all_replies(fed.ask(start, gamma=PerRow(self.ties.gamma), **start_at))
        k, d = len(self.p), int(described["dim"].max())
        x = first_means(fed, k, d, start_at.get("w", 0.0), self.personal)
        counts = {"between": 0, "within": np.zeros(k, dtype=np.int64), "refreshes": 0}
        fresh = np.ones(k, dtype=bool)
        return {"t": 0, "status": "running", "means": np.stack([x] * (2 + len(self.q))), "fresh": fresh, **counts}

    def step(self, fed: Federation, state: State) -> State:
        """One iteration."""
        return self.advance(fed, state, 1)

    @np.errstate(over="ignore", invalid="ignore")  # a divergence is found and named below
    def advance(self, fed: Federation, state: State, n: int) -> State:
        """n iterations; counts communications ``between`` clusters, ``within`` each (k,), and ``refreshes``."""
        fed.mark(SNAPSHOT)
        p, last = np.where(self.ties.Gamma > 0.0, self.p, 0.0), state["t"] + n
        levels = Levels.of(self.ties, self.p0, p, self.q, self.tau)
        means = state["means"], state["fresh"]
        heads = AnchorHeads(fed, client_update, self.momentum, levels, self.batch, *means, self.personal)
        counts = {name: state[name] for name in ("between", "within", "refreshes")}
        for t, xi0, xi in draw(self.seed, state["t"], n, self.vote or Coordinated(self.p0), p):
            steps = np.arange(t, t + len(xi0))
            moves = keyed_random.uniform(self.seed, "anchor coin", np.zeros(len(steps)), steps, 1)[:, 0] < self.rho
            last, more = self.iterate(heads, t, levels.drawn(self.seed, t, xi0), xi, moves)
            counts = {name: count + more[name] for name, count in counts.items()}
        outcome = observe(fed, self.monitor, last, heads.u, heads.average)
        anchor = {"means": np.stack(heads.means), "fresh": heads.fresh}
        return state | {"t": state["t"] + n} | anchor | counts | outcome

    def iterate(self, heads: AnchorHeads, t: int, above: Ints, xi: Bools, moves: Bools) -> tuple[int, dict[str, Any]]:
        """Steps from t on; the last whose averages were finite, or the first whose were not, and communications."""
        k, begin = xi.shape[1], 0
        everyone, none, kept = np.ones(k, dtype=bool), np.zeros(k, dtype=bool), np.zeros(k, dtype=np.int64)
        sent: dict[str, Any] = {"between": 0, "within": np.zeros(k, dtype=np.int64), "refreshes": 0}
        for now in np.flatnonzero(above.any(axis=1) | moves):
            s = segment(t + begin, xi[begin : now + 1], none, above[now], kept)
            sent["within"] += self.cluster_rounds(heads, s)
            rest, speak = s.rest, s.level > 0
            if s.ends:
                mean, weight = heads.exchange(speak, rest, s.restart)
                heads.communicated(np.where(speak, s.level, -1), mean, weight, self.network)
                rest = np.where(speak, 0, rest)
                network = s.level == len(heads.means) - 1
                sent["between"] += bool(network.any())
                sent["within"] += speak & ~network
            if moves[now]:
                average, weight = heads.exchange(everyone, rest, s.restart, refresh=True)
                heads.means, heads.fresh = heads.levels.ties.level_means(average, weight), everyone.copy()
                heads.means[-1] = self.network(heads.levels.ties.passed[-1] * weight, average)
                sent["refreshes"] += 1
                rest = np.zeros_like(rest)
            begin, kept = int(now) + 1, rest
            if not (np.isfinite(heads.u).all() and np.isfinite(heads.average).all()):
                return t + begin - 1, sent
        s = segment(t + begin, xi[begin:], none, np.zeros(k), kept)
        sent["within"] += self.cluster_rounds(heads, s)
        unfinished = (s.rest > 0) | heads.pending()
        if unfinished.any():
            heads.exchange(unfinished, s.rest, s.restart)
        return t + len(xi), sent

    def cluster_rounds(self, heads: AnchorHeads, s: Segment) -> Ints:
        """All communications within clusters of one segment; how many each (k,) had."""
        for steps, first in zip(s.steps, s.start, strict=True):
            speak = steps >= 0
            mean, weight = heads.exchange(speak, np.maximum(steps, 0), first)
            heads.communicated(np.where(speak, 0, -1), mean, weight, self.network)
        return np.asarray(np.sum(s.steps >= 0, axis=0))
