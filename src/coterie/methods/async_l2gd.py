"""Lyu, Hanzely, Kolar (2022), Algorithm 1: Async-L2GD, for the objective (2.1) of known clusters.

At every step a coin decides between a communication between clusters (probability p_0), within a cluster (p_j, each
cluster for itself) and a local gradient step. With p_j = 0 and tau_j = 1 this is the one-coin variant of section 6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.federation import Clusters, Federation, PerCluster, PerRow, Site, work
from coterie.methods.replies import require_all_replies
from coterie.methods.rounds.at_home import MARK, Look, Reply, State, shape, start, stop
from coterie.methods.rounds.coins import Coordinated, Vote, draw, segments
from coterie.methods.rounds.counts import before, communications
from coterie.methods.rounds.heads import Heads, Network, central
from coterie.methods.rounds.together import TOGETHER, iterate_all
from coterie.methods.stepwise import Stepwise
from coterie.numerics import keyed
from coterie.numerics.kernels import Bools, Floats, Ints, pull, weighted_rows
from coterie.objectives.spectrum import leap
from coterie.objectives.steps import Draws, descend
from coterie.relations.ties import Ties


@work
def run(site: Site, c: Floats, u: Floats, step: Floats, steps: Ints, first: Ints, batch: int) -> Reply:
    """Lines 7 and 13, the pull that was decided last; then line 15, ``steps`` times; what averages are made from."""
    j, gamma = site.clusters, site.state["gamma"]
    theta = pull(site.state["theta"], gamma, c, u, j)
    if "values" in site.state:
        basis = site.state["values"], site.state["vectors"], site.state["goal"]
        theta = leap(theta, *basis, step[j], steps[j])
    else:
        draws = Draws(keyed.starts(site.seed, "rows", site.ids), first[j], batch)
        theta = descend(site.objective, theta, step[j], steps[j], draws)
    site.state["theta"] = theta
    site.count(int(steps[j].sum()))
    return {"s": weighted_rows(theta, gamma), "g": gamma}


@dataclass(frozen=True)
class AsyncL2GD(Stepwise):
    """Algorithm 1 with the paper's symbols; ``rounds.l2gd_theory`` chooses them.

    Attributes
    ----------
    ties : Ties
        gamma_i and alpha_j.
    eta : float or callable
        Step size, or ``eta(t)``, which is held from one stop of the run to the next.
    p0 : float
    p, tau : (k,)
    seed : int
        Of the coins; rows are drawn by the engine's.
    batch : int
        Rows of a local step, drawn with replacement; 0 takes all.
    closed, together : bool
        Take runs of steps on quadratics in closed form; run compiled where all clients are in this process.
    vote, network, look
        Who draws the global coin, computes the network's average (``rounds.peers``), and is "seen" after a step.
    """

    ties: Ties
    eta: float | Callable[[int], float]
    p0: float
    p: Floats
    tau: Floats
    seed: int = 0
    batch: int = 0
    closed: bool = True
    together: bool = True
    vote: Vote | None = None
    network: Network = field(default=central)
    look: Look = field(default_factory=Look)

    def init(self, fed: Federation, w: Floats | None = None) -> State:
        """Line 1; the state before the first step, at w (d,) for all clients, by default zero."""
        about = require_all_replies(fed.ask(shape))
        rank = int(about["rank"].max()) if self.closed and not self.batch else 0
        at: dict[str, Any] = {} if w is None else {"w": np.asarray(w, dtype=np.float64)}
        require_all_replies(fed.ask(start, gamma=PerRow(self.ties.gamma), rank=rank, **at))
        k, compiled = len(self.p), bool(rank or about["rows"].all()) and len(fed.clients) <= TOGETHER
        state = {"t": 0, "status": "running", "between": 0, "within": np.zeros(k, dtype=np.int64)}
        mean = np.full((k, int(about["dim"].max())), at.get("w", 0.0))
        return state | {"compiled": compiled, "mean": mean, "weight": self.ties.Gamma}

    def step(self, fed: Federation, state: State) -> State:
        """One iteration."""
        return self.advance(fed, state, 1)

    @np.errstate(over="ignore", invalid="ignore")  # a divergence is found and named below
    def advance(self, fed: Federation, state: State, n: int) -> State:
        """n iterations; the state counts communications ``between`` clusters, and ``within`` each (k,)."""
        t, eta = state["t"], self.eta(state["t"]) if callable(self.eta) else self.eta
        heads = Heads(self.ties, state["mean"], state["weight"])
        fed.mark(MARK)
        p, vote = np.where(heads.tied, self.p, 0.0), self.vote or Coordinated(self.p0)
        compiled = state["compiled"] and self.together and self.network is central and hasattr(fed, "together")
        between, within, last = state["between"], state["within"], t + n
        coins = before(self.seed, t, vote, p)
        for at, globally, locally in draw(self.seed, t, n, vote, p):
            counts = communications(globally, locally, heads.equal, coins)
            between, within, coins = between + counts[0], within + counts[1], (bool(globally[-1]), locally[-1])
            if compiled:
                iterate_all(fed, self, at, eta, p, globally, locally)
            else:
                last = self._exchanged(fed, heads, at, eta, p, globally, locally)
        heard = {"mean": heads.mean, "weight": heads.weight} | stop(fed, self.look, last, heads.mean)
        return state | {"t": t + n, "between": between, "within": within, **heard}

    def _exchanged(
        self, fed: Federation, heads: Heads, t: int, eta: float, p: Floats, globally: Bools, locally: Bools
    ) -> int:
        """Iterations from t on as exchanges; the last whose averages were finite, or the first whose were not."""
        alpha, tau, p0 = self.ties.alpha, self.tau, self.p0
        local = eta / ((1.0 - p0) * (1.0 - p))
        own = np.divide(eta * (1.0 - tau) * (1.0 - alpha), (1.0 - p0) * p, out=np.zeros(len(p)), where=p > 0.0)
        both = alpha + tau * (1.0 - alpha)

        def ask(mask: Bools, steps: Ints, first: Ints) -> None:
            to = None if mask.all() else Clusters(mask)
            sent = {"c": heads.c, "u": heads.u, "step": local, "steps": steps, "first": first}
            message: Any = {name: PerCluster(value) for name, value in sent.items()}
            heads.heard(mask, fed.total(run, to=to, by="cluster", batch=self.batch, **message))

        for s in segments(globally, locally, t, heads.equal):
            heads.gather(s.before, own)
            for steps, first, pulls in zip(s.steps, s.start, s.pulls, strict=True):
                ask(steps >= 0, np.maximum(steps, 0), first)
                heads.gather(pulls, own)
            speaks = (s.rest > 0) | (heads.silent() if s.ends else heads.pending())
            if speaks.any():
                ask(speaks, s.rest, s.restart)
            if s.ends:
                network = self.network(alpha * heads.weight, heads.mean)
                towards = alpha[:, None] * network + (tau * (1.0 - alpha))[:, None] * heads.mean
                heads.pull(eta / p0 * both, eta / p0 * towards)
            if not np.isfinite(heads.mean).all():
                return s.last
        return t + len(globally)
