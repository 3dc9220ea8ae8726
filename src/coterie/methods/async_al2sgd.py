"""Lyu, Hanzely, Kolar (2022), Algorithm 2: Async-AL2SGD+, L-Katyusha on the objective (2.1) of known clusters.

The estimator (4.1) is biased as printed: a global round lacks ``gamma_i tau_j (1 - alpha_j) / p_0`` times the cluster
term, which is here. Every gradient is ``h_i``, the whole one at the anchor x, and a change between x and theta.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from coterie.federation import Federation, Site, require_all_replies, work
from coterie.methods.clustered_l2gd import client_work
from coterie.methods.clustered_l2gd.client_work import SNAPSHOT, Reply, State, parts, widened
from coterie.methods.clustered_l2gd.cluster_rounds import ClusterRounds, draw
from coterie.methods.clustered_l2gd.fused_messages import AnchorHeads, Segment, segment
from coterie.numerics import keyed_random
from coterie.numerics.arrays import Bools, Floats, Ints
from coterie.objectives.gradient_steps import Draws, Momentum, full_gradient, katyusha
from coterie.objectives.parameters import precision


@work
def start(site: Site, gamma: Floats, w: Any = 0.0) -> Reply:
    """``x_i = y_i = z_i = w`` (d,), zero by default."""
    for name, value in (("theta", w), ("x", w), ("z", w), ("h", 0.0)):
        site.state[name] = np.full((len(site), site.objective.dim), value)
    site.state["gamma"], site.state["anchor"] = gamma, np.full(len(site), -1)
    return {}


@work
def client_update(
    site: Site,
    momentum: Floats,
    c: Floats,
    u: Floats,
    v: Floats,
    anchor: int,
    refresh: bool,
    shared: Any = None,
    copies: Any = None,
    ask: bool = False,
    **more: Any,
) -> Reply:
    """The anchor's gradient where it is new, the communication that was decided last, local steps, what is asked next.

    A communication steps with ``g = h + gamma (c (theta - x) - u)``, c (k,), u (k, d); c is negative where there was
    none. v (k, d) is ``alpha_j xbar + (1 - alpha_j) xbar_j``, that of ``anchor``, its number: a client whose h is of
    another one, because it was away, makes a new h. With ``refresh``, x moves to y, and averages of x are asked for
    instead of theta's. In what all clients share, h and x are ``shared`` (2, d2), and y and z after the communication
    are ``copies`` (k, 2, d2).
    """
    steps = {name: more.pop(name) for name in ("scale", "count", "first", "batch")}
    j, gamma, x, y, z, h = site.clusters, *(site.state[name] for name in ("gamma", "x", "theta", "z", "h"))
    m, (on, one) = Momentum(*momentum), parts(site, **more)
    u, v, pull = widened(u, on), widened(v, on), gamma[:, None] if on is None else gamma[:, None] * on
    new = np.flatnonzero(site.state["anchor"] != anchor)
    if len(new):
        x, h = np.array(x), np.array(h)
        if copies is not None:
            x[:, one] = shared[1]
        f = full_gradient(site.objective.take(new), x[new])
        h[new] = f + pull[new] * (x[new] - v[j[new]])
        if copies is not None:
            own = np.array(site.state["own"])
            own[new], h[:, one] = f[:, one], shared[0]
            site.state["own"] = own
        site.state["x"], site.state["h"], site.state["anchor"] = x, h, np.full(len(site), anchor)
        site.count(len(new))
    communicated = np.flatnonzero(c[j] >= 0.0)
    if len(communicated):
        theta = m.mix(x[communicated], y[communicated], z[communicated])
        far = c[j[communicated], None] * (theta - x[communicated]) - u[j[communicated]]
        g = h[communicated] + pull[communicated] * far
        y, z = np.array(y), np.array(z)
        y[communicated], z[communicated] = m.step(theta, z[communicated], g)
    if copies is not None:
        y, z = np.array(y), np.array(z)
        y[:, one], z[:, one] = copies[j, 0], copies[j, 1]
    draws = Draws(keyed_random.starts(site.seed, "rows", site.ids), steps["first"][j], steps["batch"])
    moves = None if copies is None else ~one
    y, z = katyusha(site.objective, x, y, z, h, m, steps["scale"][j], steps["count"][j], draws, moves)
    site.count(2 * int(steps["count"][j].sum()))
    site.state["theta"], site.state["z"] = y, z
    if refresh:
        site.state["x"] = y
    at, exact, reply = y if refresh else m.mix(x, y, z), precision(site.objective), Reply()
    if ask:
        f = full_gradient(site.objective, at)[:, one]
        reply = {"f": (f if refresh else f - site.state["own"]).astype(exact), "n": np.ones(len(site))}
        site.count(len(site))
    s = gamma[:, None] * (at if on is None else at[:, on])
    return reply | {"s": s.astype(exact, copy=False), "g": gamma}


@dataclass(frozen=True)
class AsyncAL2SGD(ClusterRounds):
    """Algorithm 2."""

    momentum: Momentum  # eta, a_1, a_2, b_1, b_2 of Theorem 4.3
    rho: float
    _: KW_ONLY
    batch: int = 1  # rows of a local step, drawn with replacement: the paper's is 1; 0 takes all

    def init(self, fed: Federation, w: Floats | None = None) -> State:
        """The state before the first step, at w (d,) for all clients, by default zero."""
        d = int(require_all_replies(fed.ask(client_work.describe_clients))["dim"].max())
        x, shared, tied = self.begin(fed, start, d, w)
        told = np.zeros((2, 0))
        if len(shared):
            told = np.stack([client_work.first_gradient(fed, self.parts, self.free), shared])
        k = len(self.p)
        state = {"t": 0, "status": "running", "between": 0, "within": np.zeros(k, dtype=np.int64), "refreshes": 0}
        state |= {"means": np.stack([x] * (2 + len(self.q))), "fresh": np.ones(k, dtype=bool), "shared": told}
        return state | {"copies": np.tile(shared, (k, 2, 1)), "tied": tied}

    @np.errstate(over="ignore", invalid="ignore")  # a divergence is found and named below
    def advance(self, fed: Federation, state: State, n: int) -> State:
        """n iterations; counts communications ``between`` clusters, ``within`` each (k,), and ``refreshes``."""
        fed.mark(SNAPSHOT)
        levels, last = self.levels, state["t"] + n
        heads = AnchorHeads(fed, self, client_update, state)
        counts = {name: state[name] for name in ("between", "within", "refreshes")}
        for t, xi0, xi in draw(self.seed, state["t"], n, self.coin, levels.coins[0]):
            steps = np.arange(t, t + len(xi0))
            moves = keyed_random.uniform(self.seed, "anchor coin", np.zeros(len(steps)), steps, 1)[:, 0] < self.rho
            last, more = self.iterate(heads, t, levels.drawn(self.seed, t, xi0), xi, moves)
            counts = {name: count + more[name] for name, count in counts.items()}
        outcome = client_work.observe(fed, self.monitor, last, heads.u, heads.average, heads.shared, heads.copies)
        new = {"means": np.stack(heads.means), "fresh": heads.fresh, "shared": heads.shared, "copies": heads.copies}
        return state | {"t": state["t"] + n} | new | counts | outcome

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
                network = s.level == len(heads.means) - 1
                mean, weight = heads.exchange(speak, rest, s.restart, ask=bool(network.any()))
                heads.communicated(np.where(speak, s.level, -1), mean, weight)
                rest = np.where(speak, 0, rest)
                sent["between"] += bool(network.any())
                sent["within"] += speak & ~network
            if moves[now]:
                average, weight = heads.exchange(everyone, rest, s.restart, refresh=True)
                heads.moved(average, weight)
                sent["refreshes"] += 1
                rest = np.zeros_like(rest)
            begin, kept = int(now) + 1, rest
            if not all(np.isfinite(found).all() for found in (heads.u, heads.average, heads.shared, heads.copies)):
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
            heads.communicated(np.where(speak, 0, -1), mean, weight)
        return np.asarray(np.sum(s.steps >= 0, axis=0))
